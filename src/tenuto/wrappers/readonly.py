"""A read-only view of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenuto.errors import ReadOnly as ReadOnlyError
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import AnyCheck, Backend, Commit, Entry, Finding, Record, Write

_READ_ONLY: Final = "This view of the store is read-only. Use a writable client."


class ReadOnly:
    """Forward reads and reject every commit."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

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

    def commit(
        self,
        checks: Sequence[AnyCheck],  # noqa: ARG002 - signature of the contract
        writes: Sequence[Write],  # noqa: ARG002
        *,
        request: bytes | None = None,  # noqa: ARG002
    ) -> Commit:
        """Raise `ReadOnly`."""
        raise ReadOnlyError(_READ_ONLY)

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """List streams."""
        return self._backend.streams(prefix, after=after, limit=limit)

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:  # noqa: ARG002
        """Raise `ReadOnly`."""
        raise ReadOnlyError(_READ_ONLY)

    def trim(self, stream: bytes, first: int) -> int:  # noqa: ARG002
        """Raise `ReadOnly`."""
        raise ReadOnlyError(_READ_ONLY)

    def bell(self, stream: bytes) -> Bell:
        """Return the backend's bell."""
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
