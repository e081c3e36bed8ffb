"""The lock file next to a SQLite store: the queue of writing processes, and the mark of the last commit.

**The lock.** Every process acquires it before it writes. SQLite's own waiting is a back-off with sleeps, under which one
of sixteen writers waits a second; the kernel's queue for `flock` is fair. A blocking lock call has no deadline, so a
process that has to wait does so in a helper thread.

**The mark.** Two slots, written alternately after each commit and before the unlock, name the last commit. A store
behind its mark has lost commits: through a truncated or damaged write-ahead log, or an older file in its place. The mark
is not synced: after a power loss it may be behind the store, never ahead of what was synced before it. It is synced
only when it is lowered.

**The note of a failed sync.** After a failed sync, the page cache may hold data that is not on disk. The note tells
every process of the same boot not to trust the write-ahead log until it was written and synced again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import logging
import os
import struct
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVarTuple

from tenuto.errors import StorageUnavailable
from tenuto.kernel.wake import Wake

Given = TypeVarTuple("Given")
_SIZE: Final = 4096
_SLOTS: Final = (0, 512)
_NOTE: Final = 1024
_LAYOUT: Final = struct.Struct(">4s16sQ16s16sB")
_MAGIC: Final = b"tnm1"
_FAILED: Final = b"tnf1"
_SUM: Final = 8
_blake2b = hashlib.blake2b
_log = logging.getLogger("tenuto.sqlite")


class Mark(NamedTuple):
    """The last commit of a store: the store's id, the commit's number and sum, the boot, and whether it was synced."""

    store: bytes
    number: int
    sum: bytes
    boot: bytes
    full: bool


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


class LockFile:
    """One client's access to the lock and the mark. One thread at a time calls `run`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._closing = weakref.finalize(self, os.close, self._fd)  # a client may be dropped without `close`
        self._closing.atexit = False
        self._helper: _Helper | None = None
        self._before = self._after = b""
        if os.fstat(self._fd).st_size < _SIZE:
            # Writing zeros reserves the block, so that storing a mark never fails on a full disk.
            # Two processes may both do this: neither has a mark yet.
            os.pwrite(self._fd, bytes(_SIZE), 0)

    # -- the lock --------------------------------------------------------------------------------

    def run(self, work: Callable[[*Given], None], timeout: float, *given: *Given) -> None:
        """Run `work` with the lock held; raise `StorageUnavailable` if others hold it beyond the timeout."""
        try:
            if _try_lock(self._fd):
                work(*given)
                return
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)  # also if it was not acquired: one call, which no interrupt divides
        if self._helper is None:
            self._helper = helper = _Helper(os.open(self._path, os.O_RDWR | os.O_CLOEXEC))
            weakref.finalize(self, helper.close).atexit = False
        if not self._helper.run(functools.partial(work, *given), timeout):
            raise StorageUnavailable(
                f"Other processes held the write lock of {self._path.name} for {timeout:g} s. "
                "Nothing was written. Try again, and look for a stopped process that holds it."
            )

    # -- the mark --------------------------------------------------------------------------------

    def load(self) -> Mark | None:
        """Return the newest mark whose slot is whole, or None if there is none."""
        newest: Mark | None = None
        for at in _SLOTS:
            body = self._whole(at, _LAYOUT.size)
            if body is None or not body.startswith(_MAGIC):
                continue
            _, store, number, total, boot, full = _LAYOUT.unpack(body)
            if newest is None or number > newest.number:
                newest = Mark(store, number, total, boot, bool(full))
        return newest

    def belongs_to(self, store: bytes, boot: bytes, *, full: bool) -> None:
        """Set the constant fields of every mark stored from now on."""
        self._before, self._after = _MAGIC + store, boot + bytes([full])

    def store(self, number: int, total: bytes) -> None:
        """Store a commit as the last one; the caller holds the lock. If storing fails, the mark is only older."""
        body = self._before + number.to_bytes(8, "big") + total + self._after
        try:
            os.pwrite(self._fd, body + _blake2b(body).digest()[:_SUM], _SLOTS[number & 1])
        except OSError as error:
            _log.warning("%s could not be written; the next commit will retry: %s", self._path, error)

    def reset(self, mark: Mark | None) -> None:
        """Replace both slots, durably: by a mark that may be lower, or by none."""
        os.pwrite(self._fd, bytes(_SIZE), 0)
        if mark is not None:
            self.belongs_to(mark.store, mark.boot, full=mark.full)
            self.store(mark.number, mark.sum)
        os.fsync(self._fd)

    # -- the note of a failed sync -----------------------------------------------------------------

    def note_failed_sync(self, boot: bytes) -> None:
        """Record for the processes of this boot that a sync has failed."""
        body = _FAILED + boot
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, body + _blake2b(body).digest()[:_SUM], _NOTE)

    def has_failed_sync(self, boot: bytes) -> bool:
        """Return whether a sync has failed since the machine started. An older note is void: the disk decides."""
        return self._whole(_NOTE, 20) == _FAILED + boot

    def clear_failed_sync(self) -> None:
        """Clear the note."""
        os.pwrite(self._fd, bytes(28), _NOTE)

    def _whole(self, at: int, size: int) -> bytes | None:
        raw = os.pread(self._fd, size + _SUM, at)
        body = raw[:size]
        return body if len(raw) == size + _SUM and _blake2b(body).digest()[:_SUM] == raw[size:] else None

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the file, which releases the lock."""
        self._closing()
        if self._helper is not None:
            self._helper.close()

    def forget(self) -> None:
        """Close the file in a forked child without unlocking it: the lock belongs to the parent."""
        self._closing()
        if self._helper is not None:
            os.close(self._helper.fd)


class _Ticket:
    """One piece of work for the helper, and its outcome."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.begun = self.over = False
        self.ended = Wake()
        self.error: BaseException | None = None


