"""Connections to a Redis or Valkey server, to the primary that Sentinel names, or to a cluster's nodes.

A call is sent once. The driver's retries are off: what it does not know is whether a script was applied,
and sending it again is the caller's to decide, with a request id. This module only sends again what surely
was not executed: a script that the server did not know (it is sent whole), a call that a node of a cluster
passed on to another, one that could not be sent at all, and reads.

Each call has one deadline, from which connecting, finding the primary and waiting all take. Every new
connection is inspected before it carries anything (see `_redis_server`), so that a promoted replica with
other settings is noticed too. Idle connections are kept, and one that the server has closed is replaced.
"""

from __future__ import annotations

import contextlib
import functools
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from redis import exceptions as driver
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection
from redis.crc import key_slot
from redis.retry import Retry

from tenuto.backends._redis_errors import translated
from tenuto.backends._redis_script import Script
from tenuto.backends._redis_server import Facts
from tenuto.errors import Closed, StorageUnavailable

_KEPT: Final = 32
_REDIRECTS: Final = 8
_PATIENCE: Final = 2.0
_STARTING: Final = 0.05


class Place(NamedTuple):
    """Where a server listens; a Unix socket has a path for its host and no port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host


class Target(NamedTuple):
    """What a URL names."""

    kind: str
    """One of server, sentinel, cluster."""
    places: tuple[Place, ...]
    service: str
    options: dict[str, Any]
    """For every connection to a server: user, password, database, TLS."""
    sentinel: dict[str, Any]
    """For connections to sentinels."""
    tls: bool

    def __str__(self) -> str:
        """Say where, without any secret."""
        where = ",".join(map(str, self.places))
        return f"{self.service} ({where})" if self.service else where


class Link:
    """The connections of one store. All threads share it."""

    def __init__(self, target: Target, timeout: float, inspect: Callable[[Any], Facts]) -> None:
        self.target = target
        self._timeout = timeout
        self._inspect = inspect
        self.facts: dict[Place, Facts] = {}
        self.waits = False
        """True where commits are followed by WAITAOF on some server."""
        self.made = 0
        self._idle: dict[Place, deque[Any]] = {}
        self._slots: dict[int, Place] = {}
        self._primary: Place | None = target.places[0] if target.kind == "server" else None
        self._learning = threading.Lock()
        self._closed = False

    @property
    def idle(self) -> int:
        """Return how many connections are kept for the next call."""
        return sum(map(len, self._idle.values()))

    def close(self) -> None:
        """Close what is idle; a connection in use is closed when its call ends."""
        self._closed = True
        for kept in list(self._idle.values()):
            with contextlib.suppress(IndexError):
                while kept:
                    kept.pop().disconnect()

    def places(self) -> list[Place]:
        """Return every primary there is, asking for them where that is needed."""
        deadline = time.monotonic() + self._timeout
        try:
            if self.target.kind == "cluster":
                return sorted(set(self._learn(deadline).values()))
            return [self._place(b"", deadline)]
        except (driver.RedisError, OSError) as error:
            raise translated(error, str(self.target)) from error

    def ask(self, place: Place, *command: Any) -> Any:
        """Send one command that changes nothing to one server, and return the reply."""
        deadline = time.monotonic() + self._timeout
        try:
            connection = self._take(place, deadline)
            try:
                connection.send_command(*command)
                reply = connection.read_response()
            except driver.ResponseError:
                self._give(place, connection)
                raise
            self._give(place, connection)
        except (driver.RedisError, OSError) as error:
            raise translated(error, str(place)) from error
        return reply

    def run(  # noqa: C901, PLR0912, PLR0915 - one call from its routing to its reply
        self,
        script: Script,
        names: Sequence[bytes],
        arguments: Sequence[Any],
        *,
        commit: bool = False,
        request: bytes | None = None,
    ) -> Any:
        """Run a script on the node that holds its keys, and return the reply."""
        began = time.monotonic()
        deadline = began + self._timeout
        count, tail = 3 + len(names) + len(arguments), _packed_names(tuple(names)) + _packed(arguments)
        asking: Place | None = None
        place: Place | None = None
        failed = redirects = 0
        while True:
            sent = False
            connection: Any = None
            try:
                place = asking or self._place(names[0], deadline)
                connection = self._take(place, deadline)
                if asking is not None:
                    _ask(connection)
                connection.send_packed_command([b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n%b" % (count, script.sha, tail)])
                sent = commit
                try:
                    reply = self._reply(connection, deadline)
                except driver.NoScriptError:
                    sent = False  # the server has restarted, or is new: nothing was executed
                    if asking is not None:
                        _ask(connection)  # it holds for one command only
                    connection.send_packed_command(
                        [b"*%d\r\n$4\r\nEVAL\r\n%b%b" % (count, _packed((script.text,)), tail)]
                    )
                    sent = commit
                    reply = self._reply(connection, deadline)
                asking = None
                if commit and self.facts[place].waits and type(reply) is bytes:  # what did nothing is a list
                    self._await_disk(connection, place, deadline, request)
            except driver.AskError as error:  # MOVED is one too
                self._give(place, connection)
                redirects, asking = redirects + 1, None
                other = Place(error.host or (place.host if place else ""), error.port)
                if redirects > _REDIRECTS:
                    raise translated(error, str(self.target)) from error
                if isinstance(error, driver.MovedError):
                    self._slots[error.slot_id] = other
                else:
                    asking = other
            except (driver.ClusterDownError, driver.TryAgainError) as error:
                asking = None
                self._give(place, connection)
                if time.monotonic() - began > min(_PATIENCE, self._timeout / 2):
                    raise translated(error, str(self.target)) from error
                time.sleep(0.05)
                self._forget(place)
            except driver.BusyLoadingError as error:  # it is starting, and will have it all in a while
                self._give(place, connection)
                if time.monotonic() + _STARTING > deadline:
                    raise translated(error, str(place)) from error
                time.sleep(_STARTING)
                self._forget(place)
            except driver.ReadOnlyError as error:
                connection.disconnect()
                self._forget(place)  # Sentinel or the cluster will name another
                raise translated(error, str(place)) from error
            except driver.ResponseError as error:
                self._give(place, connection)
                raise translated(error, str(place), request=request) from error
            except (driver.RedisError, OSError) as error:
                if connection is not None:
                    connection.disconnect()
                self._forget(place)
                failed, asking = failed + 1, None
                lost = isinstance(error, driver.ConnectionError) and not isinstance(error, driver.AuthenticationError)
                worth = connection is not None or self.target.kind != "server"
                if sent or not lost or not worth or failed > 2 or time.monotonic() >= deadline:
                    raise translated(error, str(place or self.target), sent=sent, request=request) from error
            except BaseException:
                if connection is not None:
                    connection.disconnect()  # half a reply may be on its way
                raise
            else:
                self._give(place, connection)
                return reply

    def _reply(self, connection: Any, deadline: float) -> Any:
        left = deadline - time.monotonic()
        if abs(left - connection.socket_timeout) < 0.1 * self._timeout:
            return connection.read_response()
        return connection.read_response(timeout=max(left, 0.001))

    def _await_disk(self, connection: Any, place: Place, deadline: float, request: bytes | None) -> None:
        left = max(1, int(1000 * (deadline - time.monotonic())))
        try:
            connection.send_command("WAITAOF", 1, 0, left)
            synced = connection.read_response()[0] >= 1
        except driver.ResponseError:
            synced = False  # a refusal here is no refusal of the commit
        if not synced:
            raise StorageUnavailable(
                f"{place} has applied the commit but not yet put it on disk. "
                "Commit again with the same request id, which waits for that again.",
                outcome="unknown",
                request=request,
            )

    # -- connections -------------------------------------------------------------------------

    def _take(self, place: Place, deadline: float) -> Any:
        kept = self._idle.get(place)
        while kept:
            with contextlib.suppress(IndexError):
                connection = kept.pop()
                try:
                    if _silent(connection):
                        return connection
                except driver.RedisError:
                    pass
                connection.disconnect()  # the server has closed it, or something unasked for has come
        if self._closed:
            raise Closed(f"The store at {self.target} was closed; open a new client.")
        connection = self._connect(place, deadline, self.target.options)
        try:
            self.facts[place] = self._inspect(connection)
            self.waits = any(facts.waits for facts in self.facts.values())
        except BaseException:
            connection.disconnect()
            raise
        return connection

    def _give(self, place: Place | None, connection: Any) -> None:
        if connection is None or place is None or not connection.is_connected:
            return
        kept = self._idle.setdefault(place, deque())
        if self._closed or len(kept) >= _KEPT:
            connection.disconnect()
        else:
            kept.append(connection)

    def connect(self, place: Place, deadline: float) -> Any:
        """Open a connection of the caller's own, which it closes."""
        if self._closed:
            raise Closed(f"The store at {self.target} was closed; open a new client.")
        return self._connect(place, deadline, self.target.options)

    def _connect(self, place: Place, deadline: float, options: dict[str, Any]) -> Any:
        left = max(0.001, deadline - time.monotonic())
        common: dict[str, Any] = {
            **options,
            "socket_timeout": left,
            "socket_connect_timeout": left,
            "retry": Retry(NoBackoff(), 0),
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

    # -- routing -----------------------------------------------------------------------------

    def _place(self, name: bytes, deadline: float) -> Place:
        if self.target.kind == "cluster":
            slot = key_slot(name)
            place = self._slots.get(slot)  # another thread may be forgetting it all
            if place is None:
                place = self._learn(deadline).get(slot)
            if place is None:
                raise driver.ClusterDownError(f"no node serves slot {slot}")
            return place
        place = self._primary
        if place is None:
            place = self._primary = self._ask_sentinels(deadline)
        return place

    def _forget(self, place: Place | None) -> None:
        """Ask anew where things are, after a server failed."""
        if place is not None:
            kept = self._idle.pop(place, None)
            with contextlib.suppress(IndexError):
                while kept:
                    kept.pop().disconnect()
        if self.target.kind == "sentinel":
            self._primary = None
        elif self.target.kind == "cluster":
            self._slots = {}

    def _learn(self, deadline: float) -> dict[int, Place]:
        """Ask the nodes of a cluster, one after the other, who holds which slots."""
        with self._learning:
            return self._ask_nodes(deadline)

    def _ask_nodes(self, deadline: float) -> dict[int, Place]:
        last: Exception = driver.ConnectionError("no node was asked")
        for place, until in _shared(list(dict.fromkeys([*self.facts, *self.target.places])), deadline):
            try:
                connection = self._connect(place, until, self.target.options)
                try:
                    connection.send_command("CLUSTER", "SLOTS")
                    ranges = connection.read_response()
                finally:
                    connection.disconnect()
            except (driver.RedisError, OSError) as error:
                last = error
                if isinstance(error, driver.AuthenticationError | driver.ResponseError):
                    break
                continue
            slots: dict[int, Place] = {}
            for first, end, primary, *_ in ranges:
                host = (primary[0] or b"").decode() or place.host
                slots.update(dict.fromkeys(range(first, end + 1), Place(host, primary[1])))
            if slots:
                self._slots = slots
                return slots
        raise last

    def _ask_sentinels(self, deadline: float) -> Place:
        last: Exception = driver.ConnectionError("no sentinel was asked")
        for place, until in _shared(self.target.places, deadline):
            try:
                connection = self._connect(place, until, self.target.sentinel)
                try:
                    connection.send_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.target.service)
                    found = connection.read_response()
                finally:
                    connection.disconnect()
            except (driver.RedisError, OSError) as error:
                last = error
                continue
            if found:
                return Place(found[0].decode(), int(found[1]))
            last = StorageUnavailable(
                f"The sentinels at {self.target} know no {self.target.service!r}; check the name in the URL."
            )
        raise last


