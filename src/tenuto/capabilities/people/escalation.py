"""Escalation: who is asked when, and what a timer that is due changes. Pure functions.

Level 0 is `to`; each further level is a rung. Names alone get the time of the deadline each: the question goes to the first
rung at the deadline, to the second one deadline later, and so on; when the last has had its time, `on_timeout` applies.
Rungs with times of their own are counted from the asking, and the deadline is then the end.

All timers of a question are known when it is asked. Each level is warned when 50 % and 90 % of its time have passed, by
its calendar if there is one. If nothing fired timers for a while, the next level is asked late and still gets its full
time: the timers after it move. A `Calendar` is stored with the question and counts that time too; another calendar is
an object of the asker's process, so after it the timers move by the whole delay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities.people.questions import Level, OnTimeout, Question, Timer, expiry
from tenuto.capabilities.people.times import Calendar, When, WorkingTime, counted, is_length, time_of, worked
from tenuto.errors import InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.durations import Duration, moment, seconds

WARNINGS: Final = (50, 90)
_LATE: Final = 60.0
"""Seconds that a timer may fire late before those after it move."""


class Rung(NamedTuple):
    """A level of escalation: whom to ask, how long after the asking, and how often to remind them."""

    to: str | Sequence[str]
    after: Duration | None = None
    repeat: Duration | None = None


class Plan(NamedTuple):
    """The levels and timers of a question."""

    deadline: float | None
    levels: list[Level]
    timers: list[Timer]


def people_of(to: Any, what: str = "to") -> list[str]:
    """Return names, given as one or several."""
    if to is not None and not isinstance(to, str | list | tuple | set | frozenset):
        raise InvalidInput(f"{what} must be a name or a list of names, not {to!r:.80}. Nothing was written.")
    return [keys.name(one, what) for one in ([to] if isinstance(to, str) else to or ())]


def rungs_of(given: Sequence[Any]) -> list[Rung]:
    """Return rungs: names, lists of names, `("4h", "lead")`, dicts or `Rung`s."""
    if not isinstance(given, list | tuple):
        raise InvalidInput(f'escalate must be a list of levels, for example ["lead", "cfo"], not {given!r:.80}.')
    found: list[Rung] = []
    for one in given:
        if isinstance(one, Rung):
            found.append(one)
        elif isinstance(one, dict):
            wrong = set(one) - set(Rung._fields)
            if wrong or "to" not in one:
                raise InvalidInput(f"A level of escalate has to, after and repeat, not {sorted(one)!r}.")
            found.append(Rung(**one))
        elif isinstance(one, tuple) and len(one) == 2:
            found.append(Rung(one[1], one[0]))
        else:
            found.append(Rung(one))
    return found


def planned(
    to: list[str],
    now: float,
    *,
    deadline: When | None,
    escalate: Sequence[Any],
    on_timeout: OnTimeout,
    calendar: WorkingTime | None,
) -> Plan:
    """Return the levels and timers of a new question; `InvalidInput` if they contradict each other."""
    rungs = rungs_of(escalate)
    _validate(to, rungs, deadline, on_timeout)
    due = None if deadline is None else time_of(deadline, now, calendar)
    bounds = [now]
    if due is not None and rungs and rungs[0].after is None:
        counts = deadline is not None and is_length(deadline)
        length = seconds(deadline) if counts else due - now  # type: ignore[arg-type]
        bounds.append(due)
        for _ in rungs:
            bounds.append(counted(bounds[-1], length, calendar if counts else None))
    else:
        bounds += [counted(now, seconds(one.after or 0, "after"), calendar) for one in rungs]
        bounds += [due] if due is not None else []
        if sorted(set(bounds)) != bounds:
            raise InvalidInput("Levels of escalate must come one after the other, and before the deadline.")
    levels = [Level(to, moment(now))]
    for one, at in zip(rungs, bounds[1:], strict=False):
        again = None if one.repeat is None else seconds(one.repeat, "repeat")
        if again is not None and again < 1:
            raise InvalidInput(f"repeat must be at least 1 s, not {one.repeat!r}.")
        levels.append(Level(people_of(one.to, "level of escalate"), moment(at), again))
    return Plan(due, levels, _timers(levels, bounds, on_timeout, calendar))


def _validate(to: list[str], rungs: list[Rung], deadline: When | None, on_timeout: OnTimeout) -> None:
    if on_timeout != "wait" and deadline is None:
        raise InvalidInput(f'on_timeout={on_timeout!r} needs a deadline, for example deadline="24h".')
    timed = [one.after is not None for one in rungs]
    if rungs and any(timed) != all(timed):
        raise InvalidInput("Give every level of escalate a time, or none.")
    if rungs and not any(timed) and deadline is None:
        raise InvalidInput('escalate needs a deadline, for example deadline="24h", or a time for each level.')
    asked = set(to)
    for one in rungs:
        people = people_of(one.to, "level of escalate")
        again = sorted(asked & set(people))
        if again or not people:
            raise InvalidInput(
                f"The escalation is circular: {', '.join(again)} is asked twice. Use Rung(…, repeat=…) to remind."
                if again
                else "A level of escalate must name people."
            )
        asked |= set(people)


def _timers(
    levels: list[Level], bounds: list[float], on_timeout: OnTimeout, calendar: WorkingTime | None
) -> list[Timer]:
    timers: list[Timer] = []
    for number, level in enumerate(levels):
        begin = bounds[number]
        end = bounds[number + 1] if number + 1 < len(bounds) else None
        if end is not None:
            length = worked(begin, end, calendar)
            by = calendar if length else None  # a deadline on a Sunday has no working time before it
            length = length or end - begin
            timers += [Timer(counted(begin, length * share / 100, by), "warn", number, share) for share in WARNINGS]
            last = "overdue" if on_timeout == "wait" else "expire"
            timers.append(Timer(end, "escalate" if number + 1 < len(levels) else last, number + 1))  # type: ignore[arg-type]
        if level.repeat is not None:
            timers.append(Timer(begin + level.repeat, "remind", number, level.repeat))
    return sorted(timers)


class Fired(NamedTuple):
    """What timers that are due make of a question."""

    question: Question
    what: str
    """"warned", "reminded", "escalated", "overdue" or "expired"."""
    notify: list[str]
    details: dict[str, Any]


def fired(question: Question, now: float) -> Fired | None:
    """Return what the timers that are due change, or None if none is.

    An escalation or expiry that is due replaces the warnings and reminders before it. A reminder that another message to
    the same people replaces is due again one interval later.
    """
    due = [one for one in question.timers if one.at <= now]
    if not question.open or not due:
        return None
    at = next((n for n, one in enumerate(due) if one.kind in ("escalate", "expire", "overdue")), len(due) - 1)
    timer, rest = due[at], question.timers[at + 1 :]
    replaced = [one._replace(at=now + one.value) for one in due if one.kind == "remind"]
    people = question.levels[min(timer.level, len(question.levels) - 1)].to if question.levels else question.assignees
    if timer.kind == "escalate":
        late = now - timer.at
        levels = question.levels
        rest = [one for one in rest if one.level >= timer.level]
        if late > _LATE:  # it fired late: the people of this level still get their whole time
            moved = _moved(timer.at, now, question.calendar)
            rest = sorted(one._replace(at=moved(one.at)) for one in rest)
            levels = [one if n < timer.level else one._replace(at=_at(moved, one.at)) for n, one in enumerate(levels)]
        assignees = list(dict.fromkeys([*question.assignees, *people]))
        new = question._replace(
            level=timer.level, assignees=assignees, levels=levels, timers=rest, expires_at=expiry(rest)
        )
        return Fired(new, "escalated", people, {"to": people, "level": timer.level})
    if timer.kind == "expire":
        answer = question.default if question.on_timeout == "default" else None
        new = question._replace(status="expired", answer=answer, answered_at=moment(now), timers=[], expires_at=None)
        return Fired(new, "expired", question.assignees, {"on_timeout": question.on_timeout, "answer": answer})
    if timer.kind == "remind":
        again = timer._replace(at=now + timer.value)
        return Fired(question._replace(timers=sorted([*rest, again])), "reminded", people, {"to": people})
    new = question._replace(timers=sorted([*question.timers[len(due) :], *replaced]))
    if timer.kind == "overdue":
        return Fired(new, "overdue", question.assignees, {})
    return Fired(new, "warned", people, {"to": people, "share": timer.value})


def _moved(planned: float, now: float, calendar: dict[str, Any] | None) -> Callable[[float], float]:
    """Return what moves a later time as much as a timer was late; by a calendar it keeps its working time after it."""
    if calendar is None:
        return lambda at: at + now - planned
    hours = Calendar(**calendar)
    return lambda at: counted(now, worked(planned, at, hours), hours)


def _at(moved: Callable[[float], float], at: datetime) -> datetime:
    return moment(moved(at.timestamp()))


def acknowledged(question: Question, by: str, now: float) -> Question:
    """Return a question that a person has acknowledged: it climbs no further, and expires as before."""
    timers = [one for one in question.timers if one.kind in ("expire", "overdue")]
    return question._replace(status="acknowledged", acknowledged_by=by, acknowledged_at=moment(now), timers=timers)
