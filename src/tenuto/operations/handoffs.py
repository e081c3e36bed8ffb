"""Operations on handoffs between agents."""

from __future__ import annotations

from typing import Annotated

from tenuto.capabilities._core.base import page_after
from tenuto.capabilities.sessions import Handoff, HandoffInfo, HandoffStatus
from tenuto.client import Tenuto
from tenuto.errors import LeaseHeld
from tenuto.operations.table import operation

HandoffId = Annotated[str, "Id or key of the handoff"]


@operation("handoff list", "id", "sender", "to", "status", "summary", "sent_at")
def handoff_list(
    agent: Tenuto,
    *,
    to: Annotated[str | None, "Only handoffs to this agent"] = None,
    sender: Annotated[str | None, "Only handoffs of this agent"] = None,
    status: Annotated[HandoffStatus | None, "Only handoffs with this status"] = None,
    chain: Annotated[str | None, "Only those of this correlation id"] = None,
    limit: Annotated[int, "Maximum number of handoffs"] = 100,
    after: Annotated[str | None, "Start after the handoff with this id"] = None,
) -> list[HandoffInfo]:
    """List handoffs, oldest first."""
    if chain is None:
        return agent.handoff.list(to, sender=sender, status=status, limit=limit, after=after)
    found = [
        one
        for one in agent.handoff.chain(chain)
        if to in (None, one.to) and sender in (None, one.sender) and status in (None, one.status)
    ]
    return page_after(found, lambda one: one.id, after, limit)


@operation("handoff show")
def handoff_show(agent: Tenuto, handoff: HandoffId) -> HandoffInfo:
    """Show a handoff with its data and its answer."""
    return agent.handoff.get(handoff)


@operation("handoff accept", writes=True)
def handoff_accept(agent: Tenuto, handoff: HandoffId) -> HandoffInfo:
    """Accept a handoff in place of its receiver, once."""
    return _received(agent, handoff).accept()


@operation("handoff reject", writes=True)
def handoff_reject(
    agent: Tenuto, handoff: HandoffId, reason: Annotated[str, "Why; the sender reads it"]
) -> HandoffInfo:
    """Reject a handoff in place of its receiver, with a reason for the sender."""
    return _received(agent, handoff).reject(reason)


def _received(agent: Tenuto, handoff: str) -> Handoff:
    found = agent.handoff.receive(id=handoff)
    if found is None:
        status = agent.handoff.get(handoff).status
        why = "another agent has received it" if status == "pending" else f"it is {status}"
        raise LeaseHeld(f"The handoff {handoff!r} cannot be answered: {why}; nothing was written. Read it again later.")
    return found
