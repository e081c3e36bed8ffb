"""The store as a whole: what it is, how large, and whether everything in it is as it was written."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tenuto.capabilities.context import Context
from tenuto.errors import InvalidInput
from tenuto.kernel.contract import Finding

_INSTEAD = {
    "postgres": "Use pg_dump with --schema, which copies it as of one moment.",
    "redis": "Use redis-cli --rdb (valkey-cli --rdb), which copies it as of one moment.",
    "volatile": "It ends with its process.",
}


class Report(NamedTuple):
    """What a check found. It is true when nothing was."""

    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Tell whether everything is as it was written."""
        return not self.findings

    def __bool__(self) -> bool:
        """Tell whether everything is as it was written."""
        return self.ok


class Store:
    """Operations on the whole store, all tenants included."""

    def __init__(self, context: Context, backend: Any = None) -> None:
        self._kernel = context.kernel
        self._backend = backend

    def stats(self) -> Mapping[str, Any]:
        """Say what the store is, how durable as it is set up now, and how large."""
        return self._kernel.stats()

    def backup(self, path: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None) -> int:
        """Copy the whole store as of one moment into a new file, while it is in use; return its size in bytes.

        Opening that file opens the copy. `progress` is told, now and then, how many pages of how many are copied. A
        server's store is copied by the server's own tools.
        """
        inner = self._backend
        while not hasattr(inner, "backup") and hasattr(inner, "_backend"):
            inner = inner._backend
        if not hasattr(inner, "backup"):
            kind = self._kernel.stats()["backend"]
            raise InvalidInput(f"A {kind} store has no file to copy. {_INSTEAD.get(kind, 'Use its own tools.')}")
        size: int = inner.backup(path, progress)
        return size

    def check(self) -> Report:
        """Verify everything that is stored: structure, every checksum, every link of every journal."""
        return Report(self._kernel.check())
