"""Operations on the whole store: statistics, backup, integrity check."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tenuto.capabilities._core.base import Context
from tenuto.capabilities._core.missing import missing_values
from tenuto.errors import InvalidInput
from tenuto.kernel.contract import Copyable, Finding

_INSTEAD = {
    "postgres": "Use pg_dump with --schema for a consistent snapshot.",
    "redis": "Use redis-cli --rdb (valkey-cli --rdb) for a consistent snapshot.",
    "sqlite": "This client has it in a wrapper: back it up with a client opened by its path.",
    "volatile": "It exists in this process only.",
}
_OTHERWISE = "Use the server's own backup tools."


class Report(NamedTuple):
    """The findings of an integrity check; true if there are none."""

    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Return whether the check found no damage."""
        return not self.findings

    def __bool__(self) -> bool:
        """Return whether the check found no damage."""
        return self.ok


class Store:
    """Operations on the whole store, all tenants included."""

    def __init__(self, context: Context, file: Copyable | None) -> None:
        self._context = context
        self._kernel = context.kernel
        self._file = file

    def stats(self) -> Mapping[str, Any]:
        """Return the store's backend, durability, size and other statistics."""
        return self._kernel.stats()

    def backup(self, path: str | os.PathLike[str], *, progress: Callable[[int, int], None] | None = None) -> int:
        """Copy a consistent snapshot of a SQLite store into a new file, while in use; return its size in bytes.

        `progress(copied, total)` is called now and then with numbers of pages. Open the copy like any store.
        """
        if self._file is None:
            kind = self._kernel.stats()["backend"]
            raise InvalidInput(f"Tenuto cannot back up this {kind} store. {_INSTEAD.get(kind, _OTHERWISE)}")
        return self._file.backup(path, progress)

    def check(self) -> Report:
        """Verify the whole store: its structure, every checksum, every digest chain of every journal.

        In an undamaged store it also finds values of this tenant's state that are in their journal but were removed.
        """
        return Report(self._kernel.check() or [*missing_values(self._context)])
