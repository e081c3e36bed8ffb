"""The log of a SQLite store: what is in it and what was folded is one store to every reader and writer."""

import gzip
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenuto import Closed
from tenuto.backends import _lockfile, _sqlite_log, _sqlite_rows, _sqlite_tail
from tenuto.backends._lockfile import LockFile
from tenuto.backends._sqlite_log import Counter, Moment
from tenuto.backends._sqlite_writes import WorkJob, Writer
from tenuto.backends.sqlite import SqliteBackend
from tenuto.errors import Damaged, TenutoError
from tenuto.kernel import keys
from tenuto.kernel.codec import digest
from tenuto.kernel.contract import Append, Check, Commit, Delete, Entry, Forget, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock

A, B, LOG = (keys.pack("t", "s", name) for name in ("a", "b", "log"))
FORMAT_2 = Path(__file__).with_name("format2.db.gz")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


def quiet(path: Path, **options: Any) -> SqliteBackend:
    """A client that folds and sweeps only when the test says so."""
    backend = SqliteBackend(path, **options)
    backend._sweep_due = float("inf")
    backend.open()
    return backend


def fold(backend: SqliteBackend) -> None:
    backend._group.submit(WorkJob(Writer.fold))


def run(code: str, *arguments: object) -> str:
    """Run code in a process of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def values(entries: list[Entry]) -> list[bytes]:
    return [entry.value for entry in entries]


# -- reading: the log and the tables together ----------------------------------------------------------


@pytest.mark.parametrize("folded", range(7))
def test_entries_are_read_alike_wherever_the_fold_came_between(path: Path, folded: int) -> None:
    # given a stream of six entries, the first of which are in the tables
    writer, peer = quiet(path), quiet(path)
    for number in range(6):
        if number == folded:
            fold(writer)
        writer.commit([], [Append(LOG, b"%d" % (number + 1))])
        if number == 2:
            assert len(peer.entries(LOG)) == 3  # the peer's tail begins before the fold, or behind it
    if folded == 6:
        fold(writer)
    told = [b"1", b"2", b"3", b"4", b"5", b"6"]
    # when they are read from any place, in both directions, then nothing is missing and nothing comes twice
    for reader in (writer, peer, quiet(path)):
        for limit in (1, 2, 3, 100):
            for after in (None, 0, 1, 2, 3, 4, 5, 6, 7, 100):
                behind = told[after or 0 :][:limit]
                before = told[: max((after if after is not None else 7) - 1, 0)][::-1][:limit]
                assert values(reader.entries(LOG, after=after, limit=limit)) == behind
                assert values(reader.entries(LOG, after=after, limit=limit, reverse=True)) == before
        assert reader.check() == []


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_merges_the_log_with_the_tables_at_every_limit(path: Path, reverse: bool) -> None:
    # given records in the tables, of which the log has ended, renewed and joined some
    clock = HeldClock()
    backend = quiet(path, clock=clock)
    names = [keys.pack("t", "s", n) for n in range(12)]
    backend.commit([], [Put(name, b"old", 5.0 if n == 4 else None) for n, name in enumerate(names) if n % 4 != 3])
    fold(backend)
    backend.commit([], [Delete(names[0]), Delete(names[1]), Put(names[2], b"new"), Put(names[3], b"new")])
    backend.commit([], [Put(names[8], b"new", 5.0), Put(names[11], b"new", 50.0)])
    clock.advance(6)
    # when they are scanned a page at a time, then the pages are those of one store
    there = [names[n] for n in (2, 3, 5, 6, 9, 10, 11)]
    for limit in range(1, 9):
        found: list[bytes] = []
        while page := backend.scan(
            keys.pack("t", "s"), after=found[-1] if found else None, limit=limit, reverse=reverse
        ):
            found += [record.key for record in page]
        assert found == (there[::-1] if reverse else there)
        fold(backend) if limit == 6 else None
    assert [record and record.value for record in backend.read([names[0], names[2], names[5]])] == [
        None,
        b"new",
        b"old",
    ]


def test_a_snapshot_from_before_a_fold_stays_what_it_was(path: Path) -> None:
    # given a reader whose snapshot was taken when the log held two transactions
    backend = quiet(path)
    backend.commit([], [Put(A, b"1"), Append(LOG, b"1")])
    backend.commit([], [Put(A, b"2"), Append(LOG, b"2")])
    with backend._readers.one() as connection, Moment(connection):
        tail, at = backend._memory.view(connection)
        # when others write, fold, take away and write on
        backend.commit([], [Put(A, b"3"), Append(LOG, b"3")])
        fold(backend)
        backend.commit([], [Forget(LOG, 1, 2), Delete(A)])
        backend.commit([], [Put(B, b"1")])
        # then it is still of its moment, and does not take the others back to it
        row = tail.row(A, at)
        assert row is not None
        assert (row.version, row.value) == (2, b"2")
        assert values(list(tail.entries(connection, LOG, at))) == [b"1", b"2"]
        late, moment = backend._memory.view(connection)
        assert (moment, late.row(B, moment)) == (at, None)
        assert backend.read([B])[0] is not None
        assert [entry.forgotten for entry in backend.entries(LOG)] == [True, True, False]


def test_what_another_process_did_is_seen_at_once_whatever_it_was(path: Path) -> None:
    # given a client with everything in its memory
    mine, other = quiet(path), quiet(path)
    mine.commit([], [Put(A, b"1"), Put(B, b"1"), Append(LOG, b"1")])
    seen: list[Callable[[], object]] = [
        lambda: other.commit([], [Put(A, b"2")]).versions == (2,) and mine.read([A])[0].value == b"2",  # type: ignore[union-attr]
        lambda: fold(other) or mine.read([A])[0].version == 2,  # type: ignore[func-returns-value,union-attr]
        lambda: other.commit([], [Delete(A)]).versions == (3,) and mine.read([A]) == [None],
        lambda: other.commit([], [Put(B, b"x" * 70_000)]).versions == (2,) and len(mine.read([B])[0].value) == 70_000,  # type: ignore[union-attr]
        lambda: other.commit([], [Append(LOG, b"2")]).versions == (2,) and len(mine.entries(LOG)) == 2,
        lambda: other.commit([], [Forget(LOG, 1, 1)]) and mine.entries(LOG)[0].forgotten,
        lambda: mine.commit([Check(A, 0), Check(B, 2)], [Put(A, b"4"), Append(LOG, b"3")]).versions == (4, 3),
        lambda: other.commit([Check(A, 4)], [Put(A, b"5")]).versions == (5,),
    ]
    # when the other writes, folds, deletes, forgets, then every read and every check is of the newest
    assert [bool(one()) for one in seen] == [True] * len(seen)
    assert mine.check() == []


def test_a_copy_with_a_log_in_it_opens_as_the_store_that_it_was(path: Path) -> None:
    backend = quiet(path)
    backend.commit([], [Put(A, b"1"), Append(LOG, b"1")])
    fold(backend)
    request = new_request(backend.now())
    done = backend.commit([], [Put(A, b"2"), Append(LOG, b"2")], request=request)
    backend.backup(path.with_name("copy.db"))
    copy = quiet(path.with_name("copy.db"))
    assert copy.read([A]) == backend.read([A])
    assert copy.entries(LOG) == backend.entries(LOG)
    assert copy.check() == []
    assert copy.commit([], [Put(A, b"2"), Append(LOG, b"2")], request=request) == done._replace(repeated=True)


@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("after", [-1, 1 << 40, (1 << 40) + 5, 1 << 62, 1 << 63, 1 << 70])
def test_a_number_that_no_entry_has_is_answered_alike(path: Path, after: int, folded: bool) -> None:
    backend = quiet(path)
    streams = [keys.pack("t", "s", n) for n in range(4)]
    for stream in streams:
        for number in range(6):
            backend.commit([], [Append(stream, stream + b"%d" % number)])
    if folded:
        fold(backend)
    for stream in streams:
        told = [stream + b"%d" % number for number in range(6)]
        assert values(backend.entries(stream, after=after)) == (told if after < 0 else [])
        assert values(backend.entries(stream, after=after, reverse=True)) == ([] if after < 0 else told[::-1])


def test_a_short_scan_does_not_look_at_all_that_is_in_the_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = quiet(path)
    backend.commit([], [Put(keys.pack("t", "s", n), b"v") for n in range(1_000)])
    asked: list[bytes] = []
    row = _sqlite_tail.Tail.row
    monkeypatch.setattr(_sqlite_tail.Tail, "row", lambda tail, key, at: asked.append(key) or row(tail, key, at))
    assert len(backend.scan(keys.pack("t", "s"), limit=2)) == 2
    assert len(asked) < 50


def test_a_read_while_another_thread_closes_is_answered_or_refused(path: Path) -> None:
    # given a read that has looked at whether the client is open
    backend = quiet(path)
    backend.commit([], [Put(A, b"1")])
    tail = backend._memory.tail

    class Meanwhile:
        @property
        def word(self) -> bytes:
            backend._memory.tail = tail
            backend.close()
            return tail.word

    backend._memory.tail = Meanwhile()  # type: ignore[assignment]
    # when the client is closed before it goes on, then it gets the value or `Closed`
    try:
        found = backend.read([A])[0]
    except Closed:
        return
    assert found is not None
    assert found.value == b"1"


# -- request ids -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("folded", [False, True])
def test_a_retry_is_known_by_what_it_says_not_by_the_objects_that_hold_it(path: Path, folded: bool) -> None:
    backend = quiet(path)
    request, value = new_request(backend.now()), b"value" * 3
    done = backend.commit([], [Put(A, value), Append(LOG, value)], request=request)
    if folded:
        fold(backend)
    equal = bytes(bytearray(value))
    assert equal is not value
    assert backend.commit([], [Put(A, value), Append(LOG, equal)], request=request) == done._replace(repeated=True)


COMMIT_ONCE = """
    import sys
    from tenuto.backends.sqlite import SqliteBackend
    from tenuto.kernel.contract import Put
    backend = SqliteBackend(sys.argv[1])
    backend.commit([], [Put(bytes.fromhex(sys.argv[2]), b"once")], request=bytes.fromhex(sys.argv[3]))
    backend.close()
