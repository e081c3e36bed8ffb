"""Operations on audits."""

from __future__ import annotations

from tenuto.capabilities.audits import AuditSummary
from tenuto.client import Tenuto
from tenuto.errors import NotFound
from tenuto.operations.table import operation


@operation("audit last")
def audit_last(agent: Tenuto) -> AuditSummary:
    """Show the summary of the last audit of this store."""
    found = agent.audits.last()
    if found is None:
        raise NotFound("This store was not audited yet. Run: tenuto audit")
    return found
