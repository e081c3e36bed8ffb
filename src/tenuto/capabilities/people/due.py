"""What is due for people: the timers of questions, milestones, and deliveries. A worker calls this again and again.

Each firing is one commit that checks what it changes, so any number of replicas may call this at the same time. A part
that fails, such as one damaged record, does not keep the other parts from what is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tenuto.capabilities._core.firing import fire_each
from tenuto.capabilities.people.inbox import Inbox
from tenuto.capabilities.people.milestones import Milestones
from tenuto.capabilities.people.notify import Notify
from tenuto.kernel.work import Store, Work, work_of

_TURN: Final = 5.0
"""Seconds after which slow receivers wait for the next call, so that timers fire meanwhile."""


def fire_due(
    inbox: Inbox, milestones: Milestones, notify: Notify, alerts: Callable[[], Work[int]], *, limit: int = 100
) -> Work[int]:
    """Look at the alerts, fire the timers that are due and deliver what waits, up to `limit` of each; return how many."""

    def stored(part: Callable[[], Work[int]]) -> Work[int]:
        count: int = yield Store(part())
        return count

    parts: Sequence[Callable[[], Work[int]]] = (
        lambda: stored(alerts),
        lambda: stored(lambda: work_of(inbox.fire)(limit=limit)),
        lambda: stored(lambda: work_of(milestones.fire)(limit=limit)),
        lambda: notify._delivering(limit, _TURN),
    )
    return (yield from fire_each(parts, lambda part: part()))
