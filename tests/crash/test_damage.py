"""A SQLite store under damage, disk errors and other processes: noticed, contained, and of one moment."""

import contextlib

import apsw
import pytest
from crash_harness import Child
from support.long import size

from tenuto import Damaged, InvalidInput, StorageUnavailable
from tenuto.backends.sqlite import SqliteBackend, connections
from tenuto.backends.sqlite.commit import WorkJob, Writer
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Delete, Forget, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock

SCOPE = keys.pack("t", "s")
A, B, C, LOG = (keys.pack("t", "s", name) for name in ("a", "b", "c", "log"))


def quiet(path, **options):
    """A client that sweeps only when the test says so."""
    backend = SqliteBackend(path, **options)
    backend._sweep_due = float("inf")
    return backend


def damage(path, statement, *values):
    raw = apsw.Connection(str(path))
    raw.execute(statement, values)
    assert raw.changes() == 1
    raw.close()


# -- a commit or a sweep that meets damage ---------------------------------------------------------


def test_a_refused_commit_leaves_nothing_behind(path):
    # given a commit that would forget entries of what is a record
    backend = quiet(path)
    backend.commit([], [Put(A, b"a record")])
    with pytest.raises(InvalidInput):
        backend.commit([], [Put(B, b"1"), Append(LOG, b"1"), Forget(A, 1, 1)])
    # when others go on from what was there before it
    assert backend.read([B]) == [None]
    assert backend.commit([], [Append(LOG, b"1")]).versions == (1,)
    assert backend.commit([Check(B, 0)], [Put(B, b"1")]).versions == (1,)
    # then the store is whole
    assert [entry.value for entry in SqliteBackend(path).entries(LOG)] == [b"1"]
    assert backend.check() == []


@pytest.mark.parametrize("missing", [b"1", b"2"])
def test_entries_that_are_missing_are_noticed_by_readers_and_by_check(path, missing):
    backend = quiet(path)
    for number in range(1, 4):
        backend.commit([], [Append(LOG, b"%d" % number)])
    damage(path, "DELETE FROM entries WHERE value = ?", missing)
    for reader in (backend, quiet(path)):
        with pytest.raises(Damaged):
            reader.entries(LOG)
        assert reader.check() != []


def test_a_stream_without_entries_is_noticed(path):
    backend = quiet(path)
    backend.commit([], [Append(LOG, b"1")])
    damage(path, "DELETE FROM entries")
    fresh = quiet(path)
    assert [finding.kind for finding in fresh.check()] == ["chain"]
    with pytest.raises(Damaged):
        fresh.commit([], [Append(LOG, b"2")])


def test_a_commit_that_meets_damage_leaves_nothing_behind(path):
    # given a stream whose third entry is damaged
    backend = quiet(path)
    for number in range(3):
        backend.commit([], [Append(LOG, b"%d" % number)])
    damage(path, "UPDATE entries SET written = written + 1 WHERE value = ?", b"2")
    # when a commit would forget the first and the third, and fails by it
    with pytest.raises(Damaged):
        backend.commit([], [Put(A, b"1"), Forget(LOG, 1, 1), Forget(LOG, 3, 3)])
    # then nothing of it has happened, also not in the writer's cache
    assert backend.entries(LOG, limit=1)[0].value == b"0"
    assert backend.read([A]) == [None]
    assert backend.commit([Check(A, 0)], [Put(A, b"1")]).versions == (1,)


def test_a_batch_goes_on_without_the_commit_that_meets_damage(path):
    # given a damaged record that no writer has in its cache
    quiet(path).commit([], [Put(A, b"1"), Put(C, b"1")])
    damage(path, "UPDATE records SET version = 7 WHERE key = ?", A)
    backend = quiet(path)
    # when others write next to it, then they are not disturbed, and nobody writes over the damage
    for value in (b"2", b"3"):
        with pytest.raises(Damaged):
            backend.commit([], [Put(A, value)])
        backend.commit([], [Put(C, value)])
    assert backend.read([C])[0].value == b"3"
    with pytest.raises(Damaged):
        backend.read([A])


