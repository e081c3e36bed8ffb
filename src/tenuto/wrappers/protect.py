"""Hide the values of some records from readers, and keep some records from being written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tenuto.errors import AccessDenied
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import AnyCheck, Backend, Commit, Entry, Finding, Record, Write


class Protect:
    """Forward every call; a hidden record is read with a value that says nothing, a fixed one cannot be written.

    A hidden record keeps its key and its version, so scans have the same pages with it.
    """

    def __init__(
        self, backend: Backend, *, hidden: Mapping[bytes, bytes] | None = None, fixed: Sequence[bytes] = (), why: str
    ) -> None:
        """`hidden` maps prefixes to the values that are shown instead; `fixed` are prefixes; `why` refuses a write."""
        self._backend = backend
        self._hidden = tuple((hidden or {}).items())
        self._fixed = tuple(fixed)
        self._why = why

    def _permit(self, touched: Iterable[bytes]) -> None:
        if any(key.startswith(self._fixed) for key in touched):
            raise AccessDenied(self._why)

    def _shown(self, record: Record) -> Record:
        for prefix, instead in self._hidden:
            if record.key.startswith(prefix):
                return record._replace(value=instead)
        return record

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read; the values of hidden records are replaced."""
        return [one and self._shown(one) for one in self._backend.read(keys)]

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Scan; the values of hidden records are replaced."""
        return [self._shown(one) for one in self._backend.scan(prefix, after=after, limit=limit, reverse=reverse)]

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Read entries."""
        return self._backend.entries(stream, after=after, limit=limit, reverse=reverse)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Commit, unless a fixed record would be written."""
        if self._fixed:
            self._permit(one[0] for one in writes)
        return self._backend.commit(checks, writes, request=request)

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """List streams."""
        return self._backend.streams(prefix, after=after, limit=limit)

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Load, unless a fixed record would be written."""
        self._permit(one.key for one in records)
        return self._backend.load(records, entries)

    def trim(self, stream: bytes, first: int) -> int:
        """Trim."""
        return self._backend.trim(stream, first)

    def bell(self, stream: bytes) -> Bell:
        """Return the notification of a stream."""
        return self._backend.bell(stream)

    def now(self) -> float:
        """Return the store's time."""
        return self._backend.now()

    def check(self) -> list[Finding]:
        """Check."""
        return self._backend.check()

    def stats(self) -> Mapping[str, Any]:
        """Return the store's figures."""
        return self._backend.stats()

    def close(self) -> None:
        """Close the store."""
        self._backend.close()
