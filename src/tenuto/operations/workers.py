"""Operations on the processes that execute runs and tasks now."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from tenuto.client import Tenuto
from tenuto.errors import NotFound
from tenuto.operations.table import operation


class Work(NamedTuple):
    """A run or a task that a process executes now."""

    kind: str
    """run or task."""
    id: str
    what: str | None
    """The durable function of the run, or the queue of the task."""
    by: str
    """The process: the name of its client, its number and its machine."""
    since: datetime
    """When it took the run, or when the task was claimed last."""


@operation("workers", "by", "kind", "id", "what", "since")
def workers(agent: Tenuto) -> list[Work]:
    """List the runs and tasks that processes execute now, and which process each."""
    found = []
    for run in agent.runs.list("running", limit=1_000):
        try:
            holder = agent.runs.get(run.id).holder
        except NotFound:  # deleted since it was listed
            continue
        if holder is not None:
            found.append(Work("run", run.id, run.function, str(holder), holder.since))
    for queue in agent.tasks.queues():
        held = agent.tasks.running(queue, limit=1_000)
        found += [Work("task", task.id, queue, task.by or "", task.updated_at) for task in held]
    return sorted(found, key=lambda one: (one.by, one.since))
