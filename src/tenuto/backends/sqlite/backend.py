"""One SQLite file, shared by threads, clients and processes of one machine.

Durable by default: write-ahead log with synchronous=FULL, so that success survives kill -9 and power
loss. `durability="process"` syncs at WAL checkpoints only: success survives kill -9, and a power loss
takes the newest commits, never half of one.

Reads have connections of their own and never wait for a writer. Writes go one batch at a time: inside
the process by group commit, between processes by the lock file. A batch is one transaction and one row of
the log; a thread beside folds the log into the tables. See `_sqlite_log`, and `_sqlite_tail` for what a process
keeps at hand of it. Every commit is decided before anything of it is written, so a conflict in a batch leaves
the others untouched.

Every row carries a sum over all that it says, checked at every read, also where the answer is "there is
nothing": the rows on both sides of an absent key must be whole, or its absence is not believed. The
number of the last commit stands in the file and in the mark beside it; see `_lockfile`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any, Final, Literal

import apsw

from tenuto import _machine
from tenuto.backends import _forks
from tenuto.backends import _sqlite_log as log
from tenuto.backends import _sqlite_reading as reading
from tenuto.backends import _sqlite_rows as rows
from tenuto.backends._group import GroupCommit
from tenuto.backends._lockfile import LockFile, Mark
from tenuto.backends._sqlite_backup import backup
from tenuto.backends._sqlite_check import check_log, check_rows
from tenuto.backends._sqlite_errors import translated
from tenuto.backends._sqlite_log import Counter
from tenuto.backends._sqlite_readers import Readers
from tenuto.backends._sqlite_schema import prepare
from tenuto.backends._sqlite_tail import Memory, record_of
from tenuto.backends._sqlite_upkeep import checkpoint, keep_up, wal_pages
from tenuto.backends._sqlite_writes import CommitJob, WorkJob, Writer
from tenuto.errors import (
    Closed,
    Damaged,
    InvalidInput,
    ReadOnly,
    TenutoError,
)
from tenuto.kernel.bell import Bell
from tenuto.kernel.clock import Clock, Steady, SystemClock
from tenuto.kernel.contract import (
    AnyCheck,
    Commit,
    Entry,
    Finding,
    Record,
    Write,
    validate,
    validate_limit,
    validate_read,
    validate_scan,
)
from tenuto.kernel.wake import Wake

Durability = Literal["full", "process"]

_CHECKPOINT_PAGES: Final = 2_000
_BUSY: Final = 16
"""A process that has made so many commits will make more of them: then it is worth while to make room for them."""
_SWEEP_SECONDS: Final = 30.0
_FORK_SECONDS: Final = 10.0
_FOLD_SECONDS: Final = 0.5
_log = logging.getLogger("tenuto.sqlite")


class NetworkFilesystemWarning(UserWarning):
    """The store lies on a file system on which SQLite's locks and shared memory do not hold."""


