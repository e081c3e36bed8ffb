"""Confine every call to the scopes of one tenant that begin with a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenuto.errors import AccessDenied
from tenuto.kernel import keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import AnyCheck, Backend, Commit, Entry, Finding, Record, Write


class Confine:
    """Forward calls whose keys all begin with a permitted scope, and reject every other call."""

    def __init__(self, backend: Backend, tenant: str, prefix: str) -> None:
        self._backend = backend
        self._shown = prefix
        self._prefix = keys.pack(tenant) + keys.pack(prefix)[:-1]  # no terminator: longer scopes begin with it too
        # What a client reads when it opens: a key where nothing is, and whether the tenant is encrypted.
        self._opening = (keys.pack(tenant, "tenuto"), keys.pack(tenant) + keys.ENCRYPTION)

    def _permit(self, touched: Iterable[bytes]) -> None:
        if not all(key.startswith(self._prefix) for key in touched):
            raise AccessDenied(
                f"This API key is confined to scopes that begin with {self._shown!r}. Nothing was done; "
                "use such a scope, or another key."
            )

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read permitted records."""
        self._permit(key for key in keys if key not in self._opening)
        return self._backend.read(keys)

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Scan permitted records."""
        self._permit([prefix])
        return self._backend.scan(prefix, after=after, limit=limit, reverse=reverse)

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Read entries of a permitted stream."""
        self._permit([stream])
        return self._backend.entries(stream, after=after, limit=limit, reverse=reverse)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Commit to permitted records and streams."""
        self._permit(one[0] for one in (*checks, *writes))
        return self._backend.commit(checks, writes, request=request)

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """List permitted streams."""
        self._permit([prefix])
        return self._backend.streams(prefix, after=after, limit=limit)

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Load permitted records and streams."""
        self._permit([*(record.key for record in records), *entries])
        return self._backend.load(records, entries)

    def trim(self, stream: bytes, first: int) -> int:
        """Trim a permitted stream."""
        self._permit([stream])
        return self._backend.trim(stream, first)

    def bell(self, stream: bytes) -> Bell:
        """Return the notification of a permitted stream."""
        self._permit([stream])
        return self._backend.bell(stream)

    def now(self) -> float:
        """Return the store's time."""
        return self._backend.now()

    def check(self) -> list[Finding]:
        """Raise `AccessDenied`: a check covers the whole store."""
        self._permit([b""])
        return []

    def stats(self) -> Mapping[str, Any]:
        """Raise `AccessDenied`: the figures are those of the whole store."""
        self._permit([b""])
        return {}

    def close(self) -> None:
        """Close the store."""
        self._backend.close()
