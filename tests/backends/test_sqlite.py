"""What is SQLite's alone: the file, its format, its neighbours, its upkeep."""

import errno
import logging
import os
import pwd
import shutil
import subprocess
import sys
import textwrap
import threading
import warnings
from collections import deque
from pathlib import Path
from typing import Any

import apsw
import pytest

from tenuto import Damaged, InvalidInput, NewerFormat, StorageUnavailable, Tenuto, _machine
from tenuto.backends import _lockfile, _sqlite_log, _sqlite_rows, _sqlite_upkeep, sqlite
from tenuto.backends import _sqlite_schema as schema
from tenuto.backends._group import GroupCommit, Job
from tenuto.backends._lockfile import LockFile, Mark, word_of
from tenuto.backends._sqlite_upkeep import make_room
from tenuto.backends._sqlite_writes import CommitJob, WorkJob, Writer
from tenuto.backends.sqlite import NetworkFilesystemWarning, SqliteBackend
from tenuto.kernel import keys
from tenuto.kernel.contract import REQUEST_LIFE, Append, Check, Delete, Put
from tenuto.kernel.transact import new_request, own_request
from tenuto.testing import HeldClock

A, B = keys.pack("t", "s", "a"), keys.pack("t", "s", "b")
LOG = keys.pack("t", "s", "log")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


class Held:
    """The lock of a store, held as another process would hold it."""

    def __init__(self, path: Path) -> None:
        self._lock, self._go, holds = LockFile(path), threading.Event(), threading.Event()

        def hold() -> None:
            holds.set()
            assert self._go.wait(10)

        self._thread = threading.Thread(target=self._lock.run, args=(hold, 10))
        self._thread.start()
        assert holds.wait(10)

    def release(self) -> None:
        self._go.set()
        self._thread.join()


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("process", 1)])
def test_every_connection_has_the_settings_that_the_promise_rests_on(path: Path, durability: Any, level: int) -> None:
    backend = SqliteBackend(path, durability=durability)
    backend.commit([], [Put(A, b"1")])
    backend.read([A])
    assert backend._writer is not None
    for connection in (backend._writer.connection, *backend._readers.home):
        assert connection.pragma("journal_mode") == "wal"
        assert connection.pragma("synchronous") == level
        assert connection.pragma("secure_delete") == 1
        assert connection.pragma("cell_size_check") == 1
        assert connection.pragma("trusted_schema") == 0
        assert connection.pragma("wal_autocheckpoint") == 0
    assert apsw.sqlite_lib_version() >= "3.51.3"
    backend.close()


def test_deleted_values_leave_no_trace_in_the_file(path: Path) -> None:
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"SECRET" * 50), Put(B, b"other")])
    backend.commit([], [Delete(A)])
    backend.close()
    assert b"SECRETSECRET" not in path.read_bytes()


# -- the format ----------------------------------------------------------------------------------


def test_the_migrations_amount_to_the_schema(path: Path) -> None:
    SqliteBackend(path).open()
    connection = apsw.Connection(str(path))
    assert schema.described(connection) == schema.SCHEMA
    assert connection.pragma("application_id") == schema.APPLICATION_ID
    assert [m.number for m in schema.MIGRATIONS] == list(range(1, len(schema.MIGRATIONS) + 1))
    connection.close()


NEXT = schema.Migration(
    len(schema.MIGRATIONS) + 1,
    "one more",
    "CREATE TABLE extra (x); INSERT INTO extra VALUES (1);",
    1,
    len(schema.MIGRATIONS) + 1,
)


def test_an_older_store_is_upgraded_after_a_backup(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", "kept")
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, NEXT])
    with Tenuto("a", path) as agent:
        assert agent.state.get("s", "k") == "kept"
        assert agent.store.check().ok
    names = apsw.Connection(str(path)).execute("SELECT number, name FROM migrations").fetchall()
    assert names == [(one.number, one.name) for one in schema.MIGRATIONS]
    monkeypatch.undo()
    backup = path.with_name(f"store.db.format{schema.FORMAT}.backup")
    shutil.copy(backup, path.with_name("old.db"))
    with Tenuto("a", path.with_name("old.db")) as agent:
        assert agent.state.get("s", "k") == "kept"


