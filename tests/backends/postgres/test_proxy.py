"""Postgres behind a proxy that loses replies, delays requests past their retry and resets: nothing is applied twice."""

import gc
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import campaign, pg_server
from support.proxy import Fate, Proxy, always

from tenuto import Tenuto
from tenuto.backends.postgres import PostgresBackend
from tenuto.errors import Conflict, RequestExpired, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import REQUEST_LIFE, Append, Check, Delete, Put
from tenuto.kernel.transact import new_request, own_request

SUPPORT = Path(__file__).parents[2] / "support"
A, LOG = keys.pack("t", "s", "a"), keys.pack("t", "s", "log")
MARKS = (b"tenuto_", b"commit_")
"""What a call contains: the name of a prepared statement, or that of a function."""


def proxied(server: Any) -> Proxy:
    folder = psycopg.conninfo.conninfo_to_dict(server.url)["host"]
    return Proxy(f"{folder}/.s.PGSQL.5432")


def through(proxy: Proxy, schema: str, **options: Any) -> PostgresBackend:
    url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?sslmode=disable&gssencmode=disable"
    return PostgresBackend(pg_server.with_options(url, schema=schema, **options))


@pytest.fixture
def store(server: Any, schema: str) -> Iterator[PostgresBackend]:
    opened = pg_server.backend(server, schema)
    opened._sweep_due = float("inf")
    yield opened
    opened.close()


def once(fate: Fate) -> Any:
    """Return a `fate` for the next commit only."""
    left = [fate]
    return lambda request: left.pop() if left and any(mark in request for mark in MARKS) else Fate.PASS


@pytest.mark.timeout(3600)
@pytest.mark.scorecard(12)
def test_a_storm_of_faults_applies_nothing_twice_and_tells_no_untruth(server: Any, schema: str, figures: Any) -> None:
    with proxied(server) as proxy:
        store, direct = through(proxy, schema, timeout=1), pg_server.backend(server, schema)
        told = campaign.run(store, direct, proxy, MARKS)
        figures(calls=campaign.CALLS, doubled=0, wrong=0, faults=sum(proxy.happened.values()))
        assert told["applied"] > campaign.CALLS / 3
        assert proxy.happened[Fate.LATE] > campaign.CALLS / 100
        store.close()
        direct.close()


def test_a_request_that_arrives_after_its_retry_is_not_applied_again(server: Any, schema: str) -> None:
    with proxied(server) as proxy:
        agent = Tenuto("a", through(proxy, schema, timeout=5))
        for n in range(3):
            agent.state.set("s", "k", n)
        proxy.fate = once(Fate.LATE)

        agent.state.set("s", "k", "A")  # sent, given up, sent again
        agent.state.set("s", "k", "B")

        pg_server.eventually(proxy.settled)
        assert proxy.happened[Fate.LATE] == 1
        assert agent.state.get("s", "k") == "B"
        assert [one.value for one in agent.state.history("s", "k")] == ["B", "A", 2, 1, 0]
        agent.close()


@pytest.mark.parametrize("writes", [[Put(A, b"v")], [Put(A, b"v"), Append(LOG, b"e")], [Append(LOG, b"e")]])
def test_the_primary_key_refuses_a_first_sending_that_comes_after_its_retry(
    store: PostgresBackend, writes: Any
) -> None:
    store.commit([], [Put(A, b""), Append(LOG, b"")])
    request = new_request(store.now())
    store._committed([], writes, request, first=False)
    before = store.read([A]), store.entries(LOG)

    with pytest.raises(StorageUnavailable, match="duplicate key") as error:
        store._committed([], writes, request, first=True)

    assert error.value.outcome == "not applied"
    assert (store.read([A]), store.entries(LOG)) == before


def test_a_first_sending_that_comes_when_its_id_is_forgotten_is_refused(store: PostgresBackend) -> None:
    store.commit([], [Put(A, b"1")])
    with pytest.raises(RequestExpired):
        store._committed([], [Put(A, b"2")], new_request(store.now() - REQUEST_LIFE - 1), first=True)
    [record] = store.read([A])
    assert record is not None
    assert record.version == 1


@pytest.mark.parametrize("first", [True, False])
def test_a_sending_that_comes_after_a_later_one_was_refused_is_not_applied(
    store: PostgresBackend, server: Any, schema: str, first: bool
) -> None:
    other = pg_server.backend(server, schema)
    store.commit([], [Put(A, b"in the way")])
    request, mine = new_request(store.now()), ([Check(A, 0)], [Put(A, b"mine")])
    commit = store._calls.commit

    def refused_meanwhile(*call: Any) -> bytes:
        with pytest.raises(Conflict) as error:
            other._committed(*mine, request, first=False)
        assert error.value.keys == (A,)
        other.commit([], [Delete(A)])
        return commit(*call)

    store._calls.commit = refused_meanwhile  # type: ignore[method-assign]
    with pytest.raises((Conflict, StorageUnavailable)):  # the primary key, or the time of sending
        store._committed(*mine, request, first=first)
    store._calls.commit = commit  # type: ignore[method-assign]

    assert store.read([A]) == [None]
    # The caller may still decide to send it again: then the checks decide anew.
    assert store._committed(*mine, request, first=False)[0].versions == (3,)
    assert store._committed(*mine, request, first=False)[0].repeated
    assert store.check() == []
    other.close()


