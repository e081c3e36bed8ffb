"""The file beside a SQLite store: who may write next, and how far the store had come.

**The lock.** Every process takes it before it begins to write. SQLite's own waiting is a sleeping
back-off under which one of sixteen writers waits a second; the kernel's queue is fair. Taking it has
a deadline: the wait itself happens in a helper thread, because a lock call cannot be interrupted.

**The mark.** Two slots, written in turn after each commit and before the unlock, say which commit was
the last. A store that is behind its mark has lost commits: a cut or damaged write-ahead log, or a file
put in its place. The mark is shared memory backed by the file, so it costs no system call and
outlives a killed process; it is not synced, so after a power loss it may be behind, never ahead of
what was synced before it.

**The word.** Beside the mark, the number and digest of the last commit once more, and before them a byte that
is cleared while a commit is under way. A process whose own newest commit has this word knows, by one comparison,
that no other has been acknowledged since. Who is killed between leaves the byte cleared, and the store is asked.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, TypeVarTuple

from tenuto.errors import StorageUnavailable
from tenuto.kernel.wake import Wake

Given = TypeVarTuple("Given")
_SIZE: Final = 4096
_SLOTS: Final = (0, 512)
_LAYOUT: Final = struct.Struct(">4s16sQ16s16sB")
_MAGIC: Final = b"tnm1"
_SUM: Final = 8
_SLOT: Final = _LAYOUT.size + _SUM
_PLACES: Final = tuple(slice(at, at + _SLOT) for at in _SLOTS)
_SETTLED: Final = 1024
_WORD: Final = slice(_SETTLED, _SETTLED + 25)
_NUMBER: Final = slice(_SETTLED + 1, _SETTLED + 25)
_sha256 = hashlib.sha256

if sys.platform == "win32":
    import msvcrt

    def _try_lock(fd: int) -> bool:
        os.lseek(fd, _SIZE, os.SEEK_SET)  # a byte behind the mark: Windows locks are mandatory
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def _lock(fd: int) -> None:
        while not _try_lock(fd):
            time.sleep(0.001)

    def _free(fd: int, how: int) -> None:
        os.lseek(fd, _SIZE, os.SEEK_SET)
        with contextlib.suppress(OSError):  # it was not had
            msvcrt.locking(fd, how, 1)

    _FREE = msvcrt.LK_UNLCK

else:
    import fcntl

    def _try_lock(fd: int) -> bool:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _lock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)

    _free, _FREE = fcntl.flock, fcntl.LOCK_UN


class Mark(NamedTuple):
    """How far a store had come: its id, the number and digest of its last commit, boot and mode."""

    store: bytes
    number: int
    chain: bytes
    boot: bytes
    full: bool


def word_of(number: int, chain: bytes) -> bytes:
    """Return the word of a commit that is not under way."""
    return b"\x01" + number.to_bytes(8, "big", signed=True) + chain


class LockFile:
    """One process's hold on the lock and the mark. One thread at a time calls `run`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._helper: _Helper | None = None
        self._before = self._behind = b""
        try:
            if os.fstat(self._fd).st_size < _SIZE:
                # Writing zeros reserves the blocks, so that storing a mark can never meet a full disk.
                # Two processes may both do it: neither has a mark yet.
                os.pwrite(self._fd, bytes(_SIZE), 0)
            self._shared = mmap.mmap(self._fd, _SIZE)
        except BaseException:
            os.close(self._fd)
            raise

    def run(self, work: Callable[[*Given], None], timeout: float, *given: *Given) -> None:
        """Do `work` with the lock held, or raise `StorageUnavailable` when others held it all the time."""
        try:
            if _try_lock(self._fd):
                work(*given)
                return
        finally:
            _free(self._fd, _FREE)  # also if it was not had; and by one call, into which no interrupt comes
        if self._helper is None:
            self._helper = _Helper(os.open(self._path, os.O_RDWR))
        if not self._helper.run(functools.partial(work, *given), timeout):
            raise StorageUnavailable(
                f"Other processes held the write lock of {self._path.name} for {timeout:g} s. "
                "Nothing was written; try again, and look for a stopped process that holds it."
            )

    def load(self) -> Mark | None:
        """Return the newest mark whose slot is whole, or None if there is none."""
        newest: Mark | None = None
        for place in _PLACES:
            raw = self._shared[place]
            body, own = raw[: _LAYOUT.size], raw[_LAYOUT.size :]
            magic, store, number, chain, boot, full = _LAYOUT.unpack(body)
            if magic != _MAGIC or _sha256(body).digest()[:_SUM] != own:
                continue
            if newest is None or number > newest.number:
                newest = Mark(store, number, chain, boot, bool(full))
        return newest

    def says(self, word: bytes) -> bool:
        """Tell whether the commit of this word is the last, and none is under way."""
        try:
            return self._shared[_WORD] == word
        except ValueError:  # it was closed meanwhile
            return False

    def committing(self) -> None:
        """Note that a commit is under way; `store` ends it. A process killed between leaves the note."""
        self._shared[_SETTLED] = 0

    def belongs_to(self, store: bytes, boot: bytes, *, full: bool) -> None:
        """Say what every mark that is stored from now on says beside the commit."""
        self._before, self._behind = _MAGIC + store, boot + bytes([full])

    def store(self, word: bytes) -> None:
        """Note a commit by its word. Call it with the lock held."""
        shared, commit = self._shared, word[1:]
        body = self._before + commit + self._behind
        shared[_PLACES[word[8] & 1]] = body + _sha256(body).digest()[:_SUM]
        # The byte last: who compared between the two would take the old word for the newest.
        shared[_NUMBER] = commit
        shared[_SETTLED] = 1

    def start_over(self, mark: Mark) -> None:
        """Note a store whose number may be lower than the mark's; both slots are written."""
        self._shared[0:_SIZE] = bytes(_SIZE)
        self.belongs_to(mark.store, mark.boot, full=mark.full)
        self.store(word_of(mark.number, mark.chain))

    def close(self) -> None:
        """Let go of the file. A lock that is still held goes with it, unless a forked copy has it."""
        self._shared.close()
        os.close(self._fd)
        if self._helper is not None:
            self._helper.close()

    def forget(self) -> None:
        """Let go in a forked child, without unlocking: the lock is the parent's, and must end with it."""
        self._shared.close()
        os.close(self._fd)
        if self._helper is not None:
            os.close(self._helper.fd)


