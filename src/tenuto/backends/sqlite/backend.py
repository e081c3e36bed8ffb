"""The SQLite backend: the verbs of the contract on one file, and how that file is opened and closed.

Durable by default: write-ahead log with synchronous=FULL, so that success survives kill -9 and power loss.
`durability="process"` syncs at WAL checkpoints only: success survives kill -9, and a power loss loses the newest
commits, each as a whole.

Reads have their own connections and never wait for a writer. Writes go one batch at a time: inside the process
by group commit, between processes by the lock file. A batch is one transaction.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import apsw

from tenuto import _machine
from tenuto.backends import _forks
from tenuto.backends.sqlite import check, connections, errors, files, reading, schema
from tenuto.backends.sqlite.backup import copy
from tenuto.backends.sqlite.commit import CommitJob, WorkJob, Writer
from tenuto.backends.sqlite.connections import Handle, Readers
from tenuto.backends.sqlite.group import GroupCommit
from tenuto.backends.sqlite.loss import Loss
from tenuto.backends.sqlite.moving import Loading, Trimming
from tenuto.backends.sqlite.requests import find_last
from tenuto.backends.sqlite.upkeep import run_upkeep
from tenuto.backends.sqlite.writable import WritableStore
from tenuto.errors import Closed, Damaged, InvalidInput, ReadOnly
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
from tenuto.kernel.loading import validate_load
from tenuto.kernel.wake import Wake

Durability = Literal["full", "process"]

_SWEEP_SECONDS: Final = 30.0
_CLOSE_SECONDS: Final = 0.5


class NetworkFilesystemWarning(UserWarning):
    """The store is on a file system on which SQLite's locks and shared memory do not work."""


