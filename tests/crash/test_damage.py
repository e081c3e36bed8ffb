"""The log under damage, disk errors, interrupts and other processes: noticed, contained, and of one moment."""

import contextlib
import random

import apsw
import pytest
from crash_harness import Child, beside, copy_store, flip, size

from tenuto import Damaged, InvalidInput, StorageUnavailable
from tenuto.backends import _sqlite_tail
from tenuto.backends import sqlite as sqlite_backend
from tenuto.backends._sqlite_writes import WorkJob, Writer
from tenuto.backends.sqlite import SqliteBackend
from tenuto.errors import TenutoError
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Delete, Forget, Put
from tenuto.testing import HeldClock

SCOPE = keys.pack("t", "s")
A, B, C, LOG = (keys.pack("t", "s", name) for name in ("a", "b", "c", "log"))
NOW = 1_900_000_000.0
REQUEST = int(NOW * 1000).to_bytes(6, "big") + b"0123456789"
REQUESTED = [Delete(keys.pack("t", "s", 1)), Put(keys.pack("t", "s", 2), b"second")]


def quiet(path, **options):
    """A client that folds and sweeps only when the test says so."""
    backend = SqliteBackend(path, **options)
    backend._sweep_due = float("inf")
    return backend


def upkeep(backend, work=Writer.fold):
    backend._group.submit(WorkJob(work))


def told(backend):
    return backend.scan(SCOPE), backend.entries(LOG), [backend.read([keys.pack("t", "s", n)])[0] for n in range(20)]


# -- a flipped bit ----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[6, 300], ids=["one page", "many pages"])
def logged(request, tmp_path_factory):
    """The file of a store whose newest transactions are in its log, all of it; what it tells; the bits of the log."""
    path = tmp_path_factory.mktemp("logged") / "store.db"
    backend = quiet(path, clock=HeldClock(NOW))
    for number in range(4):
        backend.commit([], [Put(keys.pack("t", "s", number), b"old"), Append(LOG, b"old")])
    upkeep(backend)
    backend._ask_for_upkeep = lambda: None
    for number in range(request.param):
        backend.commit([], [Put(keys.pack("t", "s", 4 + number % 12), b"%d" % number * 9), Append(LOG, b"%d" % number)])
    backend.commit([], REQUESTED, request=REQUEST)
    raw = apsw.Connection(str(path))
    assert raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall() == [(0, 0, 0)]
    pages = [page for (page,) in raw.execute("SELECT pageno FROM dbstat WHERE name = 'log'").fetchall()]
    raw.close()
    copy = path.with_name("copy.db")
    copy_store(path, copy)
    everything = told(backend)
    backend.close()
    raw = copy.read_bytes()
    used = [at for page in pages for at in range((page - 1) * 4096, page * 4096) if raw[at] or at % 4096 < 12]
    return copy, everything, [8 * at + bit for at in used for bit in range(8)]


def became(path, everything):
    """Say what became of a store with one flipped bit."""
    backend = quiet(path, clock=HeldClock(NOW))
    try:
        try:
            backend.open()
            same = told(backend) == everything
        except TenutoError:
            return "noticed"
        if backend.check():
            return "noticed"
        if not same:
            return "silent"
        try:
            again = backend.commit([], REQUESTED, request=REQUEST)
        except TenutoError:
            return "noticed"
        return "harmless" if again.repeated else "applied twice"
    except Exception as error:
        return repr(error)
    finally:
        backend.close()


@pytest.mark.parametrize("marked", [True, False], ids=["with its mark", "without"])
def test_a_store_with_a_log_is_judged_harmless_as_it_is(logged, path, marked):
    copy_store(logged[0], path)
    if not marked:
        beside(path, "-lock").unlink()
    assert became(path, logged[1]) == "harmless"


