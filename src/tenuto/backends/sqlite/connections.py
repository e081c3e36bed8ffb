"""Connections to SQLite files, and what a fork does to them.

A thread holds a connection's lock while it is inside SQLite with it. A fork acquires all these locks first: then no
thread is inside SQLite, and the child closes what it inherited. It must: as long as a file is open in the child,
SQLite assumes that the child has the parent's locks and acquires none, and the parent's last close would remove
the write-ahead log that the child uses.

If a lock cannot be acquired in time, or the fork comes from inside SQLite (in a signal handler), the child cannot
close what it inherited. SQLite is then unsafe in the child, so every store in it raises `StorageUnavailable`.

The locks are re-entrant because such locks know their owner: whatever Control-C interrupts, only the thread that holds
a lock can release it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, TypeVarTuple

import apsw

from tenuto.backends import _forks
from tenuto.backends.sqlite import errors
from tenuto.errors import StorageUnavailable, TenutoError

Explain = Callable[[Exception, apsw.Connection], Exception]
R = TypeVar("R")
Given = TypeVarTuple("Given")
_FORK_SECONDS: Final = 5.0
_KEPT: Final = 16


class Handle:
    """A connection, and the lock that a thread holds while it is inside SQLite with it."""

    __slots__ = ("__weakref__", "connection", "job", "lock")

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.lock: Any = threading.RLock()
        self.job: apsw.Backup | None = None
        """A backup into this connection that is in progress."""

    def close(self, *, checkpoint: bool = True) -> None:
        """Close the connection. Without `checkpoint`, the write-ahead log is left in place even if this was the last one."""
        with _process.opening:
            if self.job is not None:
                self.job.close(True)
            if not checkpoint:
                self.connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.connection.close(not checkpoint)
            _process.handles.discard(self)


class _Process:
    """All connections of this process."""

    def __init__(self) -> None:
        self.opening: Any = threading.RLock()
        """Held while a connection is opened or closed."""
        self.handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self.unsafe = False
        self.forking = False
        """While this is set, no thread enters SQLite: threads that re-enter it constantly would starve the fork."""
        self._taken: list[Any] = []
        self._at_rest = False

    def before_fork(self) -> None:
        """Wait until no thread is inside SQLite, for a few seconds at most."""
        self._at_rest, self._taken, self.forking = False, [], True
        deadline = time.monotonic() + _FORK_SECONDS
        rest = self._take(self.opening, deadline)
        for handle in list(self.handles):
            rest = self._take(handle.lock, deadline) and rest
        self._at_rest = rest

    def _take(self, lock: Any, deadline: float) -> bool:
        if lock._is_owned():
            return False  # the fork comes from a signal handler, inside this thread's own call
        self._taken.append(lock)
        return bool(lock.acquire(timeout=max(0.0, deadline - time.monotonic())))

    def after_fork_in_parent(self) -> None:
        """Let threads enter SQLite again."""
        self.forking = False
        for lock in self._taken:
            if lock._is_owned():
                lock.release()
        self._taken, self._at_rest = [], False  # Control-C may skip the next `before_fork`

    def after_fork_in_child(self) -> None:
        """Close what was inherited, or record that this process must not use SQLite."""
        inherited = list(self.handles)
        if self._at_rest and not self.unsafe:
            for handle in inherited:
                if handle.job is not None:
                    handle.job.close(True)
                    handle.job = None
            for handle in inherited:
                with contextlib.suppress(apsw.ConnectionClosedError):  # closed by a thread that was interrupted in it
                    handle.close(checkpoint=False)
        elif inherited or self.unsafe:
            self.unsafe = True
            for handle in inherited:  # keep it for ever: closing could wait for a thread that does not exist here
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))
        self.forking = False
        # Last: if Control-C comes before, all of it is repeated.
        self._taken, self._at_rest = [], False
        self.opening, self.handles = threading.RLock(), weakref.WeakSet()


_process = _Process()
_forks.tell(_process)


def refuse_unsafe(path: Path) -> None:
    """Raise `StorageUnavailable` in a process that was forked while a thread was inside SQLite."""
    if _process.unsafe:
        raise StorageUnavailable(
            f"This process was forked while another thread used a SQLite store, so it cannot use {path.name} safely. "
            "Nothing was written. Fork before such threads start, or start workers with 'spawn'."
        )


def wait_for_fork() -> None:
    """Wait while the process forks."""
    if _process.forking:
        with _process.opening:
            pass


def connect(path: Path, flags: int, *, full: bool, timeout: float) -> Handle:
    """Open a connection with the settings that durability and integrity depend on."""
    refuse_unsafe(path)
    with _process.opening:
        name = f"file:{_escaped(path)}?immutable=1" if flags & apsw.SQLITE_OPEN_URI else str(path)
        connection = apsw.Connection(name, flags=flags)
        connection.set_busy_timeout(int(timeout * 1000))
        connection.execute(
            f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}; PRAGMA wal_autocheckpoint = 0; "
            "PRAGMA secure_delete = ON; PRAGMA cell_size_check = ON; PRAGMA trusted_schema = OFF; "
            "PRAGMA journal_size_limit = 67108864"
        ).fetchall()
        if sys.platform == "darwin":  # fsync does not reach the disk there
            connection.execute("PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON").fetchall()
        return _kept(connection)


def open_copy(path: Path) -> Handle:
    """Open a new file to copy a store into."""
    with _process.opening:
        return _kept(apsw.Connection(str(path)))


def _kept(connection: apsw.Connection) -> Handle:
    handle = Handle(connection)
    _process.handles.add(handle)
    return handle


def _escaped(path: Path) -> str:
    return os.fspath(path).replace("%", "%25").replace("?", "%3f").replace("#", "%23")


class Readers:
    """A pool of connections that read. It opens another when all are in use, and retains a few.

    A connection that Control-C leaks between two lines is closed with its last reference; nothing counts it.
    """

    def __init__(self, path: Path, connect: Callable[[], Handle], explained: Explain) -> None:
        self.path = path
        self._connect = connect
        self._explained = explained
        self.free: deque[Handle] = deque()
        self.closed = False

    def ask(self, question: Callable[[apsw.Connection, *Given], R], *given: *Given) -> R:
        """Run a query on a connection; translate the driver's errors."""
        try:
            handle = self.free.pop()
        except IndexError:
            handle = self.open()
        try:
            if _process.forking:
                wait_for_fork()
            with handle.lock:
                answer = question(handle.connection, *given)
        except BaseException as error:
            self.after_error(handle, error)
            raise
        self.put_back(handle)
        return answer

    def open(self) -> Handle:
        """Open one more connection."""
        try:
            return self._connect()
        except errors.DRIVER as error:
            raise errors.translated(error, self.path) from error

    def put_back(self, handle: Handle) -> None:
        """Return a connection to the pool, unless the pool is full."""
        if self.closed or len(self.free) >= _KEPT:
            handle.close()
        else:
            self.free.append(handle)

    def after_error(self, handle: Handle, error: BaseException) -> None:
        """Return a connection to the pool after an error of tenuto, else close it; translate the driver's errors."""
        if isinstance(error, TenutoError):
            self.put_back(handle)
            return
        reason = self._explained(error, handle.connection) if isinstance(error, errors.DRIVER) else None
        with contextlib.suppress(apsw.Error):
            handle.close(checkpoint=False)
        if reason is not None:
            raise errors.translated(reason, self.path) from error

    def close(self) -> None:
        """Close the idle connections; one in use is closed when it is returned."""
        self.closed = True
        with contextlib.suppress(IndexError):
            while True:
                self.free.pop().close()
