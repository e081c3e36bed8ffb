"""Schedules: what recurs, by a cron expression or an interval, and is fired once for each of its times.

Tasks and durable functions have schedules: `(queue, "tasks", "schedule", name)` and `("runs", "schedule", function,
name)`. A schedule is one record with its next time. Firing is one commit that checks that record, advances its next
time and starts what recurs, so of several workers one fires it. What is started has an id made of the schedule and the
time, so a time is never fired twice, also after the schedule is deleted and created again. A crash before the commit
leaves it due.

For times missed without a worker: "once" fires the last, "all" each, "skip" none that is more than `grace` late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from tenuto.capabilities._core import cron as times
from tenuto.capabilities._core.base import Context, scan_all
from tenuto.errors import Conflict, InvalidInput
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
    """The stored form of a schedule."""

    cron: str | None
    interval: float | None
    timezone: str
    payload: Any
    priority: int
    user: str | None
    rules: list[Any] | None
    """How what it starts is retried and kept; its owner knows the form."""
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


class Firing(NamedTuple):
    """Times of a schedule that are due."""

    key: bytes
    """Of the schedule's record."""
    name: str
    schedule: Schedule
    times: list[float]
    now: float


Starting = Callable[[Firing], tuple[list[AnyCheck], list[Write]]]
"""Returns the checks and writes that start what recurs, once for each time."""


@dataclass(frozen=True)
class ScheduleInfo:
    """A recurring task or run, and its times."""

    name: str
    owner: str
    """The queue of the tasks, or the function of the runs."""
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
    rules: list[Any] | None,
) -> Schedule:
    """Return a schedule that starts now, validated."""
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


def put(context: Context, prefix: bytes, name: str, fresh: Schedule) -> Work[Schedule]:
    """Store a schedule durably; with unchanged times, an existing one keeps its next time."""
    where = _key(prefix, name)
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
                context.kernel, [Check(where, record.version if record else 0)], [_put(where, schedule)]
            )
        except Conflict:
            yield Sleep(next(delays))
        else:
            return schedule


def end(context: Context, prefix: bytes, name: str) -> Work[bool]:
    """Delete a schedule durably; return whether it existed. What it started stays."""
    where = _key(prefix, name)
    if context.kernel.read([where])[0] is None:
        return False
    yield from commit_once(context.kernel, [], [Delete(where)])
    return True


def listed(context: Context, prefix: bytes, owner: str) -> list[ScheduleInfo]:
    """Return the schedules of a queue or function, by name."""
    return [info(owner, _name(record), _schedule(record)) for record in scan_all(context.kernel, prefix)]


def info(owner: str, name: str, one: Schedule) -> ScheduleInfo:
    """Return the public view of a schedule."""
    last = None if one.last is None else moment(one.last)
    return ScheduleInfo(
        name, owner, one.cron, one.interval, one.timezone, one.payload, one.missed, moment(one.next), last, one.fired
    )


def fire(context: Context, found: Iterator[Record], starting: Starting) -> Work[int]:
    """Start what is due durably, once per time; return how many were started."""
    count = 0
    for record in found:
        schedule = _schedule(record)
        while schedule.next <= (now := context.kernel.now()):
            times, following, whole = _due(schedule, now)
            name = _name(record)
            after = schedule._replace(
                next=following, last=times[-1] if times else schedule.last, fired=schedule.fired + len(times)
            )
            checks, writes = starting(Firing(record.key, name, after, times, now))
            try:
                done = yield from commit_once(
                    context.kernel,
                    [Check(record.key, record.version), *checks],
                    [_put(record.key, after), *writes],
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


def _key(prefix: bytes, name: str) -> bytes:
    return prefix + keys.named(name, "name of a schedule")


def _name(record: Record) -> str:
    return str(keys.unpack(record.key)[-1])


def _put(where: bytes, schedule: Schedule) -> Put:
    return Put(where, codec.encode([*schedule]))


def _schedule(record: Record) -> Schedule:
    return Schedule(*codec.decode(record.value))


def next_of(record: Record) -> float:
    """Return when a schedule is next due."""
    return _schedule(record).next
