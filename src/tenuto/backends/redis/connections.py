"""A pool of connections to the servers of a Redis or Valkey store; Control-C cannot leak one.

Every new connection is inspected before its first use (see `server`), so that a promoted replica with other
settings is detected too. An idle connection that the server has closed is replaced.

A connection returns to the pool only if every reply on it was read completely: otherwise the rest of a reply would
be read as the answer to the next call. Nothing is counted: a connection that an interrupted call dropped closes itself.
"""

from __future__ import annotations

import contextlib
import select
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Self

from redis import exceptions as driver
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.retry import Retry

from tenuto.backends.redis.server import Facts
from tenuto.backends.redis.url import Place, Target
from tenuto.errors import Closed

_MAX_IDLE: Final = 32


class Loan:
    """A borrowed connection for a `with` block, and whether it may be used again."""

    __slots__ = ("_connections", "_deadline", "_place", "_settled", "connection")

    def __init__(self, connections: Connections, place: Place, deadline: float) -> None:
        self._connections, self._place, self._deadline = connections, place, deadline
        self._settled = True

    def __enter__(self) -> Self:
        self.connection: Any = self._connections.take(self._place, self._deadline)
        return self

    def __exit__(self, *_: object) -> None:
        if self._settled and self.connection.is_connected:
            self._connections.keep(self._place, self.connection)
        else:
            self.connection.disconnect()

    def send(self, packed: bytes) -> None:
        """Send one encoded command; its reply is then outstanding."""
        self._settled = False
        self.connection.send_packed_command([packed])

    def send_command(self, *command: Any) -> None:
        """Send one command, encoded by the driver."""
        self._settled = False
        self.connection.send_command(*command)

    def reply(self, timeout: float) -> Any:
        """Return the reply to the last command; raise it if it is an error."""
        left = self._deadline - time.monotonic()
        try:
            if abs(left - self.connection.socket_timeout) < 0.1 * timeout:
                found = self.connection.read_response()
            else:
                found = self.connection.read_response(timeout=max(left, 0.001))
        except driver.ResponseError:
            self._settled = True
            raise
        self._settled = True
        return found


class Connections:
    """The connections of one store, shared by all threads."""

    def __init__(self, target: Target, inspect: Callable[[Any], Facts]) -> None:
        self.target = target
        self._inspect = inspect
        self.facts: dict[Place, Facts] = {}
        self.waits = False
        """True if commits to some server are followed by WAITAOF."""
        self.made = 0
        self._idle: dict[Place, deque[Any]] = {}
        self._closed = False

    def lend(self, place: Place, deadline: float) -> Loan:
        """Lend a connection to a server for a `with` block."""
        return Loan(self, place, deadline)

    @property
    def idle(self) -> int:
        """Return the number of idle connections."""
        return sum(map(len, self._idle.values()))

    def take(self, place: Place, deadline: float) -> Any:
        """Return an idle connection, or a new one after inspection."""
        idle = self._idle.get(place)
        while idle:
            with contextlib.suppress(IndexError):
                connection = idle.pop()
                try:
                    if _silent(connection):
                        return connection
                except driver.RedisError:
                    pass
                connection.disconnect()  # the server closed it, or sent unexpected data
        connection = self.connect(place, deadline)
        try:
            self.facts[place] = self._inspect(connection)
            self.waits = any(facts.waits for facts in self.facts.values())
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def keep(self, place: Place, connection: Any) -> None:
        """Return a connection to the pool, unless the pool is full."""
        idle = self._idle.setdefault(place, deque())
        if self._closed or len(idle) >= _MAX_IDLE:
            connection.disconnect()
        else:
            idle.append(connection)

    def connect(self, place: Place, deadline: float, options: dict[str, Any] | None = None) -> Any:
        """Open a connection that the caller owns and closes; `options` override the store's."""
        if self._closed:
            raise Closed(f"The store at {self.target} was closed. Open a new client.")
        left = max(0.001, deadline - time.monotonic())
        common: dict[str, Any] = {
            **(self.target.options if options is None else options),
            "socket_timeout": left,
            "socket_connect_timeout": left,
            "retry": Retry(NoBackoff(), 0),  # the driver would repeat a call that may have been applied
            "protocol": 2,
            "driver_info": None,
        }
        connection: Any
        if not place.port:
            unix: Any = UnixDomainSocketConnection
            connection = unix(path=place.host, **common)
        else:
            kind = SSLConnection if self.target.tls else Connection
            connection = kind(host=place.host, port=place.port, **common)
        connection.connect()
        self.made += 1
        return connection

    def drop(self, place: Place) -> None:
        """Close the idle connections to one server, after it failed."""
        idle = self._idle.pop(place, None)
        with contextlib.suppress(IndexError):
            while idle:
                idle.pop().disconnect()

    def close(self) -> None:
        """Close the idle connections; one in use is closed when its call ends."""
        self._closed = True
        for place in list(self._idle):
            self.drop(place)


def _silent(connection: Any) -> bool:
    """Return whether no data arrived while the connection was idle; the driver's own test takes four system calls."""
    if isinstance(connection, SSLConnection) or not hasattr(select, "poll"):
        return not connection.can_read()  # under TLS, bytes may have arrived that are not decrypted yet
    ear = connection.__dict__.get("ear")
    if ear is None:
        ear = connection.ear = select.poll()
        ear.register(connection._sock.fileno(), select.POLLIN)
    return not ear.poll(0)