class SqliteBackend:
    """Keeps everything in one file. Nothing is opened before the first call."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        clock: Clock | None = None,
        timeout: float = 30.0,
        accept_loss: bool = False,
    ) -> None:
        if durability not in ("full", "process"):
            raise InvalidInput(f'durability is "full" or "process", not {durability!r}.')
        self.path = Path(path)
        self.durability = durability
        self.now = Steady(clock or SystemClock()).now
        """The machine's time, never less than before."""
        self._timeout = timeout
        self._accept_loss = accept_loss
        self._boot = _machine.boot_id()
        self._closed = False
        self._start_afresh()
        _forks.tell(self)

    def _start_afresh(self) -> None:
        self._opening = threading.Lock()
        self._group: GroupCommit[Any] = GroupCommit(self._run)
        self._ready = False
        self._writable = True
        self._readers = Readers(self.path, self._connect)
        self._memory = Memory()
        self._writer: Writer | None = None
        self._wrote = 0
        self._roomy = False  # whether the write-ahead log was made longer than it need be yet
        self._crowd = 0  # so many transactions in a row began behind somebody else's
        self._lock: LockFile | None = None
        self._store = b""
        self._wal_pages = 0
        self._wal_tail = False
        self._writing = 0  # the thread that is in a transaction
        self._claimed = self._own_fork = False
        self._gathered: list[apsw.Connection] = []
        self._sweep_due = 0.0
        self._wake = Wake()
        self._upkeeper: threading.Thread | None = None
        weakref.finalize(self, self._wake.set)

    # -- the verbs ---------------------------------------------------------------------------

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live record at each key, all from one moment."""
        if not self._ready or self._closed:
            self.open()
        if len(keys) == 1:  # the common case, and worth its lines
            tail, lock = self._memory.tail, self._lock
            if lock is not None and lock.says(tail.word):
                # Nothing was acknowledged since: what the tail says of one key is the newest, and so is what
                # the tables say if it says nothing, whatever is folded into them meanwhile.
                row = tail.records.get(keys[0])
                if row is not None:
                    return [record_of(keys[0], row, self.now())]
                return [self._stored(keys[0])]
        validate_read(keys)
        with self._readers.one() as connection:
            return reading.read(connection, self._memory, keys, self.now())

    def _stored(self, key: bytes) -> Record | None:
        readers = self._readers
        try:
            reader = readers.home.pop()
        except IndexError:
            reader = readers.make()
        try:
            record = reading.find(reader, key)
        except BaseException as error:
            readers.after_error(reader, error)
            raise
        readers.put_back(reader)
        if record is not None and record.expires_at is not None and not reading.lives(record, self.now()):
            return None
        return record

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Return up to `limit` live records below `prefix` in key order, all from one moment."""
        validate_scan(prefix, limit)
        self.open()
        with self._readers.one() as connection:
            now = self.now()
            return reading.scan(connection, self._memory, prefix, after, limit, now, reverse=reverse)

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Return up to `limit` entries of a stream by number, all from one moment."""
        validate_limit(limit)
        self.open()
        with self._readers.one() as connection:
            return reading.entries(connection, self._memory, stream, after, limit, reverse=reverse)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Apply all writes if all checks hold, atomically, and durably before it returns."""
        validate(checks, writes, request)
        if not self._ready or self._closed:
            self.open()
        if not self._writable:
            raise ReadOnly(f"{self.path} was opened without the right to write; check its permissions.")
        outcome: Commit = self._group.submit(CommitJob(checks, writes, request))
        return outcome

    def bell(self, stream: bytes) -> Bell:  # noqa: ARG002 - the contract's
        """Return a bell that stays silent: to look into a file costs no more than to be told of it."""
        return Bell()

    def close(self) -> None:
        """Finish the commit in hand and let go of the file."""
        if self._closed:
            return
        with self._opening:
            ready, self._ready = self._ready, False
            self._closed = True
        if not ready:
            return
        self._group.alone(self._let_go)  # nobody is writing then, and whoever comes later finds nothing to write to
        self._readers.close()
        self._wake.set()

    def _let_go(self) -> None:
        self._fold_at_last()
        if self._writer is not None:
            self._writer.connection.close()
        if self._lock is not None:
            self._lock.close()
        self._writer = self._lock = None

    def _fold_at_last(self) -> None:
        """Leave a file at rest with an empty log, if it can be had at once; else the next client folds it."""
        tail, lock = self._memory.tail, self._lock
        if lock is not None and self._wrote and tail.number > tail.floor:
            job = WorkJob(Writer.fold)
            with contextlib.suppress(TenutoError, OSError):
                lock.run(self._transaction, _FOLD_SECONDS, [job], lock)
            if job.error is not None:
                _log.info("the log of %s is left to the next client: %s", self.path, job.error)

    # -- opening -----------------------------------------------------------------------------

    def open(self) -> None:
        """Open the file, creating or upgrading it where needed. Calling it again does nothing."""
        if self._ready and not self._closed:
            return
        if self._closed:
            raise Closed(f"The store {self.path.name} was closed; open a new client.")
        with self._opening:
            if not self._ready:
                try:
                    self._open()
                except (apsw.Error, OSError, UnicodeDecodeError) as error:
                    raise translated(error, self.path) from error

    def _open(self) -> None:
        if self.path.is_dir():
            raise InvalidInput(f"{self.path} is a folder; give the path of a file in it.")
        _make_folder(self.path.parent)
        network = _machine.network_filesystem(self.path.parent)
        if network is not None:
            warnings.warn(
                f"{self.path} lies on a network file system ({network}), on which locks and shared memory do not "
                "hold between machines: two of them would damage it. Use it from one machine only, or a server.",
                NetworkFilesystemWarning,
                stacklevel=2,
            )
        self._writable = os.access(self.path if self.path.exists() else self.path.parent, os.W_OK)
        if not self._writable:
            with self._readers.one() as connection:
                prepare(connection, self.path, writable=False)
            self._ready = True
            return
        lock = LockFile(self.path.with_name(self.path.name + "-lock"))
        try:
            lock.run(self._open_writer, self._timeout, lock)
        except BaseException:
            lock.close()
            raise
        self._lock = lock
        self._ready = True

    def _open_writer(self, lock: LockFile) -> None:
        # The mark first: it is written after a commit, so a store can only be ahead of it.
        mark = lock.load()
        fresh = not self.path.exists() or self.path.stat().st_size == 0
        connection = self._connect(writing=True)
        try:
            if mark is not None and not fresh and not self._accept_loss:
                self._refuse_loss(mark, connection)
            prepare(connection, self.path, writable=True)
            self._store = _store_id(connection)
            if self._accept_loss and (lost := log.cut(connection)):
                _log.warning("%s goes on without its last %d commits, which were damaged", self.path, lost)
            counter = log.last(connection)
            if mark is not None and mark.number > counter.number:
                _log.warning("%s goes on at commit %d; its mark was at %d", self.path, counter.number, mark.number)
            if mark is None or mark.store != self._store or mark.number > counter.number or self._accept_loss:
                lock.start_over(Mark(self._store, *counter, self._boot, self.durability == "full"))
            else:
                lock.belongs_to(self._store, self._boot, full=self.durability == "full")
        except BaseException:
            # Closing the last connection would fold the log into the file: what is refused stays as it is.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()
            raise
        self._writer = Writer(connection, self.now, self._memory)

    def _refuse_loss(self, mark: Mark, connection: apsw.Connection) -> None:
        """Raise `Damaged` if the file is behind its mark, before anything is written to it."""
        found: list[Any] = connection.execute("SELECT name FROM sqlite_schema").fetchall()
        tables = {name for (name,) in found}
        if "log" in tables or "requests" in tables:
            counter = log.last(connection) if "log" in tables else log.folded(connection, "requests")
            finding = self._loss(mark, _store_id(connection), counter)
        else:
            finding = self._loss(mark, mark.store, Counter(0, b""))
        if finding is not None:
            raise Damaged(finding)

    def _loss(self, mark: Mark, store: bytes, counter: Counter) -> str | None:
        """Say what is missing if the file is behind its mark, or None if nothing is."""
        accept = "Restore a backup, or open it with ?accept_loss=true to go on from what is there."
        if mark.store != store:
            return f"{self.path.name} is another store than the one its lock file belongs to. {accept}"
        if mark.number == counter.number and mark.chain != counter.chain:
            return f"{self.path.name} holds another commit {mark.number} than the one that was made. {accept}"
        if mark.number <= counter.number:
            return None
        if not mark.full and mark.boot != self._boot:
            _log.warning(
                "%s lost its last %d commits with the machine, as durability='process' allows",
                self.path,
                mark.number - counter.number,
            )
            return None
        return (
            f"{self.path.name} is at commit {counter.number}, but commit {mark.number} was made: "
            f"{mark.number - counter.number} are lost, through a damaged or missing write-ahead log "
            f"or an older copy of the file. {accept}"
        )

    def _connect(self, *, writing: bool = False) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE if writing else apsw.SQLITE_OPEN_READONLY
        if not writing and self._writable:
            flags = apsw.SQLITE_OPEN_READWRITE  # a reader may have to recover the write-ahead log
        connection = apsw.Connection(str(self.path), flags=flags)
        connection.set_busy_timeout(int(self._timeout * 1000))
        level = "FULL" if self.durability == "full" else "NORMAL"
        connection.execute(
            f"PRAGMA synchronous = {level}; PRAGMA wal_autocheckpoint = 0; PRAGMA secure_delete = ON; "
            "PRAGMA cell_size_check = ON; PRAGMA trusted_schema = OFF; PRAGMA journal_size_limit = 67108864"
        ).fetchall()
        if sys.platform == "darwin":  # fsync there does not reach the platter
            connection.execute("PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON").fetchall()
        return connection

    # -- writing -----------------------------------------------------------------------------

    def _run(self, batch: list[Any]) -> None:
        lock = self._lock
        if lock is None:
            self._fail(batch, Closed(f"The store {self.path.name} was closed; open a new client."))
            return
        try:
            lock.run(self._transaction, self._timeout, batch, lock)
        except (TenutoError, OSError) as error:
            self._fail(batch, error)

    def _transaction(self, batch: list[Any], lock: LockFile) -> None:
        self._writing = get_ident()
        writer: Writer | None = None
        try:
            writer = self._writer = self._writer or Writer(self._connect(writing=True), self.now, self._memory)
            writer.committing = False
            tail = self._memory.tail
            fresh = lock.says(tail.word)
            self._crowd = 0 if fresh else self._crowd + 1
            # Where others commit in between, each would have to take in what all of them wrote: the tables are shorter.
            direct = batch[0].direct or self._crowd > 1 or (tail.full and tail.overdue)
            if not fresh and not direct:
                tail = writer.newest()
                self._refuse_lag(lock, tail.counter)
            direct = direct or not writer.add(batch, tail, lock)
            if direct:
                self._write_directly(batch, lock, writer)
            self._wrote += writer.committing
            for job in batch:
                job.done = True
            if direct:
                self._wal_pages = wal_pages(writer.connection, self._wal_pages)
            if self._wal_tail or self._wal_pages >= 8 * _CHECKPOINT_PAGES:  # upkeep has lost the race
                self._fold_tail(writer)
        except (apsw.Error, OSError, UnicodeDecodeError, TenutoError) as error:
            self._abandon()
            self._fail(batch, error, committing=writer is not None and writer.committing)
        except BaseException:  # an interrupt: the group tells the callers that the outcome is unknown
            self._abandon()
            raise
        finally:
            self._writing = 0
        full = self._memory.tail.full or (self._wrote >= _BUSY and not self._roomy)
        if full or self._wal_pages >= _CHECKPOINT_PAGES or self.now() >= self._sweep_due:
            self._ask_for_upkeep()

    def _write_directly(self, batch: list[Any], lock: LockFile, writer: Writer) -> None:
        """Make a transaction that writes into the tables.

        Also where somebody has committed past the lock file, which was taken away: SQLite's own lock decides then.
        """
        for job in batch:
            job.outcome = job.error = None
        counter = writer.begin()
        self._refuse_lag(lock, counter)
        writer.write(batch, counter, lock)

    def _refuse_lag(self, lock: LockFile, counter: Counter) -> None:
        mark = lock.load()
        if mark is not None and mark.number > counter.number and mark.store == self._store:
            raise Damaged(self._loss(mark, self._store, counter) or "The store is behind its mark. Restore a backup.")

    def _fold_tail(self, writer: Writer) -> None:
        """Move the last of the log into the file, so that it starts over; the batch is committed already."""
        self._wal_tail = False
        self._wal_pages = wal_pages(writer.connection, self._wal_pages)
        if self._wal_pages >= _CHECKPOINT_PAGES:  # else another process has done it, and the log is short again
            try:
                checkpoint(writer.connection)
            except apsw.Error as error:
                _log.warning("the write-ahead log of %s could not be folded in and will be later: %s", self.path, error)
            self._wal_pages = 0

    def _fail(self, batch: list[Any], error: Exception, *, committing: bool = False) -> None:
        """Let those of a batch whose work is not done have an error each."""
        for job in batch:
            if not job.done:
                job.outcome, job.error = None, translated(error, self.path, committing=committing, request=job.request)
                if job.error is not error:
                    job.error.__cause__ = error
                job.done = True

    def _abandon(self) -> None:
        # After a failed write the connection's own view is not to be trusted: the next commit gets another.
        self._crowd = 0  # that the store is to be asked then is nobody else's doing
        if self._writer is not None:
            with contextlib.suppress(apsw.Error):
                self._writer.connection.execute("ROLLBACK")
            with contextlib.suppress(apsw.Error):
                self._writer.connection.close()
            self._writer = None

    # -- upkeep ------------------------------------------------------------------------------

    def _ask_for_upkeep(self) -> None:
        if self._upkeeper is None or not self._upkeeper.is_alive():
            self._upkeeper = threading.Thread(
                target=keep_up, args=(weakref.ref(self), self._wake), name="tenuto-upkeep", daemon=True
            )
            self._upkeeper.start()
        self._wake.set()

    def upkeep(self) -> None:
        """Fold the log, move the write-ahead log into the file, let go of what has expired: off the commit path."""
        self.open()  # or `Closed`
        if self._memory.tail.full or (self._wrote >= _BUSY and not self._roomy):
            self._roomy = True
            self._group.submit(WorkJob(Writer.make_room))
        if self._wal_pages >= _CHECKPOINT_PAGES:
            # Passive: it blocks nobody, and a steady stream of commits keeps ahead of it. The few pages that
            # were written meanwhile are left to the next leader, who has the lock: then the log starts over.
            with self._readers.one() as connection:
                checkpoint(connection)
            self._wal_tail = True
        now = self.now()
        if now >= self._sweep_due:
            first, self._sweep_due = not self._sweep_due, now + _SWEEP_SECONDS
            with self._readers.one() as connection:
                due = not first or rows.anything_due(connection, now)
            if due:  # a client that has just begun does not fold its first commit by itself
                self._group.submit(WorkJob(Writer.sweep))

    # -- operations --------------------------------------------------------------------------

    def check(self) -> list[Finding]:
        """Verify the file's structure, every row's sum, every stream's links, and the mark."""
        self.open()
        findings: list[Finding] = []
        try:
            with self._readers.one() as connection:
                lines: list[Any] = connection.execute("PRAGMA integrity_check(100)").fetchall()
                for (line,) in lines:
                    if line != "ok":
                        findings.append(Finding("structure", line))
                findings += check_rows(connection)
                findings += check_log(connection)
                counter = log.last(connection)
            mark = self._lock.load() if self._lock is not None else None
            loss = self._loss(mark, self._store, counter) if mark is not None else None
            # A commit made since the counter was read puts the mark ahead without any loss.
            if loss is not None and mark is not None:
                with self._readers.one() as connection:
                    loss = self._loss(mark, self._store, log.last(connection))
            if loss is not None:
                findings.append(Finding("loss", loss))
        except Damaged as error:
            findings.append(Finding("damage", str(error)))
        return findings

    def stats(self) -> Mapping[str, Any]:
        """Say where the file is, how durable, how large, and with which SQLite."""
        self.open()
        with self._readers.one() as connection:
            records, entries, commits = reading.sizes(connection)
        return {
            "backend": "sqlite",
            "path": str(self.path),
            "durability": self.durability,
            "survives": "kill and power loss" if self.durability == "full" else "kill",
            "writable": self._writable,
            "version": apsw.sqlite_lib_version(),
            "records": records,
            "entries": entries,
            "commits": commits,
            "bytes": _size(self.path),
            "wal_bytes": _size(self.path.with_name(self.path.name + "-wal")),
            "readers": len(self._readers.home),
        }

    def backup(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> int:
        """Copy everything as of one moment into a new file, while it is in use; return its size in bytes."""
        self.open()
        with self._readers.one() as connection:
            return backup(connection, Path(path), progress)

    # -- forking -----------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Wait until no thread is inside SQLite: a child that inherits a held mutex could never let go."""
        # A fork in the middle of this very thread's commit (a signal handler's) cannot wait for itself.
        self._own_fork = self._writing == get_ident()
        self._claimed = not self._own_fork and self._group.claim(_FORK_SECONDS)
        self._gathered = self._readers.gather(_FORK_SECONDS)

    def after_fork_in_parent(self) -> None:
        """Let writers and readers in again."""
        self._readers.scatter(self._gathered)
        if self._claimed:
            self._group.resume()

    def after_fork_in_child(self) -> None:
        """Start afresh in a forked child: the parent's connections and locks are not this process's.

        They must be closed all the same: as long as they are open here, SQLite believes that this process
        has their locks, takes none for new connections, and the parent's last close would fold the log away
        under the child. Closing them writes nothing.
        """
        inherited = self._gathered
        if self._writer is not None and (self._claimed or self._own_fork):
            inherited.append(self._writer.connection)
        else:
            _stuck.append(self._writer)  # another thread is inside it for ever: it can only be left alone
        for connection in inherited:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()
        if self._lock is not None:
            self._lock.forget()
        self._start_afresh()


_stuck: list[Writer | None] = []


def _make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, each for its owner alone."""
    if not folder.exists():
        _make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def _store_id(connection: apsw.Connection) -> bytes:
    found: list[Any] = connection.execute("SELECT value FROM meta WHERE name = 'store'").fetchall()
    if not found or not isinstance(found[0][0], bytes):
        raise Damaged("The store has lost its own id. Stop writing to it, keep a copy, and restore a backup.")
    return found[0][0]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
