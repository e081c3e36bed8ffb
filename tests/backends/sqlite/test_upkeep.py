"""What a SQLite store does off the commit path: expiry, WAL checkpoints, and their failures."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenuto.backends.sqlite import SqliteBackend, reading, writable
from tenuto.backends.sqlite import backend as backend_module
from tenuto.backends.sqlite.commit import WorkJob, Writer
from tenuto.kernel import keys
from tenuto.kernel.contract import REQUEST_LIFE, Append, Check, Delete, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock

A, B, LOG = (keys.pack("t", "s", name) for name in ("a", "b", "log"))
Quiet = Callable[..., SqliteBackend]


def rows(path: Path, table: str) -> int:
    connection = apsw.Connection(str(path))
    count: int = connection.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]
    connection.close()
    return count


def test_expired_records_become_tombstones_and_then_floors(path: Path) -> None:
    clock = HeldClock()
    backend = SqliteBackend(path, clock=clock)
    backend.commit([], [Put(A, b"1", 5.0), Put(B, b"1")])
    backend.commit([], [Put(A, b"2", 5.0)])
    backend.commit([], [Put(B, b"2")], request=new_request(backend.now()))
    clock.advance(31)
    backend.upkeep()
    assert rows(path, "records") == 2
    clock.advance(REQUEST_LIFE + 61)
    backend.upkeep()
    assert rows(path, "records") == 2  # the other record, and the floor
    assert rows(path, "requests") == 1  # the last commit
    assert backend.commit([Check(A, 0)], [Put(A, b"3")]).versions == (3,)
    assert backend.check() == []
    backend.close()


def test_a_sweep_of_many_goes_on_until_nothing_is_due(path: Path) -> None:
    clock = HeldClock()
    backend = SqliteBackend(path, clock=clock)
    for part in range(3):
        backend.commit([], [Put(keys.pack("t", "s", part, n), b"v", 5.0) for n in range(400)])
    backend.commit([], [Put(A, b"kept")])
    for wait in (31, REQUEST_LIFE + 61):
        clock.advance(wait)
        backend.upkeep()
    assert rows(path, "records") == 2  # what was kept, and the floor
    assert backend.read([A])[0] is not None
    assert backend.check() == []
    backend.close()


def test_what_a_sweep_removed_is_known_to_a_client_that_was_open(quiet: Quiet) -> None:
    # given two clients that both know a record
    clock = HeldClock()
    one, two = quiet(clock=clock), quiet(clock=clock)
    for number in range(3):
        two.commit([], [Put(A, b"%d" % number)])
    two.commit([], [Delete(A)])
    # when one of them sweeps its tombstone away
    clock.advance(2 * REQUEST_LIFE)
    one._group.submit(WorkJob(Writer.sweep))
    # then the other goes on above the version that was last given
    assert two.commit([Check(A, 0)], [Put(A, b"again")]).versions[0] > 4
    assert two.check() == []


PAGES = 100
BOUND = 40 * PAGES * 4096


def written_steadily(path: Path) -> int:
    """Commit 3,000 times; return the largest size of the write-ahead log."""
    backend, largest = SqliteBackend(path, durability="process"), 0
    log = path.with_name("store.db-wal")
    for n in range(3000):
        backend.commit([], [Put(A, b"%d" % n + b"x" * 1000), Append(LOG, b"x" * 100)])
        largest = max(largest, log.stat().st_size)
    backend.close()
    return largest


@pytest.mark.scorecard(16)
def test_the_write_ahead_log_stays_small_under_steady_writes(
    path: Path, monkeypatch: pytest.MonkeyPatch, figures: Any
) -> None:
    monkeypatch.setattr(writable, "CHECKPOINT_PAGES", PAGES)
    largest = written_steadily(path)
    figures(commits=3_000, largest_log_kb=largest // 1024)
    assert largest < BOUND
    assert path.stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.scorecard(16)
def test_the_write_ahead_log_stays_small_beside_readers_that_never_stop(
    path: Path, monkeypatch: pytest.MonkeyPatch, figures: Any
) -> None:
    # given clients that scan and read entries all the time
    monkeypatch.setattr(writable, "CHECKPOINT_PAGES", PAGES)
    over, scans = threading.Event(), [0]
    SqliteBackend(path).open()

    def read() -> None:
        reader = SqliteBackend(path)
        while not over.is_set():
            reader.scan(keys.pack("t"))
            reader.entries(LOG, limit=1_000)
            scans[0] += 1
        reader.close()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for one in readers:
        one.start()
    try:
        largest = written_steadily(path)
    finally:
        over.set()
        for one in readers:
            one.join()
    figures(commits=3_000, concurrent_scans=scans[0], largest_log_kb=largest // 1024)
    assert scans[0]
    assert largest < BOUND


@pytest.mark.slow
@pytest.mark.scorecard(16, planted=True)
def test_a_reader_that_holds_its_transaction_open_is_found_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given the planted bug: a cursor that stays open
    monkeypatch.setattr(writable, "CHECKPOINT_PAGES", PAGES)
    SqliteBackend(path).commit([], [Put(A, b"1")])
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM records").fetchall()
    largest = written_steadily(path)
    reader.close()
    print(f"planted bug: the log grows to {largest // 1024} KB")
    assert largest > BOUND


@pytest.mark.parametrize("error", [apsw.BusyError, apsw.IOError, apsw.FullError])
def test_what_is_committed_is_not_told_otherwise_by_what_comes_after(
    path: Path, quiet: Quiet, monkeypatch: pytest.MonkeyPatch, error: type[apsw.Error]
) -> None:
    # given a checkpoint that fails after the commit itself was made: after the first one, and after upkeep's
    backend, failed = quiet(), []

    def fails(*_: Any, **__: Any) -> None:
        failed.append(error)
        raise error("the disk says no")

    monkeypatch.setattr(writable, "checkpoint", fails)
    assert backend.commit([], [Put(A, b"1")]).versions == (1,)
    assert backend._store is not None
    backend._store.checkpointed = True
    assert backend.commit([], [Put(A, b"2")]).versions == (2,)
    assert len(failed) == 2
    # when the disk is well again, then commits go on
    monkeypatch.undo()
    assert backend.commit([], [Put(A, b"3")]).versions == (3,)
    backend.close()
    again = quiet()
    assert again.read([A])[0].value == b"3"  # type: ignore[union-attr]
    assert again.check() == []


def test_a_store_that_is_closed_while_upkeep_reads_is_complete_without_its_log(
    path: Path, quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given upkeep that is reading
    reads, go = threading.Event(), threading.Event()

    def slow(*_: Any) -> bool:
        reads.set()
        return not go.wait(60)

    monkeypatch.setattr(reading, "anything_due", slow)
    monkeypatch.setattr(backend_module, "_CLOSE_SECONDS", 60.0)
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"1")])
    assert reads.wait(60)
    # when the client is closed meanwhile
    closer = threading.Thread(target=backend.close)
    closer.start()
    while not backend._closed:
        pass
    go.set()
    closer.join(60)
    assert not closer.is_alive()
    # then the file alone is the whole store
    assert not path.with_name("store.db-wal").exists()
    shutil.copy(path, path.with_name("copy.db"))
    assert quiet(path.with_name("copy.db")).read([A])[0].value == b"1"  # type: ignore[union-attr]