def test_a_migration_that_fails_halfway_leaves_the_store_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", "kept")
    broken = NEXT._replace(sql="CREATE TABLE extra (x); INSERT INTO nowhere VALUES (1);")
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, broken])
    with pytest.raises(Damaged):
        Tenuto("a", path).open()
    monkeypatch.undo()
    with Tenuto("a", path) as agent:
        assert agent.state.get("s", "k") == "kept"
    tables = apsw.Connection(str(path)).execute("SELECT name FROM sqlite_schema").fetchall()
    assert ("extra",) not in tables


def test_a_newer_format_is_refused_and_left_untouched(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, NEXT])
    Tenuto("a", path).open().close()
    before = path.read_bytes()
    monkeypatch.undo()
    with pytest.raises(NewerFormat, match="upgrade tenuto"):
        Tenuto("a", path).open()
    assert path.read_bytes() == before


def test_a_newer_format_that_older_versions_may_write_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, NEXT._replace(min_writer=1)])
    Tenuto("a", path).open().close()
    monkeypatch.undo()
    with Tenuto("a", path) as agent:
        agent.state.set("s", "k", 1)


# -- files that are something else -----------------------------------------------------------------


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"a letter to somebody " * 300)
    with pytest.raises(InvalidInput, match="not a tenuto store"):
        Tenuto("a", path).open()
    assert path.read_bytes() == b"a letter to somebody " * 300


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path) -> None:
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(InvalidInput, match="another program"):
        Tenuto("a", path).open()
    assert apsw.Connection(str(path)).execute("SELECT name FROM sqlite_schema").fetchall() == [("theirs",)]


def test_a_folder_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="is a folder"):
        Tenuto("a", tmp_path).open()


def test_an_empty_file_becomes_a_store(path: Path) -> None:
    path.touch()
    with Tenuto("a", path) as agent:
        assert agent.state.set("s", "k", 1) == 1


AS_NOBODY = """
    import os, sys
    import tenuto.backends.sqlite
    from tenuto import Tenuto, TenutoError
    os.setgid({gid}); os.setuid({uid})
    agent = Tenuto("a", sys.argv[1])
    for call in (lambda: agent.state.get("s", "k"), lambda: agent.state.set("s", "k", 2)):
        try:
            print(call())
        except TenutoError as error:
            print(type(error).__name__, error)
"""


def as_nobody(path: Path) -> list[str]:
    """Use a store as a user without rights (root has them all, whatever a file's mode says)."""
    if os.getuid() != 0:
        uid, gid = os.getuid(), os.getgid()
    else:
        nobody = pwd.getpwnam("nobody")
        uid, gid = nobody.pw_uid, nobody.pw_gid
    code = textwrap.dedent(AS_NOBODY.format(uid=uid, gid=gid))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def open_place() -> Any:
    """A folder that everybody may enter, unlike pytest's own."""
    place = Path("/tmp") / f"tenuto-{os.getpid()}-{threading.get_ident()}"
    place.mkdir(mode=0o755)
    yield place
    shutil.rmtree(place)


def test_a_folder_that_cannot_be_written_is_said_to_be_so(open_place: Path) -> None:
    lines = as_nobody(open_place / "store.db")
    assert all(line.startswith(("StorageUnavailable", "ReadOnly", "InvalidInput")) for line in lines)
    assert all("permission" in line or "writable" in line or "written" in line for line in lines)
    assert list(open_place.iterdir()) == []


def test_a_file_that_cannot_be_written_can_be_read(open_place: Path) -> None:
    with Tenuto("a", open_place / "store.db") as agent:
        agent.state.set("s", "k", 1)
        # another process has it open: the log and its index are there
        for file in open_place.iterdir():
            file.chmod(0o444)
        lines = as_nobody(open_place / "store.db")
        assert lines[0] == "1"
        assert lines[1].startswith("ReadOnly")
        assert "permissions" in lines[1]
        assert agent.state.get("s", "k") == 1


def test_a_network_file_system_is_warned_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_machine, "network_filesystem", lambda _: "nfs4")
    with pytest.warns(NetworkFilesystemWarning, match="nfs4.*locks"):
        Tenuto("a", path).open()
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Tenuto("a", path).open()


def test_network_file_systems_are_known_by_what_is_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = f"1 2 0:1 / / rw - ext4 /dev/vda rw\n3 1 0:2 / {tmp_path} rw shared:1 - nfs4 server:/x rw\n4 1 0:3 / {tmp_path}/s\\040p rw - fuse.sshfs x rw\n"
    monkeypatch.setattr(Path, "read_text", lambda self, *a, **k: mounts)
    assert _machine.network_filesystem(tmp_path / "x") == "nfs4"
    assert _machine.network_filesystem(tmp_path / "s p" / "x") == "fuse.sshfs"
    assert _machine.network_filesystem(Path("/other")) is None


