"""The connections that read: taken for one read and put back, so that none is held open in between."""

from __future__ import annotations

import threading
import time
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
        self._gate = threading.Lock()
        self._all: set[apsw.Connection] = set()
        self.home: deque[apsw.Connection] = deque()
        self._gathering: deque[apsw.Connection] | None = None
        self.closed = False

    def one(self) -> _Reading:
        """Return a context manager that gives a connection for one read."""
        return _Reading(self)

    def make(self) -> apsw.Connection:
        """Make a connection."""
        with self._gate:
            try:
                reader = self._connect()
            except apsw.Error as error:
                raise translated(error, self.path) from error
            self._all.add(reader)
            return reader

    def discard(self, reader: apsw.Connection) -> None:
        """Close a connection that is not wanted any more."""
        reader.close()
        self._all.discard(reader)

    def gather(self, seconds: float) -> list[apsw.Connection]:
        """Shut the gate, wait until no thread is reading, and return all connections; `scatter` opens it."""
        self._gate.acquire()
        returned: deque[apsw.Connection] = deque()
        self._gathering = returned
        deadline = time.monotonic() + seconds
        while len(returned) < len(self._all) and time.monotonic() < deadline:
            try:
                returned.append(self.home.pop())
            except IndexError:
                time.sleep(0.0002)  # a read takes microseconds
        return list(returned)

    def scatter(self, gathered: list[apsw.Connection]) -> None:
        """Put everything back and let readers in again."""
        self._gathering = None
        self.home.extend(gathered)
        self._gate.release()

    def put_back(self, reader: apsw.Connection) -> None:
        """Keep a connection for the next read, if there are not enough of them."""
        if self._gathering is not None:
            self._gathering.append(reader)
        elif self.closed or len(self.home) >= _KEPT:
            self.discard(reader)
        else:
            self.home.append(reader)

    def after_error(self, reader: apsw.Connection, error: BaseException) -> None:
        """Take a connection back after a failed read; raise the driver's errors as tenuto's."""
        if isinstance(error, TenutoError):
            self.put_back(reader)
            return
        self.discard(reader)
        if isinstance(error, apsw.Error | UnicodeDecodeError):  # the latter: a blob that a flipped bit made a text
            raise translated(error, self.path) from error

    def close(self) -> None:
        """Close what is here; what is out is closed when it comes back."""
        self.closed = True
        while self.home:
            self.discard(self.home.pop())


class _Reading:
    """A connection for one read."""

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
        if error is None:
            self._readers.put_back(self._connection)
        else:
            self._readers.after_error(self._connection, error)