class SqliteBackend:
    """Store everything in one file. Nothing is opened before the first call."""

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
            raise InvalidInput(f'durability must be "full" or "process", not {durability!r}.')
        self.path = Path(path)
        self.durability = durability
        self.now = Steady(clock or SystemClock()).now
        """The machine's time, never less than before."""
        self._full = durability == "full"
        self._timeout = timeout
        self._accept_loss = accept_loss
        self._boot = _machine.boot_id()
        self._closed = False
        self._start_afresh()
        _forks.tell(self)

    def _start_afresh(self) -> None:
        self._opening = threading.Lock()
        self._group: GroupCommit[Any] = GroupCommit(self._run)
        self._readers = Readers(self.path, self._open_reader, self._explained)
        self._ready = False
        self._refusal: str | None = None
        """The reason why the store cannot be written, or None."""
        self._store: WritableStore | None = None
        self._sweep_due = 0.0
        self._wake = Wake()
        self._upkeeper: threading.Thread | None = None
        weakref.finalize(self, self._wake.set).atexit = False

    # -- the verbs ---------------------------------------------------------------------------

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live record at each key, all from one snapshot."""
        if not self._ready or self._closed:
            self.open()
        if len(keys) == 1:
            record = self._readers.ask(reading.find, keys[0])
            if record is not None and record.expires_at is not None and record.expires_at <= self.now():
                return [None]
            return [record]
        validate_read(keys)
        found = self._readers.ask(reading.find_many, keys)
        now = self.now()
        return [record if (record := found.get(key)) and reading.is_live(record, now) else None for key in keys]

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Return up to `limit` live records with `prefix` in key order, all from one snapshot."""
        validate_scan(prefix, limit)
        self.open()
        return self._readers.ask(
            lambda connection: reading.scan(connection, prefix, after, limit, self.now(), reverse=reverse)
        )

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Return up to `limit` entries of a stream in number order, all from one snapshot."""
        validate_limit(limit)
        self.open()
        return self._readers.ask(
            lambda connection: reading.find_entries(connection, stream, after, limit, reverse=reverse)
        )

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Apply all writes if all checks hold, atomically and durably."""
        validate(checks, writes, request)
        if not self._ready or self._closed:
            self.open()
        if self._refusal is not None:
            raise ReadOnly(self._refusal)
        outcome: Commit = self._group.submit(CommitJob(checks, writes, request))
        return outcome

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """Return up to `limit` keys of streams with `prefix`, in key order."""
        validate_scan(prefix, limit)
        self.open()
        return self._readers.ask(reading.streams, prefix, after, limit)

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Store exported records and entries unchanged, atomically and durably; return how many were new."""
        validate_load(records, entries)
        return self._job(Loading(records, entries))

    def trim(self, stream: bytes, first: int) -> int:
        """Remove up to 1,000 of the entries before `first`, never the last one; return how many."""
        return self._job(Trimming(stream, first))

    def _job(self, work: Callable[[Writer], int]) -> int:
        self.open()
        if self._refusal is not None:
            raise ReadOnly(self._refusal)
        count: int = self._group.submit(WorkJob(work))
        return count

    def bell(self, stream: bytes) -> Bell:  # noqa: ARG002 - signature of the contract
        """Return a bell that never notifies: polling a file is as cheap as a notification."""
        return Bell()

    def check(self) -> list[Finding]:
        """Verify the file's structure, every checksum and every chain, and that no commit is missing."""
        self.open()
        try:
            findings = self._readers.ask(check.check_structure) + self._readers.ask(check.check_rows)
            store = self._store
            loss = None if store is None else self._readers.ask(lambda one: store.find_loss(lambda: find_last(one)))
        except Damaged as error:
            return [Finding("damage", str(error))]
        return findings if loss is None else [*findings, Finding("loss", loss)]

    def stats(self) -> Mapping[str, Any]:
        """Return the path, durability and size of the file, and the version of SQLite."""
        self.open()
        records, entries = self._readers.ask(reading.sizes)
        pages, free = self._readers.ask(reading.page_bytes)
        size = files.size_of(self.path)
        return {
            "backend": "sqlite",
            "path": str(self.path),
            "durability": self.durability,
            "survives": "kill and power loss" if self._full else "kill",
            "writable": self._refusal is None,
            "version": apsw.sqlite_lib_version(),
            "records": records,
            "entries": entries,
            "commits": self._readers.ask(find_last).number,
            "bytes": size(""),
            "page_bytes": pages,
            "free_bytes": free,
            "wal_bytes": size("-wal"),
            "readers": len(self._readers.free),
        }

    def backup(self, path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> int:
        """Copy a snapshot of the store into a new file, while the store is in use; return its size in bytes."""
        self.open()
        target = Path(path)
        if target.exists():
            raise InvalidInput(f"{target} exists already and was not changed. Use the name of a new file.")
        source = self._readers.open()
        try:
            return copy(source, target, progress)
        except OSError as error:
            raise InvalidInput(f"{target} cannot be written: {error}. Nothing was left; check the path.") from error
        except errors.DRIVER as error:
            raise errors.translated(error, target) from error
        finally:
            source.close()

    def scrub(self) -> bool:
        """Empty the write-ahead log, which still has old pages; the file itself is overwritten by each commit.

        Return False if a reader needed the log for two seconds.
        """
        self.open()
        for _ in range(100):
            done: list[bool] = []
            self._group.alone(lambda: done.append(self._store is not None and self._store.empty_log()))  # noqa: B023 - called at once
            if done[0]:
                return True
            time.sleep(0.02)
        return False

    def compact(self) -> int:
        """Give the free pages of the file back to the disk; return by how many bytes the file shrank.

        Commits wait meanwhile; reads do not. Atomic: after a crash the file is as before.
        """
        self.open()
        if self._refusal is not None:
            raise ReadOnly(self._refusal)
        self.scrub()  # so that the size of the file says what it holds
        size, store = files.size_of(self.path), self._store
        before = size("")
        try:
            if store is not None:
                self._group.alone(store.compact)
        except errors.DRIVER as error:
            raise errors.translated(error, self.path) from error
        self.scrub()
        return max(0, before - size(""))

    def close(self) -> None:
        """Finish the commits in progress and close the file."""
        if self._closed:
            return
        with self._opening:
            ready, self._ready = self._ready, False
            self._closed = True
        if not ready:
            return
        self._readers.close()
        self._wake.set()
        try:
            if self._upkeeper is not None:  # while it reads, this is not the last connection, and the log stays
                self._upkeeper.join(_CLOSE_SECONDS)
        finally:
            self._group.alone(self._release)  # no other thread writes then

    def _release(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    # -- opening -----------------------------------------------------------------------------

    def open(self) -> None:
        """Open the file; create or upgrade it if needed. Opening twice is safe."""
        if self._ready and not self._closed:
            return
        if self._closed:
            raise Closed(f"The store {self.path.name} was closed. Open a new client.")
        with self._opening:
            if not self._ready:
                try:
                    self._open()
                except errors.DRIVER as error:
                    raise errors.translated(error, self.path) from error

    def _open(self) -> None:
        connections.refuse_unsafe(self.path)
        # Two paths of one file must lead to the same lock file.
        self.path = self._readers.path = Path(os.path.realpath(self.path))
        if self.path.is_dir():
            raise InvalidInput(f"{self.path} is a folder. Use the path of a file in it.")
        files.make_folder(self.path)
        network = _machine.network_filesystem(self.path.parent)
        if network is not None:
            warnings.warn(
                f"{self.path} is on a network file system ({network}), where locks and shared memory do not work "
                "between machines: two of them would damage it. Use it from one machine only, or use a server.",
                NetworkFilesystemWarning,
                stacklevel=2,
            )
        self._refusal = files.obstacle(self.path)
        if self._refusal is not None:
            self._open_for_reading()
        else:
            loss = Loss(self.path, self._boot, accepted=self._accept_loss)
            self._store = WritableStore(self.path, full=self._full, timeout=self._timeout, loss=loss, now=self.now)
        self._ready = True

    def _open_for_reading(self) -> None:
        files.sync_log(self.path)
        handle = self._readers.open()
        try:
            with handle.lock:
                schema.prepare(handle, self.path, writable=False)
        except BaseException:
            handle.close(checkpoint=False)
            raise
        self._readers.put_back(handle)

    def _explained(self, error: Exception, connection: apsw.Connection) -> Exception:
        return schema.explained(error, connection, self.path, writable=False)

    def _open_reader(self) -> Handle:
        if self._refusal is not None:
            return self._connect(files.reading_flags(self.path))
        return self._connect(apsw.SQLITE_OPEN_READWRITE)  # a reader may have to recover the write-ahead log

    def _connect(self, flags: int) -> Handle:
        return connections.connect(self.path, flags, full=self._full, timeout=self._timeout)

    # -- upkeep ------------------------------------------------------------------------------

    def _run(self, batch: list[Any]) -> None:
        store = self._store
        if store is None:
            _refuse(batch, Closed(f"The store {self.path.name} was closed. Open a new client."))
            return
        store.run(batch)
        if store.wal_pages >= store.checkpoint_at or self.now() >= self._sweep_due:
            self._ask_for_upkeep()

    def _ask_for_upkeep(self) -> None:
        if self._upkeeper is None or not self._upkeeper.is_alive():
            self._upkeeper = threading.Thread(
                target=run_upkeep, args=(weakref.ref(self), self._wake), name="tenuto-upkeep", daemon=True
            )
            self._upkeeper.start()
        self._wake.set()

    def upkeep(self) -> None:
        """Move the write-ahead log into the file and remove what has expired, off the commit path."""
        self.open()  # or `Closed`
        store = self._store
        if store is not None and store.wal_pages >= store.checkpoint_at:
            # A passive checkpoint blocks no commit, and a steady stream of commits stays ahead of it. The next leader, which
            # holds the lock, moves the few remaining pages: then the log starts over.
            self._readers.ask(store.checkpoint)
            store.checkpointed = True
        now = self.now()
        if now >= self._sweep_due:
            self._sweep_due = now + _SWEEP_SECONDS
            while self._readers.ask(reading.anything_due, now) and self._group.submit(WorkJob(Writer.sweep)):
                pass

    # -- forking -----------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Do nothing: `connections` waits for the threads inside SQLite."""

    def after_fork_in_parent(self) -> None:
        """Do nothing."""

    def after_fork_in_child(self) -> None:
        """Start over in a forked child: connections and locks belong to the parent."""
        store, self._store = self._store, None
        if store is not None:
            store.lock.forget()
        self._start_afresh()


def _refuse(batch: list[Any], error: Closed) -> None:
    for job in batch:
        job.error, job.done = error, True
