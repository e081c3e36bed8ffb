"""Tasks and workflows, as operations."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from tenuto.capabilities.procedure import WorkflowInfo
from tenuto.capabilities.schedules import ScheduleInfo
from tenuto.capabilities.taskbook import TaskInfo
from tenuto.capabilities.workflows import Workflow, WorkflowEvent
from tenuto.client import Tenuto
from tenuto.servers.table import Done, Value, operation

TaskStatus = Literal["waiting", "running", "dead"]
WorkflowStatus = Literal["active", "pending", "in_progress", "completed", "failed", "blocked"]

# -- tasks ----------------------------------------------------------------------------------------------------------

Queue = Annotated[str, "The queue"]
TaskId = Annotated[str, "The task: its id, or its key"]


class Counts(NamedTuple):
    """How many tasks of a queue there are."""

    ready: int
    later: int
    running: int
    dead: int


@operation("tasks list", "id", "status", "priority", "user", "attempts", "due", "error")
def tasks_list(
    agent: Tenuto,
    queue: Queue,
    *,
    status: Annotated[TaskStatus, "Those that wait, are in hand, or were given up"] = "waiting",
    limit: Annotated[int, "How many at most"] = 100,
) -> list[TaskInfo]:
    """List the tasks of a queue, those first that may be taken."""
    tasks = agent.tasks
    return {"waiting": tasks.pending, "running": tasks.running, "dead": tasks.dead}[status](queue, limit=limit)


@operation("tasks counts")
def tasks_counts(agent: Tenuto, queue: Queue) -> Counts:
    """Say how many tasks of a queue may be taken, come later, are in somebody's hands, were given up."""
    return Counts(**agent.tasks.counts(queue))


@operation("tasks show")
def tasks_show(agent: Tenuto, task: TaskId) -> TaskInfo:
    """Show a task, what came of it, and who has it in hand."""
    return agent.tasks.get(task)


@operation("tasks enqueue", writes=True)
def tasks_enqueue(
    agent: Tenuto,
    queue: Queue,
    payload: Value = None,
    *,
    key: Annotated[str | None, "With the same key it is enqueued once"] = None,
    delay: Annotated[str | None, 'It may be taken after this, e.g. "10m"'] = None,
    priority: Annotated[int, "The highest is first"] = 0,
    user: Annotated[str | None, "Whose it is; users have their turns"] = None,
) -> TaskInfo:
    """Put a task into a queue, durably."""
    return agent.tasks.enqueue(queue, payload, key=key, delay=delay, priority=priority, user=user)


@operation("tasks complete", writes=True)
def tasks_complete(
    agent: Tenuto, task: TaskId, *, result: Annotated[Any, "What came of it, JSON or text"] = None
) -> Done:
    """Say that a task is done; whoever has it in hand can end it no more."""
    return Done(agent.tasks.mark_completed(task, result))


@operation("tasks retry", writes=True)
def tasks_retry(agent: Tenuto, task: TaskId) -> TaskInfo:
    """Let a task that was given up or cancelled be done after all."""
    agent.tasks.retry(task)
    return agent.tasks.get(task)


@operation("tasks cancel", asks="Let the task {task!r} not be done?")
def tasks_cancel(agent: Tenuto, task: TaskId) -> Done:
    """Let a task not be done; it may be retried later."""
    return Done(agent.tasks.cancel(task))


@operation("tasks recurring", "name", "cron", "interval", "next", "last", "fired")
def tasks_recurring(agent: Tenuto, queue: Queue) -> list[ScheduleInfo]:
    """List the recurring tasks of a queue."""
    return agent.tasks.recurring(queue)


# -- workflows ------------------------------------------------------------------------------------------------------

WorkflowName = Annotated[str, "The workflow"]
StepLabel = Annotated[str, "Its step: the number, or the name"]


class Procedure(NamedTuple):
    """A workflow, as it is shown."""

    name: str
    user: str | None
    status: str
    progress: float
    next_step: int | str | None
    steps: list[dict[str, Any]]


