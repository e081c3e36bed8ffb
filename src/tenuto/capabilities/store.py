"""The store as a whole: what it is, how large, and whether everything in it is as it was written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tenuto.capabilities.context import Context
from tenuto.kernel.contract import Finding


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

    def __init__(self, context: Context) -> None:
        self._kernel = context.kernel

    def stats(self) -> Mapping[str, Any]:
        """Say what the store is, how durable as it is set up now, and how large."""
        return self._kernel.stats()

    def check(self) -> Report:
        """Verify everything that is stored: structure, every checksum, every link of every journal."""
        return Report(self._kernel.check())
