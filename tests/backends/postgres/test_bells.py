"""Watching on Postgres: told by NOTIFY where that comes through, polled where not, and nothing missed either way."""

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest
from support import pg_server

from tenuto import AsyncTenuto, Tenuto
from tenuto.backends import _listener
from tenuto.backends.postgres import PostgresBackend, bells
from tenuto.capabilities._core import journal
from tenuto.errors import StorageUnavailable
from tenuto.hooks.events import Call
from tenuto.kernel import keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import Append
from tenuto.kernel.transact import new_request

pytestmark = pytest.mark.slow

LOG = keys.pack("t", "s", "log")


@pytest.fixture
def rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has a live bell polls so rarely that only the bell can be in time."""
    monkeypatch.setattr(journal, "_RARELY", 120.0)


@pytest.fixture
def store(server: Any, schema: str) -> Iterator[PostgresBackend]:
    opened = pg_server.backend(server, schema)
    yield opened
    opened.close()


@pytest.fixture
def other(server: Any, schema: str) -> Iterator[PostgresBackend]:
    opened = pg_server.backend(server, schema)
    yield opened
    opened.close()


def live(store: PostgresBackend, stream: bytes = LOG) -> Bell:
    bell = store.bell(stream)
    pg_server.eventually(lambda: bell.live)
    return bell


def listeners(server: Any) -> list[Any]:
    return server.execute("SELECT pid FROM pg_stat_activity WHERE application_name = 'tenuto listening'")


def marks(server: Any) -> int:
    return server.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'")[0][0]


class Watching:
    """A thread that watches a scope, and how often it has asked the store."""

    def __init__(self, store: PostgresBackend, scope: str, timeout: float | None = None) -> None:
        self.asked = 0
        self.seen: list[Any] = []
        self.agent = Tenuto("watcher", store, hooks=[self.count])
        self.steps = self.agent.state.watch(scope, after=0, timeout=timeout)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def count(self, call: Call) -> None:
        self.asked += call.verb == "entries"

    def run(self) -> None:
        for change in self.steps:
            self.seen.append(change.value)
            if change.value == "end":
                self.steps.close()
                return


@pytest.mark.usefixtures("rarely")
def test_a_watcher_is_woken_and_asks_only_when_there_is_something(store: Any, other: Any) -> None:
    agent = Tenuto("writer", other)
    agent.state.set("trip", "n", 0)
    watching = Watching(store, "trip")
    pg_server.eventually(lambda: any(b.live for each in store._listener._bells.values() for b in each))
    pg_server.eventually(lambda: watching.seen == [0])
    asked = watching.asked
    begun = time.monotonic()
    for n in range(1, 20):
        agent.state.set("trip", "n", n)
        pg_server.eventually(lambda n=n: watching.seen[-1] == n)
    assert time.monotonic() - begun < 10
    agent.state.set("trip", "n", "end")
    watching.thread.join(10)
    assert watching.seen == [*range(20), "end"]
    assert watching.asked - asked <= 3 * 20 + 2  # each change: woken, read, nothing more; and once when it went live


def test_a_stream_is_not_marked_while_a_commit_is_under_way_that_did_not_see_the_mark(
    server: Any, store: Any, other: Any, schema: str
) -> None:
    store.commit([], [Append(LOG, b"0")])
    other.open()
    with pg_server.psycopg.connect(server.url) as holding:
        # given a commit that has looked for a mark, found none, and is kept from its end
        holding.execute(f'LOCK TABLE "{schema}".requests IN SHARE MODE')
        commit = threading.Thread(
            target=other.commit, args=([], [Append(LOG, b"1")]), kwargs={"request": new_request(other.now())}
        )
        commit.start()
        waiting = "SELECT 1 FROM pg_locks WHERE relation = '\"{}\".requests'::regclass AND NOT granted"
        pg_server.eventually(lambda: server.execute(waiting.format(schema)))
        # when somebody begins to watch
        bell = store.bell(LOG)
        pg_server.eventually(lambda: listeners(server))
        bell.wait(0.3)
        # then he is not told that he may rely on the bell
        assert not bell.live
        assert not bell.rung
        holding.rollback()
    commit.join()
    # until the commit has ended: what he finds when it rings is all there is
    pg_server.eventually(lambda: bell.live and bell.rung)
    assert [entry.value for entry in store.entries(LOG)] == [b"0", b"1"]
    bell.close()


def test_one_connection_serves_all_watchers_and_ends_with_the_last(
    own_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_listener, "LINGER", 0.1)
    store = pg_server.backend(own_server, pg_server.new_schema())
    store.open()
    assert listeners(own_server) == []
    held = [store.bell(keys.pack("t", "s", n)) for n in range(100)]
    pg_server.eventually(lambda: all(bell.live for bell in held))
    assert len(listeners(own_server)) == 1
    assert marks(own_server) == 100
    for bell in held[1:]:
        bell.close()
    pg_server.eventually(lambda: marks(own_server) == 1)
    held[0].close()
    pg_server.eventually(lambda: listeners(own_server) == [])
    assert marks(own_server) == 0
    again = live(store)
    assert len(listeners(own_server)) == 1
    store.close()
    assert not again.live
    pg_server.eventually(lambda: listeners(own_server) == [])


def test_where_nobody_watches_nobody_is_told(
    server: Any, store: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(other._ringer, "tell", told.append)
    other.commit([], [Append(LOG, b"e")])
    bell = live(store, keys.pack("t", "s", "another"))
    other.commit([], [Append(LOG, b"e")])
    assert told == []
    watched = live(store)
    other.commit([], [Append(LOG, b"e"), Append(LOG, b"f")])
    assert [len(numbers) for numbers in told] == [1]
    watched.close()
    pg_server.eventually(lambda: marks(server) == 1)
    other.commit([], [Append(LOG, b"e")])
    assert len(told) == 1
    bell.close()


def test_a_notification_that_is_lost_costs_time_and_nothing_else(
    store: Any, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> None:
        raise StorageUnavailable("away")

    monkeypatch.setattr(bells.Notifier, "_send", away)
    agent = Tenuto("writer", other)
    watching = Watching(store, "trip")
    pg_server.eventually(lambda: any(b.live for each in store._listener._bells.values() for b in each))
    agent.state.set("trip", "n", "end")
    watching.thread.join(10)
    assert watching.seen == ["end"]


def test_a_listener_that_lost_its_connection_comes_back(own_server: Any) -> None:
    schema = pg_server.new_schema()
    store, other = pg_server.backend(own_server, schema), pg_server.backend(own_server, schema)
    agent = Tenuto("writer", other)
    agent.state.set("trip", "n", 0)
    watching = Watching(store, "trip")
    (pid,) = pg_server.eventually(lambda: listeners(own_server))[0]
    own_server.execute(f"SELECT pg_terminate_backend({pid}, 5000)")
    agent.state.set("trip", "n", 1)
    pg_server.eventually(lambda: watching.seen == [0, 1])
    pg_server.eventually(lambda: [found for found in listeners(own_server) if found != (pid,)])
    agent.state.set("trip", "n", "end")
    watching.thread.join(10)
    assert watching.seen == [0, 1, "end"]
    store.close()
    other.close()


@pytest.mark.usefixtures("rarely")
def test_behind_a_pooler_watchers_poll_and_leave_nothing_behind(server: Any, bouncer: str, schema: str) -> None:
    pooled, plain = PostgresBackend(bouncer, schema=schema), pg_server.backend(server, schema)
    agent = Tenuto("writer", plain)
    agent.state.set("trip", "n", 0)
    for noticed in (True, False):
        if not noticed:  # as behind one that was not noticed yet
            pooled._pool.prepare = True
        before = marks(server)
        watching = Watching(pooled, "trip")
        agent.state.set("trip", "n", "end")
        watching.thread.join(10)
        assert watching.seen[-1] == "end"
        bell = pooled.bell(LOG)
        assert not bell.live
        assert marks(server) == before
        bell.close()
        agent.state.set("trip", "n", 1)
    pooled.close()
    plain.close()


@pytest.mark.usefixtures("rarely")
def test_fifty_awaiting_watchers_hold_no_thread_and_are_woken(store: Any, other: Any) -> None:
    def listening() -> int:
        return sum(bell.live for each in list(store._listener._bells.values()) for bell in list(each))

    async def first(agent: AsyncTenuto) -> Any:
        async with aclosing(agent.state.watch("trip")) as changes:
            return (await anext(changes)).value

    async def until(condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():
                await asyncio.sleep(0.01)

    async def main() -> None:
        agent = AsyncTenuto("watcher", store)
        await agent.open()
        tasks = [asyncio.create_task(first(agent)) for _ in range(50)]
        await until(lambda: listening() == 50)
        await until(lambda: agent._pool._work_queue.qsize() == 0)  # fifty wait, and none of them in a thread
        await asyncio.to_thread(Tenuto("writer", other).state.set, "trip", "n", "now")
        async with asyncio.timeout(10):
            assert set(await asyncio.gather(*tasks)) == {"now"}
        task = asyncio.create_task(first(agent))
        await until(lambda: listening() == 1)
        task.cancel()
        await asyncio.wait({task})
        assert not store._listener._bells, "a watcher that was cancelled has let go of its bell"
        await agent.close()

    asyncio.run(main())


def test_a_forked_child_watches_by_itself(store: Any, other: Any) -> None:
    bell = live(store)
    child = os.fork()
    if child == 0:
        try:
            silent = not bell.live
            bell.close()
            own = store.bell(LOG)
            deadline = time.monotonic() + 10
            while not own.live and time.monotonic() < deadline:
                own.wait(0.05)
            own.hush()
            store.commit([], [Append(LOG, b"child")])
            own.wait(10)
            os._exit(0 if silent and own.rung else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    bell.hush()
    other.commit([], [Append(LOG, b"parent")])
    bell.wait(10)
    assert bell.rung
    assert bell.live
    bell.close()
