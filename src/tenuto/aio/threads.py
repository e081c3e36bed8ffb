"""The async API of threads."""

from __future__ import annotations

from typing import Any

from tenuto.aio.bridge import Mirror, Pools, awaitable, iterable
from tenuto.capabilities.threads import Thread, Threads
from tenuto.kernel.durations import Duration


class AsyncThread(Mirror[Thread]):
    """`Thread`, awaited. `scratch` is in memory and is not awaited."""

    def __init__(self, sync: Thread, pools: Pools) -> None:
        super().__init__(sync, pools)
        self.id = sync.id
        self.user = sync.user

    append = awaitable(Thread.append)
    messages = awaitable(Thread.messages)
    count = awaitable(Thread.count)
    decide = awaitable(Thread.decide)
    decisions = awaitable(Thread.decisions)
    tool_call = awaitable(Thread.tool_call)
    tool_calls = awaitable(Thread.tool_calls)
    repair = awaitable(Thread.repair)
    take_back = awaitable(Thread.take_back)
    compact = awaitable(Thread.compact)
    delete = awaitable(Thread.delete)
    timeline = awaitable(Thread.timeline)
    _fork = awaitable(Thread.fork)

    @property
    def scratch(self) -> dict[str, Any]:
        """Return a plain dict in memory, shared by all handles of this thread in this client."""
        return self._sync.scratch

    async def fork(
        self, thread_id: str, at: int | None = None, *, user: str | None = None, ttl: Duration | None = None
    ) -> AsyncThread:
        """Start another thread with the messages of this one up to number `at`; see `Thread.fork`."""
        return AsyncThread(await self._fork(thread_id, at, user=user, ttl=ttl), self._pools)

    watch = iterable(Thread.watch)


class AsyncThreads(Mirror[Threads]):
    """`Threads`, awaited."""

    list = awaitable(Threads.list)
