"""One HTTP request and its reply: headers, a body within the limits, and the headers that every reply carries."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import zlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from tenuto.kernel import correlation
from tenuto.servers.auth import Access
from tenuto.servers.http.problems import Refused
from tenuto.servers.http.room import SMALL, Room

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_ONCE: Final = (b"host", b"origin", b"authorization", b"content-type", b"content-length", b"idempotency-key")
_PLAIN_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_GZIP: Final = re.compile(
    r"(?:^|,)\s*(?:gzip|\*)\s*(?:;\s*q\s*=\s*(?!0(?:\.0*)?\s*(?:,|$))[\d.]+\s*)?(?:,|$)", re.IGNORECASE
)
"""Matches an Accept-Encoding that allows gzip: not one with q=0."""
_COMPRESS_FROM: Final = 2_048
"""Bytes from which a reply is compressed; a smaller one fits into two packets anyway."""
_COMPRESS_INLINE: Final = 65_536
"""Bytes up to which compressing takes less than a millisecond; a larger body goes to a thread."""


class Exchange:
    """One request, and what has been replied to it."""

    def __init__(self, scope: Message, receive: Receive, send: Send, below: str = "") -> None:
        """`below` is the path of the public address; a proxy may leave it in the path or remove it."""
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        raw: bytes = scope.get("raw_path") or self.path.encode()
        self.raw_path = raw.decode("latin-1")
        if below and self.path.startswith(f"{below}/"):
            self.path, self.raw_path = self.path[len(below) :], self.raw_path[len(below) :]
        self.query: bytes = scope.get("query_string", b"")
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.is_ambiguous = len(self.headers) < len(scope["headers"]) and any(
            sum(one == name for one, _ in scope["headers"]) > 1 for name in _ONCE
        )
        """Whether a header comes twice on which it depends who calls: a proxy in front may read the other one."""
        self._receive, self._send = receive, send
        self.began = time.monotonic()
        self.access: Access | None = None
        self.status = 0
        self.sent = 0
        self.held = 0
        """Bytes of the server's room that the body takes."""
        self.is_read = self.method in ("GET", "HEAD")
        """Whether the body was read; a connection with an unread one is closed after the reply."""
        trace = self.header("traceparent") or ""
        given = self.header("x-request-id") or ""
        self.request_id = given if _PLAIN_ID.fullmatch(given) else secrets.token_hex(8)
        self.traceparent = trace if correlation.trace_id(trace) else None
        own = self.header("tenuto-correlation") or ""
        self.correlation = correlation.trace_id(trace) or (own if _PLAIN_ID.fullmatch(own) else None)

    def header(self, name: str) -> str | None:
        """Return a header of the request, by its name in lower case."""
        found = self.headers.get(name.encode())
        return None if found is None else found.decode("latin-1")

    def bearer(self) -> str | None:
        """Return the API key of the request, or None."""
        kind, _, text = (self.header("authorization") or "").partition(" ")
        return text.strip() or None if kind.lower() == "bearer" else None

    def deadline(self, most: float) -> float:
        """Return when the caller gives up, on the monotonic clock."""
        text = self.header("tenuto-timeout") or ""
        try:
            seconds = float(text) if text else most
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < 1e6:
            raise Refused(400, f"Tenuto-Timeout must be a number of seconds above 0, not {text[:40]!r}.")
        return self.began + seconds

    def announced(self, limit: int) -> int | None:
        """Return the size of the body as announced, None if it comes in chunks; refuse one that is too large."""
        if (self.header("content-encoding") or "identity").lower() != "identity":
            raise Refused(415, "A body is sent without Content-Encoding. Nothing was done.")
        if self.header("transfer-encoding") is not None:
            return None
        announced = self.header("content-length") or "0"
        if not announced.isdigit() or int(announced) > limit:
            raise _too_large(limit)
        return int(announced)

    async def body(self, limit: int, timeout: float, room: Room) -> bytes:
        """Return the whole body; refuse one that is too large or arrives too slowly. A large one waits for room."""
        size = self.announced(limit)
        if size is not None and size > SMALL:
            await self._hold(size, timeout, room)
        parts: list[bytes] = []
        arrived = 0
        try:
            async with asyncio.timeout(timeout):
                while True:
                    message = await self._receive()
                    if message["type"] == "http.disconnect":
                        raise Refused(400, "The connection ended before the body did. Nothing was done.")
                    part: bytes = message.get("body", b"")
                    arrived += len(part)
                    if arrived > limit:
                        raise _too_large(limit)
                    if arrived > SMALL and not self.held:  # in chunks
                        await self._hold(limit, timeout, room)
                    parts.append(part)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            text = f"The body did not arrive within {timeout:g} s. Nothing was done; send it faster."
            raise Refused(408, text) from None
        self.is_read = True
        if self.held > arrived:
            room.free(self.held - arrived)
            self.held = arrived
        return b"".join(parts)

    async def _hold(self, size: int, timeout: float, room: Room) -> None:
        await room.take(size, timeout)
        self.held = size

    async def disconnected(self) -> None:
        """Wait until the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def reply(self, status: int, body: bytes, media: str, headers: dict[str, str] | None = None) -> None:
        """Send a whole reply, compressed if it is large and the client accepts that."""
        given = headers or {}
        if len(body) >= _COMPRESS_FROM:
            given = {**given, "Vary": "Accept-Encoding"}
            if _GZIP.search(self.header("accept-encoding") or ""):
                large = len(body) > _COMPRESS_INLINE
                body = await asyncio.to_thread(_compressed, body) if large else _compressed(body)
                given["Content-Encoding"] = "gzip"
        await self.begin(status, media, {"Content-Length": str(len(body)), **given})
        await self.part(b"" if self.method == "HEAD" else body, more=False)

    async def begin(self, status: int, media: str, headers: dict[str, str]) -> None:
        """Send the head of a reply."""
        self.status = status
        sent = {
            "Content-Type": media,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Request-Id": self.request_id,
            **headers,
        }
        if not self.is_read and status >= 400:
            sent["Connection"] = "close"
        if self.access is not None:
            sent["Tenuto-Scopes"] = " ".join(self.access.scopes)
        if self.traceparent:
            sent["traceparent"] = self.traceparent
        raw = [(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in sent.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def part(self, body: bytes, *, more: bool) -> None:
        """Send a part of the body."""
        self.sent += len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def _too_large(limit: int) -> Refused:
    return Refused(413, f"A body takes up to {limit:,} bytes. Nothing was done; send less.")


def _compressed(body: bytes) -> bytes:
    return zlib.compress(body, level=1, wbits=31)


def segments(raw_path: str) -> list[str]:
    """Return the decoded parts of a path; refuse one that is not UTF-8."""
    try:
        return [unquote(one, errors="strict") for one in raw_path.strip("/").split("/")]
    except UnicodeDecodeError:
        raise Refused(400, "The path is not UTF-8. Nothing was done.") from None