def test_a_sweep_that_meets_damage_never_lets_versions_restart(path, caplog):
    # given a tombstone at version 4 and a damaged record, both due, and a client that knows that there is no floor
    clock = HeldClock()
    one, two = quiet(path, clock=clock), quiet(path, clock=clock)
    for number in range(3):
        one.commit([], [Put(A, b"%d" % number)])
    one.commit([], [Delete(A)])
    clock.advance(1)
    one.commit([], [Put(B, b"x", 3_700.0)])
    damage(path, "UPDATE records SET digest = x'00' WHERE key = ?", B)
    clock.advance(3_800)
    one.commit([], [Put(keys.pack("t", "elsewhere"), b"1")])
    two.commit([], [Put(C, b"1")])
    # when the sweep comes upon it
    one._group.submit(WorkJob(Writer.sweep))
    assert "could not be removed" in caplog.text
    # then the key goes on where it was, whoever writes it
    assert two.commit([], [Put(A, b"again")]).versions[0] > 4


def test_a_sweep_that_always_meets_damage_comes_to_an_end(path):
    # given many damaged records that are due: more than one sweep takes
    clock = HeldClock()
    backend = SqliteBackend(path, clock=clock)
    backend.commit([], [Put(A, b"1"), *(Put(keys.pack("t", "s", n), b"x", 5.0) for n in range(600))])
    raw = apsw.Connection(str(path))
    raw.execute("UPDATE records SET version = 2 WHERE expires IS NOT NULL")
    raw.close()
    clock.advance(40)
    # when upkeep comes upon them, then it comes to an end, and commits go on
    commits = backend.stats()["commits"]
    backend.upkeep()
    assert backend.stats()["commits"] < commits + 10
    assert backend.commit([], [Put(A, b"2")]).versions == (2,)
    backend.close()


def test_a_damaged_entry_stops_its_own_stream_only(path):
    # given a stream whose last entry was damaged after a writer had read it
    backend = quiet(path)
    backend.commit([], [Append(LOG, b"1")])
    damage(path, "UPDATE entries SET written = written + 1")
    # when more is appended to it
    with contextlib.suppress(Damaged):
        backend.commit([], [Append(LOG, b"2")])
    # then everybody else can go on writing
    backend.commit([], [Put(keys.pack("other", "s", "large"), b"x" * 70_000)])


def test_one_damaged_request_does_not_take_the_whole_store_away(path):
    # given a store of which the record of a request is damaged, and nothing else
    backend = quiet(path)
    request = new_request(backend.now())
    backend.commit([], [Put(A, b"1")], request=request)
    for value in (b"2", b"3"):
        backend.commit([], [Put(A, value)])
    damage(path, "UPDATE requests SET content = x'00' WHERE id = ?", request)
    backend.close()
    # when it is opened, then check() says so, and the rest can be read and written
    again = quiet(path)
    assert [finding.kind for finding in again.check()] == ["damage"]
    assert again.read([A])[0].value == b"3"
    assert again.commit([], [Put(B, b"1")]).versions == (1,)


# -- the disk says no ------------------------------------------------------------------------------


class UnreadableFile(apsw.VFSFile):
    now = False

    def __init__(self, name, flags):
        super().__init__("unix", name, flags)

    def xRead(self, amount, offset):
        if UnreadableFile.now:
            raise apsw.IOError("injected")
        return super().xRead(amount, offset)


class UnreadableVFS(apsw.VFS):
    def __init__(self):
        super().__init__("unreadable", "unix", makedefault=False)

    def xOpen(self, name, flags):
        return UnreadableFile(name, flags)


