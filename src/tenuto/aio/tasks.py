"""The async API of tasks.

A handler may be a coroutine function, which is awaited, or an ordinary one, which runs on a thread with the caller's
context variables.
"""

from __future__ import annotations

from tenuto.aio.bridge import Mirror, Pools, awaitable
from tenuto.aio.worker import work as performed
from tenuto.capabilities._core.base import Stop
from tenuto.capabilities.tasks import Handler, Task, Tasks
from tenuto.kernel.contract import Check
from tenuto.kernel.durations import Duration, seconds


class AsyncTask(Mirror[Task]):
    """`Task`, awaited."""

    def __init__(self, sync: Task, pools: Pools) -> None:
        super().__init__(sync, pools)
        self.id = sync.id
        self.queue = sync.queue
        self.payload = sync.payload
        self.priority = sync.priority
        self.user = sync.user
        self.attempt = sync.attempt
        self.redelivered = sync.redelivered
        self.correlation_id = sync.correlation_id
        self.name = sync.name

    complete = awaitable(Task.complete)
    fail = awaitable(Task.fail)
    release = awaitable(Task.release)
    extend = awaitable(Task.extend)

    @property
    def token(self) -> int:
        """Return the fencing token."""
        return self._sync.token

    @property
    def lost(self) -> bool:
        """Return whether the task is known to be cancelled or claimed by another worker."""
        return self._sync.lost

    @property
    def over(self) -> bool:
        """Return whether this worker no longer holds the task."""
        return self._sync.over

    @property
    def check(self) -> Check:
        """Return the check that a fenced commit makes."""
        return self._sync.check


class AsyncTasks(Mirror[Tasks]):
    """`Tasks`, awaited."""

    enqueue = awaitable(Tasks.enqueue)
    enqueue_many = awaitable(Tasks.enqueue_many)
    get = awaitable(Tasks.get)
    pending = awaitable(Tasks.pending)
    running = awaitable(Tasks.running)
    dead = awaitable(Tasks.dead)
    queues = awaitable(Tasks.queues)
    counts = awaitable(Tasks.counts)
    is_completed = awaitable(Tasks.is_completed)
    mark_completed = awaitable(Tasks.mark_completed)
    result = awaitable(Tasks.result)
    cancel = awaitable(Tasks.cancel)
    retry = awaitable(Tasks.retry)
    every = awaitable(Tasks.every)
    recurring = awaitable(Tasks.recurring)
    stop_recurring = awaitable(Tasks.stop_recurring)
    fire = awaitable(Tasks.fire)
    _claim = awaitable(Tasks.claim)

    async def claim(self, queue: str, *, lease: Duration = 30, wait: Duration | None = None) -> AsyncTask | None:
        """Claim the next task of a queue durably, for the duration of `lease`; see `Tasks.claim`."""
        task = await self._claim(queue, lease=lease, wait=wait)
        return None if task is None else AsyncTask(task, self._pools)

    async def work(  # noqa: PLR0913 - the API's options
        self,
        queue: str,
        handler: Handler,
        *,
        concurrency: int = 4,
        lease: Duration = 30,
        timeout: Duration | None = None,
        poll: Duration = 0.05,
        grace: Duration = 30,
        until_empty: bool = False,
        stop: Stop | None = None,
        on_signal: bool = False,
    ) -> int:
        """Run `handler(task)` for the tasks of a queue, concurrently, until stopped; see `Tasks.work`."""
        source, worker = self._sync._worker(
            queue,
            handler,
            lease=lease,
            timeout=timeout,
            poll=poll,
            until_empty=until_empty,
            stop=stop,
            face=lambda task: AsyncTask(task, self._pools),
        )
        try:
            await performed(
                self._pools,
                worker,
                self._sync._clock,
                concurrency=concurrency,
                grace=seconds(grace, "grace"),
                on_signal=on_signal,
            )
        finally:
            self._sync._remove(queue, source, worker)
        return source.done
