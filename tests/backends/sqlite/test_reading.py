"""Reading a SQLite store: every page and direction, numbers that no entry has, other clients, closing, checking."""

import contextlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenuto import Closed, Damaged, StorageUnavailable
from tenuto.backends.sqlite import SqliteBackend, reading
from tenuto.backends.sqlite.commit import WorkJob, Writer
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Delete, Entry, Forget, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock

A, B, LOG = (keys.pack("t", "s", name) for name in ("a", "b", "log"))
Quiet = Callable[..., SqliteBackend]


def values(entries: list[Entry]) -> list[bytes]:
    return [entry.value for entry in entries]


# -- pages and directions --------------------------------------------------------------------------


def test_entries_are_read_alike_by_everybody_from_any_place_in_both_directions(quiet: Quiet) -> None:
    # given streams side by side, written by two clients in turn
    writer, peer = quiet(), quiet()
    streams = [keys.pack("t", "s", name) for name in ("a", "log", "z")]
    for number in range(6):
        for stream in streams:
            (writer, peer)[number % 2].commit([], [Append(stream, stream + b"%d" % (number + 1))])
    # when one is read from any place, in both directions, then nothing is missing and nothing comes twice
    told = [LOG + b"%d" % (number + 1) for number in range(6)]
    for reader in (writer, peer, quiet()):
        for limit in (1, 2, 3, 100):
            for after in (None, 0, 1, 2, 3, 4, 5, 6, 7, 100):
                later = told[after or 0 :][:limit]
                before = told[: max((after if after is not None else 7) - 1, 0)][::-1][:limit]
                assert values(reader.entries(LOG, after=after, limit=limit)) == later
                assert values(reader.entries(LOG, after=after, limit=limit, reverse=True)) == before
        assert reader.check() == []


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_gives_the_live_records_at_every_limit(quiet: Quiet, reverse: bool) -> None:
    # given records of which some were deleted, written again, or have expired, and a stream between them
    clock = HeldClock()
    backend = quiet(clock=clock)
    names = [keys.pack("t", "s", n) for n in range(12)]
    backend.commit([], [Put(name, b"old", 5.0 if n == 4 else None) for n, name in enumerate(names) if n % 4 != 3])
    backend.commit([], [Delete(names[0]), Delete(names[1]), Put(names[2], b"new"), Put(names[3], b"new")])
    backend.commit([], [Put(names[8], b"new", 5.0), Put(names[11], b"new", 50.0), Append(names[7], b"a stream")])
    clock.advance(6)
    # when they are scanned a page at a time, then each live one comes once, in order
    there = [names[n] for n in (2, 3, 5, 6, 9, 10, 11)]
    for limit in range(1, 9):
        found: list[bytes] = []
        while page := backend.scan(
            keys.pack("t", "s"), after=found[-1] if found else None, limit=limit, reverse=reverse
        ):
            found += [record.key for record in page]
        assert found == (there[::-1] if reverse else there)
    read = backend.read([names[0], names[2], names[5], names[7], names[8]])
    assert [record and record.value for record in read] == [None, b"new", b"old", None, None]


@pytest.mark.parametrize("after", [-1, 1 << 40, (1 << 40) + 5, 1 << 62, 1 << 63, 1 << 70])
def test_a_number_that_no_entry_has_is_answered(quiet: Quiet, after: int) -> None:
    backend = quiet()
    streams = [keys.pack("t", "s", n) for n in range(4)]
    for stream in streams:
        for number in range(6):
            backend.commit([], [Append(stream, stream + b"%d" % number)])
    for stream in streams:
        told = [stream + b"%d" % number for number in range(6)]
        assert values(backend.entries(stream, after=after)) == (told if after < 0 else [])
        assert values(backend.entries(stream, after=after, reverse=True)) == ([] if after < 0 else told[::-1])


def test_forgetting_beyond_the_end_of_a_stream_leaves_other_streams_alone(quiet: Quiet) -> None:
    # given streams of several tenants
    backend = quiet()
    streams = [keys.pack(f"tenant{n}", "s", "log") for n in range(4)]
    for stream in streams:
        backend.commit([], [Append(stream, stream)])
    # when one tenant forgets entries with numbers that no stream reaches
    for stream in streams:
        for first in (2, 1 << 40, (1 << 40) + 1, (3 << 40) + 1, (1 << 62) + 1, 1 << 63, 1 << 70):
            with contextlib.suppress(Exception):
                backend.commit([], [Forget(stream, first, first)])
    # then every entry is still there
    assert [backend.entries(stream)[0].value for stream in streams] == streams
    assert backend.check() == []


