"""HTTP/1.1 connections to a server, reused; Control-C cannot leak one.

The standard library's client sends head and body apart and hides whether a request was sent. This one sends a
request with one call, keeps every wait within the deadline, and reports what a lost connection means. A connection
returns to the pool only if its reply was read completely.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
import zlib
from collections import deque
from typing import Final, NamedTuple

from tenuto.backends.remote.url import Place, Target
from tenuto.errors import Closed

_MAX_IDLE: Final = 32
_MAX_LINE: Final = 65_536
_MAX_HEADERS: Final = 200
_CHUNK: Final = 1 << 18


class Lost(OSError):
    """The connection ended before the reply did, or the reply was not HTTP."""


class Reply(NamedTuple):
    """A whole reply."""

    status: int
    headers: dict[str, str]
    """By their names in lower case."""
    body: bytes


class Connection:
    """One connection, for one request at a time."""

    def __init__(self, target: Target, deadline: float) -> None:
        self.used = False
        """True after a first reply: only then can the server have closed it for being idle."""
        self._buffer = bytearray()
        self._absolute = ""
        self._more = ""
        place = target.place if target.proxy is None else target.proxy.place
        self._socket = socket.create_connection(place, timeout=_left(deadline))
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.proxy is not None and target.tls is None:
                self._absolute, self._more = f"http://{target.place}", target.proxy.headers
            elif target.proxy is not None:
                self._tunnel(target.place, target.proxy.headers, deadline)
            if target.tls is not None:
                self._socket = target.tls.wrap_socket(self._socket, server_hostname=target.place.host)
        except BaseException:
            self._socket.close()
            raise

    def _tunnel(self, place: Place, headers: str, deadline: float) -> None:
        self._socket.sendall(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{headers}\r\n".encode())
        status, _ = self._head(deadline)
        if status != 200:
            raise Lost(f"the proxy answered {status}")

    def fileno(self) -> int:
        """Return the file descriptor of the socket."""
        return self._socket.fileno()

    def send(self, method: str, path: str, headers: str, body: bytes, deadline: float) -> None:
        """Send one request; `headers` end with a line break each."""
        head = f"{method} {self._absolute}{path} HTTP/1.1\r\n{headers}{self._more}Content-Length: {len(body)}\r\n\r\n"
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(head.encode("latin-1") + body)

    def reply(self, deadline: float) -> Reply:
        """Return the reply to the request that was sent."""
        while True:
            status, headers = self._head(deadline)
            if status >= 200:
                break
        if status in (204, 304):
            body = b""
        elif headers.get("transfer-encoding", "").lower() == "chunked":
            body = self._chunks(deadline)
        else:
            body = self._exactly(_length(headers), deadline)
        if headers.get("content-encoding", "").lower() == "gzip":
            body = _decompressed(body)
        self.used = True
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Reply(status, headers, body)

    @property
    def open(self) -> bool:
        """Return whether the socket is open on this side."""
        return self._socket.fileno() >= 0

    def silent(self) -> bool:
        """Return whether nothing arrived while the connection was idle; a closed one has something to read."""
        with contextlib.suppress(OSError, ValueError):
            if hasattr(select, "poll"):
                ear = select.poll()
                ear.register(self._socket.fileno(), select.POLLIN)
                return not ear.poll(0)
            return not select.select([self._socket], [], [], 0)[0]
        return False

    def close(self) -> None:
        """Close the connection at once."""
        with contextlib.suppress(OSError):
            self._socket.close()

    # -- reading -----------------------------------------------------------------------------

    def _head(self, deadline: float) -> tuple[int, dict[str, str]]:
        first = self._line(deadline).split(" ", 2)
        if len(first) < 2 or not first[0].startswith("HTTP/1.") or not first[1].isdigit():
            raise Lost("the reply is not HTTP")
        headers: dict[str, str] = {}
        for _ in range(_MAX_HEADERS):
            line = self._line(deadline)
            if not line:
                return int(first[1]), headers
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        raise Lost("the reply has too many headers")

    def _line(self, deadline: float) -> str:
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _MAX_LINE:
                raise Lost("the reply has a header that is too long")
            self._receive(deadline)
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line.rstrip(b"\r").decode("latin-1")

    def _exactly(self, size: int, deadline: float) -> bytes:
        while len(self._buffer) < size:
            self._receive(deadline)
        body = bytes(self._buffer[:size])
        del self._buffer[:size]
        return body

    def _chunks(self, deadline: float) -> bytes:
        parts: list[bytes] = []
        while True:
            try:
                size = int(self._line(deadline).partition(";")[0], 16)
            except ValueError:
                raise Lost("the reply has a malformed chunk") from None
            if size:
                parts.append(self._exactly(size, deadline))
            self._line(deadline)
            if not size:
                return b"".join(parts)

    def _receive(self, deadline: float) -> None:
        self._socket.settimeout(_left(deadline))
        found = self._socket.recv(_CHUNK)
        if not found:
            raise Lost("the connection was closed")
        self._buffer += found


class Connections:
    """The idle connections to one server, shared by all threads."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.made = 0
        self._idle: deque[Connection] = deque()
        self._closed = False

    @property
    def idle(self) -> int:
        """Return the number of idle connections."""
        return len(self._idle)

    def take(self, deadline: float) -> Connection:
        """Return an idle connection, or a new one."""
        if self._closed:
            raise Closed(f"The client of {self.target} was closed. Open a new client.")
        with contextlib.suppress(IndexError):
            while True:
                connection = self._idle.pop()
                if connection.silent():
                    return connection
                connection.close()
        connection = Connection(self.target, deadline)
        self.made += 1
        return connection

    def keep(self, connection: Connection) -> None:
        """Return a connection to the pool, unless the pool is full."""
        if self._closed or len(self._idle) >= _MAX_IDLE:
            connection.close()
        elif connection.open:
            self._idle.append(connection)

    def drop(self) -> None:
        """Close the idle connections, after one of them was found to be dead."""
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()

    def close(self) -> None:
        """Close the idle connections; one in use is closed when its call ends."""
        self._closed = True
        self.drop()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("timed out")
    return left


def _decompressed(body: bytes) -> bytes:
    try:
        return zlib.decompress(body, wbits=31)
    except zlib.error:
        raise Lost("the reply is not valid gzip") from None


def _length(headers: dict[str, str]) -> int:
    text = headers.get("content-length", "")
    if not text.isdigit():
        raise Lost("the reply has no length")
    return int(text)