# -- the mark --------------------------------------------------------------------------------------


def test_the_mark_survives_a_slot_that_is_torn(tmp_path: Path) -> None:
    lock = LockFile(tmp_path / "lock")
    assert lock.load() is None
    lock.belongs_to(b"s" * 16, b"b" * 16, full=True)
    for number in (1, 2, 3):
        lock.store(word_of(number, b"c" * 16))
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
    with pytest.raises(Damaged, match="2 are lost"):
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
    assert "its mark was at" in caplog.text


def test_another_store_in_its_place_is_noticed(path: Path) -> None:
    for name in ("store.db", "other.db"):
        with Tenuto("a", path.with_name(name)) as agent:
            agent.state.set("s", "k", name)
    shutil.copy(path.with_name("other.db"), path)
    with pytest.raises(Damaged, match="another store"):
        Tenuto("a", path).open()


def test_a_commit_notices_that_the_store_fell_behind(path: Path) -> None:
    backend = SqliteBackend(path)
    backend.open()
    backend._sweep_due = float("inf")  # upkeep would store the mark anew
    backend.commit([], [Put(A, b"1")])
    mark = backend._lock.load()  # type: ignore[union-attr]
    assert mark is not None
    other = LockFile(path.with_name("store.db-lock"))
    other.start_over(mark._replace(number=mark.number + 5))
    with pytest.raises(Damaged, match="5 are lost"):
        backend.commit([], [Put(A, b"2")])
    assert [finding.kind for finding in backend.check()] == ["loss"]
    backend.close()


# -- upkeep ----------------------------------------------------------------------------------------


def test_expired_records_become_tombstones_and_then_floors(path: Path) -> None:
    clock = HeldClock()
    backend = SqliteBackend(path, clock=clock)
    backend.commit([], [Put(A, b"1", 5.0), Put(B, b"1")])
    backend.commit([], [Put(A, b"2", 5.0)])
    request = new_request(backend.now())
    backend.commit([], [Put(B, b"2")], request=request)

    def rows(table: str) -> int:
        return apsw.Connection(str(path)).execute(f"SELECT count(*) FROM {table}").fetchall()[0][0]

    clock.advance(31)
    backend.upkeep()
    assert rows("records") == 2
    clock.advance(REQUEST_LIFE + 61)
    backend.upkeep()
    assert rows("records") == 2  # the other record, and the floor
    assert rows("outcomes") == 1  # the counter
    assert backend.commit([Check(A, 0)], [Put(A, b"3")]).versions == (3,)
    assert backend.check() == []
    backend.close()


def test_the_write_ahead_log_stays_small_under_steady_writes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_CHECKPOINT_PAGES", 100)
    backend = SqliteBackend(path, durability="process")
    log = path.with_name("store.db-wal")
    largest = 0
    for n in range(3000):
        backend.commit([], [Put(A, b"%d" % n + b"x" * 1000), Append(LOG, b"x" * 100)])
        largest = max(largest, log.stat().st_size)
    assert largest < 40 * 100 * 4096
    assert path.stat().st_size > 100_000
    backend.close()


def busy(path: Path) -> tuple[SqliteBackend, Path]:
    """Return a store that has made enough commits for its log to get room, and that log; upkeep is yet to come."""
    backend = SqliteBackend(path)
    backend.open()
    backend._sweep_due = float("inf")
    asked: list[int] = []
    backend._ask_for_upkeep = lambda: asked.append(1)  # type: ignore[method-assign]
    for n in range(sqlite._BUSY):
        assert not asked
        backend.commit([], [Put(A, b"%d" % n + b"x" * 1000)])
    assert asked
    return backend, path.with_name("store.db-wal")


