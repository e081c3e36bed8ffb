"""Operations on audits."""

from __future__ import annotations

from typing import Annotated

from tenuto.capabilities.audits import AuditSummary
from tenuto.client import Tenuto
from tenuto.errors import NotFound
from tenuto.operations.table import operation, time_of


@operation("audit last")
def audit_last(agent: Tenuto) -> AuditSummary:
    """Show the summary of the last audit of this store."""
    found = agent.audits.last()
    if found is None:
        raise NotFound("This store was not audited yet. Run: tenuto audit")
    return found


@operation("audit list", "at", "target", "seconds", "counts")
def audit_list(
    agent: Tenuto,
    *,
    limit: Annotated[int, "Maximum number of audits"] = 10,
    after: Annotated[str | None, "Start after the audit of this time"] = None,
) -> list[AuditSummary]:
    """List the audits of this store in the last year, newest first."""
    return agent.audits.list(limit, after=None if after is None else time_of(after))
