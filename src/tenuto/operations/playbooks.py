"""Operations on playbooks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from tenuto.capabilities._core.base import page_after
from tenuto.capabilities.playbooks import Case, Playbook
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput
from tenuto.operations.table import operation

Name = Annotated[str, "Name of the playbook"]
CaseId = Annotated[str, "Name of the case, which is that of its workflow"]


class Suggested(NamedTuple):
    """A playbook or a past case that fits a situation."""

    playbook: str
    version: int
    case: str | None
    outcome: str | None
    success_rate: float | None
    lessons: list[str]
    score: float
    why: str


@operation("playbooks list", "name", "version", "started", "success_rate", "average_cost", "designed_by")
def playbooks_list(
    agent: Tenuto,
    *,
    limit: Annotated[int, "Maximum number of rows"] = 100,
    after: Annotated[str | None, "Start after the one with this name"] = None,
) -> list[Playbook]:
    """List playbooks with how their cases ended."""
    return page_after(agent.playbooks.list(), lambda one: one.name, after, limit)


@operation("playbooks show")
def playbooks_show(
    agent: Tenuto, name: Name, *, version: Annotated[int | None, "This version; by default the newest"] = None
) -> Playbook:
    """Show a playbook with its steps, its lessons and how its cases ended."""
    return agent.playbooks.get(name, version)


@operation("playbooks save", writes=True)
def playbooks_save(
    agent: Tenuto,
    name: Name,
    steps: Annotated[Any, "JSON list of actions, or of dicts with an action"],
    *,
    description: Annotated[str, "What it is for"] = "",
    designed_by: Annotated[str | None, "Who designed it"] = None,
    cost: Annotated[float | None, "What its design cost"] = None,
) -> Playbook:
    """Store a new version of a playbook durably."""
    if not isinstance(steps, list):
        raise InvalidInput('STEPS must be a JSON list, such as ["check", "pay"].')
    return agent.playbooks.save(name, steps, description=description, designed_by=designed_by, cost=cost)


@operation("playbooks start", writes=True)
def playbooks_start(
    agent: Tenuto,
    name: Name,
    case: CaseId,
    *,
    situation: Annotated[str, "What the case is about"] = "",
    user: Annotated[str | None, "Whose case it is"] = None,
) -> Case:
    """Create a workflow from a playbook, and record the case."""
    agent.playbooks.start(name, case, situation=situation, user=user)
    return agent.playbooks.case(case)


@operation("playbooks finish", writes=True)
def playbooks_finish(
    agent: Tenuto,
    case: CaseId,
    *,
    outcome: Annotated[Literal["completed", "failed"] | None, "How it ended; by default as its workflow says"] = None,
    lesson: Annotated[str | None, "What was learned"] = None,
    cost: Annotated[float | None, "What it cost"] = None,
) -> Case:
    """Record how a case ended and what was learned."""
    return agent.playbooks.finish(case, outcome, lesson=lesson, cost=cost)


@operation("playbooks cases", "id", "outcome", "situation", "failed_step", "cost", "lesson")
def playbooks_cases(agent: Tenuto, name: Name) -> list[Case]:
    """List the cases of a playbook."""
    return agent.playbooks.cases(name)


@operation("playbooks suggest", "playbook", "case", "outcome", "success_rate", "why")
def playbooks_suggest(
    agent: Tenuto,
    situation: Annotated[str, "The situation, in a few words"],
    *,
    user: Annotated[str | None, "Also this user's cases"] = None,
    k: Annotated[int, "Maximum number of playbooks, and of cases"] = 3,
) -> list[Suggested]:
    """Find playbooks, and past cases with how they ended, that fit a situation."""
    return [
        Suggested(
            playbook.name,
            playbook.version,
            None if case is None else case.id,
            None if case is None else case.outcome,
            playbook.success_rate,
            playbook.lessons,
            score,
            why,
        )
        for playbook, case, score, why in agent.playbooks.suggest(situation, k, user=user)
    ]