"""


def test_a_request_made_here_and_used_by_another_process_first_is_applied_once(path: Path) -> None:
    # given a request id that this process made, and another has used
    backend = quiet(path)
    request = new_request(backend.now())
    run(COMMIT_ONCE, path, A.hex(), request.hex())
    # when this process asks what became of it
    again = backend.commit([], [Put(A, b"once")], request=request)
    # then it is told, and nothing is applied a second time
    assert (again.versions, again.repeated) == ((1,), True)


def test_a_request_used_twice_never_stops_the_folding(path: Path) -> None:
    backend = quiet(path)
    request = new_request(backend.now())
    run(COMMIT_ONCE, path, A.hex(), request.hex())
    backend.commit([], [Put(A, b"once")], request=request)
    backend.commit([], [Put(B, b"x" * 70_000)])
    assert backend.check() == []


# -- who else has the file ---------------------------------------------------------------------------------


def test_a_lock_file_taken_away_loses_no_commit(path: Path) -> None:
    # given two clients, between which somebody has removed the lock file
    mine = quiet(path)
    mine.commit([], [Put(A, b"1")])
    path.with_name("store.db-lock").unlink()
    other = quiet(path)
    other.commit([], [Put(A, b"2")])
    fold(other)
    # when the first goes on, then it is refused, or its commit is there
    try:
        mine.commit([], [Put(B, b"acknowledged")])
    except TenutoError:
        return
    found = other.read([B])[0]
    assert found is not None
    assert found.value == b"acknowledged"


def commit_as_format_2(path: Path, key: bytes, value: bytes, version: int) -> None:
    """Commit as a process does that opened the store before it had a log: into the tables, without the word."""
    lock, raw = LockFile(path.with_name("store.db-lock")), apsw.Connection(str(path))

    def work() -> None:
        raw.execute("BEGIN IMMEDIATE")
        mark, counter = lock.load(), _sqlite_log.folded(raw)
        assert mark is not None
        if mark.number > counter.number:
            raise Damaged("It is behind its mark.")
        raw.execute(_sqlite_rows.SET_RECORD, _sqlite_rows.record_row(key, 0, version, 1.0, None, value))
        after = Counter(counter.number + 1, digest(counter.chain, value))
        _sqlite_log.count(raw.execute, after)
        lock.committing()
        raw.execute("COMMIT")
        word = lock._shared[_lockfile._WORD]
        lock.belongs_to(mark.store, mark.boot, full=mark.full)
        lock.store(_lockfile.word_of(*after))
        lock._shared[_lockfile._WORD] = b"\x00" + word[1:]

    try:
        lock.run(work, 10)
    finally:
        raw.close()
        lock.close()


def test_a_process_from_before_the_upgrade_that_still_runs_makes_no_commit_disappear(path: Path) -> None:
    # given a store that was upgraded while a process of the older format had it open
    backend = quiet(path)
    backend.commit([], [Put(A, b"1")])
    fold(backend)
    # when that process commits, if it still can, and then this one
    older = True
    try:
        commit_as_format_2(path, A, b"older", 2)
    except (Damaged, apsw.Error):
        older = False
    assert backend.commit([], [Put(B, b"newer")]).versions == (1,)
    # then both are there
    found = SqliteBackend(path).read([A, B])
    assert [record and record.value for record in found] == [b"older" if older else b"1", b"newer"]
    assert backend.read([A]) == found[:1]


# -- an older store ------------------------------------------------------------------------------------------


@pytest.fixture
def upgraded(path: Path) -> SqliteBackend:
    """A store that the last version with format 2 wrote: records, streams, a tombstone, a floor, a request."""
    path.write_bytes(gzip.decompress(FORMAT_2.read_bytes()))
    return quiet(path, clock=HeldClock(1_900_007_400.0))


def named(*parts: Any) -> bytes:
    return keys.pack("t", "s", *parts)


def test_a_store_of_format_2_goes_on_as_it_was(upgraded: SqliteBackend, path: Path) -> None:
    # given what it held
    assert [(record.value, record.version) for record in upgraded.scan(named("r"))] == [
        *((b"r%d" % n, 7) for n in range(3)),
        (b"again", 8),
    ]
    told = upgraded.entries(named("log"))
    assert values(told) == [b"e0", b"", b"", b"e3", b"e4", b"again"]
    assert [entry.digest.hex()[:8] for entry in told[::5]] == ["aa8cd1ff", "546160d7"]
    assert (upgraded.check(), upgraded.stats()["commits"]) == ([], 16)
    # when it is written to, then versions, numbers, links and floors go on, folded or not
    writes = [
        Put(named("r", 3), b"3"),
        Put(named("purged"), b"p"),
        Append(named("log"), b"e6"),
        Append(named("n"), b"1"),
    ]
    assert upgraded.commit([Check(named("r", 3), 0)], writes).versions == (9, 7, 7, 1)
    for _ in range(2):
        assert upgraded.entries(named("log"))[:6] == told
        assert upgraded.entries(named("log"))[6].previous == told[5].digest
        assert values(upgraded.entries(named("n"))) == [b"1"]
        assert upgraded.check() == []
        fold(upgraded)
    assert path.with_name("store.db.format2.backup").exists()


def test_a_request_from_before_the_upgrade_is_still_known(upgraded: SqliteBackend) -> None:
    request = (1_900_007_400_000).to_bytes(6, "big") + b"0123456789"
    checks, writes = [Check(named("r", 4), 7)], [Put(named("r", 4), b"again"), Append(named("log"), b"again")]
    assert upgraded.commit(checks, writes, request=request) == Commit((8, 6), 1_900_007_400.0, repeated=True)


if hasattr(os, "fork"):

    def test_a_request_made_before_a_fork_is_applied_once(path: Path) -> None:
        backend = quiet(path)
        request = new_request(backend.now())
        pid = os.fork()
        if pid == 0:
            try:
                backend.commit([], [Put(A, b"once")], request=request)
                fold(backend)
            finally:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert backend.commit([], [Put(A, b"once")], request=request).repeated
