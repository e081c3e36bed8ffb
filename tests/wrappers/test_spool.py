"""Storage away: commits are kept in a file, replayed once and in order, and conflicts are reported, never overwritten."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sealed import KEY
from support.stores import kinds, new_url

from tenuto import Conflict, InvalidInput, StorageUnavailable, Tenuto
from tenuto.backends import connect
from tenuto.backends.volatile import VolatileBackend
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Backend, Check, CheckEnd, Delete, Forget, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock
from tenuto.testing.contract import BackendContract
from tenuto.wrappers.spool import Spool, SpoolConflict

LOG = keys.pack("t", "s", "log")


def key(name: Any) -> bytes:
    return keys.pack("t", "s", name)


class Switch:
    """A store that can be away, before a call or after it."""

    def __init__(self, inner: Backend) -> None:
        self.inner = inner
        self.away = self.losing = False
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name in ("now", "close", "bell"):
            return found

        def call(*given: Any, **options: Any) -> Any:
            self.calls += 1
            if self.away:
                raise StorageUnavailable("away")
            done = found(*given, **options)
            if self.losing and name == "commit":
                raise StorageUnavailable("the reply was lost", outcome="unknown")
            return done

        return call


@pytest.fixture
def inner() -> VolatileBackend:
    return VolatileBackend()


@pytest.fixture
def switch(inner: VolatileBackend) -> Switch:
    return Switch(inner)


@pytest.fixture
def spool(switch: Switch, tmp_path: Path) -> Iterator[Spool]:
    made = Spool(switch, tmp_path / "spool.db", retry=3600)  # type: ignore[arg-type]
    yield made
    made.close()


def test_kept_commits_are_applied_in_order_when_the_store_is_back(spool: Spool, switch: Switch, inner: Backend) -> None:
    spool.commit([], [Put(key("a"), b"1"), Append(LOG, b"1")])
    switch.away = True
    done = [spool.commit([], [Put(key("a"), b"%d" % n), Append(LOG, b"%d" % n)]) for n in (2, 3, 4)]
    assert [one.versions for one in done] == [(2, 2), (3, 3), (4, 4)], "provisional"
    assert spool.pending == 3
    switch.away = False
    assert spool.replay() == (3, 0, 0)
    assert [entry.value for entry in inner.entries(LOG)] == [b"1", b"2", b"3", b"4"]
    assert spool.read([key("a")])[0].version == 4  # type: ignore[union-attr]
    assert spool.conflicts() == []


def test_another_clients_write_is_never_overwritten(switch: Switch, inner: Backend, tmp_path: Path) -> None:
    told: list[SpoolConflict] = []
    spool = Spool(switch, tmp_path / "spool.db", retry=3600, on_conflict=told.append)  # type: ignore[arg-type]
    spool.commit([], [Put(key("a"), b"1"), Put(key("b"), b"1")])
    switch.away = True
    spool.commit([], [Put(key("a"), b"mine")])
    spool.commit([Check(key("a"), 2)], [Put(key("a"), b"mine again"), Put(key("b"), b"with it")])
    inner.commit([], [Put(key("a"), b"theirs")])
    switch.away = False
    assert spool.replay() == (0, 2, 0)
    assert [one.value for one in inner.read([key("a"), key("b")]) if one] == [b"theirs", b"1"]
    assert [one.keys for one in told] == [one.keys for one in spool.conflicts()] == [(key("a"),), (key("a"), key("b"))]
    assert "builds on" in told[1].reason
    assert [one.kind for one in spool.check()] == ["spool conflict"] * 2
    spool.close()
    again = Spool(VolatileBackend(), tmp_path / "spool.db")
    assert [one.writes for one in again.conflicts()] == [one.writes for one in told], "they stay in the file"
    assert [again.discard(one.number) for one in told] == [True, True]
    assert not again.discard(1)
    assert again.check() == []
    again.close()


def test_a_chain_of_kept_commits_follows_the_actual_numbers(spool: Spool, switch: Switch, inner: Backend) -> None:
    spool.commit([], [Append(LOG, b"1")])
    inner.commit([], [Put(key("a"), b"old")])
    inner.commit([], [Delete(key("a"))])  # its next version is 3, which the client cannot know
    assert spool.read([key("a")]) == [None]
    switch.away = True
    assert spool.commit([Check(key("a"), 0)], [Put(key("a"), b"1")]).versions == (1,)
    assert spool.commit([Check(key("a"), 1)], [Put(key("a"), b"2"), Append(LOG, b"2")]).versions == (2, 2)
    inner.commit([], [Append(LOG, b"theirs")])
    assert spool.commit([CheckEnd(LOG, 2)], [Append(LOG, b"3")]).versions == (3,)
    switch.away = False
    assert spool.replay() == (3, 0, 0)
    assert inner.read([key("a")])[0].version == 4  # type: ignore[union-attr]
    assert [entry.value for entry in inner.entries(LOG)] == [b"1", b"theirs", b"2", b"3"]


def test_what_cannot_be_decided_later_fails_at_once(spool: Spool, switch: Switch) -> None:
    spool.commit([], [Put(key("a"), b"1"), Append(LOG, b"1"), Put(keys.pack("t", "l", "lease", "token"), b"1")])
    switch.away = True
    with pytest.raises(StorageUnavailable):
        spool.read([key("a")])
    calls = switch.calls
    for checks, writes in (
        ([], [Put(key("never seen"), b"x")]),
        ([], [Append(keys.pack("t", "s", "other"), b"x")]),
        ([], [Put(key("a"), b"x", 10.0)]),  # it would expire at another time
        ([Check(keys.pack("t", "l", "lease", "token"), 1)], [Put(key("a"), b"x")]),  # fenced by a lease
        ([], [Forget(LOG, 1, 1)]),
        ([Check(key("a"), 1)], []),
    ):
        began = time.monotonic()
        with pytest.raises(StorageUnavailable):
            spool.commit(checks, writes)  # type: ignore[arg-type]
        assert time.monotonic() - began < 1
    for read in (
        lambda: spool.read([key("a")]),
        lambda: spool.scan(keys.pack("t")),
        lambda: spool.entries(LOG),
        lambda: spool.streams(keys.pack("t")),
        spool.stats,
    ):
        with pytest.raises(StorageUnavailable, match="tried again in a moment"):
            read()
    assert switch.calls == calls, "the store is left alone for `retry` seconds: nothing waits for its timeout"
    assert spool.pending == 0


def test_the_file_is_bounded(switch: Switch, tmp_path: Path) -> None:
    spool = Spool(switch, tmp_path / "spool.db", retry=3600, most=1_000)  # type: ignore[arg-type]
    spool.commit([], [Append(LOG, b"1")])
    switch.away = True
    kept = 0
    with pytest.raises(StorageUnavailable):
        for _ in range(100):
            spool.commit([], [Append(LOG, b"x" * 200)])
            kept += 1
    assert 2 <= kept <= 4
    assert spool.pending == kept
    spool.close()


def test_a_lost_reply_is_resolved_by_the_request_id(spool: Spool, switch: Switch, inner: Backend) -> None:
    spool.commit([], [Append(LOG, b"1"), Put(key("a"), b"1")])
    switch.losing = True
    request = new_request(spool.now())
    guarded = ([Check(key("a"), 1)], [Put(key("a"), b"2"), Append(LOG, b"2")])
    first = spool.commit(*guarded, request=request)  # type: ignore[arg-type]
    assert spool.commit(*guarded, request=request) == first._replace(repeated=True)  # type: ignore[arg-type]
    with pytest.raises(StorageUnavailable) as error:
        spool._away_until = 0.0
        spool._pending, pending = 0, spool._pending
        spool.commit([], [Put(key("b"), b"blind")], request=new_request(spool.now()))
    assert error.value.outcome == "unknown", "a blind write that may have happened is not kept"
    spool._pending = pending
    switch.losing = False
    assert spool.replay() == (1, 0, 0)
    assert [entry.value for entry in inner.entries(LOG)] == [b"1", b"2"], "applied once"


def test_the_whole_api_works_through_an_outage(switch: Switch, tmp_path: Path) -> None:
    spool = Spool(switch, tmp_path / "spool.db", retry=3600)  # type: ignore[arg-type]
    agent = Tenuto("a", spool, encryption_key=KEY)
    agent.state.set("s", "k", 1)
    agent.thread("t").append({"role": "user", "content": "one"})
    switch.away = True
    assert agent.state.set("s", "k", 2) == 2
    assert agent.thread("t").append({"role": "user", "content": "two"})
    with pytest.raises(StorageUnavailable):
        agent.state.get("s", "k")
    with pytest.raises(StorageUnavailable), agent.lease("l"):
        pass
    with pytest.raises(StorageUnavailable), agent.run("r") as run:
        run.step("pay", print, effect="once")
    assert b"two" not in (tmp_path / "spool.db-wal").read_bytes(), "the file holds sealed values"
    switch.away = False
    assert spool.replay().conflicts == 0
    assert agent.state.get("s", "k") == 2
    assert [one["content"] for one in agent.thread("t").messages()] == ["one", "two"]
    assert agent.store.check().ok
    agent.close()


def test_the_background_thread_replays(switch: Switch, inner: Backend, tmp_path: Path) -> None:
    spool = Spool(switch, tmp_path / "spool.db", retry=0.02)  # type: ignore[arg-type]
    spool.commit([], [Append(LOG, b"1")])
    switch.away = True
    spool.commit([], [Append(LOG, b"2")])
    time.sleep(0.1)
    assert spool.pending == 1
    switch.away = False
    deadline = time.monotonic() + 10
    while spool.pending and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [entry.value for entry in inner.entries(LOG)] == [b"1", b"2"]
    spool.close()
    assert not any(thread.name == "tenuto spool" for thread in threading.enumerate())


def test_a_file_belongs_to_one_process(spool: Spool, switch: Switch, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="open in another process"):
        Spool(switch, tmp_path / "spool.db")  # type: ignore[arg-type]


WORKER = """
import os, signal, sys
from tenuto.backends import connect
from tenuto.wrappers.spool import Spool