class _Ticket:
    """One piece of work for the helper, and what became of it."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.begun = self.over = False
        self.ended = Wake()
        self.error: BaseException | None = None


class _Helper:
    """Waits for the lock in a thread of its own, so that the caller can stop waiting.

    The work is done in that thread too: the lock is not held while one thread wakes another.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._mutex = threading.Lock()
        self._asked = Wake()
        self._ticket: _Ticket | None = None  # what somebody still waits for
        self._closed = False
        threading.Thread(target=self._run, name="tenuto-lock", daemon=True).start()

    def run(self, work: Callable[[], None], timeout: float) -> bool:
        ticket = _Ticket(work)
        try:
            with self._mutex:
                self._ticket = ticket
            self._asked.set()
            ticket.ended.wait(max(0.0, timeout))
        except BaseException:  # KeyboardInterrupt, at any line of the above
            if not self._withdraw(ticket):
                _wait_to_the_end(ticket)
            raise
        if not ticket.over:
            if self._withdraw(ticket):
                return False
            _wait_to_the_end(ticket)  # it began after all: its outcome is what counts
        if ticket.error is not None:
            raise ticket.error
        return True

    def _withdraw(self, ticket: _Ticket) -> bool:
        """Take back what has not begun; False if it has."""
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
            _lock(self.fd)
            with self._mutex:
                ticket, self._ticket = self._ticket, None
                if ticket is not None:
                    ticket.begun = True
            try:
                if ticket is not None:
                    ticket.work()
            except BaseException as error:  # noqa: BLE001 - it is raised where the work was asked for
                ticket.error = error  # type: ignore[union-attr]
            finally:
                _free(self.fd, _FREE)
            if ticket is not None:
                ticket.over = True
                ticket.ended.set()

    def close(self) -> None:
        self._closed = True
        self._asked.set()


def _wait_to_the_end(ticket: _Ticket) -> None:
    while not ticket.over:
        try:
            ticket.ended.wait(0.05)
        except KeyboardInterrupt:
            continue  # a commit that has begun is not abandoned; it takes milliseconds
