"""Operations on costs."""

from __future__ import annotations

from typing import Annotated

from tenuto.capabilities.costs import By, Cost
from tenuto.client import Tenuto
from tenuto.operations.table import operation, time_of


@operation("costs", "key", "calls", "tokens", "spent", "saved", "seconds_saved", "cheaper")
def costs(
    agent: Tenuto,
    *,
    by: Annotated[By, "Group by"] = "model",
    since: Annotated[str | None, "Only calls since this day, e.g. 2026-05-01"] = None,
    user: Annotated[str | None, "Only runs of this user"] = None,
) -> list[Cost]:
    """Show what runs spent on models, and what reused steps saved, in dollars."""
    return agent.costs.report(by, None if since is None else time_of(since), user)
