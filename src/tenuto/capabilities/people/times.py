"""Deadlines: durations, dates and times, also counted in business hours. Pure functions.

A duration is counted by a calendar if there is one: "8h" by `Calendar()` ends at the same hour of the next working day.
A date means the end of that day. Times without a zone are in the calendar's zone, else UTC.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo

from tenuto.errors import InvalidInput
from tenuto.kernel.durations import Duration, moment, seconds

When = Duration | datetime | date
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_LAST: Final = 9_000
_ISO: Final = re.compile(r"\d{4}-\d\d-\d\d")
_MOST: Final = 100 * 366 * 86_400.0
_LONGEST: Final = 366 * 20
"""A calendar that gives no working time in so many days has none."""


class WorkingTime(Protocol):
    """A calendar of your own: it says when a number of working seconds after a time have passed."""

    def add(self, start: datetime, length: timedelta) -> datetime:
        """Return the time when `length` of working time after `start` has passed."""
        ...


@dataclass(frozen=True)
class Calendar:
    """Business hours: the working days, their hours, the time zone and the holidays."""

    days: Sequence[str] = ("mon", "tue", "wed", "thu", "fri")
    opens: str = "09:00"
    closes: str = "17:00"
    timezone: str = "UTC"
    holidays: Sequence[date | str] = ()

    def __post_init__(self) -> None:
        """Validate the calendar."""
        if not isinstance(self.days, list | tuple) or not self.days or not all(day in _DAYS for day in self.days):
            raise InvalidInput(f"days must be some of {', '.join(_DAYS)}, not {self.days!r:.80}.")
        try:
            opens, closes = time.fromisoformat(self.opens), time.fromisoformat(self.closes)
            ZoneInfo(self.timezone)
            _ = [_date(one) for one in self.holidays]
            wrong = opens >= closes or opens.tzinfo is not None
        except (TypeError, ValueError, KeyError, OSError) as error:
            raise InvalidInput(f"This is no calendar: {error}.") from error
        if wrong:
            raise InvalidInput(
                f"opens must be before closes, both without a time zone, not {self.opens} and {self.closes}."
            )

    def stored(self) -> dict[str, Any]:
        """Return the arguments that make this calendar again."""
        return {
            "days": list(self.days), "opens": self.opens, "closes": self.closes, "timezone": self.timezone,
            "holidays": [_date(one).isoformat() for one in self.holidays],
        }  # fmt: skip

    def add(self, start: datetime, length: timedelta) -> datetime:
        """Return the time when `length` of business hours after `start` has passed."""
        zone = ZoneInfo(self.timezone)
        opens, closes = time.fromisoformat(self.opens), time.fromisoformat(self.closes)
        free = {_date(one) for one in self.holidays}
        day, left = start.astimezone(zone).date(), length
        for _ in range(_LONGEST):
            if _DAYS[day.weekday()] in self.days and day not in free:
                # In UTC, so that a change of the clocks does not change the length of the day.
                begin = max(datetime.combine(day, opens, zone).astimezone(UTC), start.astimezone(UTC))
                end = datetime.combine(day, closes, zone).astimezone(UTC)
                if begin < end and left <= end - begin:
                    return begin + left
                left -= max(end - begin, timedelta(0))
            day += timedelta(days=1)
        raise InvalidInput("The calendar has no working time left. Correct its days and holidays.")


def counted(start: float, length: float, calendar: WorkingTime | None) -> float:
    """Return the time `length` seconds after `start`, of working time if there is a calendar."""
    if length > _MOST:
        raise InvalidInput("A time may be up to 100 years away. Nothing was written.")
    if calendar is None:
        return start + length
    try:
        end = calendar.add(moment(start), timedelta(seconds=length))
    except (AttributeError, TypeError) as error:
        raise InvalidInput(f"calendar must be a Calendar, or have add(start, length): {error}.") from error
    if not isinstance(end, datetime) or end.tzinfo is None or end.timestamp() < start - 1:
        raise InvalidInput(f"The calendar must return a later datetime with a time zone, not {end!r}.")
    return end.timestamp()


def worked(start: float, end: float, calendar: WorkingTime | None) -> float:
    """Return the seconds between two times, of working time if there is a calendar: to the second."""
    if calendar is None:
        return max(end - start, 0.0)
    least, most = 0.0, 3_600.0
    while counted(start, most, calendar) <= end:  # a calendar says only where a length ends
        least, most = most, 2 * most
    while most - least > 0.5:
        middle = (least + most) / 2
        if counted(start, middle, calendar) <= end:
            least = middle
        else:
            most = middle
    return float(round(least))


def is_length(when: When) -> bool:
    """Return whether a time is given as a duration, not as a date or a time."""
    return not isinstance(when, date) and not (isinstance(when, str) and _ISO.match(when.strip()))


def time_of(when: When, now: float, calendar: WorkingTime | None = None, what: str = "deadline") -> float:
    """Return a time as seconds since 1970; `InvalidInput` if it is none or not in the future."""
    if isinstance(when, datetime) or (isinstance(when, str) and _ISO.match(when.strip()) and len(when.strip()) > 10):
        at = _moment(when, calendar, what).timestamp()
    elif isinstance(when, date) or (isinstance(when, str) and _ISO.fullmatch(when.strip())):
        try:
            day = _date(when.strip() if isinstance(when, str) else when)
        except ValueError as error:
            raise InvalidInput(f"A {what} must be a date that exists, not {when!r}.") from error
        if day.year > _LAST:
            raise InvalidInput(f"A {what} must be before the year {_LAST + 1}, not {when!s}. Nothing was written.")
        at = datetime.combine(day + timedelta(days=1), time(), _zone(calendar)).timestamp()
    else:
        length = seconds(when, what)
        if length == 0:
            raise InvalidInput(f"A {what} must be in the future, not now. Nothing was written.")
        at = counted(now, length, calendar)
    if at <= now:
        raise InvalidInput(f"The {what} {when!s} is in the past. Nothing was written.")
    return at


def _moment(when: datetime | str, calendar: WorkingTime | None, what: str) -> datetime:
    if isinstance(when, str):
        try:
            found = datetime.fromisoformat(when.strip())
        except ValueError as error:
            raise InvalidInput(f"A {what} must be a duration, a date or a time, not {when!r}.") from error
        return found if found.tzinfo is not None else found.replace(tzinfo=_zone(calendar))
    if when.tzinfo is None:
        raise InvalidInput(f"A {what} needs a time zone. Use datetime.now(UTC) or .replace(tzinfo=UTC).")
    return when


def _zone(calendar: WorkingTime | None) -> tzinfo:
    return ZoneInfo(calendar.timezone) if isinstance(calendar, Calendar) else UTC


def _date(given: date | str) -> date:
    if not isinstance(given, date):
        return date.fromisoformat(given)
    return given.date() if isinstance(given, datetime) else given