def test_a_busy_store_has_room_in_its_write_ahead_log_before_it_is_needed(path: Path) -> None:
    # given a process that has made some commits, when upkeep comes, then the log is longer than it need be
    backend, log = busy(path)
    before = log.stat().st_size
    backend.upkeep()
    size = log.stat().st_size
    assert size >= before + 2 * 1024 * 1024
    # and commits do not make it longer, nor does what is behind them count
    for n in range(100):
        backend.commit([], [Put(A, b"%d" % n + b"x" * 1000)])
    assert log.stat().st_size == size
    for ending in ("", "-wal", "-lock"):  # as a killed process would leave them
        shutil.copy(path.with_name(path.name + ending), path.with_name("copy.db" + ending))
    backend.close()
    copy = SqliteBackend(path.with_name("copy.db"))
    found = copy.read([A])[0]
    assert found is not None
    assert (found.version, found.value[:2]) == (100 + sqlite._BUSY, b"99")
    assert copy.check() == []
    copy.close()


def test_a_few_commits_get_no_room(path: Path) -> None:
    backend = SqliteBackend(path)
    for n in range(sqlite._BUSY - 1):
        backend.commit([], [Put(A, b"%d" % n)])
    backend.upkeep()
    assert path.with_name("store.db-wal").stat().st_size < 1024 * 1024
    backend.close()


def test_a_disk_that_is_nearly_full_is_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, log = busy(path)
    before = log.stat().st_size
    monkeypatch.setattr(_sqlite_upkeep, "_SPARE", 1 << 60)
    make_room(backend._writer.connection)  # type: ignore[union-attr]
    assert log.stat().st_size == before
    backend.close()


def test_a_disk_that_fills_up_while_room_is_made_hurts_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _ = busy(path)
    write, left = os.write, [3]

    def full(file: int, data: bytes) -> int:
        left[0] -= 1
        if not left[0]:
            raise OSError(errno.ENOSPC, "full")
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    make_room(backend._writer.connection)  # type: ignore[union-attr]
    monkeypatch.undo()
    assert left == [0]
    assert backend.commit([], [Put(A, b"after")]).versions == (sqlite._BUSY + 1,)
    assert backend.check() == []
    backend.close()


def test_room_is_only_made_behind_what_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given somebody who adds to the same file meanwhile: the store was replaced, or a fork goes on with it
    backend, log = busy(path)
    marks: list[int] = []

    def added(call: Any) -> Any:
        def wrapped(*arguments: Any) -> Any:
            with log.open("r+b") as other:
                marks.append(other.seek(0, os.SEEK_END))
                other.write(b"acknowledged")
            return call(*arguments)

        return wrapped

    for name in ("write", "pwrite"):
        monkeypatch.setattr(os, name, added(getattr(os, name)))
    # when room is made, then what they wrote is still there
    make_room(backend._writer.connection)  # type: ignore[union-attr]
    monkeypatch.undo()
    raw = log.read_bytes()
    assert len(marks) > 2
    assert all(raw[at : at + 12] == b"acknowledged" for at in marks)
    backend.close()


def test_what_is_committed_is_not_told_otherwise_by_what_comes_after(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given upkeep's part of a commit that fails after the commit itself was made
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"1")])

    def fails(*_: Any, **__: Any) -> int:
        raise apsw.BusyError("another program changes the log's index")

    monkeypatch.setattr(sqlite, "wal_pages", fails)
    assert backend.commit([], [Put(A, b"x" * 100_000)]).versions == (2,)
    assert backend.commit([], [Put(A, b"3")]).versions == (3,)
    monkeypatch.undo()

    class Busy:
        wal_checkpoint = fails

    assert _sqlite_upkeep.wal_pages(Busy(), 17) == 17  # type: ignore[arg-type]
    backend.close()


def test_a_key_that_comes_to_be_while_it_is_read_is_no_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a client that has found no record at a key, when another writes it before that is proven
    backend, other = SqliteBackend(path), SqliteBackend(path)
    backend.commit([], [Put(B, b"1")])
    prove = _sqlite_rows.prove_absent

    def late(connection: Any, key: bytes) -> None:
        monkeypatch.undo()
        other.commit([], [Put(key, b"x" * 100_000)])
        prove(connection, key)

    monkeypatch.setattr(_sqlite_rows, "prove_absent", late)
    # then it is read, and nothing is said to be damaged
    record = backend.read([A])[0]
    assert record is not None
    assert record.value == b"x" * 100_000
    backend.close()
    other.close()


