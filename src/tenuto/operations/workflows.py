"""Operations on workflows."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from tenuto.capabilities.workflows import Workflow, WorkflowEvent, WorkflowInfo
from tenuto.client import Tenuto
from tenuto.operations.table import Done, operation

WorkflowStatus = Literal["active", "pending", "in_progress", "completed", "failed", "blocked"]

WorkflowName = Annotated[str, "Workflow name"]
StepLabel = Annotated[str, "Step number or name"]


class Procedure(NamedTuple):
    """A workflow as the command line shows it."""

    name: str
    user: str | None
    status: str
    progress: float
    next_step: int | str | None
    steps: list[dict[str, Any]]


def _step(workflow: Workflow, given: str) -> int | str:
    """Return the label of a step, a number or a text."""
    labels = [one.step for one in workflow.steps]
    return next((label for label in labels if str(label) == given), given)


@operation("workflows list", "name", "status", "progress", "next_step", "user")
def workflows_list(
    agent: Tenuto,
    *,
    status: Annotated[WorkflowStatus | None, "Only workflows with this status; active: not completed"] = None,
    user: Annotated[str | None, "Only workflows of this user"] = None,
    limit: Annotated[int, "Maximum number of workflows"] = 100,
    after: Annotated[str | None, "Start after the workflow with this name"] = None,
) -> list[WorkflowInfo]:
    """List workflows and their progress."""
    return [one.info() for one in agent.workflows.list(status, user, limit=limit, after=after)]


@operation("workflows show")
def workflows_show(agent: Tenuto, workflow: WorkflowName) -> Procedure:
    """Show a workflow and its steps with their status, errors and reasons."""
    return Procedure(**agent.workflows.get(workflow).as_dict())


@operation("workflows history", "number", "what", "step", "action", "detail", "at", "writer")
def workflows_history(agent: Tenuto, workflow: WorkflowName) -> list[WorkflowEvent]:
    """Show all events of a workflow."""
    return agent.workflows.get(workflow).history()


@operation("workflows start", writes=True)
def workflows_start(
    agent: Tenuto,
    workflow: WorkflowName,
    step: StepLabel,
    *,
    again: Annotated[bool, "Also start a step that another process has in progress"] = False,
) -> Procedure:
    """Mark a step as in progress."""
    found = agent.workflows.get(workflow)
    found.start(_step(found, step), again=again)
    return Procedure(**found.as_dict())


@operation("workflows complete", writes=True)
def workflows_complete(
    agent: Tenuto,
    workflow: WorkflowName,
    step: StepLabel,
    *,
    result: Annotated[Any, "Result of the step, JSON or text"] = None,
) -> Procedure:
    """Mark a step as completed. A completed step stays completed."""
    found = agent.workflows.get(workflow)
    found.complete(_step(found, step), result)
    return Procedure(**found.as_dict())


@operation("workflows fail", writes=True)
def workflows_fail(
    agent: Tenuto, workflow: WorkflowName, step: StepLabel, error: Annotated[str, "Error message"]
) -> Procedure:
    """Mark a step as failed. It is the next step to run."""
    found = agent.workflows.get(workflow)
    found.fail(_step(found, step), error)
    return Procedure(**found.as_dict())


@operation("workflows block", writes=True)
def workflows_block(
    agent: Tenuto, workflow: WorkflowName, step: StepLabel, reason: Annotated[str, "Why the step is blocked"]
) -> Procedure:
    """Mark a step as blocked. Resuming stops before it."""
    found = agent.workflows.get(workflow)
    found.block(_step(found, step), reason)
    return Procedure(**found.as_dict())


@operation("workflows unblock", writes=True)
def workflows_unblock(agent: Tenuto, workflow: WorkflowName, step: StepLabel) -> Procedure:
    """Mark a blocked step as ready."""
    found = agent.workflows.get(workflow)
    found.unblock(_step(found, step))
    return Procedure(**found.as_dict())


@operation("workflows skip", writes=True)
def workflows_skip(
    agent: Tenuto, workflow: WorkflowName, step: StepLabel, *, reason: Annotated[str | None, "Why it is skipped"] = None
) -> Procedure:
    """Mark a step as skipped."""
    found = agent.workflows.get(workflow)
    found.skip(_step(found, step), reason)
    return Procedure(**found.as_dict())


@operation("workflows delete", asks="Delete the workflow {workflow!r} and its results permanently?")
def workflows_delete(agent: Tenuto, workflow: WorkflowName) -> Done:
    """Delete a workflow and its results permanently. Its history and its run stay."""
    return Done(agent.workflows.delete(workflow))