# -- other clients ---------------------------------------------------------------------------------


def test_what_another_client_did_is_seen_at_once_whatever_it_was(quiet: Quiet) -> None:
    # given a client with everything in its cache
    mine, other = quiet(), quiet()
    mine.commit([], [Put(A, b"1"), Put(B, b"1"), Append(LOG, b"1")])
    seen: list[Callable[[], object]] = [
        lambda: other.commit([], [Put(A, b"2")]).versions == (2,) and mine.read([A])[0].value == b"2",  # type: ignore[union-attr]
        lambda: other._group.submit(WorkJob(Writer.sweep)) is not None and mine.read([A])[0].version == 2,  # type: ignore[union-attr]
        lambda: other.commit([], [Delete(A)]).versions == (3,) and mine.read([A]) == [None],
        lambda: other.commit([], [Put(B, b"x" * 70_000)]).versions == (2,) and len(mine.read([B])[0].value) == 70_000,  # type: ignore[union-attr]
        lambda: other.commit([], [Append(LOG, b"2")]).versions == (2,) and len(mine.entries(LOG)) == 2,
        lambda: other.commit([], [Forget(LOG, 1, 1)]) and mine.entries(LOG)[0].forgotten,
        lambda: mine.commit([Check(A, 0), Check(B, 2)], [Put(A, b"4"), Append(LOG, b"3")]).versions == (4, 3),
        lambda: other.commit([Check(A, 4)], [Put(A, b"5")]).versions == (5,),
    ]
    # when the other writes, sweeps, deletes, forgets, then every read and every check is of the newest
    assert [bool(one()) for one in seen] == [True] * len(seen)
    assert mine.check() == []


def test_one_proof_of_absence_serves_for_the_keys_that_follow_until_another_writes(quiet: Quiet) -> None:
    # given a writer that has proven that there is no key after the last
    mine, other = quiet(), quiet()
    new = [keys.pack("t", "s", "new", number) for number in range(4)]
    mine.commit([], [Put(new[0], b"1"), Put(B, b"1")])
    store = mine._store
    assert store is not None
    asked: list[str] = []
    store.writer.connection.set_exec_trace(lambda _, sql, __: asked.append(sql) or True)
    # when it writes the next ones, then it proves nothing again
    assert mine.commit([Check(new[1], 0)], [Put(new[1], b"1")]).versions == (1,)
    assert not [sql for sql in asked if "FROM records" in sql]
    # when another client writes one of them, then it is found
    assert other.commit([], [Put(new[2], b"1")]).versions == (1,)
    assert mine.commit([Check(new[2], 1), Check(new[3], 0)], [Put(new[2], b"2")]).versions == (2,)
    assert [sql for sql in asked if "FROM records" in sql]


