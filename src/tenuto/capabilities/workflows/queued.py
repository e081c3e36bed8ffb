"""Workflows for a worker: a queued run that resumes a workflow, as a durable function that every action brings along.

It owns no keys. The queued run is found under the action of the workflow's next step, so a worker takes it only if it has
that action. It resumes the workflow in the nested run `workflow:NAME`; queueing again with the same run id does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tenuto.capabilities.runs import Durable, Run, has_run
from tenuto.capabilities.workflows.document import WorkflowStatus
from tenuto.capabilities.workflows.workflows import Actions, Workflow, Workflows
from tenuto.kernel.work import Work

BUSY: Final = 60.0
"""Seconds to wait for another process that executes the workflow."""


def queued_for(action: str) -> str:
    """Return the name of the function as which a worker finds a workflow whose next step has this action."""
    return f"tenuto.workflow/{action}"


def workflow_of(actions: Actions, run: Run, name: str) -> Workflow:
    """Return a workflow of the tenant of a run."""
    return Workflows(run._running.engine, actions).get(name)


def resuming(actions: Actions) -> Callable[[Run, str], WorkflowStatus]:
    """Return the function of the queued run: it resumes the workflow of a name, and returns the status it has then."""

    def resume_workflow(run: Run, name: str) -> WorkflowStatus:
        return workflow_of(actions, run, name).resume(wait=BUSY).status

    return resume_workflow


def queue_workflow(workflow: Workflow, run_id: str) -> Work[None]:
    """Queue a run that resumes a workflow, durably, unless there is a run of this id or nothing is left to do."""
    left = workflow._doc.next()
    if left is None or has_run(workflow._context, run_id):
        return

    def shape(run: Any, name: str) -> None: ...

    queueing = Durable(workflow._engine, queued_for(left.action), shape).using(user=workflow.user)
    yield from queueing._queued(run_id, (workflow.name,), {})