def test_a_lost_reply_stays_unknown_when_its_retry_cannot_connect(server: Any, schema: str) -> None:
    with proxied(server) as proxy:
        agent = Tenuto("a", through(proxy, schema, timeout=5))
        for _ in range(3):
            agent.thread("t").append({"role": "user", "content": "1"})
        proxy.fate = lambda request: setattr(proxy, "refusing", True) or Fate.CUT_REPLY

        with pytest.raises(StorageUnavailable) as error:
            agent.thread("t").append({"role": "user", "content": "2"})

        assert error.value.outcome == "unknown"
        assert "Nothing was written" not in str(error.value)
        proxy.fate, proxy.refusing = always(Fate.PASS), False
        assert agent.thread("t").count() == 4
        agent.close()


def test_a_client_whose_clock_is_two_hours_behind_corrects_it_and_commits(store: PostgresBackend) -> None:
    agent = Tenuto("a", store)
    agent.state.set("s", "k", 1)
    estimate = store._clock._estimate
    assert estimate is not None
    store._clock._estimate = estimate._replace(offset=estimate.offset - 7200)
    store._clock._latest = 0.0
    behind = own_request(store.now())

    assert agent.state.set("s", "k", 2) == 2

    assert store.now() - store.commit([], [Put(A, b"")]).at < 5
    assert store.commit([], [Put(A, b"made before, never sent")], request=behind).versions == (2,)
    with pytest.raises(RequestExpired):  # it may have been sent before
        store.commit([], [Put(A, b"")], request=new_request(store.now() - 7200))


@pytest.mark.slow
def test_a_storm_of_interrupts_takes_no_connection_from_the_pool(server: Any, schema: str) -> None:
    url = pg_server.with_options(server.url, schema=schema, pool=3, timeout=3)
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "interrupted.py"), url, "6"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    print(found)
    assert found["interrupted"] > 100
    assert found["failed"] == []
    assert found["in_use"] == 0
    assert found["left"] <= 3
    assert found["after"] <= 0


# -- the pool ----------------------------------------------------------------------------------------


def test_a_pool_never_opens_more_than_its_size_and_serves_all_who_wait(server: Any, schema: str) -> None:
    store = pg_server.backend(server, schema, pool=3)
    store.open()
    threads = [
        threading.Thread(target=lambda: [store.commit([], [Append(LOG, b"e")]) for _ in range(5)]) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.entries(LOG)) == 100
    assert store._pool.opened <= 3
    pg_server.eventually(lambda: store._pool.lent == 0)  # a thread may still be sending the last notification
    assert store._pool.idle == store._pool.opened
    store.close()


def test_a_connection_that_was_dropped_gives_its_place_to_who_waits(server: Any, schema: str) -> None:
    store = pg_server.backend(server, schema, pool=1)
    store.commit([], [Put(A, b"v")])
    pg_server.eventually(lambda: store._pool.lent == 0)
    dropped = [store._pool._take(5)]  # as a call that Control-C met right after this
    assert store._pool.lent == 1
    read: list[Any] = []
    waiting = threading.Thread(target=lambda: read.extend(store.read([A])))
    waiting.start()
    pg_server.eventually(lambda: store._pool._waiting)

    dropped.clear()

    waiting.join(10)
    assert [record.value for record in read] == [b"v"]
    store.close()


def test_who_waits_too_long_for_a_connection_is_told_so(server: Any, schema: str) -> None:
    store = pg_server.backend(server, schema, pool=1)
    store.open()
    with store._pool.lend():
        with pytest.raises(StorageUnavailable, match="All 1 connections") as error, store._pool.lend(0.1):
            pass
        assert error.value.outcome == "not applied"
    assert store.commit([], [Put(A, b"v")]).versions == (1,)
    store.close()


def test_connections_that_fail_leave_their_places_free_without_the_garbage_collector(server: Any, schema: str) -> None:
    with proxied(server) as proxy:
        store = through(proxy, schema, pool=2, timeout=5)
        store.open()
        store._pool.drop_idle()
        proxy.refusing = True
        gc.disable()
        try:
            kept = []
            for _ in range(5):
                with pytest.raises(StorageUnavailable) as error:
                    store.read([A])
                kept.append(error)
            assert store._pool.lent == 0
        finally:
            gc.enable()
        store.close()


def test_who_comes_when_all_are_idle_or_lent_takes_the_idle_one(server: Any, schema: str) -> None:
    store = pg_server.backend(server, schema, pool=1)
    store.open()
    store._sweep_due = float("inf")
    pool = store._pool
    unused = pool._unused
    late: list[Any] = []

    def idle_after_the_first_look() -> Any:
        if not late:
            late.append(pool._idle.pop())
            found = unused()
            pool._idle.append(late[0])  # it came back right after somebody looked, and nobody was waiting yet
            return found
        return unused()

    pool._unused = idle_after_the_first_look  # type: ignore[method-assign]
    assert store.commit([], [Put(A, b"v")]).versions == (1,)
    assert pool.opened == 1
    store.close()
