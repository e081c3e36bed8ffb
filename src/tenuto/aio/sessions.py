"""The async API of sessions: progress documents, sessions and handoffs."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from tenuto.aio.bridge import Mirror, Pools, awaitable
from tenuto.capabilities.sessions import Handoff, HandoffInfo, Handoffs, Progress, ProgressInfo, Session
from tenuto.kernel.durations import Duration


class AsyncProgress(Mirror[Progress]):
    """`Progress`, awaited."""

    def __init__(self, sync: Progress, pools: Pools) -> None:
        super().__init__(sync, pools)
        self.name = sync.name

    get = awaitable(Progress.get)
    markdown = awaitable(Progress.markdown)
    digest = awaitable(Progress.digest)
    history = awaitable(Progress.history)
    plan = awaitable(Progress.plan)
    complete = awaitable(Progress.complete)
    goal = awaitable(Progress.goal)
    block = awaitable(Progress.block)
    unblock = awaitable(Progress.unblock)
    next = awaitable(Progress.next)
    note = awaitable(Progress.note)
    rule_out = awaitable(Progress.rule_out)
    decide = awaitable(Progress.decide)
    question = awaitable(Progress.question)
    follow = awaitable(Progress.follow)
    write = awaitable(Progress.write)


class AsyncSession(Mirror[Session]):
    """`Session`, awaited: `async with agent.session("book-flight") as session: …`."""

    def __init__(self, sync: Session, pools: Pools) -> None:
        super().__init__(sync, pools)
        self.name = sync.name
        self.progress = AsyncProgress(sync.progress, pools)

    open = awaitable(Session.open)
    close = awaitable(Session.close)

    @property
    def digest(self) -> str:
        """Return what this session needs to know, from its beginning."""
        return self._sync.digest

    @property
    def info(self) -> ProgressInfo | None:
        """Return the progress document as data, from its beginning."""
        return self._sync.info

    @property
    def handoffs(self) -> list[HandoffInfo]:
        """Return the handoffs that waited for this agent when it began."""
        return self._sync.handoffs

    async def __aenter__(self) -> Self:
        """Begin the session."""
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the session."""
        await self.close(error)


class AsyncHandoff(Mirror[Handoff]):
    """`Handoff`, awaited."""

    def __init__(self, sync: Handoff, pools: Pools) -> None:
        super().__init__(sync, pools)
        self.id = sync.id
        self.sender = sync.sender
        self.data = sync.data
        self.summary = sync.summary
        self.thread = sync.thread
        self.correlation_id = sync.correlation_id
        self.info = sync.info

    accept = awaitable(Handoff.accept)
    reject = awaitable(Handoff.reject)
    forward = awaitable(Handoff.forward)
    release = awaitable(Handoff.release)

    @property
    def redelivered(self) -> bool:
        """Return whether it was received before: an earlier receiver may have begun the work."""
        return self._sync.redelivered

    @property
    def lost(self) -> bool:
        """Return whether the lease is lost, so that another agent may receive the handoff."""
        return self._sync.lost


class AsyncHandoffs(Mirror[Handoffs]):
    """`Handoffs`, awaited."""

    send = awaitable(Handoffs.send)
    get = awaitable(Handoffs.get)
    list = awaitable(Handoffs.list)
    chain = awaitable(Handoffs.chain)
    outcome = awaitable(Handoffs.outcome)
    withdraw = awaitable(Handoffs.withdraw)
    _receive = awaitable(Handoffs.receive)

    async def receive(
        self,
        schema: Any = None,
        *,
        id: str | None = None,  # noqa: A002 - the word for it
        wait: Duration | None = None,
        lease: Duration = 10,
    ) -> AsyncHandoff | None:
        """Receive the oldest handoff to this agent, durably; see `Handoffs.receive`."""
        found = await self._receive(schema, id=id, wait=wait, lease=lease)
        return None if found is None else AsyncHandoff(found, self._pools)
