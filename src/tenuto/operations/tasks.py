"""Operations on tasks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from tenuto.capabilities.tasks import ScheduleInfo, TaskInfo
from tenuto.client import Tenuto
from tenuto.operations.table import Done, Value, operation

TaskStatus = Literal["waiting", "running", "dead"]

Queue = Annotated[str, "Queue name"]
TaskId = Annotated[str, "Task id or key"]


class Counts(NamedTuple):
    """The number of tasks of a queue, by status."""

    ready: int
    later: int
    running: int
    dead: int


class QueueRow(NamedTuple):
    """A queue, and the numbers of its tasks by status."""

    queue: str
    ready: int
    later: int
    running: int
    dead: int


@operation("tasks list", "id", "status", "priority", "user", "attempts", "due", "error")
def tasks_list(
    agent: Tenuto,
    queue: Queue,
    *,
    status: Annotated[TaskStatus, "Only tasks with this status; dead: no attempts left"] = "waiting",
    limit: Annotated[int, "Maximum number of tasks"] = 100,
    after: Annotated[str | None, "Start after the task with this id"] = None,
) -> list[TaskInfo]:
    """List the tasks of a queue; those ready to be claimed come first."""
    listed = {"waiting": agent.tasks.pending, "running": agent.tasks.running, "dead": agent.tasks.dead}[status]
    return listed(queue, limit=limit, after=after)


@operation("tasks counts")
def tasks_counts(agent: Tenuto, queue: Queue) -> Counts:
    """Count the tasks of a queue that are ready, delayed, running and dead."""
    return Counts(**agent.tasks.counts(queue))


@operation("tasks queues", "queue", "ready", "later", "running", "dead")
def tasks_queues(agent: Tenuto) -> list[QueueRow]:
    """List the queues with the numbers of their tasks. It reads all tasks."""
    return [QueueRow(name, **agent.tasks.counts(name)) for name in agent.tasks.queues()]


@operation("tasks show")
def tasks_show(agent: Tenuto, task: TaskId) -> TaskInfo:
    """Show a task with its result and its current worker."""
    return agent.tasks.get(task)


@operation("tasks enqueue", writes=True)
def tasks_enqueue(
    agent: Tenuto,
    queue: Queue,
    payload: Value = None,
    *,
    key: Annotated[str | None, "Idempotency key: a task with the same key is enqueued once"] = None,
    delay: Annotated[str | None, 'Earliest start from now, e.g. "10m"'] = None,
    priority: Annotated[int, "Higher numbers are claimed first"] = 0,
    user: Annotated[str | None, "Owner; workers go round-robin over users"] = None,
) -> TaskInfo:
    """Enqueue a task durably."""
    return agent.tasks.enqueue(queue, payload, key=key, delay=delay, priority=priority, user=user)


@operation("tasks enqueue-many", "id", "status", "priority", "user", "due", writes=True)
def tasks_enqueue_many(
    agent: Tenuto,
    queue: Queue,
    payloads: Annotated[list[Any], "Payload of each task, as a JSON list"],
    *,
    keys: Annotated[list[str] | None, "Idempotency key of each task, as a JSON list"] = None,
    delay: Annotated[str | None, 'Earliest start from now, e.g. "10m"'] = None,
    priority: Annotated[int, "Higher numbers are claimed first"] = 0,
    user: Annotated[str | None, "Owner; workers go round-robin over users"] = None,
) -> list[TaskInfo]:
    """Enqueue tasks durably, hundreds in one commit."""
    return agent.tasks.enqueue_many(queue, payloads, keys=keys, delay=delay, priority=priority, user=user)


@operation("tasks complete", writes=True)
def tasks_complete(
    agent: Tenuto, task: TaskId, *, result: Annotated[Any, "Result of the task, JSON or text"] = None
) -> Done:
    """Mark a task as completed. A worker that holds it can no longer complete it."""
    return Done(agent.tasks.mark_completed(task, result))


@operation("tasks retry", writes=True)
def tasks_retry(agent: Tenuto, task: TaskId) -> TaskInfo:
    """Queue a dead or cancelled task again."""
    agent.tasks.retry(task)
    return agent.tasks.get(task)


@operation("tasks cancel", asks="Cancel the task {task!r}?")
def tasks_cancel(agent: Tenuto, task: TaskId) -> Done:
    """Cancel a task. It can be retried later."""
    return Done(agent.tasks.cancel(task))


@operation("tasks recurring", "name", "cron", "interval", "next", "last", "fired")
def tasks_recurring(agent: Tenuto, queue: Queue) -> list[ScheduleInfo]:
    """List the recurring tasks of a queue."""
    return agent.tasks.recurring(queue)
