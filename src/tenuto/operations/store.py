"""Everything that can be done to a store from outside: importing this fills the table."""

from __future__ import annotations

from typing import Any

from tenuto.client import Tenuto
from tenuto.kernel.contract import Finding
from tenuto.servers import held, runs, work
from tenuto.servers.table import OPERATIONS, Operation, Parameter, called, groups, operation

__all__ = ["OPERATIONS", "Operation", "Parameter", "called", "groups", "held", "operation", "runs", "work"]


@operation("stats")
def stats(agent: Tenuto) -> dict[str, Any]:
    """Say what the store is, how durable as it is set up now, and how large."""
    return dict(agent.store.stats())


@operation("check", "kind", "detail")
def check(agent: Tenuto) -> list[Finding]:
    """Verify everything that is stored; exit 1 if anything is not as it was written."""
    return agent.store.check().findings
