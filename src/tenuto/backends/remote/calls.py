"""Calls to a server: send one request, read its reply, and say what a failure means for the data.

A request is sent again only if that is safe: on a reused connection that turned out to be dead, for a read or for a
commit with a request id, which the server applies once. A server that stops answers so before it begins, and is asked again: a
load balancer then takes the call to another. All attempts share one deadline, and the server gets the
rest of it: it does not begin a call whose client has given up.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from tenuto.backends.remote import wire
from tenuto.backends.remote.connections import Connection, Connections, Lost, Reply
from tenuto.backends.remote.url import Target, is_loopback
from tenuto.errors import AccessDenied, InvalidInput, NewerFormat, StorageUnavailable, TenutoError
from tenuto.kernel import correlation
from tenuto.kernel.transact import backoff

_STOPS: Final = 6
"""Attempts at a server that is stopping, within about a second."""
_NOT_APPLIED: Final = (400, 401, 403, 404, 405, 407, 411, 413, 414, 415, 421, 429, 431)
"""Statuses with which a proxy refuses a request without passing it on."""


class Welcome(NamedTuple):
    """What a server says about itself and about the API key."""

    version: str
    tenant: str
    key: str
    scopes: tuple[str, ...]
    now: float


class Calls:
    """Make calls to one server with one API key."""

    def __init__(self, target: Target, api_key: str | None) -> None:
        if api_key is not None and (not api_key.isascii() or not api_key.isprintable() or " " in api_key):
            raise InvalidInput("An API key is one word that begins with tk_. Copy the whole of it.")
        self.target = target
        self.connections = Connections(target)
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        # On this machine compressing costs more than it saves.
        packed = "" if is_loopback(target.place.host) else "Accept-Encoding: gzip\r\n"
        self._headers = f"Host: {target.place}\r\n{key}{packed}Accept: {wire.MEDIA}\r\nContent-Type: {wire.MEDIA}\r\nUser-Agent: tenuto\r\n"

    def hello(self) -> Welcome:
        """Ask the server who it is; raise if it is older or newer than this client, or refuses the key."""
        reply = self._exchanged("GET", wire.HELLO, b"", None, safe=True)
        problem = None if reply.status == 200 else wire.error_of(reply.body, tenant=b"", request=None)
        if problem is not None:
            raise problem
        try:
            fields = wire.unpacked(reply.body)
            protocols, version = list(fields["protocols"]), str(fields["version"])
        except (InvalidInput, KeyError, TypeError):
            raise self._stranger(reply) from None
        if wire.PROTOCOL not in protocols:
            if max(protocols, default=0) > wire.PROTOCOL:
                raise NewerFormat(
                    f"The server at {self.target} is newer ({version}) and no longer speaks to this client. "
                    "Nothing was done; upgrade tenuto here."
                )
            raise StorageUnavailable(
                f"The server at {self.target} is older ({version}) than this client. Nothing was done; upgrade the server."
            )
        return Welcome(version, fields["tenant"], fields["key"], tuple(fields["scopes"]), fields["now"])

    def call(
        self, verb: str, body: bytes, *, tenant: bytes = b"", commit: bool = False, request: bytes | None = None
    ) -> tuple[float, Any]:
        """Call a verb; return the store's time and the result."""
        reply = self._exchanged(
            "POST", wire.path_of(verb), body, request, safe=not commit or request is not None, commit=commit
        )
        if reply.status == 200 and reply.headers.get("content-type") == wire.MEDIA:
            now, result = wire.unpacked(reply.body)
            return now, result
        if reply.headers.get("content-type") == wire.MEDIA:
            error = wire.error_of(reply.body, tenant=tenant, request=request)
            if error is not None:
                raise error
        raise self._stranger(reply, commit=commit, request=request)

    def send(self, connection: Connection, verb: str, body: bytes, deadline: float) -> None:
        """Send a call on a connection that the caller owns, and whose reply it reads."""
        connection.send("POST", self.target.base + wire.path_of(verb), self._with(deadline), body, deadline)

    def _exchanged(
        self, method: str, path: str, body: bytes, request: bytes | None, *, safe: bool, commit: bool = False
    ) -> Reply:
        deadline = time.monotonic() + self.target.timeout
        pauses = backoff(_STOPS, first=0.05, most=0.5)
        lost = False  # an attempt was sent and its reply lost: it may have been applied
        while True:
            connection: Connection | None = None
            sent = False
            try:
                connection = self.connections.take(deadline)
                headers = self._with(deadline)
                sent = True
                connection.send(method, self.target.base + path, headers, body, deadline)
                reply = connection.reply(deadline)
            except OSError as error:
                lost = lost or sent
                reused = connection is not None and connection.used
                if connection is not None:
                    connection.close()
                if reused and safe and not isinstance(error, TimeoutError):
                    self.connections.drop()  # the server has restarted, or closes what is idle: the others are dead too
                    continue
                raise self._failed(error, sent=lost and commit, request=request) from error
            except BaseException:
                if connection is not None:
                    connection.close()
                raise
            if reply.status == 503 and reply.headers.get("retry-after") == "0":
                connection.close()  # this server process stops and did nothing: another one may answer
                pause = next(pauses, None)
                if pause is not None and not lost and time.monotonic() + pause < deadline:
                    time.sleep(pause)
                    continue
            self.connections.keep(connection)
            return reply

    def _with(self, deadline: float) -> str:
        own = correlation.current()
        stamp = f"Tenuto-Correlation: {own}\r\n" if own and own.isascii() and own.isprintable() else ""
        return f"{self._headers}{stamp}Tenuto-Timeout: {max(0.001, deadline - time.monotonic()):.3f}\r\n"

    def _failed(self, error: OSError, *, sent: bool, request: bytes | None) -> TenutoError:
        kind = _kind(error)
        if sent:
            return StorageUnavailable(
                f"The server at {self.target} did not answer ({kind}). Whether the commit was applied is not known; "
                "commit again with the same request id.",
                outcome="unknown",
                request=request,
            )
        return StorageUnavailable(
            f"The server at {self.target} cannot be reached ({kind}). Nothing was written; "
            "check that it runs and that the URL is correct.",
            request=request,
        )

    def _stranger(self, reply: Reply, *, commit: bool = False, request: bytes | None = None) -> TenutoError:
        """Return the error for a reply that is not a tenuto server's: a proxy in between, or another program."""
        if reply.status == 401:
            return AccessDenied(
                f"{self.target} refused the API key. Nothing was done; pass api_key= or set $TENUTO_API_KEY."
            )
        if reply.status == 407:
            return StorageUnavailable(
                f"The proxy in front of {self.target} wants a user and a password. Nothing was written; put them into "
                "the URL of $HTTPS_PROXY or $HTTP_PROXY.",
                request=request,
            )
        if commit and reply.status not in _NOT_APPLIED:
            return StorageUnavailable(
                f"{self.target} answered {reply.status} without a result. Whether the commit was applied is not known; "
                "commit again with the same request id.",
                outcome="unknown",
                request=request,
            )
        return StorageUnavailable(
            f"{self.target} answered {reply.status} and is not a tenuto server, or a proxy answered for it. "
            "Nothing was written; check the URL.",
            request=request,
        )


def _kind(error: OSError) -> str:
    text = str(error).lower()
    if isinstance(error, TimeoutError) or "timed out" in text:
        return "timeout"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if "certificate" in text or "ssl" in text:
        return "TLS failed"
    if "name or service" in text or "getaddrinfo" in text or "name resolution" in text or "nodename" in text:
        return "unknown host"
    return str(error) if isinstance(error, Lost) else "connection lost"