def _step(workflow: Workflow, given: str) -> int | str:
    """Return the label of a step, which is a number or a text."""
    labels = [one.step for one in workflow.steps]
    return next((label for label in labels if str(label) == given), given)


@operation("workflows list", "name", "status", "progress", "next_step", "user")
def workflows_list(
    agent: Tenuto,
    *,
    status: Annotated[WorkflowStatus | None, "Only those; active: all that are not completed"] = None,
    user: Annotated[str | None, "Only this user's"] = None,
    limit: Annotated[int, "How many at most"] = 100,
) -> list[WorkflowInfo]:
    """List workflows, and how far they are."""
    return [one.info() for one in agent.workflows.list(status, user, limit=limit)]


@operation("workflows show")
def workflows_show(agent: Tenuto, workflow: WorkflowName) -> Procedure:
    """Show a workflow with its steps: what is done, what is left, and why something is not."""
    return Procedure(**agent.workflows.get(workflow).as_dict())


@operation("workflows history", "number", "what", "step", "action", "detail", "at", "writer")
def workflows_history(agent: Tenuto, workflow: WorkflowName) -> list[WorkflowEvent]:
    """Show everything that happened to a workflow."""
    return agent.workflows.get(workflow).history()


@operation("workflows start", writes=True)
def workflows_start(
    agent: Tenuto,
    workflow: WorkflowName,
    step: StepLabel,
    *,
    again: Annotated[bool, "Also if somebody who is gone has it in hand"] = False,
) -> Procedure:
    """Say that a step is being done."""
    found = agent.workflows.get(workflow)
    found.start(_step(found, step), again=again)
    return Procedure(**found.as_dict())


@operation("workflows complete", writes=True)
def workflows_complete(
    agent: Tenuto,
    workflow: WorkflowName,
    step: StepLabel,
    *,
    result: Annotated[Any, "What came of it, JSON or text"] = None,
) -> Procedure:
    """Say that a step is done; what is done stays done."""
    found = agent.workflows.get(workflow)
    found.complete(_step(found, step), result)
    return Procedure(**found.as_dict())


@operation("workflows fail", writes=True)
def workflows_fail(
    agent: Tenuto, workflow: WorkflowName, step: StepLabel, error: Annotated[str, "What went wrong"]
) -> Procedure:
    """Say that a step failed; it is the next one to be done."""
    found = agent.workflows.get(workflow)
    found.fail(_step(found, step), error)
    return Procedure(**found.as_dict())


@operation("workflows block", writes=True)
def workflows_block(
    agent: Tenuto, workflow: WorkflowName, step: StepLabel, reason: Annotated[str, "Why it cannot be done now"]
) -> Procedure:
    """Say that a step cannot be done for now; resuming stops before it."""
    found = agent.workflows.get(workflow)
    found.block(_step(found, step), reason)
    return Procedure(**found.as_dict())


@operation("workflows unblock", writes=True)
def workflows_unblock(agent: Tenuto, workflow: WorkflowName, step: StepLabel) -> Procedure:
    """Say that a step can be done again."""
    found = agent.workflows.get(workflow)
    found.unblock(_step(found, step))
    return Procedure(**found.as_dict())


@operation("workflows skip", writes=True)
def workflows_skip(
    agent: Tenuto, workflow: WorkflowName, step: StepLabel, *, reason: Annotated[str | None, "Why"] = None
) -> Procedure:
    """Say that a step need not be done."""
    found = agent.workflows.get(workflow)
    found.skip(_step(found, step), reason)
    return Procedure(**found.as_dict())


@operation("workflows delete", asks="Take the workflow {workflow!r} and its results away, for good?")
def workflows_delete(agent: Tenuto, workflow: WorkflowName) -> Done:
    """Take a workflow and its results away, for good; its history and its run stay."""
    return Done(agent.workflows.delete(workflow))
