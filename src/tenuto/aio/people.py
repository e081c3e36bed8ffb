"""The async API of questions, milestones, routes and notifications."""

from __future__ import annotations

from tenuto.aio.bridge import Mirror, awaitable
from tenuto.capabilities.people import Inbox, Milestones, Notify, Routes


class AsyncInbox(Mirror[Inbox]):
    """`Inbox`, awaited."""

    list = awaitable(Inbox.list)
    get = awaitable(Inbox.get)
    history = awaitable(Inbox.history)
    answer = awaitable(Inbox.answer)
    acknowledge = awaitable(Inbox.acknowledge)
    cancel = awaitable(Inbox.cancel)
    fire = awaitable(Inbox.fire)
    group = awaitable(Inbox.group)
    groups = awaitable(Inbox.groups)
    token = awaitable(Inbox.token)
    approval = awaitable(Inbox.approval)
    redeem = awaitable(Inbox.redeem)


class AsyncNotify(Mirror[Notify]):
    """`Notify`, awaited."""

    to = awaitable(Notify.to)
    remove = awaitable(Notify.remove)
    channels = awaitable(Notify.channels)
    outbox = awaitable(Notify.outbox)
    dead = awaitable(Notify.dead)
    retry = awaitable(Notify.retry)
    test = awaitable(Notify.test)
    deliver = awaitable(Notify.deliver)


class AsyncRoutes(Mirror[Routes]):
    """`Routes`, awaited."""

    add = awaitable(Routes.add)
    remove = awaitable(Routes.remove)
    list = awaitable(Routes.list)
    find = awaitable(Routes.find)


class AsyncMilestones(Mirror[Milestones]):
    """`Milestones`, awaited."""

    meet = awaitable(Milestones.meet)
    cancel = awaitable(Milestones.cancel)
    get = awaitable(Milestones.get)
    list = awaitable(Milestones.list)
    history = awaitable(Milestones.history)
    fire = awaitable(Milestones.fire)