@pytest.mark.slow
@pytest.mark.parametrize("marked", [True, False], ids=["with its mark", "without"])
def test_a_flipped_bit_in_the_log_is_noticed_or_harmless(logged, path, marked):
    # given a store with a log, when one bit of the log's pages is flipped
    source, everything, bits = logged
    counted = {"noticed": 0, "harmless": 0}
    bad = []
    for bit in random.Random(3).sample(bits, size(250, len(bits))):
        copy_store(source, path)
        if not marked:
            beside(path, "-lock").unlink()
        flip(path, bit)
        verdict = became(path, everything)
        if verdict in counted:
            counted[verdict] += 1
        else:
            bad.append((bit // 8 % 4096, bit % 8, verdict))
    # then nothing is lost, changed or done twice without a word
    print(f"{counted['noticed']} noticed, {counted['harmless']} harmless, {len(bad)} bad")
    assert bad == []
    assert counted["noticed"] > 100


def test_one_damaged_row_of_the_log_does_not_take_the_whole_store_away(path):
    # given a store with much in its tables, and a damaged row in its log
    backend = quiet(path)
    backend.commit([], [Put(A, b"long ago")])
    upkeep(backend)
    backend.commit([], [Put(B, b"new")])
    backend.commit([], [Put(C, b"newer")])
    raw = apsw.Connection(str(path))
    raw.execute("UPDATE log SET body = zeroblob(length(body)) WHERE id = 2")
    raw.close()
    # when it is opened by somebody who accepts the loss, then the rest can be read and written
    with pytest.raises(Damaged):
        quiet(path).open()
    rescued = quiet(path, accept_loss=True)
    assert rescued.read([A])[0].value == b"long ago"
    rescued.commit([], [Put(B, b"again")])


# -- damage elsewhere ----------------------------------------------------------------------------------


def damage(path, statement, *values):
    raw = apsw.Connection(str(path))
    raw.execute(statement, values)
    assert raw.changes() == 1
    raw.close()


def test_a_refused_commit_leaves_nothing_behind(path):
    # given a commit that would take entries from what is a record
    backend = quiet(path)
    backend.commit([], [Put(A, b"a record")])
    with pytest.raises(InvalidInput):
        backend.commit([], [Put(B, b"1"), Append(LOG, b"1"), Forget(A, 1, 1)])
    # when others go on from what was there before it
    assert backend.read([B]) == [None]
    assert backend.commit([], [Append(LOG, b"1")]).versions == (1,)
    assert backend.commit([Check(B, 0)], [Put(B, b"1")]).versions == (1,)
    # then the store is whole, and can be folded
    upkeep(backend)
    assert [entry.value for entry in SqliteBackend(path).entries(LOG)] == [b"1"]
    assert backend.check() == []


def test_check_says_that_the_tables_lack_what_the_log_goes_on_from(path):
    backend = quiet(path)
    backend.commit([], [Append(LOG, b"1")])
    backend.commit([], [Append(LOG, b"2")])
    upkeep(backend)
    backend.commit([], [Append(LOG, b"3")])
    damage(path, "DELETE FROM entries WHERE value = ?", b"2")
    reader = quiet(path)
    with pytest.raises(Damaged):
        reader.entries(LOG)
    assert reader.check() != []


def test_a_commit_that_meets_damage_leaves_nothing_behind(path):
    # given a stream whose third entry is damaged
    backend = quiet(path)
    for number in range(3):
        backend.commit([], [Append(LOG, b"%d" % number)])
    upkeep(backend)
    damage(path, "UPDATE entries SET value = x'00' WHERE value = ?", b"2")
    # when a commit would take away the first and the third, and fails by it
    with pytest.raises(Damaged):
        backend.commit([], [Put(A, b"1"), Forget(LOG, 1, 1), Forget(LOG, 3, 3)])
    # then nothing of it has happened, also not in the writer's memory
    assert backend.entries(LOG, limit=1)[0].value == b"0"
    assert backend.read([A]) == [None]
    assert backend.commit([Check(A, 0)], [Put(A, b"1")]).versions == (1,)


def test_a_sweep_that_meets_damage_never_lets_versions_restart(path, caplog):
    # given a tombstone at version 4 and a damaged record, both due, and a client that knows that there is no floor
    clock = HeldClock()
    one, two = quiet(path, clock=clock), quiet(path, clock=clock)
    for number in range(3):
        one.commit([], [Put(A, b"%d" % number)])
    one.commit([], [Delete(A)])
    clock.advance(1)
    one.commit([], [Put(B, b"x", 3_700.0)])
    upkeep(one)
    damage(path, "UPDATE records SET digest = x'00' WHERE key = ?", B)
    clock.advance(3_800)
    one.commit([], [Put(keys.pack("t", "elsewhere"), b"1")])
    two.commit([], [Put(C, b"1")])
    # when the sweep comes upon it
    upkeep(one, Writer.sweep)
    assert "could not be swept" in caplog.text
    # then the key goes on where it was, whoever writes it
    assert two.commit([], [Put(A, b"again")]).versions[0] > 4


def test_forgetting_beyond_the_end_of_a_stream_leaves_other_streams_alone(path):
    # given streams of several tenants
    backend = quiet(path)
    streams = [keys.pack(f"tenant{n}", "s", "log") for n in range(4)]
    for stream in streams:
        backend.commit([], [Append(stream, stream)])
    # when one tenant takes away entries with numbers that no stream reaches
    for stream in streams:
        for first in (2, 1 << 40, (1 << 40) + 1, (3 << 40) + 1, (1 << 62) + 1, 1 << 63, 1 << 70):
            try:
                backend.commit([], [Forget(stream, first, first)])
            except TenutoError:
                continue
    # then every entry is still there
    assert [backend.entries(stream)[0].value for stream in streams] == streams


def test_a_damaged_entry_stops_its_own_stream_only(path):
    # given a stream whose last entry was damaged after a writer had read it
    backend = quiet(path)
    backend.commit([], [Append(LOG, b"1")])
    upkeep(backend)
    damage(path, "UPDATE entries SET written = written + 1")
    # when more is appended to it
    with contextlib.suppress(Damaged):
        backend.commit([], [Append(LOG, b"2")])
    # then everybody else can go on writing
    backend.commit([], [Put(keys.pack("other", "s", "large"), b"x" * 70_000)])


# -- the disk says no, and the user says stop ------------------------------------------------------------


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
        lambda backend: backend.read([A, B]),
        lambda backend: backend.scan(SCOPE),
        lambda backend: backend.entries(LOG),
        lambda backend: backend.stats(),
    ],
    ids=["read", "scan", "entries", "stats"],
)
def test_a_disk_error_while_reading_is_not_called_damage(path, monkeypatch, call):
    # given a store on a disk
    vfs, connection = UnreadableVFS(), apsw.Connection
    monkeypatch.setattr(
        sqlite_backend.apsw, "Connection", lambda name, flags: connection(name, flags=flags, vfs="unreadable")
    )
    backend = quiet(path)
    backend.commit([], [Put(A, b"x" * 50_000), Append(LOG, b"y" * 50_000)])
    upkeep(backend)
    with backend._readers.one() as reader:
        reader.execute("PRAGMA cache_size = 1; SELECT * FROM meta").fetchall()  # it is open, and holds no page of ours
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