class Killed:
    def __init__(self, inner, left, after):
        self.inner, self.left, self.after = inner, left, after
    def __getattr__(self, name):
        return getattr(self.inner, name)
    def commit(self, *given, **options):
        self.left -= 1
        if self.left < 0 and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = self.inner.commit(*given, **options)
        if self.left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

url, path, left, after = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "after"
spool = Spool(Killed(connect(url), left, after), path, retry=3600)
print(spool.replay())
"""


@pytest.mark.parametrize("kind", kinds("sqlite", "postgres", "valkey"))
def test_a_replay_killed_in_the_middle_applies_nothing_twice(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, path = new_url(kind, request, tmp_path / "store.db"), tmp_path / "spool.db"
    store = connect(url)
    store.commit([], [Append(LOG, b"0"), Put(key("a"), b"0"), Put(key("theirs"), b"0")])
    switch = Switch(store)
    spool = Spool(switch, path, retry=3600)  # type: ignore[arg-type]
    spool.read([key("a"), key("theirs")])
    spool.entries(LOG, reverse=True)
    switch.away = True
    for n in range(1, 13):
        spool.commit([], [Append(LOG, b"%d" % n), Put(key("theirs" if n == 6 else "a"), b"%d" % n)])
    spool._closed.set()
    spool._file.close()  # as a process that is gone
    store.commit([], [Put(key("theirs"), b"theirs")])
    kills = 0
    for left, when in ((0, "before"), (0, "after"), (2, "before"), (1, "after"), (3, "after"), (99, "")):
        worker = [sys.executable, "-c", WORKER, url, str(path), str(left), when]
        done = subprocess.run(worker, capture_output=True, text=True, check=False, env={**os.environ})
        kills += done.returncode == -signal.SIGKILL
    assert kills == 5, done.stderr
    found = [int(entry.value) for entry in store.entries(LOG)]
    assert found == [n for n in range(13) if n != 6], "each once and in order; the sixth is a conflict"
    assert [one and one.value for one in store.read([key("a"), key("theirs")])] == [b"12", b"theirs"]
    again = Spool(store, path)
    assert [one.keys for one in again.conflicts()] == [(LOG, key("theirs"))]
    assert again.pending == 0
    print(f"{kind}: {kills} kills, 12 kept, 11 applied once, 1 conflict reported")
    again.close()
    store.close()


class TestSpooled(BackendContract):
    durable = False
    rings = True
    _places: dict[Path, VolatileBackend] = {}
    _count = 0

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        if place not in self._places:
            self._places[place] = VolatileBackend(clock=clock)
        TestSpooled._count += 1
        return Spool(self._places[place], place / f"spool-{self._count}.db")


def test_a_conflict_while_the_store_is_there_is_an_ordinary_conflict(spool: Spool) -> None:
    spool.commit([], [Put(key("a"), b"1")])
    with pytest.raises(Conflict):
        spool.commit([Check(key("a"), 7)], [Put(key("a"), b"2")])
    assert spool.conflicts() == []