class _Helper:
    """Wait for the lock in a separate thread, so that the caller can stop waiting.

    That thread also does the work, so that the lock is not held while one thread wakes another.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._mutex = threading.Lock()
        self._asked = Wake()
        self._ticket: _Ticket | None = None  # what a caller is waiting for
        self._closed = False
        threading.Thread(target=self._run, name="tenuto-lock", daemon=True).start()

    def run(self, work: Callable[[], None], timeout: float) -> bool:
        ticket = _Ticket(work)
        try:
            with self._mutex:
                self._ticket = ticket
            self._asked.set()
            _wait(ticket, timeout)
        except BaseException:  # KeyboardInterrupt, at any line of the above
            if not self._withdraw(ticket):
                _wait_to_the_end(ticket)
            raise
        if not ticket.over:
            if self._withdraw(ticket):
                return False
            _wait_to_the_end(ticket)  # it had started: its outcome counts
        if ticket.error is not None:
            raise ticket.error
        return True

    def _withdraw(self, ticket: _Ticket) -> bool:
        """Withdraw work that has not started; return False if it has."""
        with self._mutex:
            if self._ticket is ticket:
                self._ticket = None
            return not ticket.begun

    def _run(self) -> None:
        while True:
            self._asked.wait()
            if self._closed:
                os.close(self.fd)
                return
            fcntl.flock(self.fd, fcntl.LOCK_EX)
            with self._mutex:
                ticket, self._ticket = self._ticket, None
                if ticket is not None:
                    ticket.begun = True
            try:
                if ticket is not None:
                    ticket.work()
            except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
                ticket.error = error  # type: ignore[union-attr]
            finally:
                fcntl.flock(self.fd, fcntl.LOCK_UN)
            if ticket is not None:
                ticket.over = True
                ticket.ended.set()
                del ticket  # it refers to the client, which may be dropped

    def close(self) -> None:
        self._closed = True
        self._asked.set()


def _wait(ticket: _Ticket, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    # Short waits: a signal that comes just before one is noticed only after it.
    while not ticket.ended.wait(min(0.5, max(0.0, deadline - time.monotonic()))) and time.monotonic() < deadline:
        pass


def _wait_to_the_end(ticket: _Ticket) -> None:
    while not ticket.over:
        try:
            ticket.ended.wait(0.05)
        except KeyboardInterrupt:
            continue  # a started commit is not abandoned; it takes milliseconds
