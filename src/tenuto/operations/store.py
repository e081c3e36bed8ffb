"""Operations on the store itself."""

from __future__ import annotations

from typing import Any

from tenuto.client import Tenuto
from tenuto.kernel.contract import Finding
from tenuto.operations.table import operation


@operation("stats")
def stats(agent: Tenuto) -> dict[str, Any]:
    """Show the backend, its durability as configured, and its size."""
    return dict(agent.store.stats())


@operation("check", "kind", "detail")
def check(agent: Tenuto) -> list[Finding]:
    """Verify all stored data; exit 1 if anything is damaged."""
    return agent.store.check().findings