@pytest.mark.parametrize("stale", [False, True])
def test_a_commit_that_failed_before_it_was_written_is_not_in_doubt(
    path: Path, monkeypatch: pytest.MonkeyPatch, stale: bool
) -> None:
    # given a client whose last commit was made, and, or not, a next one that another program's has forestalled
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"1")])
    if stale:
        monkeypatch.setattr(_sqlite_log, "ADD", "INSERT OR IGNORE INTO log VALUES (?1, iif(?5 = ?2, ?2, NULL), ?3, ?4)")

    def fails(_: Writer) -> Any:
        raise apsw.IOError("the disk is gone")

    # when the disk fails before anything of it is written
    monkeypatch.setattr(Writer, "begin", fails)
    with pytest.raises(StorageUnavailable) as caught:
        backend.commit([], [Put(A, b"2" * (2 if stale else 100_000))])
    assert caught.value.outcome == "not applied"
    monkeypatch.undo()
    backend.close()


def test_closing_does_first_what_waits_whatever_it_is(path: Path) -> None:
    # given small and large commits that wait, one after the other
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"0")])
    holder = Held(path.with_name("store.db-lock"))
    done: list[int] = []
    threads = []
    for n in range(6):
        key, size = keys.pack("t", "s", f"k{n}"), (1, 100_000)[n % 2]
        threads.append(
            threading.Thread(
                target=lambda k=key, v=size: done.append(backend.commit([], [Put(k, b"x" * v)]).versions[0])
            )
        )
        threads[-1].start()
        while not backend._group._turn.locked() or len(backend._group._queue) < n:
            pass
    # when the client is closed
    threads.append(threading.Thread(target=backend.close))
    threads[-1].start()
    holder.release()
    for thread in threads:
        thread.join(10)
    assert done == [1] * 6


def test_a_request_that_two_threads_use_for_the_first_time_is_applied_once(path: Path) -> None:
    backend = SqliteBackend(path)
    request = own_request(backend.now())
    backend.open()
    jobs = [CommitJob([], [Put(A, b"1")], request) for _ in range(2)]
    assert [backend._group.submit(job)[2] for job in reversed(jobs)] == [False, True]
    backend.close()


@pytest.mark.parametrize("at", ["taking", "work"])
def test_an_interrupt_leaves_the_lock_free(path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    lock, other = LockFile(path), LockFile(path)
    take = _lockfile._try_lock

    def interrupted(*_: Any) -> bool:
        take(lock._fd)
        raise KeyboardInterrupt

    if at == "taking":
        monkeypatch.setattr(_lockfile, "_try_lock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        lock.run(interrupted, 1)
    monkeypatch.undo()
    assert _lockfile._try_lock(other._fd)
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


def test_a_process_that_holds_the_lock_is_waited_for_with_a_deadline(path: Path) -> None:
    backend = SqliteBackend(path, timeout=0.2)
    backend.commit([], [Put(A, b"1")])
    holder = Held(path.with_name("store.db-lock"))
    for _ in range(2):
        with pytest.raises(StorageUnavailable, match="held the write lock"):
            backend.commit([], [Put(A, b"2")])
    assert backend.read([A])[0].value == b"1"  # type: ignore[union-attr]
    threading.Timer(0.05, holder.release).start()
    assert backend.commit([], [Put(A, b"2")]).versions == (2,)
    assert backend.commit([], [Put(A, b"3")]).versions == (3,)
    backend.close()


def test_readers_do_not_wait_for_a_writer(path: Path) -> None:
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"1"), Append(LOG, b"e")])
    holder = Held(path.with_name("store.db-lock"))
    other = apsw.Connection(str(path))
    other.set_busy_timeout(5_000)
    other.execute("BEGIN IMMEDIATE")
    assert backend.read([A])[0] is not None
    assert len(backend.scan(keys.pack("t"))) == 1
    assert len(backend.entries(LOG)) == 1
    other.execute("ROLLBACK")
    holder.release()
    backend.close()


def test_what_is_wrong_is_found_by_check(path: Path) -> None:
    backend = SqliteBackend(path)
    for n in range(5):
        backend.commit([], [Put(keys.pack("t", "s", n), b"v"), Append(LOG, b"%d" % n)])
    backend._group.submit(WorkJob(Writer.fold))
    raw = apsw.Connection(str(path))
    assert backend.check() == []
    raw.execute("UPDATE records SET value = x'00' WHERE key = ?", (keys.pack("t", "s", 1),))
    raw.execute("UPDATE entries SET value = x'00' WHERE id & 255 = 2")
    raw.execute("DELETE FROM entries WHERE id & 255 = 4")
    kinds = [finding.kind for finding in backend.check()]
    assert kinds.count("damage") == 2
    assert "chain" in kinds
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
    backend.close()


