"""Many at once: creating what is absent, write skew, counting from real processes, the capabilities on top."""

import multiprocessing
import threading
from typing import Any

import pytest
from support import pg_server

from tenuto import Tenuto
from tenuto.backends.postgres import PostgresBackend
from tenuto.errors import Conflict, InvalidInput, LeaseHeld
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, CheckEnd, Put

ROUNDS = 300


def key(*parts: str | int) -> bytes:
    return keys.pack("tenant", "scope", *parts)


def in_step(works: list[Any]) -> list[list[bool]]:
    """Run each work for every round in a thread of its own, all rounds begun together; return who won."""
    barrier = threading.Barrier(len(works))
    won: list[list[bool]] = [[] for _ in works]

    def run(at: int) -> None:
        for n in range(ROUNDS):
            barrier.wait(60)
            try:
                works[at](n)
                won[at].append(True)
            except Conflict:
                won[at].append(False)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(rounds) == ROUNDS for rounds in won), "a thread ended early"
    return won


@pytest.mark.slow
def test_of_three_hundred_races_to_create_a_key_each_has_one_winner(server: Any, schema: str) -> None:
    stores = [pg_server.backend(server, schema, durability="process") for _ in range(3)]
    stores[0].open()
    won = in_step(
        [
            lambda n, s=s, own=own: s.commit([Check(key(n), 0)], [Put(key(n), own)])
            for s, own in zip(stores, (b"0", b"1", b"2"), strict=True)
        ]
    )
    assert [sum(winners) for winners in zip(*won, strict=True)] == [1] * ROUNDS
    for n in range(ROUNDS):
        record = stores[0].read([key(n)])[0]
        assert won[int(record.value)][n]
        assert record.version == 1
    for store in stores:
        store.close()


@pytest.mark.slow
def test_of_three_hundred_write_skews_none_succeeds(server: Any, schema: str) -> None:
    one, two = (pg_server.backend(server, schema, durability="process") for _ in range(2))
    one.open()
    won = in_step(
        [
            lambda n: one.commit([Check(key(n, "r"), 0)], [Put(key(n, "l"), b"v")]),
            lambda n: two.commit([Check(key(n, "l"), 0)], [Put(key(n, "r"), b"v")]),
        ]
    )
    assert [left + right for left, right in zip(*won, strict=True)] == [1] * ROUNDS
    # The same with what is there already, and with streams: each writes if the other has not changed.
    won = in_step(
        [
            lambda n: one.commit([CheckEnd(key("log", n, "r"), 0)], [Append(key("log", n, "l"), b"v")]),
            lambda n: two.commit([CheckEnd(key("log", n, "l"), 0)], [Append(key("log", n, "r"), b"v")]),
        ]
    )
    assert [left + right for left, right in zip(*won, strict=True)] == [1] * ROUNDS
    assert one.check() == []
    one.close()
    two.close()


def test_a_key_never_becomes_both_a_records_and_a_streams(server: Any, schema: str) -> None:
    one, two = (pg_server.backend(server, schema, durability="process") for _ in range(2))
    one.open()
    for n in range(40):
        barrier = threading.Barrier(2)
        done: list[bool] = []

        def attempt(store: Any, write: Any) -> None:
            barrier.wait(30)  # noqa: B023
            try:
                store.commit([], [write])
                done.append(True)  # noqa: B023
            except InvalidInput:
                done.append(False)  # noqa: B023

        threads = [
            threading.Thread(target=attempt, args=(one, Put(key(n), b"v"))),
            threading.Thread(target=attempt, args=(two, Append(key(n), b"e"))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(done) == [False, True]
    one.close()
    two.close()


def count_up(url: str, schema: str, times: int) -> None:
    agent = Tenuto("counter", PostgresBackend(url, schema=schema, pool=1))
    for _ in range(times):
        agent.state["shared"].update("n", lambda n: (n or 0) + 1)
    agent.close()


@pytest.mark.slow
def test_eight_processes_count_to_sixteen_hundred(server: Any, schema: str) -> None:
    opened = pg_server.backend(server, schema)
    opened.open()
    opened.now()
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=count_up, args=(server.url, schema, 200)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert [worker.exitcode for worker in workers] == [0] * 8
    agent = Tenuto("reader", opened)
    assert agent.state["shared"].get("n") == 1600
    assert opened.check() == []
    agent.close()


def test_state_history_watch_and_leases_work_on_postgres(server: Any, schema: str) -> None:
    agent = Tenuto("one", pg_server.backend(server, schema))
    other = Tenuto("two", pg_server.backend(server, schema))
    scope = agent.state["trip"]
    scope.set("city", "Lisbon")
    assert other.state["trip"].get("city") == "Lisbon"
    with other.state["trip"].transaction() as t:
        t["city"] = "Porto"
        t["days"] = 3
    assert scope.get("city") == "Porto"
    assert len(list(scope.history("city"))) == 2
    changes = agent.state.watch("trip", after=0, timeout=0.01)
    assert [(c.key, c.value) for c in changes] == [("city", "Lisbon"), ("city", "Porto"), ("days", 3)]
    with agent.lease("trip") as lease:
        assert lease
        with pytest.raises(LeaseHeld), other.lease("trip"):
            pass
    with other.lease("trip"):
        pass
    assert agent.store.check().ok
    figures = agent.store.stats()
    assert figures["backend"] == "postgres"
    assert figures["version"].split(".")[0].isdigit()
    assert figures["survives"]
    agent.close()
    other.close()
