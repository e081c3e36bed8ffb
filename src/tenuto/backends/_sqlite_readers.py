"""The connections that read: taken for one read and put back, so that none is held open in between."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

import apsw

from tenuto.backends._sqlite_errors import translated
from tenuto.errors import TenutoError

_KEPT: Final = 16


class Readers:
    """A pool of connections. It makes another when all are out, and keeps a few."""

    def __init__(self, path: Path, connect: Callable[[], apsw.Connection]) -> None:
        self.path = path
        self._connect = connect
        self._lock = threading.Lock()
        self.home: deque[apsw.Connection] = deque()
        self._made = 0
        self.closed = False

    def one(self) -> _Reading:
        """Return a context manager that gives a connection for one read."""
        return _Reading(self)

    @property
    def are_home(self) -> bool:
        """Tell whether no thread is reading."""
        return self._made == len(self.home)

    def make(self) -> apsw.Connection:
        """Make a connection."""
        with self._lock:
            self._made += 1
        try:
            return self._connect()
        except BaseException as error:
            with self._lock:
                self._made -= 1
            if isinstance(error, apsw.Error):
                raise translated(error, self.path) from error
            raise

    def discard(self, reader: apsw.Connection) -> None:
        """Close a connection that is not wanted any more."""
        reader.close()
        with self._lock:
            self._made -= 1

    def put_back(self, reader: apsw.Connection) -> None:
        """Keep a connection for the next read, if there are not enough of them."""
        if self.closed or len(self.home) >= _KEPT:
            self.discard(reader)
        else:
            self.home.append(reader)

    def close(self) -> None:
        """Close what is here; what is out is closed when it comes back."""
        self.closed = True
        while self.home:
            self.discard(self.home.pop())


class _Reading:
    """A connection for one read; written out, as it is on every read's path."""

    __slots__ = ("_connection", "_readers")

    def __init__(self, readers: Readers) -> None:
        self._readers = readers

    def __enter__(self) -> apsw.Connection:
        try:
            self._connection = self._readers.home.pop()
        except IndexError:
            self._connection = self._readers.make()
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, TenutoError):
            self._readers.put_back(self._connection)
            return
        self._readers.discard(self._connection)
        if isinstance(error, apsw.Error | UnicodeDecodeError):  # the latter: a blob that a flipped bit made a text
            raise translated(error, self._readers.path) from error
