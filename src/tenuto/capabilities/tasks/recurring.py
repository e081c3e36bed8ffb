"""Recurring tasks: schedules whose times are tasks of a queue.

Keys, below the tenant: `(queue, "tasks", "schedule", name)`. The workers of the queue fire them (`_core/schedules.py`);
the task of a time is written in the commit that advances the schedule.
"""

from __future__ import annotations

from tenuto.capabilities._core import schedules
from tenuto.capabilities._core.base import Context, scan_all, stamp
from tenuto.capabilities._core.schedules import Firing
from tenuto.capabilities.tasks import records
from tenuto.capabilities.tasks.records import Rules, TaskRecord
from tenuto.kernel.contract import AnyCheck, Check, Write
from tenuto.kernel.durations import moment
from tenuto.kernel.work import Work


def fire(context: Context, queue: str) -> Work[int]:
    """Enqueue the due recurring tasks of a queue durably, once per time; return how many."""

    def starting(firing: Firing) -> tuple[list[AnyCheck], list[Write]]:
        return _enqueued(context, queue, firing)

    return (yield from schedules.fire(context, scan_all(context.kernel, records.schedule_prefix(queue)), starting))


def _enqueued(context: Context, queue: str, firing: Firing) -> tuple[list[AnyCheck], list[Write]]:
    _, name, schedule, times, now = firing
    writer, correlation = stamp(context)
    named = [(f"{queue}/{name}@{moment(at):%Y-%m-%dT%H:%M:%SZ}", at) for at in times]
    there = context.kernel.read([records.task_key(task_id) for task_id, _ in named])
    checks: list[AnyCheck] = []
    writes: list[Write] = []
    for (task_id, at), record in zip(named, there, strict=True):
        if record is not None:  # fired by a deleted schedule of this name
            continue
        task = TaskRecord(
            queue,
            schedule.payload,
            schedule.priority,
            schedule.user,
            Rules(*(schedule.rules or ())),
            now,
            writer,
            correlation,
            at,
            schedule=name,
        )
        checks.append(Check(records.task_key(task_id), 0))
        writes += [records.stored(task_id, task), records.placed(task_id, task, now)]
    return checks, writes
