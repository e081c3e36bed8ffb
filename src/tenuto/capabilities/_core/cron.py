"""Recurring times: cron expressions and fixed intervals.

A cron expression has five fields: minute, hour, day of the month, month, day of the week (0 and 7 are Sunday). Each is
`*`, a number, a range `1-5`, a list `1,15`, or any of these with a step `*/10`; months and days have their English
names too. If both days are given, either matches. `@hourly`, `@daily`, `@weekly`, `@monthly` and `@yearly` are aliases.

Times are in a time zone. A local time skipped by a clock change fires right after the change; a repeated one fires
once, unless the expression matches every hour.

Why not cronsim 2.8: of 4,000 random expressions in four zones around clock changes both gave the same times, except
where the clocks change by half an hour (Australia/Lord_Howe). There cronsim fires 30 minutes late for the rest of the
day. It has no aliases and no full names of days, does not say which part is wrong, and would be the sixth installed
package. It has seconds, `L` and `#`, which are refused here.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tenuto.errors import InvalidInput
from tenuto.kernel.durations import Duration, moment, seconds

_NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS: Final = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_part = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(\d+))?")
_YEARS: Final = 41
"""The 29th of February comes on the same weekday after at most 40 years (around 2100)."""


class Cron(NamedTuple):
    """A parsed cron expression."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_hour: bool
    either_day: bool
    """Both days are given: either matches."""
    zone: ZoneInfo

    def after(self, at: float) -> float:
        """Return its first time after `at`."""
        begun = moment(at).replace(second=0, microsecond=0) + timedelta(minutes=1)
        local = begun.astimezone(self.zone)
        if self.any_hour:  # in UTC, so that a repeated hour fires twice
            end = begun + timedelta(days=366 * _YEARS)
            while begun < end:
                local = begun.astimezone(self.zone)
                ahead = self._ahead(local.replace(tzinfo=None))
                if not ahead:
                    return begun.timestamp()
                # Step less than a long distance: the clocks may change in between.
                near = timedelta(minutes=60 - local.minute)
                begun += ahead if ahead <= near else max(ahead - timedelta(hours=3), near)
            raise self._never()
        wall = local.replace(tzinfo=None)
        limit = wall + timedelta(days=366 * _YEARS)
        while wall < limit:
            ahead = self._ahead(wall)
            if not ahead:
                there = wall.replace(tzinfo=self.zone).timestamp()  # a skipped time fires an hour later
                if there > at:
                    return there
                ahead = timedelta(minutes=1)
            wall += ahead
        raise self._never()

    def _ahead(self, wall: datetime) -> timedelta:
        """Return a lower bound of the time to the next match; zero if this is one."""
        midnight = wall.replace(hour=0, minute=0) + timedelta(days=1) - wall
        if wall.month not in self.months:
            return midnight
        of_month, of_week = wall.day in self.days, (wall.weekday() + 1) % 7 in self.weekdays
        if not (of_month or of_week if self.either_day else of_month and of_week):
            return midnight
        if wall.hour not in self.hours:
            return timedelta(minutes=60 - wall.minute)
        return timedelta() if wall.minute in self.minutes else timedelta(minutes=1)

    @staticmethod
    def _never() -> InvalidInput:
        return InvalidInput("The cron expression never matches, such as the 30th of February. Correct its days.")


class Every(NamedTuple):
    """A fixed interval, counted from its start."""

    length: float
    began: float

    def after(self, at: float) -> float:
        """Return its first time after `at`."""
        return self.began + self.length * max(1, math.floor((at - self.began) / self.length) + 1)


def cron(expression: str, timezone: str = "UTC") -> Cron:
    """Parse a cron expression; `InvalidInput` names the wrong part."""
    if not isinstance(expression, str):
        raise InvalidInput(
            f'A cron expression must be a str such as "0 9 * * mon-fri", not {type(expression).__name__}.'
        )
    fields = _NAMED.get(expression.strip().lower(), expression).lower().split()
    if len(fields) != len(_FIELDS):
        raise InvalidInput(
            f'A cron expression has five fields, minute hour day month weekday, such as "0 9 * * mon-fri"; not {expression!r}.'
        )
    try:
        zone = ZoneInfo(timezone) if timezone != "UTC" else ZoneInfo("UTC")
    except (ZoneInfoNotFoundError, ValueError, TypeError):
        raise InvalidInput(f'A time zone has a name such as "Europe/Lisbon", not {timezone!r}.') from None
    minutes, hours, days, months, week = (
        _field(text, *about, expression) for text, about in zip(fields, _FIELDS, strict=True)
    )
    weekdays = frozenset(day % 7 for day in week)
    either = not fields[2].startswith("*") and not fields[4].startswith("*")
    found = Cron(minutes, hours, days, months, weekdays, len(hours) == 24, either, zone)
    found.after(datetime(2024, 1, 1, tzinfo=UTC).timestamp())  # raises for one that never comes
    return found


def _field(text: str, name: str, low: int, high: int, expression: str) -> frozenset[int]:
    found: set[int] = set()
    for one in text.split(","):
        match = _part.fullmatch(one)
        wrong = InvalidInput(f"The {name} {one!r} of the cron expression {expression!r} is not from {low} to {high}.")
        if match is None or (match[1] == "*" and match[2]):
            raise wrong
        step = int(match[3] or 1)
        first, last = low, high
        if match[1] != "*":
            first = _number(match[1], name, wrong)
            last = _number(match[2], name, wrong) if match[2] else high if match[3] else first
        if step < 1 or not low <= first <= last <= high:
            raise wrong
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _number(text: str, name: str, wrong: InvalidInput) -> int:
    names = {"month": _MONTHS, "weekday": _DAYS}.get(name, [])
    if text[:3] in names:
        return names.index(text[:3]) + (name == "month")
    if not text.isdecimal():
        raise wrong
    return int(text)


def every(interval: Duration, began: float) -> Every:
    """Return a fixed interval, of a second or more."""
    length = seconds(interval, "interval")
    if length < 1:
        raise InvalidInput(f"interval must be at least 1 s, not {interval!r}.")
    return Every(length, began)
