"""Calls to a Redis or Valkey store: send a script once, to the node that holds its keys.

The driver's retries are off, because it cannot know whether a script was applied; the caller retries, with a request
id. This module sends again only what was certainly not executed: a script that the server did not have in its cache, a
call that a cluster node redirected, a call that could not be sent, and reads.

A call consists of attempts. Each chooses a server (`routing`), borrows a connection (`connections`), sends and reads; then
`_failed` decides whether to try again. All attempts share one deadline.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis import exceptions as driver

from tenuto.backends.redis.connections import Connections, Loan
from tenuto.backends.redis.errors import translated
from tenuto.backends.redis.routing import Routes
from tenuto.backends.redis.scripts import Script
from tenuto.backends.redis.server import Facts
from tenuto.backends.redis.url import Place, Target
from tenuto.errors import StorageUnavailable

_REDIRECTS: Final = 8
_RECONNECTS: Final = 2
_PATIENCE: Final = 2.0
_STARTING: Final = 0.05


class _Call:
    """One call in progress: the command, and the state of its attempts."""

    __slots__ = (
        "asking", "began", "commit", "connected", "count", "deadline", "failures", "name", "place", "redirects",
        "request", "script", "sent", "tail",
    )  # fmt: skip

    def __init__(self, script: Script, names: Sequence[bytes], arguments: Sequence[Any], timeout: float) -> None:
        self.script = script
        self.name = names[0]
        self.count = 3 + len(names) + len(arguments)
        self.tail = _packed_names(tuple(names)) + _packed(arguments)
        self.began = time.monotonic()
        self.deadline = self.began + timeout
        self.commit = False
        self.request: bytes | None = None
        self.place: Place | None = None
        self.asking: Place | None = None
        """The node that a cluster names while it moves the slot, for one attempt."""
        self.connected = self.sent = False
        """Whether this attempt had a connection, and whether a commit was sent on it."""
        self.failures = self.redirects = 0


class Calls:
    """Make calls to the servers of one store."""

    def __init__(self, target: Target, timeout: float, inspect: Callable[[Any], Facts]) -> None:
        self.target = target
        self.connections = Connections(target, inspect)
        self._routes = Routes(self.connections)
        self._timeout = timeout

    def places(self) -> list[Place]:
        """Return all primaries."""
        try:
            return self._routes.places(time.monotonic() + self._timeout)
        except (driver.RedisError, OSError) as error:
            raise translated(error, str(self.target)) from error

    def ask(self, place: Place, *command: Any) -> Any:
        """Send one read-only command to one server and return the reply."""
        try:
            with self.connections.lend(place, time.monotonic() + self._timeout) as loan:
                loan.send_command(*command)
                return loan.reply(self._timeout)
        except (driver.RedisError, OSError) as error:
            raise translated(error, str(place)) from error

    def run(self, script: Script, names: Sequence[bytes], arguments: Sequence[Any]) -> Any:
        """Run a read-only script and return the reply."""
        return self._made(_Call(script, names, arguments, self._timeout))

    def commit(self, script: Script, names: Sequence[bytes], arguments: Sequence[Any], request: bytes | None) -> Any:
        """Run a script that writes, once; return the reply when the write is as durable as the server allows."""
        call = _Call(script, names, arguments, self._timeout)
        call.commit, call.request = True, request
        return self._made(call)

    def _made(self, call: _Call) -> Any:
        while True:
            try:
                return self._attempt(call)
            except (driver.RedisError, OSError) as error:
                self._failed(call, error)

    # -- one attempt -------------------------------------------------------------------------

    def _attempt(self, call: _Call) -> Any:
        """Send a call to its server and return the reply."""
        call.connected = call.sent = False
        call.place = call.asking or self._routes.place(call.name, call.deadline)
        with self.connections.lend(call.place, call.deadline) as loan:
            call.connected = True
            try:
                reply = self._sent(call, loan, b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % call.script.sha)
            except driver.NoScriptError:  # the server restarted, or is new: nothing was executed
                reply = self._sent(call, loan, b"$4\r\nEVAL\r\n" + _packed((call.script.text,)))
            if call.commit and self.connections.facts[call.place].waits and type(reply) is bytes:
                self._await_disk(call, loan)  # a rejected commit replies with a list
            return reply

    def _sent(self, call: _Call, loan: Loan, head: bytes) -> Any:
        call.sent = False
        if call.asking is not None:  # valid for one command only
            loan.send_command("ASKING")
            loan.reply(self._timeout)
        loan.send(b"*%d\r\n%b%b" % (call.count, head, call.tail))
        call.sent = call.commit
        return loan.reply(self._timeout)

    def _await_disk(self, call: _Call, loan: Loan) -> None:
        left = max(1, int(1000 * (call.deadline - time.monotonic())))
        try:
            loan.send_command("WAITAOF", 1, 0, left)
            synced = loan.reply(self._timeout)[0] >= 1
        except driver.ResponseError:
            synced = False  # an error here does not mean that the commit was refused
        if not synced:
            raise StorageUnavailable(
                f"{call.place} has applied the commit but not yet synced it to disk. "
                "Commit again with the same request id to wait for the sync.",
                outcome="unknown",
                request=call.request,
            )

    # -- after a failed attempt --------------------------------------------------------------

    def _failed(self, call: _Call, error: Exception) -> None:
        """Return to make another attempt, if nothing was executed; otherwise raise the error of the call."""
        call.asking = None
        if isinstance(error, driver.AskError):  # MOVED is a subclass
            self._redirect(call, error)
        elif isinstance(error, driver.ClusterDownError | driver.TryAgainError):
            patient = time.monotonic() - call.began <= min(_PATIENCE, self._timeout / 2)
            self._wait(call, error, str(self.target), patient=patient)
        elif isinstance(error, driver.BusyLoadingError):  # the server is starting and will have all data soon
            self._wait(call, error, str(call.place), patient=time.monotonic() + _STARTING <= call.deadline)
        elif isinstance(error, driver.ResponseError):
            if isinstance(error, driver.ReadOnlyError):
                self._routes.forget(call.place)  # Sentinel or the cluster will name another server
            raise translated(error, str(call.place), request=call.request) from error
        else:
            self._lost(call, error)

    def _redirect(self, call: _Call, error: driver.AskError) -> None:
        call.redirects += 1
        if call.redirects > _REDIRECTS:
            raise translated(error, str(self.target)) from error
        other = Place(error.host or (call.place.host if call.place else ""), error.port)
        if isinstance(error, driver.MovedError):
            self._routes.moved(error.slot_id, other)
        else:
            call.asking = other

    def _wait(self, call: _Call, error: Exception, where: str, *, patient: bool) -> None:
        if not patient:
            raise translated(error, where) from error
        time.sleep(_STARTING)
        self._routes.forget(call.place)

    def _lost(self, call: _Call, error: Exception) -> None:
        """Return to try another connection, if nothing was sent on the failed one; otherwise raise."""
        self._routes.forget(call.place)
        call.failures += 1
        lost = isinstance(error, driver.ConnectionError) and not isinstance(error, driver.AuthenticationError)
        worth = lost and (call.connected or self.target.kind != "server")
        if call.sent or not worth or call.failures > _RECONNECTS or time.monotonic() >= call.deadline:
            where = str(call.place or self.target)
            raise translated(error, where, sent=call.sent, request=call.request) from error


@functools.lru_cache(maxsize=1_000)
def _packed_names(names: tuple[bytes, ...]) -> bytes:
    return _packed((len(names), *names))


def _packed(arguments: Sequence[Any]) -> bytes:
    """Encode arguments for the protocol; the driver's encoder takes longer than the server."""
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