# -- group commit ------------------------------------------------------------------------------------


def test_callers_that_come_meanwhile_share_the_next_batch() -> None:
    batches: list[int] = []
    entered, go = threading.Event(), threading.Event()

    def run(batch: list[Job]) -> None:
        batches.append(len(batch))
        entered.set()
        assert go.wait(10)
        for job in batch:
            job.outcome, job.done = len(batches), True

    group: GroupCommit[Job] = GroupCommit(run)
    threads = [threading.Thread(target=group.submit, args=(Job(),)) for _ in range(9)]
    threads[0].start()
    assert entered.wait(5)
    for thread in threads[1:]:
        thread.start()
    while len(group._queue) < 8:
        pass
    go.set()
    for thread in threads:
        thread.join(5)
    assert batches == [1, 8]
    assert not group._turn.locked()


def test_what_takes_long_has_a_batch_of_its_own() -> None:
    # given callers that wait: some with short work, then some with long work, then short work again
    batches: list[str] = []
    entered, go = threading.Event(), threading.Event()

    class Named(Job):
        def __init__(self, name: str) -> None:
            self.name, self.direct = name, name == "L"

    def run(batch: list[Named]) -> None:
        batches.append("".join(job.name for job in batch))
        entered.set()
        assert go.wait(10)
        for job in batch:
            job.done = True

    group: GroupCommit[Named] = GroupCommit(run)
    threads = []
    for at, name in enumerate("asdLLfg"):
        threads.append(threading.Thread(target=group.submit, args=(Named(name),)))
        threads[-1].start()
        assert entered.wait(5)
        while len(group._queue) < at:
            pass
    # when the first is done, then the others come in the order in which they came, long apart from short
    go.set()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert batches == ["a", "sd", "LL", "fg"]


def test_a_job_that_is_taken_back_while_somebody_looks_at_it_is_not_missed() -> None:
    # given a queue whose first job is taken back by who waited for it, just as the leader has seen it
    ran: list[Job] = []

    class Slipping(deque[Job]):
        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            if found is gone and found in self:
                self.remove(found)
            return found

    def run(batch: list[Job]) -> None:
        for job in batch:
            job.done = True
        ran.extend(batch)

    group: GroupCommit[Job] = GroupCommit(run)
    for others in ([], [Job()], [Job(), Job()]):
        gone = Job()
        group._queue = Slipping([gone, *others])
        # when somebody leads, then every other job is run
        batch: list[Job] = []
        while group._queue:
            group._lead(batch)
        assert batch == others
        assert all(job.taken for job in others)


def test_a_batch_that_dies_leaves_nobody_waiting() -> None:
    entered, go = threading.Event(), threading.Event()

    def run(batch: list[Job]) -> None:
        entered.set()
        assert go.wait(10)
        raise KeyboardInterrupt

    group: GroupCommit[Job] = GroupCommit(run)
    errors: list[BaseException] = []

    def submit() -> None:
        try:
            group.submit(Job())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    threads[0].start()
    assert entered.wait(5)
    for thread in threads[1:]:
        thread.start()
    while len(group._queue) < 3:
        pass
    go.set()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    kinds = sorted(type(error).__name__ for error in errors)
    assert kinds == ["KeyboardInterrupt", "KeyboardInterrupt", "StorageUnavailable", "StorageUnavailable"]
    assert not group._turn.locked()


def test_one_conflict_in_a_batch_fails_nobody_else(path: Path) -> None:
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"0")])
    holder = Held(path.with_name("store.db-lock"))
    results: list[Any] = []

    def commit(n: int) -> None:
        try:
            results.append(
                backend.commit([Check(A, 1)], [Put(keys.pack("t", "s", n), b"v")] if n % 2 else [Put(A, b"x")]).versions
            )
        except Exception as error:
            results.append(type(error).__name__)

    threads = [threading.Thread(target=commit, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    holder.release()
    for thread in threads:
        thread.join(10)
    assert len(results) == 8
    assert results.count((2,)) == 1
    assert all(result in ((1,), (2,), "Conflict") for result in results)
    assert backend.check() == []
    backend.close()


def test_folders_that_have_to_be_made_are_closed_to_others(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        Tenuto("a", tmp_path / "one" / "two" / "store.db").open().close()
    finally:
        os.umask(umask)
    assert [place.stat().st_mode & 0o777 for place in (tmp_path / "one", tmp_path / "one" / "two")] == [0o700, 0o700]
