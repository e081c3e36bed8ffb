"""Recurring tasks: put into their queue by whoever works on it, once for each of their times.

Keys, below the tenant: `(queue, "tasks", "schedule", name)` says when a task recurs and when it does next. Firing it is
one commit that checks that record, moves its next time on and enqueues the task, so of several workers who see
that it is time one fires it. The task's id is made of queue, name and time, so the same time never comes twice,
also where a schedule is taken away and made again. A crash before the commit leaves it due; nothing else can be left.

A time that nobody was there for is missed, and `missed` says what then: "once" fires the last of them, and the others
are gone; "all" fires each; "skip" fires none that is more than `grace` late.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from tenuto.capabilities import cron as recurring
from tenuto.capabilities import taskbook
from tenuto.capabilities.context import Context, stamp
from tenuto.capabilities.taskbook import Rules, TaskRecord
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.transact import Steps, backoff, settle

Missed = Literal["once", "all", "skip"]
_MISSED: Final = ("once", "all", "skip")
_AT_ONCE: Final = 200
"""So many missed times are fired in one commit."""
_PAGE: Final = 500


class Schedule(NamedTuple):
    """A recurring task as it is stored."""

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
        """Return its first time behind `at`."""
        if self.cron is not None:
            return recurring.cron(self.cron, self.timezone).after(at)
        return recurring.Every(self.interval or 0.0, self.began).after(at)


@dataclass(frozen=True)
class ScheduleInfo:
    """A recurring task, as it is known."""

    name: str
    queue: str
    cron: str | None
    interval: float | None
    timezone: str
    payload: Any
    missed: str
    next: datetime
    last: datetime | None
    """The last of its times that was fired."""
    fired: int
    """How often it was."""


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
    """Return a recurring task that begins now."""
    if (cron is None) == (interval is None):
        raise InvalidInput('A task recurs by cron="0 9 * * *" or by interval="10m"; give one of them.')
    if missed not in _MISSED:
        raise InvalidInput(f"missed is {', '.join(_MISSED)}; not {missed!r}.")
    now = context.kernel.now()
    length = None if interval is None else recurring.every(interval, now).length
    if cron is not None:
        recurring.cron(cron, timezone)
    late = seconds(grace, "grace")
    fresh = Schedule(
        cron, length, timezone, payload, priority, user, rules, missed, late, now, 0.0, None, 0, context.writer
    )
    return fresh._replace(next=fresh.after(now))


def put(context: Context, queue: str, name: str, fresh: Schedule) -> Steps[Schedule]:
    """Write a recurring task down; one that recurs as before goes on as it was, with the new payload and rules."""
    where = _key(queue, name)
    for delay in backoff(None):
        record = context.kernel.read([where])[0]
        schedule = fresh
        if record is not None:
            old = _schedule(record)
            if (old.cron, old.interval, old.timezone) == (fresh.cron, fresh.interval, fresh.timezone):
                schedule = fresh._replace(began=old.began, next=old.next, last=old.last, fired=old.fired)
            if schedule == old:
                return old
        try:
            yield from settle(
                context.kernel, [Check(where, record.version if record else 0)], [_put(queue, name, schedule)]
            )
        except Conflict:
            yield delay
        else:
            return schedule
    raise AssertionError("the back-off never ends")


def end(context: Context, queue: str, name: str) -> Steps[bool]:
    """Take a recurring task away; tell whether it was there. What it has put into the queue stays."""
    where = _key(queue, name)
    if context.kernel.read([where])[0] is None:
        return False
    yield from settle(context.kernel, [], [Delete(where)])
    return True


def listed(context: Context, queue: str) -> list[ScheduleInfo]:
    """Return the recurring tasks of a queue, by name."""
    return [info(queue, _name(record), _schedule(record)) for record in _records(context, queue)]


def found(context: Context, queue: str, name: str) -> ScheduleInfo:
    """Return a recurring task; `NotFound` if there is none."""
    record = context.kernel.read([_key(queue, name)])[0]
    if record is None:
        raise NotFound(f"There is no recurring task {name!r} in {queue!r}. See which there are with tasks.recurring().")
    return info(queue, name, _schedule(record))


def info(queue: str, name: str, one: Schedule) -> ScheduleInfo:
    """Return a recurring task as it is shown."""
    last = None if one.last is None else moment(one.last)
    return ScheduleInfo(
        name, queue, one.cron, one.interval, one.timezone, one.payload, one.missed, moment(one.next), last, one.fired
    )


def fire(context: Context, queue: str) -> Steps[int]:
    """Enqueue the recurring tasks of a queue whose time has come, each time once; return how many."""
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
                done = yield from settle(
                    context.kernel,
                    [Check(record.key, record.version), *checks],
                    [_put(queue, name, after), *writes],
                )
            except Conflict:
                break  # somebody else was faster
            count += len(times)
            schedule, record = after, record._replace(version=done.versions[0])  # noqa: PLW2901 - it has moved on
            if whole:
                break
    return count


def _due(schedule: Schedule, now: float) -> tuple[list[float], float, bool]:
    """Return the times to fire now, the first one to come, and whether that is behind now."""
    times: list[float] = []
    at = schedule.next
    while at <= now and len(times) < _AT_ONCE:
        times.append(at)
        at = schedule.after(at)
    if schedule.missed == "all":
        return times, at, at > now
    if at <= now:  # many were missed, and of those one at the most counts
        at = schedule.after(now)
        previous = _before(schedule, now)
        times = [previous if previous is not None else times[-1]]
    last = times[-1]
    if schedule.missed == "skip" and now - last > schedule.grace:
        return [], at, True
    return [last], at, True


def _before(schedule: Schedule, now: float) -> float | None:
    """Return the last of its times up to now, looked for from near to far."""
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
    there = context.kernel.read([taskbook.task_key(task_id) for task_id, _ in named])
    checks: list[AnyCheck] = []
    writes: list[Write] = []
    for (task_id, at), record in zip(named, there, strict=True):
        if record is not None:  # fired by a schedule of this name that was taken away since
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
        checks.append(Check(taskbook.task_key(task_id), 0))
        writes += [taskbook.stored(task_id, task), taskbook.placed(task_id, task, now)]
    return checks, writes


def _records(context: Context, queue: str) -> Iterator[Record]:
    prefix, after = taskbook.schedule_prefix(queue), None
    while page := context.kernel.scan(prefix, after=after, limit=_PAGE):
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].key


def _key(queue: str, name: str) -> bytes:
    return taskbook.schedule_prefix(queue) + keys.named(name, "recurring task's name")


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
