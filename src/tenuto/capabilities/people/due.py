"""What is due for people: the timers of questions, milestones, and deliveries. A worker calls this again and again.

Each firing is one commit that checks what it changes, so any number of replicas may call this at the same time.
"""

from __future__ import annotations

from collections.abc import Callable

from tenuto.capabilities.people.inbox import Inbox
from tenuto.capabilities.people.milestones import Milestones
from tenuto.capabilities.people.notify import Notify
from tenuto.kernel.work import Store, Work, work_of


def fire_due(
    inbox: Inbox, milestones: Milestones, notify: Notify, alerts: Callable[[], Work[int]], *, limit: int = 100
) -> Work[int]:
    """Look at the alerts, fire the timers that are due and deliver what waits, up to `limit` of each; return how many."""
    count: int = yield Store(alerts())
    count += yield Store(work_of(inbox.fire)(limit=limit))
    count += yield Store(work_of(milestones.fire)(limit=limit))
    delivered: int = yield from work_of(notify.deliver)(limit=limit)
    return count + delivered
