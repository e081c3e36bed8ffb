"""The short way of the commit that is made most: it does what the long way does, whatever it finds."""

import threading
from typing import Any

import pytest
from support import pg_server
from support.short_commits import LOG, A, outcomes

from tenuto.backends.postgres import commit as committing
from tenuto.errors import Conflict, RequestExpired, RequestReused
from tenuto.kernel.clock import SystemClock
from tenuto.kernel.contract import REQUEST_LIFE, Append, Check, Put
from tenuto.kernel.transact import commit_once, new_request
from tenuto.kernel.work import perform
from tenuto.testing import HeldClock


@pytest.mark.parametrize("durability", ["full", "process"])
@pytest.mark.parametrize("requested", [False, True])
def test_it_does_what_the_long_way_does(
    server: Any, schema: str, durability: Any, requested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for _ in range(2):
        clock = HeldClock()
        store = pg_server.backend(server, schema, clock=clock, durability=durability)
        found.append(outcomes(store, clock, requested=requested))
        store.close()
        server.execute(f'DROP SCHEMA "{schema}" CASCADE')
        monkeypatch.setattr(committing, "one", lambda *_: None)

    short, long = found
    assert short == long
    assert short[-1] == []
    print(*short[:-4], sep="\n")


def test_it_is_taken_where_it_can_be(server: Any, schema: str) -> None:
    store = pg_server.backend(server, schema)
    store.commit([], [Put(A, b"v"), Append(LOG, b"e")])
    server.execute(f'ALTER FUNCTION "{schema}".commit_v1 RENAME TO elsewhere')

    assert store.commit([Check(A, 1)], [Put(A, b"w"), Append(LOG, b"e")]).versions == (2, 2)
    assert perform(commit_once(store, [], [Put(A, b"w")]), SystemClock()).versions == (3,)
    assert store.commit([], [Append(LOG, b"e")]).versions == (3,)
    assert store.commit([Check(A, 3)], [Append(LOG, b"e")]).versions == (4,)
    store.close()


def test_a_store_of_the_format_before_gets_the_function_that_appends_under_a_lease(server: Any, schema: str) -> None:
    store = pg_server.backend(server, schema)
    store.commit([], [Put(A, b"v"), Append(LOG, b"e")])
    store.close()
    server.execute(f'DROP FUNCTION "{schema}".commit_one_v1')
    server.execute(f'DELETE FROM "{schema}".migrations WHERE number = 4')

    store = pg_server.backend(server, schema)
    assert store.commit([Check(A, 1)], [Append(LOG, b"e")]).versions == (2,)
    assert store.read([A])[0].version == 1
    store.close()


def test_a_request_is_known_known_for_another_commit_or_too_old(server: Any, schema: str) -> None:
    clock = HeldClock()
    store = pg_server.backend(server, schema, clock=clock)
    store.commit([], [Put(A, b"v"), Append(LOG, b"e")])
    unused, request = new_request(store.now()), new_request(store.now())
    done = store.commit([Check(A, 1)], [Put(A, b"w"), Append(LOG, b"e")], request=request)
    assert store.commit([Check(A, 1)], [Put(A, b"w"), Append(LOG, b"e")], request=request) == done._replace(
        repeated=True
    )
    with pytest.raises(RequestReused):
        store.commit([], [Put(A, b"w"), Append(LOG, b"e")], request=request)
    clock.advance(REQUEST_LIFE + 1)
    with pytest.raises(RequestExpired):
        store.commit([], [Put(A, b"w"), Append(LOG, b"e")], request=unused)
    assert store.read([A])[0].version == 2
    store.close()


@pytest.mark.parametrize("way", ["short", "long"])
def test_a_request_sent_again_while_it_is_under_way_waits_for_its_outcome(
    server: Any, schema: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "long":
        monkeypatch.setattr(committing, "one", lambda *_: None)
    one, two = pg_server.backend(server, schema), pg_server.backend(server, schema)
    one.commit([], [Put(A, b"v"), Append(LOG, b"e")])
    two.open()
    request = new_request(one.now())
    done: list[Any] = []

    def send(store: Any) -> None:
        try:
            done.append(store.commit([Check(A, 1)], [Put(A, b"w"), Append(LOG, b"e")], request=request))
        except Conflict as error:
            done.append(error)

    def waiting(count: int) -> bool:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'tenuto'"
        return server.execute(sql) == [(count,)]

    with pg_server.psycopg.connect(server.url) as other:
        other.execute(f'SELECT FROM "{schema}".records FOR UPDATE')
        threads = [threading.Thread(target=send, args=(store,)) for store in (one, two)]
        for count, thread in enumerate(threads, 1):
            thread.start()
            pg_server.eventually(lambda count=count: waiting(count))
        other.rollback()
    for thread in threads:
        thread.join()

    assert [outcome.versions for outcome in done] == [(2, 2), (2, 2)]
    assert sorted(outcome.repeated for outcome in done) == [False, True]
    one.close()
    two.close()


def test_times_follow_one_another_also_for_those_who_had_to_wait(server: Any, schema: str) -> None:
    store = pg_server.backend(server, schema, pool=8)
    store.commit([], [Put(A, b"v"), Append(LOG, b"e")])
    done: list[Any] = []

    def work() -> None:
        done.extend(store.commit([], [Put(A, b"v")]) for _ in range(30))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    done.sort(key=lambda commit: commit.versions)
    assert [commit.versions for commit in done] == [(n,) for n in range(2, 182)]
    assert [commit.at for commit in done] == sorted(commit.at for commit in done)
    store.close()


def test_times_in_a_stream_do_not_go_back_with_a_clock_that_is_behind(server: Any, schema: str) -> None:
    ahead, behind = HeldClock(), HeldClock()
    behind.advance(-100)
    one, two = (pg_server.backend(server, schema, clock=clock) for clock in (ahead, behind))
    one.commit([], [Put(A, b"v"), Append(LOG, b"e")])

    done = two.commit([], [Put(A, b"w"), Append(LOG, b"f")])

    assert (done.at, two.read([A])[0].written_at) == (behind.time(), behind.time())
    assert [entry.written_at for entry in two.entries(LOG)] == [ahead.time(), ahead.time()]
    assert two.check() == []
    one.close()
    two.close()


def test_a_value_that_is_a_record_s_and_its_entry_s_is_sent_once(server: Any, schema: str) -> None:
    value = b"v" * 10_000
    sent = committing.one(3, [], [Put(A, value), Append(LOG, value)], [b"", b""])
    assert sent is not None
    assert sum(len(part) for part in sent if part is not None) < 11_000
    store = pg_server.backend(server, schema)
    for at, stored in enumerate((value, value, b"", value[1:]), 1):  # there is no stream yet, then there is
        assert store.commit([], [Put(A, stored), Append(LOG, stored)]).versions == (at, at)
        [record] = store.read([A])
        assert record is not None
        assert record.value == stored == store.entries(LOG)[-1].value
    assert store.commit([], [Put(A, b"one"), Append(LOG, b"another")]).versions == (5, 5)
    assert [one and one.value for one in store.read([A])] == [b"one"]
    assert store.check() == []
    store.close()