@pytest.mark.parametrize(
    "call",
    [
        lambda backend: backend.read([A]),
        lambda backend: backend.read([A, B]),
        lambda backend: backend.scan(SCOPE),
        lambda backend: backend.entries(LOG),
        lambda backend: backend.stats(),
    ],
    ids=["read", "read many", "scan", "entries", "stats"],
)
def test_a_disk_error_while_reading_is_not_called_damage(path, monkeypatch, call):
    # given a store on a disk
    vfs, connection = UnreadableVFS(), apsw.Connection
    monkeypatch.setattr(
        connections.apsw, "Connection", lambda name, flags: connection(name, flags=flags, vfs="unreadable")
    )
    backend = quiet(path)
    backend.commit([], [Put(A, b"x" * 50_000), Append(LOG, b"y" * 50_000)])
    backend.read([A])
    (reader,) = backend._readers.free
    reader.connection.execute("PRAGMA cache_size = 1; SELECT * FROM meta").fetchall()  # it holds no page of ours
    # when a read fails there once
    UnreadableFile.now = True
    try:
        with pytest.raises(StorageUnavailable):
            call(backend)
    finally:
        UnreadableFile.now = False
    # then the next one is answered
    assert call(backend)
    backend.close()
    del vfs


# -- a reader while others write and sweep -----------------------------------------------------------

_MOVES = """
import random, sys
from tenuto.backends.sqlite import SqliteBackend, writable
from tenuto.backends.sqlite.commit import WorkJob, Writer
from tenuto.errors import Conflict
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Put
writable.CHECKPOINT_PAGES = 60
chance = random.Random(int(sys.argv[2]))
backend = SqliteBackend(sys.argv[1], durability="process")
names = [keys.pack("t", "s", n) for n in range(4)]
print("ready", flush=True)
sys.stdin.readline()
made = 0
while made < int(sys.argv[3]):
    left, right = chance.sample(names, 2)
    a, b = backend.read([left, right])
    more = b" " * (70_000 if made % 40 == 7 else 0)
    writes = [Put(left, b"%d" % (int(a.value) - 1)), Put(right, b"%d" % (int(b.value) + 1) + more)]
    try:
        backend.commit([Check(left, a.version), Check(right, b.version)], [*writes, Append(keys.pack("t", "s", "log"), b"1")])
    except Conflict:
        continue
    made += 1
    if made % 50 == 0:
        backend._group.submit(WorkJob(Writer.sweep))
backend.close()
print("done", flush=True)
"""


def test_every_read_is_of_one_moment_while_two_processes_write_and_sweep(path):
    # given two processes that move amounts between records, and sweep and checkpoint all the time
    names = [keys.pack("t", "s", n) for n in range(4)]
    reader = quiet(path, durability="process")
    reader.commit([], [Put(name, b"0") for name in names])
    moves = size(120, 5_000)
    with Child(path, 1, moves, code=_MOVES) as one, Child(path, 2, moves, code=_MOVES) as two:
        assert [one.says(), two.says()] == ["ready", "ready"]
        one.tell()
        two.tell()
        seen, length, reads = [1] * 4, 0, 0
        # when another reads all the time, until every move was seen
        while length < 2 * moves:
            together, listed = reader.read(names), reader.scan(keys.pack("t", "s"))
            journal = reader.entries(LOG, after=length, limit=10_000)
            alone = [reader.read([name])[0] for name in names]
            # then each answer is of one moment, and none is of an earlier one than the answer before
            for found in (together, listed):
                assert sum(int(record.value) for record in found) == 0
            for found in (together, listed, alone):
                versions = [record.version for record in found]
                assert all(now >= before for now, before in zip(versions, seen, strict=True)), (versions, seen)
                seen = versions
            assert [entry.number for entry in journal] == list(range(length + 1, length + len(journal) + 1))
            length += len(journal)
            reads += 1
        assert [one.says(), two.says()] == ["done", "done"]
    print(f"{reads} rounds of reads beside {2 * moves} commits")
    assert sum(seen) == 4 + 4 * moves
    assert reader.check() == []
