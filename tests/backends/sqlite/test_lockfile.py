"""The lock file of a SQLite store: who writes next, and what its mark says of lost commits."""

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenuto import Damaged, StorageUnavailable, Tenuto
from tenuto.backends.sqlite import SqliteBackend, lockfile
from tenuto.backends.sqlite.lockfile import LockFile, Mark
from tenuto.errors import TenutoError
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Put

A, B, LOG = (keys.pack("t", "s", name) for name in ("a", "b", "log"))
Quiet = Callable[..., SqliteBackend]


# -- the mark --------------------------------------------------------------------------------------


def test_the_mark_survives_a_slot_that_is_torn(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    assert lock.load() is None
    lock.belongs_to(b"s" * 16, b"b" * 16, full=True)
    for number in (1, 2, 3):
        lock.store(number, b"c" * 16)
    raw = bytearray((tmp_path / "lock").read_bytes())
    for at in range(0, 1024, 3):
        torn = raw.copy()
        torn[at] ^= 1
        (tmp_path / "torn").write_bytes(torn)
        found = LockFile(tmp_path / "torn").load()
        assert found is not None
        assert found.number in (2, 3)
    assert LockFile(tmp_path / "lock").load() == Mark(b"s" * 16, 3, b"c" * 16, b"b" * 16, True)


def test_a_store_put_back_in_time_is_noticed(path: Path) -> None:
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", 1)
    shutil.copy(path, path.with_name("older"))
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", 2)
        agent.state.set("s", "k", 3)
    shutil.copy(path.with_name("older"), path)
    with pytest.raises(Damaged, match=r"is at commit \d+, but commit \d+ was made: \d+ are lost"):
        Tenuto("a", path).open()
    with Tenuto("a", f"sqlite:///{path}?accept_loss=true") as agent:
        assert agent.state.get("s", "k") == 1
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", 4)


def test_a_store_taken_away_is_a_new_one(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", 1)
    path.unlink()
    with caplog.at_level(logging.WARNING), Tenuto("a", path) as agent:
        assert agent.state.get("s", "k") is None
        assert agent.store.check().ok
    assert "is a new store; the one before it had made" in caplog.text


def test_another_store_in_its_place_is_noticed(path: Path) -> None:
    for name in ("store.db", "other.db"):
        with Tenuto("a", path.with_name(name)) as agent:
            agent.state.set("s", "k", name)
    shutil.copy(path.with_name("other.db"), path)
    with pytest.raises(Damaged, match="is not the store"):
        Tenuto("a", path).open()


def test_a_commit_notices_that_the_store_fell_behind(path: Path, quiet: Quiet) -> None:
    # given a running client, when another program takes the last commits out of the store
    backend, raw = quiet(), apsw.Connection(str(path))
    backend.commit([], [Put(A, b"0")])
    last: Any = raw.execute("SELECT content, versions, sum, id FROM requests ORDER BY id DESC LIMIT 1").fetchall()[0]
    for number in (1, 2):
        backend.commit([], [Put(A, b"%d" % number)])
    raw.execute("UPDATE requests SET content = ?, versions = ?, sum = ? WHERE id = ?", last)
    raw.close()
    # then the next commit is refused, and check() says why
    for _ in range(2):
        with pytest.raises(Damaged, match="2 are lost"):
            backend.commit([], [Put(A, b"more")])
    assert [finding.kind for finding in backend.check()] == ["loss"]


def test_a_client_that_comes_after_another_compares_the_mark_with_the_store(path: Path, quiet: Quiet) -> None:
    # given a client that has to read the store again, since another has written
    backend, other = quiet(), quiet()
    backend.commit([], [Put(A, b"1")])
    other.commit([], [Put(A, b"2")])
    # when the mark says that more was committed than the store holds
    lock = LockFile(path.with_name("store.db-lock"))
    mark = lock.load()
    assert mark is not None
    lock.reset(mark._replace(number=mark.number + 5))
    lock.close()
    # then nothing more is committed
    with pytest.raises(Damaged, match="5 are lost"):
        backend.commit([], [Put(A, b"3")])
    assert [finding.kind for finding in backend.check()] == ["loss"]


def test_a_mark_that_cannot_be_stored_fails_no_commit(
    path: Path, quiet: Quiet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # given a disk that refuses to take the mark
    backend = quiet()
    backend.commit([], [Put(A, b"1")])

    def refused(*_: Any) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(lockfile.os, "pwrite", refused)
    # when commits are made, then they are made, and a warning says that the mark is old
    assert backend.commit([], [Put(A, b"2")]).versions == (2,)
    monkeypatch.undo()
    assert "could not be written" in caplog.text
    # and the store is opened without an alarm
    assert SqliteBackend(path).read([A])[0].value == b"2"  # type: ignore[union-attr]
    assert backend.check() == []


def test_a_lock_file_taken_away_loses_no_commit(path: Path, quiet: Quiet) -> None:
    # given two clients, between which somebody has removed the lock file
    mine = quiet()
    mine.commit([], [Put(A, b"1")])
    path.with_name("store.db-lock").unlink()
    other = quiet()
    other.commit([], [Put(A, b"2")])
    # when the first goes on, then it is refused, or its commit is there
    try:
        assert mine.commit([], [Put(B, b"acknowledged"), Put(A, b"3")]).versions == (1, 3)
    except TenutoError:
        return
    assert [record and record.value for record in other.read([A, B])] == [b"3", b"acknowledged"]
    assert other.commit([], [Put(A, b"4")]).versions == (4,)
    assert mine.check() == other.check() == []


# -- the lock --------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["taking", "work"])
def test_an_interrupt_leaves_the_lock_free(path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    lock, other = LockFile(path), LockFile(path)
    take = lockfile._try_lock

    def interrupted(*_: Any) -> bool:
        take(lock._fd)
        raise KeyboardInterrupt

    if at == "taking":
        monkeypatch.setattr(lockfile, "_try_lock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.run(interrupted, 1)
    monkeypatch.undo()
    assert lockfile._try_lock(other._fd)
    lock.close()
    other.close()


def test_another_programs_lock_is_waited_for_and_then_named(path: Path) -> None:
    backend = SqliteBackend(path, timeout=0.2)
    backend.commit([], [Put(A, b"1")])
    other = apsw.Connection(str(path))
    other.set_busy_timeout(5_000)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageUnavailable, match="Another program") as error:
        backend.commit([], [Put(A, b"2")])
    assert error.value.outcome == "not applied"
    assert backend.read([A])[0].value == b"1"  # type: ignore[union-attr]
    other.execute("ROLLBACK")
    assert backend.commit([], [Put(A, b"2")]).versions == (2,)
    backend.close()


def test_a_process_that_holds_the_lock_is_waited_for_with_a_deadline(path: Path, held: Callable[[], Any]) -> None:
    backend = SqliteBackend(path, timeout=0.2)
    backend.commit([], [Put(A, b"1")])
    holder = held()
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="held the write lock") as error:
            backend.commit([], [Put(A, b"2")])
        assert error.value.outcome == "not applied"
    assert backend.read([A])[0].value == b"1"  # type: ignore[union-attr]
    backend._timeout = 30.0
    threading.Timer(0.05, holder.release).start()
    assert backend.commit([], [Put(A, b"2")]).versions == (2,)
    assert backend.commit([], [Put(A, b"3")]).versions == (3,)
    backend.close()


def test_readers_do_not_wait_for_a_writer(path: Path, held: Callable[[], Any]) -> None:
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"1"), Append(LOG, b"e")])
    held()
    other = apsw.Connection(str(path))
    other.set_busy_timeout(5_000)
    other.execute("BEGIN IMMEDIATE")
    assert backend.read([A])[0] is not None
    assert len(backend.scan(keys.pack("t"))) == 1
    assert len(backend.entries(LOG)) == 1
    other.execute("ROLLBACK")
