"""Idempotency keys: a POST that is sent again with the same `Idempotency-Key` has no second effect.

The first commit of the operation also writes a mark, and requires that there is none: so the mark and the effect are
one commit. The reply is recorded after it. A crash between leaves a mark without a reply: a retry is then refused
with 409 and reads what is stored, instead of a second effect.

Keys, below the tenant: `("http", "idempotency", key id, idempotency key)` with a ttl of a day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tenuto.errors import Conflict, InvalidInput, TenutoError
from tenuto.kernel import codec, keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import AnyCheck, Backend, Check, Commit, Entry, Finding, Put, Record, Write
from tenuto.servers.auth import Access

TTL: Final = 86_400.0


class Recorded(NamedTuple):
    """The recorded reply of a request."""

    body: bytes
    headers: dict[str, str]


class Once:
    """A store whose first commit also marks a request, for one request."""

    def __init__(self, backend: Backend, access: Access, key: str, content: bytes) -> None:
        self._backend = backend
        name = keys.name(key, "idempotency key")
        self._mark = keys.pack(access.tenant, "http", "idempotency", access.id, name)
        self._content = content
        self._done = False
        self.now = backend.now

    def recorded(self) -> Recorded | None:
        """Return the recorded reply, None if the request is new; raise if it was begun, or was another one."""
        record = self._backend.read([self._mark])[0]
        if record is None:
            return None
        found: Any = codec.decode(record.value)
        content, body, headers = found
        if content != self._content:
            raise InvalidInput("This Idempotency-Key was used for another request. Nothing was done; use a new key.")
        if body is None:
            raise self._begun()
        return Recorded(body, headers)

    def record(self, body: bytes, headers: dict[str, str]) -> None:
        """Record the reply. If that fails, a retry is refused, so the request still succeeded."""
        if not self._done:
            return
        try:
            self._backend.commit([], [Put(self._mark, codec.encode([self._content, body, headers]), TTL)])
        except TenutoError:
            return

    def _begun(self) -> Conflict:
        return Conflict(
            "A request with this Idempotency-Key was begun and has no recorded reply; this one was not applied. "
            "Read what is stored, then send a new request with another key if needed."
        )

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Commit; the first commit that writes also marks the request."""
        if self._done or not writes:
            return self._backend.commit(checks, writes, request=request)
        mark = Put(self._mark, codec.encode([self._content, None, {}]), TTL)
        try:
            done = self._backend.commit([*checks, Check(self._mark, 0)], [*writes, mark], request=request)
        except Conflict as error:
            if self._mark in error.keys:
                raise self._begun() from error
            raise
        self._done = True
        return done._replace(versions=done.versions[:-1])

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read."""
        return self._backend.read(keys)

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Scan."""
        return self._backend.scan(prefix, after=after, limit=limit, reverse=reverse)

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Read entries."""
        return self._backend.entries(stream, after=after, limit=limit, reverse=reverse)

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """List streams."""
        return self._backend.streams(prefix, after=after, limit=limit)

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Load; repeating it is safe."""
        return self._backend.load(records, entries)

    def trim(self, stream: bytes, first: int) -> int:
        """Trim; repeating it is safe."""
        return self._backend.trim(stream, first)

    def bell(self, stream: bytes) -> Bell:
        """Return the notification of a stream."""
        return self._backend.bell(stream)

    def check(self) -> list[Finding]:
        """Check."""
        return self._backend.check()

    def stats(self) -> Mapping[str, Any]:
        """Return the store's figures."""
        return self._backend.stats()

    def close(self) -> None:
        """Close the store."""
        self._backend.close()