def _silent(connection: Any) -> bool:
    """Tell whether nothing has come while the connection lay idle; the driver's own way takes four system calls."""
    if isinstance(connection, SSLConnection) or not hasattr(select, "poll"):
        return not connection.can_read()  # under TLS bytes may have come that are not deciphered yet
    ear = connection.__dict__.get("ear")
    if ear is None:
        ear = connection.ear = select.poll()
        ear.register(connection._sock.fileno(), select.POLLIN)
    return not ear.poll(0)


@functools.lru_cache(maxsize=1_000)
def _packed_names(names: tuple[bytes, ...]) -> bytes:
    return _packed((len(names), *names))


def _ask(connection: Any) -> None:
    """Have the next command served by a node to which its slot is just being moved."""
    connection.send_command("ASKING")
    connection.read_response()


def _shared(places: Sequence[Place], deadline: float) -> Iterator[tuple[Place, float]]:
    """Yield each place and until when to wait for it: one that is silent leaves time for the others."""
    for at, place in enumerate(places):
        now = time.monotonic()
        yield place, now + min(5.0, (deadline - now) / (len(places) - at))


def _packed(arguments: Sequence[Any]) -> bytes:
    """Return arguments as the protocol has them; the driver's own packing takes longer than the server."""
    out: list[bytes] = []
    for argument in arguments:
        raw = argument if type(argument) is bytes else _raw(argument)
        size = len(raw)
        out += (_SIZES[size] if size < _KNOWN else b"$%d\r\n" % size, raw, b"\r\n")
    return b"".join(out)


_KNOWN: Final = 256
_SIZES: Final = [b"$%d\r\n" % size for size in range(_KNOWN)]


def _raw(argument: Any) -> bytes:
    if type(argument) is int:
        return b"%d" % argument
    return argument.encode() if isinstance(argument, str) else bytes(argument)
