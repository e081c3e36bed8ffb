"""Recurring tasks: enqueued by the workers of a queue, once for each of their times.

Keys, below the tenant: `(queue, "tasks", "schedule", name)` is a schedule with its next time. Firing is one commit that
checks that record, advances its next time and enqueues the task, so of several workers one fires it. The task's id is
made of queue, name and time, so a time is never enqueued twice, also after the schedule is deleted and created again.
A crash before the commit leaves it due.

For times missed without a worker: "once" fires the last, "all" each, "skip" none that is more than `grace` late.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from tenuto.capabilities._core.base import Context, scan_all, stamp
from tenuto.capabilities.tasks import cron as times
from tenuto.capabilities.tasks import records
from tenuto.capabilities.tasks.records import Rules, TaskRecord
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work

Missed = Literal["once", "all", "skip"]
_MISSED: Final = ("once", "all", "skip")
_AT_ONCE: Final = 200
"""The most missed times fired in one commit."""


class Schedule(NamedTuple):
    """The stored form of a recurring task."""

    cron: str | None
    interval: float | None
    timezone: str
    payload: Any
    priority: int
    user: str | None
    rules: Rules
    missed: str
    grace: float
    began: float
    next: float
    last: float | None
    fired: int
    writer: str

    def after(self, at: float) -> float:
        """Return its first time after `at`."""
        if self.cron is not None:
            return times.cron(self.cron, self.timezone).after(at)
        return times.Every(self.interval or 0.0, self.began).after(at)


@dataclass(frozen=True)
class ScheduleInfo:
    """A recurring task and its times."""

    name: str
    queue: str
    cron: str | None
    interval: float | None
    timezone: str
    payload: Any
    missed: str
    next: datetime
    last: datetime | None
    """The last time that was fired."""
    fired: int
    """How often it was fired."""


def new(  # noqa: PLR0913 - what a schedule is made of
    context: Context,
    payload: Any,
    *,
    cron: str | None,
    interval: Duration | None,
    timezone: str,
    missed: str,
    grace: Duration,
    priority: int,
    user: str | None,
    rules: Rules,
) -> Schedule:
    """Return a recurring task that starts now, validated."""
    if (cron is None) == (interval is None):
        raise InvalidInput('Pass either cron="0 9 * * *" or interval="10m".')
    if missed not in _MISSED:
        raise InvalidInput(f"missed must be one of {', '.join(_MISSED)}; not {missed!r}.")
    now = context.kernel.now()
    length = None if interval is None else times.every(interval, now).length
    if cron is not None:
        times.cron(cron, timezone)
    late = seconds(grace, "grace")
    fresh = Schedule(
        cron, length, timezone, payload, priority, user, rules, missed, late, now, 0.0, None, 0, context.writer
    )
    return fresh._replace(next=fresh.after(now))


def put(context: Context, queue: str, name: str, fresh: Schedule) -> Work[Schedule]:
    """Store a recurring task durably; with unchanged times, an existing one keeps its next time."""
    where = _key(queue, name)
    delays = backoff()
    while True:
        record = context.kernel.read([where])[0]
        schedule = fresh
        if record is not None:
            old = _schedule(record)
            if (old.cron, old.interval, old.timezone) == (fresh.cron, fresh.interval, fresh.timezone):
                schedule = fresh._replace(began=old.began, next=old.next, last=old.last, fired=old.fired)
            if schedule == old:
                return old
        try:
            yield from commit_once(
                context.kernel, [Check(where, record.version if record else 0)], [_put(queue, name, schedule)]
            )
        except Conflict:
            yield Sleep(next(delays))
        else:
            return schedule


def end(context: Context, queue: str, name: str) -> Work[bool]:
    """Delete a recurring task durably; return whether it existed. Tasks already enqueued stay."""
    where = _key(queue, name)
    if context.kernel.read([where])[0] is None:
        return False
    yield from commit_once(context.kernel, [], [Delete(where)])
    return True


def listed(context: Context, queue: str) -> list[ScheduleInfo]:
    """Return the recurring tasks of a queue, by name."""
    return [info(queue, _name(record), _schedule(record)) for record in _records(context, queue)]


def found(context: Context, queue: str, name: str) -> ScheduleInfo:
    """Return a recurring task; `NotFound` if there is none."""
    record = context.kernel.read([_key(queue, name)])[0]
    if record is None:
        raise NotFound(f"There is no recurring task {name!r} in {queue!r}. List them with tasks.recurring().")
    return info(queue, name, _schedule(record))


def info(queue: str, name: str, one: Schedule) -> ScheduleInfo:
    """Return the public view of a recurring task."""
    last = None if one.last is None else moment(one.last)
    return ScheduleInfo(
        name, queue, one.cron, one.interval, one.timezone, one.payload, one.missed, moment(one.next), last, one.fired
    )


def fire(context: Context, queue: str) -> Work[int]:
    """Enqueue the due recurring tasks of a queue durably, once per time; return how many."""
    count = 0
    for record in _records(context, queue):
        schedule = _schedule(record)
        while schedule.next <= (now := context.kernel.now()):
            times, following, whole = _due(schedule, now)
            name = _name(record)
            after = schedule._replace(
                next=following, last=times[-1] if times else schedule.last, fired=schedule.fired + len(times)
            )
            checks, writes = _fired(context, queue, name, after, times, now)
            try:
                done = yield from commit_once(
                    context.kernel,
                    [Check(record.key, record.version), *checks],
                    [_put(queue, name, after), *writes],
                )
            except Conflict:
                break  # another worker fired it
            count += len(times)
            schedule, record = after, record._replace(version=done.versions[0])  # noqa: PLW2901 - it has moved on
            if whole:
                break
    return count


def _due(schedule: Schedule, now: float) -> tuple[list[float], float, bool]:
    """Return the times to fire now, the next time, and whether that is in the future."""
    times: list[float] = []
    at = schedule.next
    while at <= now and len(times) < _AT_ONCE:
        times.append(at)
        at = schedule.after(at)
    if schedule.missed == "all":
        return times, at, at > now
    if at <= now:  # many were missed; at most one counts
        at = schedule.after(now)
        previous = _before(schedule, now)
        times = [previous if previous is not None else times[-1]]
    last = times[-1]
    if schedule.missed == "skip" and now - last > schedule.grace:
        return [], at, True
    return [last], at, True


def _before(schedule: Schedule, now: float) -> float | None:
    """Return its last time up to now, searched in growing intervals."""
    for back in (60.0, 3_600.0, 86_400.0, 7 * 86_400.0, 32 * 86_400.0, 367 * 86_400.0):
        at = schedule.after(now - back)
        if at <= now:
            while (following := schedule.after(at)) <= now:
                at = following
            return at
    return None


def _fired(
    context: Context, queue: str, name: str, schedule: Schedule, times: list[float], now: float
) -> tuple[list[AnyCheck], list[Write]]:
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
            schedule.rules,
            now,
            writer,
            correlation,
            at,
            schedule=name,
        )
        checks.append(Check(records.task_key(task_id), 0))
        writes += [records.stored(task_id, task), records.placed(task_id, task, now)]
    return checks, writes


def _records(context: Context, queue: str) -> Iterator[Record]:
    return scan_all(context.kernel, records.schedule_prefix(queue))


def _key(queue: str, name: str) -> bytes:
    return records.schedule_prefix(queue) + keys.named(name, "recurring task's name")


def _name(record: Record) -> str:
    return str(keys.unpack(record.key)[-1])


def _put(queue: str, name: str, schedule: Schedule) -> Put:
    stored: list[Any] = [*schedule]
    stored[6] = list(schedule.rules)
    return Put(_key(queue, name), codec.encode(stored))


def _schedule(record: Record) -> Schedule:
    parts: list[Any] = codec.decode(record.value)
    parts[6] = Rules(*parts[6])
    return Schedule(*parts)