def test_a_writer_that_believes_its_cache_although_another_wrote_is_found_out(
    quiet: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given the planted bug: the last commit of the store is not compared with the writer's own
    mine, other = quiet(), quiet()
    mine.commit([], [Put(A, b"1")])
    other.commit([], [Put(A, b"2"), Put(B, b"1")])

    def begin(writer: Writer) -> None:
        writer.connection.execute("BEGIN IMMEDIATE")

    monkeypatch.setattr(Writer, "_begin", begin)
    # when a client commits after another, then a version is given twice, or the store refuses
    try:
        versions = mine.commit([], [Put(A, b"3")]).versions
    except (Damaged, StorageUnavailable):
        versions = (0,)
    assert versions != (3,)


def test_a_key_that_is_inserted_while_it_is_read_is_no_damage(quiet: Quiet, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a client that has found no record at a key, when another writes it before that is proven
    backend, other = quiet(), quiet()
    backend.commit([], [Put(B, b"1")])
    find_head = reading.find_head

    def late(connection: Any, key: bytes) -> Any:
        monkeypatch.undo()
        other.commit([], [Put(key, b"x" * 100_000)])
        return find_head(connection, key)

    monkeypatch.setattr(reading, "find_head", late)
    # then it is read, and nothing is said to be damaged
    record = backend.read([A])[0]
    assert record is not None
    assert record.value == b"x" * 100_000


def test_a_backup_holds_everything_and_still_knows_its_requests(path: Path, quiet: Quiet) -> None:
    backend = quiet()
    backend.commit([], [Put(A, b"1"), Append(LOG, b"1")])
    request = new_request(backend.now())
    done = backend.commit([], [Put(A, b"2"), Append(LOG, b"2")], request=request)
    backend.backup(path.with_name("copy.db"))
    copy = quiet(path.with_name("copy.db"))
    assert copy.read([A]) == backend.read([A])
    assert copy.entries(LOG) == backend.entries(LOG)
    assert copy.check() == []
    assert copy.commit([], [Put(A, b"2"), Append(LOG, b"2")], request=request) == done._replace(repeated=True)


# -- closing and checking --------------------------------------------------------------------------


class ClosesFirst(deque[Any]):
    """The free connections of a client that is closed just before, or just after, one of them is taken."""

    backend: SqliteBackend | None = None
    after = False

    def pop(self) -> Any:  # type: ignore[override]
        backend, self.backend = self.backend, None
        if backend is None:
            return super().pop()
        taken = [super().pop()] if self.after else []
        backend.close()
        return taken[0] if taken else super().pop()


@pytest.mark.parametrize("after", [False, True], ids=["before it takes a connection", "after it"])
def test_a_read_while_another_thread_closes_is_answered_or_refused(path: Path, quiet: Quiet, after: bool) -> None:
    # given a read that has seen that the client is open
    backend = quiet()
    backend.commit([], [Put(A, b"1")])
    backend.read([A])
    free = ClosesFirst(backend._readers.free)
    free.backend, free.after = backend, after
    backend._readers.free = free
    # when the client is closed before it goes on, then it gets the value or `Closed`
    try:
        found = backend.read([A])[0]
    except Closed:
        found = None
    assert found is None or found.value == b"1"
    assert backend._closed
    # and the store is left as any other
    assert not backend._readers.free
    assert quiet().check() == []


def test_what_is_wrong_is_found_by_check(path: Path, quiet: Quiet) -> None:
    backend = quiet()
    for n in range(5):
        writes = [Put(keys.pack("t", "s", n), b"v"), Append(LOG, b"%d" % n)]
        backend.commit([], writes, request=new_request(backend.now()))
    raw = apsw.Connection(str(path))
    assert backend.check() == []
    raw.execute("UPDATE records SET value = x'00' WHERE key = ?", (keys.pack("t", "s", 1),))
    raw.execute("UPDATE entries SET value = x'00' WHERE id & 255 = 2")
    raw.execute("DELETE FROM entries WHERE id & 255 = 4")
    raw.execute("UPDATE requests SET at = at + 1 WHERE id = (SELECT min(id) FROM requests)")
    kinds = [finding.kind for finding in backend.check()]
    assert kinds.count("damage") == 3
    assert kinds.count("chain") == 2  # the entry after the damaged one, and the one after the missing one
    with pytest.raises(Damaged):
        backend.read([keys.pack("t", "s", 1)])
    with pytest.raises(Damaged):
        backend.scan(keys.pack("t"))
    with pytest.raises(Damaged):
        backend.entries(LOG)
    with pytest.raises(Damaged):
        backend.entries(LOG, after=2)
    assert backend.read([keys.pack("t", "s", 2)])[0] is not None
    raw.close()


def test_a_value_that_stands_in_an_entry_is_covered_by_the_records_own_checksum(path: Path, quiet: Quiet) -> None:
    # given a record whose value is stored once, in the entry of the same commit
    backend = quiet()
    scope, journal = keys.pack("t", "s", "log", "k"), LOG
    for number in range(2):
        backend.commit([], [Put(scope, b"%d" % number * 100), Append(journal, b"%d" % number * 100)])
    raw = apsw.Connection(str(path))
    assert raw.execute("SELECT count(*) FROM records WHERE entry IS NOT NULL").fetchall() == [(1,)]
    # when it points to another entry, or to none, then it is damaged, not another value
    for change in ("entry - 1", "entry + 7"):
        before = raw.execute("SELECT entry FROM records WHERE entry IS NOT NULL").fetchall()[0]
        raw.execute(f"UPDATE records SET entry = {change} WHERE entry IS NOT NULL")
        with pytest.raises(Damaged):
            backend.read([scope])
        with pytest.raises(Damaged):
            backend.scan(keys.pack("t"))
        assert backend.check() != []
        raw.execute("UPDATE records SET entry = ? WHERE entry IS NOT NULL", before)
    # and forgetting the entry leaves the record its value
    backend.commit([], [Forget(journal, 1, 2)])
    assert backend.read([scope])[0].value == b"1" * 100  # type: ignore[union-attr]
    assert [entry.forgotten for entry in backend.entries(journal)] == [True, True]
    assert backend.check() == []
    raw.close()