def test_an_interrupt_while_the_tail_grows_adds_nothing_twice(path, monkeypatch):
    # given a commit that is made, but interrupted before the process has noted all of it
    backend = quiet(path)
    backend.commit([], [Append(LOG, b"1")])
    append = _sqlite_tail.Pending.append

    def interrupted(*arguments):
        append(*arguments)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(_sqlite_tail.Pending, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backend.commit([], [Put(A, b"2"), Append(LOG, b"2")])
    # when the program goes on, then the commit is there once
    assert [entry.value for entry in backend.entries(LOG)] == [b"1", b"2"]
    assert backend.commit([], [Put(A, b"3"), Append(LOG, b"3")]).versions == (2, 3)
    backend.close()
    assert SqliteBackend(path).check() == []


# -- a reader while others write and fold ------------------------------------------------------------------

_MOVES = """
import random, sys
from tenuto.backends import _sqlite_tail
_sqlite_tail.MOST_ROWS = 4
from tenuto.backends.sqlite import SqliteBackend
from tenuto.backends._sqlite_writes import WorkJob, Writer
from tenuto.errors import Conflict
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Put
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
        backend._group.submit(WorkJob(Writer.fold if made % 100 else Writer.sweep))
backend.close()
print("done", flush=True)
"""


def test_every_read_is_of_one_moment_while_two_processes_write_and_fold(path):
    # given two processes that move amounts between records, and fold all the time
    names = [keys.pack("t", "s", n) for n in range(4)]
    reader = quiet(path, durability="process")
    reader.commit([], [Put(name, b"0") for name in names])
    moves = size(300, 5_000)
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
