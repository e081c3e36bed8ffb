"""Operations on milestones."""

from __future__ import annotations

from typing import Annotated, Any

from tenuto.capabilities._core.base import page_after
from tenuto.capabilities.people import Milestone, MilestoneStatus, QuestionEvent
from tenuto.client import Tenuto
from tenuto.operations.table import operation

Name = Annotated[str, "Milestone name"]
By = Annotated[str | None, "Name of the person who says so"]


@operation("milestones list", "name", "status", "due", "met_at", "started")
def milestones_list(
    agent: Tenuto,
    *,
    status: Annotated[MilestoneStatus | None, "Only milestones with this status"] = None,
    limit: Annotated[int, "Maximum number of rows"] = 100,
    after: Annotated[str | None, "Start after the one with this name"] = None,
) -> list[Milestone]:
    """List milestones by due date."""
    return page_after(agent.milestones.list(status), lambda one: one.name, after, limit)


@operation("milestones show")
def milestones_show(agent: Tenuto, name: Name) -> Milestone:
    """Show a milestone with its evidence."""
    return agent.milestones.get(name)


@operation("milestones history", "at", "what", "by", "details")
def milestones_history(agent: Tenuto, name: Name) -> list[QuestionEvent]:
    """List everything that happened to a milestone."""
    return list(agent.milestones.history(name))


@operation("milestones set", writes=True)
def milestones_set(
    agent: Tenuto,
    name: Name,
    due: Annotated[str, 'Due date: "2026-12-01", a time, or "30d"'],
    *,
    on_miss: Annotated[Any, "Durable function to start, or the options of a question as JSON"] = None,
) -> Milestone:
    """Set a milestone."""
    return agent.milestone(name, due=due, on_miss=on_miss)


@operation("milestones meet", writes=True)
def milestones_meet(
    agent: Tenuto, name: Name, *, evidence: Annotated[Any, "JSON or text"] = None, by: By = None
) -> Milestone:
    """Record that a milestone was met; after its due date as late."""
    return agent.milestones.meet(name, evidence=evidence, by=by)


@operation("milestones cancel", asks="Cancel the milestone {name!r}?")
def milestones_cancel(agent: Tenuto, name: Name, *, by: By = None) -> Milestone:
    """Cancel a milestone: it can no longer be missed."""
    return agent.milestones.cancel(name, by=by)
