"""The async API of workflows.

An action may be a coroutine function, which is awaited, or an ordinary one, which runs on a thread with the caller's
context variables.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

from tenuto.aio.bridge import Mirror, Pools, awaitable, in_thread, perform
from tenuto.aio.runs import AsyncRun
from tenuto.capabilities.workflows import (
    BUSY,
    Actions,
    Workflow,
    Workflows,
    WorkflowStatus,
    WorkflowStep,
    workflow_of,
)
from tenuto.kernel.durations import Duration
from tenuto.kernel.work import work_of


class AsyncWorkflow(Mirror[Workflow]):
    """`Workflow`, awaited. Not awaited, from the last read: `name`, `user`, `status`, `progress`, `steps`, `run_id`, `info`, `as_dict`."""

    def __init__(self, sync: Workflow, pools: Pools) -> None:
        super().__init__(sync, pools)
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
        """Return the user of the workflow."""
        return self._sync.user

    @property
    def status(self) -> WorkflowStatus:
        """Return the status: pending, in_progress, completed, failed or blocked."""
        return self._sync.status

    @property
    def progress(self) -> float:
        """Return the fraction of steps that are done, from 0 to 1."""
        return self._sync.progress

    @property
    def steps(self) -> list[WorkflowStep]:
        """Return all steps in order."""
        return self._sync.steps

    @property
    def run_id(self) -> str:
        """Return the id of the run that executes the workflow."""
        return self._sync.run_id

    async def refresh(self) -> AsyncWorkflow:
        """Read the workflow again and return it."""
        await in_thread(self._pool, self._sync.refresh)
        return self

    async def edit(self, steps: Sequence[Any]) -> AsyncWorkflow:
        """Replace the steps durably, also while the workflow runs; see `Workflow.edit`."""
        await self._edit(steps)
        return self

    async def resume(self, *, wait: Duration = 15) -> AsyncWorkflow:
        """Execute the remaining steps, each action as a durable step of a run; see `Workflow.resume`."""
        await perform(self._pools, work_of(self._sync.resume)(wait=wait), self._sync._clock)
        return self


class AsyncWorkflows(Mirror[Workflows]):
    """`Workflows`, awaited."""

    delete = awaitable(Workflows.delete)
    _create = awaitable(Workflows.create)
    _get = awaitable(Workflows.get)
    _list = awaitable(Workflows.list)

    async def create(self, name: str, steps: Sequence[Any], *, user: str | None = None) -> AsyncWorkflow:
        """Create a workflow durably and return it; see `Workflows.create`."""
        return AsyncWorkflow(await self._create(name, steps, user=user), self._pools)

    async def get(self, name: str) -> AsyncWorkflow:
        """Return the current workflow; raise `NotFound` if there is none."""
        return AsyncWorkflow(await self._get(name), self._pools)

    async def list(
        self,
        status: WorkflowStatus | Literal["active"] | None = None,
        user: str | None = None,
        *,
        limit: int = 1_000,
        after: str | None = None,
    ) -> list[AsyncWorkflow]:
        """Return workflows sorted by name, filtered by status and user; see `Workflows.list`."""
        return [AsyncWorkflow(one, self._pools) for one in await self._list(status, user, limit=limit, after=after)]


def resuming_awaited(actions: Actions) -> Callable[[AsyncRun, str], Awaitable[WorkflowStatus]]:
    """Return the function of a queued run that resumes a workflow, whose actions may be coroutine functions."""

    async def resume_workflow(run: AsyncRun, name: str) -> WorkflowStatus:
        workflow = await in_thread(run._pool, lambda: workflow_of(actions, run._sync, name))
        return (await AsyncWorkflow(workflow, run._pools).resume(wait=BUSY)).status

    return resume_workflow
