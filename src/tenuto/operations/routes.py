"""Operations on routes."""

from __future__ import annotations

from typing import Annotated, Any

from tenuto.capabilities._core.base import page_after
from tenuto.capabilities.people import Route
from tenuto.client import Tenuto
from tenuto.operations.table import Done, operation

About = Annotated[str, 'Pattern of subjects, e.g. "invoice:*"']


@operation("routes list", "about", "to", "escalate", "deadline", "policy")
def routes_list(
    agent: Tenuto,
    *,
    limit: Annotated[int, "Maximum number of rows"] = 100,
    after: Annotated[str | None, "Start after the route with this pattern"] = None,
) -> list[Route]:
    """List the routes: who is asked about what."""
    return page_after(agent.routes.list(), lambda one: one.about, after, limit)


@operation("routes add", writes=True)
def routes_add(
    agent: Tenuto,
    about: About,
    to: Annotated[str, "Person or group"],
    *,
    escalate: Annotated[Any, 'Levels of escalation as JSON, e.g. ["lead", "cfo"]'] = None,
    deadline: Annotated[str | None, 'Time for each level, e.g. "24h"'] = None,
    policy: Annotated[str | None, "The rule that applies"] = None,
) -> Route:
    """Send questions about a subject to their owner."""
    return agent.routes.add(about=about, to=to, escalate=escalate or [], deadline=deadline, policy=policy)


@operation("routes remove", asks="Remove the route of {about!r}?")
def routes_remove(agent: Tenuto, about: About) -> Done:
    """Remove a route."""
    return Done(agent.routes.remove(about))
