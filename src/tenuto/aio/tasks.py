"""The async face of tasks and workflows: the same names, awaited; a part of `aio`.

A worker's handler and a workflow's actions may be coroutine functions, which are awaited, or ordinary ones, which run on
threads of their own with the caller's context.
"""

from __future__ import annotations

import asyncio
import signal as signals
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tenuto._aio_runs import Pools
from tenuto._offload import awaitable, perform, settle
from tenuto.capabilities.procedure import WorkflowStep
from tenuto.capabilities.task import Task
from tenuto.capabilities.tasks import Handler, Tasks
from tenuto.capabilities.workers import Crew, Stop, must_be_some
from tenuto.capabilities.workflows import Workflow, Workflows
from tenuto.kernel.contract import Check
from tenuto.kernel.durations import Duration, seconds


class AsyncTask:
    """`Task`, awaited."""

    def __init__(self, sync: Task, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool
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
        """Tell whether it is known to have passed to somebody else, or to have been cancelled."""
        return self._sync.lost

    @property
    def over(self) -> bool:
        """Tell whether it is out of this hand."""
        return self._sync.over

    @property
    def check(self) -> Check:
        """Return the check that a fenced commit makes."""
        return self._sync.check

    def __repr__(self) -> str:
        """Say which task this is."""
        return repr(self._sync)


class AsyncTasks:
    """`Tasks`, awaited."""

    def __init__(self, sync: Tasks, pools: Pools) -> None:
        self._sync = sync
        self._pool = pools.store
        self._pools = pools

    enqueue = awaitable(Tasks.enqueue)
    enqueue_many = awaitable(Tasks.enqueue_many)
    get = awaitable(Tasks.get)
    pending = awaitable(Tasks.pending)
    running = awaitable(Tasks.running)
    dead = awaitable(Tasks.dead)
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
        """Take the next task of a queue, durably, for as long as `lease`; see `Tasks.claim`."""
        task = await self._claim(queue, lease=lease, wait=wait)
        return None if task is None else AsyncTask(task, self._pool)

    async def work(  # noqa: PLR0913 - the words of the API
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
        """Be a worker: do the tasks of a queue by `handler(task)`, some at once, until told to stop; see `Tasks.work`."""
        must_be_some(concurrency)
        crew = self._sync.crew(
            queue,
            handler,
            lease=lease,
            timeout=timeout,
            poll=poll,
            until_empty=until_empty,
            stop=stop,
            face=lambda task: AsyncTask(task, self._pool),
        )
        try:
            return await self._work(crew, concurrency, seconds(grace, "grace"), on_signal=on_signal)
        finally:
            self._sync.dismissed(crew)

    async def _work(self, crew: Crew, concurrency: int, grace: float, *, on_signal: bool) -> int:
        loop = asyncio.get_running_loop()
        numbers = (signals.SIGTERM, signals.SIGINT) if on_signal else ()
        for number in numbers:
            loop.add_signal_handler(number, crew.halt)
        clock = self._sync.clock
        lanes = [
            asyncio.ensure_future(perform(self._pools.store, self._pools.user, crew.lane(), clock))
            for _ in range(concurrency)
        ]
        try:
            waiting = set(lanes)
            while waiting and not crew.stopping:
                done, waiting = await asyncio.wait(waiting, timeout=0.25, return_when=asyncio.FIRST_COMPLETED)
                if any(lane.exception() is not None for lane in done):
                    break
        finally:
            crew.halt()
            try:
                _, late = await asyncio.wait(lanes, timeout=grace)
            except asyncio.CancelledError:
                late = {lane for lane in lanes if not lane.done()}
                raise
            finally:
                for lane in lanes:
                    lane.cancel()
                crew.left()
                for number in numbers:
                    loop.remove_signal_handler(number)
        if late:
            await asyncio.wait(late)
        for lane in lanes:
            if not lane.cancelled():
                lane.result()
        return crew.done


class AsyncWorkflow:
    """`Workflow`, awaited. What it has read last is not: `name`, `user`, `status`, `progress`, `steps`, `run_id`, `info`, `as_dict`."""

    def __init__(self, sync: Workflow, pools: Pools) -> None:
        self._sync = sync
        self._pool = pools.store
        self._pools = pools
        self.name = sync.name
        self.as_dict = sync.as_dict
        self.info = sync.info

    start = awaitable(Workflow.start)
    complete = awaitable(Workflow.complete)
    fail = awaitable(Workflow.fail)
    block = awaitable(Workflow.block)
    unblock = awaitable(Workflow.unblock)
    skip = awaitable(Workflow.skip)
    step = awaitable(Workflow.step)
    next_incomplete_step = awaitable(Workflow.next_incomplete_step)
    history = awaitable(Workflow.history)
    _edit = awaitable(Workflow.edit)

    @property
    def user(self) -> str | None:
        """Return whose workflow it is."""
        return self._sync.user

    @property
    def status(self) -> str:
        """Return where it stands: pending, in_progress, completed, failed or blocked."""
        return self._sync.status

    @property
    def progress(self) -> float:
        """Return which part of its steps is done, from 0 to 1."""
        return self._sync.progress

    @property
    def steps(self) -> list[WorkflowStep]:
        """Return all steps in order."""
        return self._sync.steps

    @property
    def run_id(self) -> str:
        """Return the run that carries it out."""
        return self._sync.run_id

    async def refresh(self) -> AsyncWorkflow:
        """Read it again, and return it."""
        await settle(self._pool, self._sync.refresh)
        return self

    async def edit(self, steps: Sequence[Any]) -> AsyncWorkflow:
        """Give it other steps, durably, also while it runs; see `Workflow.edit`."""
        await self._edit(steps)
        return self

    async def resume(self, *, wait: Duration = 15) -> AsyncWorkflow:
        """Carry out what is left, each step by its action as a durable step of a run; see `Workflow.resume`."""
        await perform(self._pools.store, self._pools.user, self._sync.resuming(wait), self._sync.clock)
        return self

    def __repr__(self) -> str:
        """Say how far it has come."""
        return repr(self._sync)


class AsyncWorkflows:
    """`Workflows`, awaited."""

    def __init__(self, sync: Workflows, pools: Pools) -> None:
        self._sync = sync
        self._pool = pools.store
        self._pools = pools

    delete = awaitable(Workflows.delete)
    _create = awaitable(Workflows.create)
    _get = awaitable(Workflows.get)
    _list = awaitable(Workflows.list)

    async def create(self, name: str, steps: Sequence[Any], *, user: str | None = None) -> AsyncWorkflow:
        """Write a workflow down, durably, and return it; see `Workflows.create`."""
        return AsyncWorkflow(await self._create(name, steps, user=user), self._pools)

    async def get(self, name: str) -> AsyncWorkflow:
        """Return a workflow as it is now; `NotFound` if there is none."""
        return AsyncWorkflow(await self._get(name), self._pools)

    async def list(
        self, status: str | None = None, user: str | None = None, *, limit: int = 1_000
    ) -> list[AsyncWorkflow]:
        """Return workflows by name: all, those in a status, those of a user; see `Workflows.list`."""
        return [AsyncWorkflow(one, self._pools) for one in await self._list(status, user, limit=limit)]
