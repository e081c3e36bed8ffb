"""A SQLite store that this client has open for writing, from opening to closing.

A successful commit is covered by a sync. Opening syncs what it may have recovered from the page cache: a process that
was killed during its sync leaves commits there. After a failed sync the write-ahead log is written and synced again
before the next commit, by this process or the next one.

The connection stays open until the store is closed. If it were closed after a failed sync, the next one would recover,
and trust, what that sync has left.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import apsw

from tenuto.backends.sqlite import connections, errors, files, schema
from tenuto.backends.sqlite.commit import Writer
from tenuto.backends.sqlite.connections import Handle
from tenuto.backends.sqlite.lockfile import LockFile, Mark
from tenuto.backends.sqlite.loss import Loss
from tenuto.backends.sqlite.requests import find_last, restore_last
from tenuto.backends.sqlite.rows import Last
from tenuto.backends.sqlite.upkeep import checkpoint, restart_log
from tenuto.errors import Damaged, StorageUnavailable, TenutoError

CHECKPOINT_PAGES: Final = 2_000
_RESTART: Final = 8
"""At so many times `CHECKPOINT_PAGES`, a commit waits for the readers of the write-ahead log, so that it starts over."""
_CLOSE_SECONDS: Final = 0.5
_log = logging.getLogger("tenuto.sqlite")


class WritableStore:
    """The lock file, the writing connection, and the identity of the files."""

    def __init__(self, path: Path, *, full: bool, timeout: float, loss: Loss, now: Callable[[], float]) -> None:
        self.wal_pages = 0
        """Number of pages in the write-ahead log."""
        self.checkpoint_at = CHECKPOINT_PAGES
        """Number of pages at which upkeep moves the write-ahead log into the file."""
        self.checkpointed = False
        """Set by upkeep: the next commit moves the last pages, so that the write-ahead log starts over."""
        self._restart_at = _RESTART * CHECKPOINT_PAGES
        self._path = path
        self._full = full
        self._timeout = timeout
        self._loss = loss
        self._now = now
        self._failed_sync = False
        self.lock = LockFile(files.beside(path, "-lock"))
        try:
            self.lock.run(self._open, timeout)
            files.align_lock(path)
        except BaseException:
            self.lock.close()
            raise

    # -- opening and closing -------------------------------------------------------------------

    def _open(self) -> None:
        mark = self.lock.load()
        if mark is not None and (not self._path.exists() or self._path.stat().st_size == 0):
            _log.warning("%s is a new store; the one before it had made %d commits", self._path, mark.number)
            self.lock.reset(None)  # before the store is created: the old mark must never be compared with it
            mark = None
        handle = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
        try:
            with handle.lock:
                self._prepare(handle, mark)
        except BaseException:
            # Leave a rejected store unchanged: the last close would move the write-ahead log into the file.
            handle.close(checkpoint=False)
            raise
        self._use(handle)

    def _prepare(self, handle: Handle, mark: Mark | None) -> None:
        connection, lock, boot = handle.connection, self.lock, self._loss.boot
        empty = schema.is_empty(connection)  # the first read: it recovers what the write-ahead log holds
        try:
            if lock.has_failed_sync(boot) and not empty:
                files.rewrite_log(connection, self._path)
            else:
                files.sync_log(self._path)
        except OSError:
            lock.note_failed_sync(boot)
            raise
        lock.clear_failed_sync()
        if empty:
            self._loss.refuse_empty(mark)
            mark = None
        schema.prepare(handle, self._path, writable=True)
        if self._loss.accepted:
            restore_last(connection)
        self._store, last = schema.store_id(connection), find_last(connection)
        self._in_use = schema.is_in_use(connection)
        self._loss.refuse(mark, self._store, last, in_use=self._in_use)
        if mark is None or mark.store != self._store or mark.number > last.number or self._loss.accepted:
            lock.reset(Mark(self._store, *last, boot, self._full))
        else:
            lock.belongs_to(self._store, boot, full=self._full)
        self._names = str(self._path), connection.filename_wal
        self._files = files.identify(*self._names)

    def _use(self, handle: Handle) -> None:
        handle.connection.set_wal_hook(self._committed)
        self.handle = handle
        self.writer = Writer(handle.connection, self._now, self._refuse_lag)

    def _connect(self, flags: int = apsw.SQLITE_OPEN_READWRITE) -> Handle:
        return connections.connect(self._path, flags, full=self._full, timeout=self._timeout)

    def close(self) -> None:
        """Close the connection and release the lock file."""
        if not self._full:
            with contextlib.suppress(apsw.Error):
                self.checkpoint(self.handle.connection)  # SQLite's own, at the last close, hides a failed sync
        self.handle.close(checkpoint=not self._failed_sync)
        with contextlib.suppress(TenutoError, OSError, apsw.Error):
            self.lock.run(self._retire, _CLOSE_SECONDS)
        self.lock.close()

    def _retire(self) -> None:
        """Mark the file as complete if this was the last client: SQLite has then removed the write-ahead log."""
        if self._in_use and not files.beside(self._path, "-wal").exists():
            handle = self._connect()
            try:
                with handle.lock:
                    handle.connection.execute(schema.SET_IN_USE, (0,))
            finally:
                handle.close()

    def find_loss(self, last: Callable[[], Last]) -> str | None:
        """Return a message if the mark shows that commits are missing, else None."""
        mark = self.lock.load()  # before the store is read, which may only be ahead of it
        return None if mark is None else self._loss.between(mark, self._store, last())

    # -- writing -------------------------------------------------------------------------------

    def run(self, batch: list[Any]) -> None:
        """Run a batch in one transaction, with the lock held; set an outcome or an error for each of its jobs."""
        try:
            self.lock.run(self._transaction, self._timeout, batch)
        except (TenutoError, OSError) as error:
            self.fail(batch, error)

    def _transaction(self, batch: list[Any]) -> None:
        connections.wait_for_fork()
        with self.handle.lock:
            writer = self.writer
            try:
                if self.handle.connection.in_transaction:  # a second Control-C interrupted the rollback after the first
                    self._abandon()
                files.refuse_replaced(*self._names, self._files)
                if self._failed_sync:
                    self._sync_again()
                wrote = writer.transact(batch, self.lock.store)
                if writer.repeated and not wrote and self._full:
                    files.sync_log(self._path)  # at durability="process" it may have been committed without a sync
                _finish(batch)
                self._in_use = self._in_use or wrote
                # A file in use is marked so, even without its log.
                if writer.declared or self.checkpointed or self.wal_pages >= self._restart_at:
                    self._finish_checkpoint()
            except (*errors.DRIVER, TenutoError) as error:
                self._after_failure(error, batch)
            except BaseException:  # an interrupt: the group reports an unknown outcome to the callers
                self._abandon()
                raise

    def empty_log(self) -> bool:
        """Move the whole write-ahead log into the file and truncate it, with the lock held; return whether it is empty."""
        emptied: list[bool] = []

        def empty(_: list[Any]) -> None:
            connections.wait_for_fork()
            with self.handle.lock:
                if self._failed_sync:
                    return
                found: list[Any] = self.handle.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
                emptied.append(found[0][0] == 0)

        self.lock.run(empty, self._timeout, [])
        self.checkpoint_at = CHECKPOINT_PAGES
        return bool(emptied) and emptied[0]

    def compact(self) -> None:
        """Rewrite the file without its free pages, in one transaction, with the lock held."""

        def rewrite(_: list[Any]) -> None:
            connections.wait_for_fork()
            with self.handle.lock:
                if self._failed_sync:
                    self._sync_again()
                try:
                    self.handle.connection.execute("VACUUM").fetchall()
                except apsw.IOError:
                    self._note_failed_sync()
                    raise

        self.lock.run(rewrite, self._timeout, [])

    def _finish_checkpoint(self) -> None:
        """Move the last pages of the write-ahead log, with the lock held. A failure does not affect the commit."""
        self.checkpointed = False
        waits = self.wal_pages >= self._restart_at
        if waits:
            self._restart_at = self.wal_pages + _RESTART * CHECKPOINT_PAGES  # a long read blocks this one too
        try:
            self.checkpoint(self.handle.connection, waits=waits)
        except apsw.Error as error:
            _log.warning("the WAL checkpoint of %s failed and will be retried: %s", self._path, error)

    def checkpoint(self, connection: apsw.Connection, *, waits: bool = False) -> None:
        """Move the write-ahead log into the file; after a failed sync only when the log was synced again."""
        self._failed_sync = self._failed_sync or self.lock.has_failed_sync(self._loss.boot)  # perhaps another process's
        if self._failed_sync:
            return
        self.checkpoint_at = self.wal_pages + CHECKPOINT_PAGES  # not at every commit, while a long read blocks it
        try:
            checkpoint(connection)
            if waits:
                restart_log(connection, self._timeout)
        except apsw.IOError:
            self._note_failed_sync()
            raise

    def _note_failed_sync(self) -> None:
        self._failed_sync = True
        self.lock.note_failed_sync(self._loss.boot)

    def _after_failure(self, error: Exception, batch: list[Any]) -> None:
        committing = self.writer.committing
        self._abandon()
        if isinstance(error, OSError) or (committing and isinstance(error, apsw.IOError)):
            self._note_failed_sync()
        reason = schema.explained(error, self.handle.connection, self._path, writable=True)
        self.fail(batch, reason, committing=committing)

    def _abandon(self) -> None:
        try:
            self.writer.abandon()
        except apsw.Error:  # replace a connection that cannot roll back, without closing it
            broken = self.handle
            self._use(self._connect())
            with contextlib.suppress(apsw.Error):
                broken.close(checkpoint=False)

    def _sync_again(self) -> None:
        try:
            files.rewrite_log(self.handle.connection, self._path)
        except (OSError, apsw.IOError) as error:
            raise StorageUnavailable(
                f"A sync of {self._path.name} failed, and failed again ({error}). Nothing was written. "
                "Commits are refused until a sync succeeds; check the disk."
            ) from error
        self._failed_sync = False
        self.lock.clear_failed_sync()

    def _refuse_lag(self, last: Last) -> None:
        mark = self.lock.load()
        if mark is not None and mark.number > last.number and mark.store == self._store:
            raise Damaged(self._loss.between(mark, self._store, last) or "The store is behind its mark.")

    def fail(self, batch: list[Any], error: Exception, *, committing: bool = False) -> None:
        """Set an error for each job of a batch that is not done."""
        for job in batch:
            if not job.done:
                job.outcome = None
                job.error = errors.translated(error, self._path, committing=committing, request=job.request)
                if job.error is not error:
                    job.error.__cause__ = error
                job.done = True

    def _committed(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        if pages < self.wal_pages:  # the write-ahead log has started over
            self.checkpoint_at, self._restart_at = CHECKPOINT_PAGES, _RESTART * CHECKPOINT_PAGES
        self.wal_pages = pages
        return apsw.SQLITE_OK


def _finish(batch: list[Any]) -> None:
    for job in batch:
        job.done = True
