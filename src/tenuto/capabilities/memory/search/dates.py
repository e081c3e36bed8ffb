"""Dates in questions and in texts: "in May 2023", "last Friday", "two weeks ago". Pure functions, English only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date
from typing import Final, NamedTuple

_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTH: Final = "|".join(_MONTHS)
_YEAR: Final = re.compile(r"\b(?:19|20)\d\d\b")
_DAY_OF_MONTH: Final = re.compile(rf"\b(\d{{1,2}})(?:st|nd|rd|th)?,? (?:of )?({_MONTH})\b")
_MONTH_AND_DAY: Final = re.compile(rf"\b({_MONTH})\b,? ?(?:the )?(\d{{1,2}}\b)?")
_MAY: Final = re.compile(r"\b(?:in|of|during|by|since|last|this|next) may\b")
_WHEN: Final = re.compile(r"^\s*when\b|\bwhen did|\bwhat (?:date|day|month|year)|how long")
_TIME: Final = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|recently|since"
    rf"|(?:last|next|this) (?:night|week|weekend|month|year|morning|past|summer|winter|spring|fall|autumn|{_MONTH})"
    rf"|just (?:got|started|had|went|finished)|{_MONTH}|\w+day|20\d\d|\d+ (?:days|weeks|months|years))\b"
)
_TIME_WORDS: Final = frozenset(
    {
        "tonight",
        "tomorrow",
        "ago",
        "recently",
        "since",
        "last",
        "next",
        "this",
        "just",
        "days",
        "weeks",
        "months",
        "years",
    }
    | {"today", "yesterday", *_MONTHS, *_DAYS}
)
_NUMBERS: Final = {
    "a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "few": 3, "couple": 2,
}  # fmt: skip
_UNITS: Final = {"day": (1, 0), "week": (7, 3), "month": (30, 15), "year": (365, 180)}
"""Days in a unit, and by how many the speaker may be off."""
_RELATIVE: Final = (
    ("yesterday", -1, -1), ("last night", -1, -1), ("today", 0, 0), ("tonight", 0, 0), ("this morning", 0, 0),
    ("tomorrow", 1, 1), ("last week", -10, -3), ("weekend", -9, -1), ("last month", -45, -15), ("next week", 3, 10),
    ("next month", 10, 45),
)  # fmt: skip
_WEEKDAY: Final = re.compile(r"\b(?:last|this past|on) (\w+day)\b")
_AGO: Final = re.compile(r"\b(\w+)(?: of)? (day|week|month|year)s? ago\b")
_EVENT_WORDS: Final = frozenset(
    {"yesterday", "today", "tonight", "tomorrow", "night", "morning", "week", "weekend", "month", "ago", *_DAYS}
)
_SOON_AFTER: Final = 10
"""People tell what happened in a month up to this day of the next one."""
_NEAR: Final = 7


class Asked(NamedTuple):
    """The date that a question names: at least a year or a month."""

    year: int | None
    month: int | None
    day: int | None


def asks_when(question: str) -> bool:
    """Return whether a question asks for a time."""
    return _WHEN.search(question.lower()) is not None


def names_a_time(text: str, words: Iterable[str]) -> bool:
    """Return whether a text, whose words are given, has an expression of time near its beginning."""
    if "day" not in text and "20" not in text and _TIME_WORDS.isdisjoint(words):  # the usual case, found fast
        return False
    return _TIME.search(text[:1_000].lower()) is not None


def asked_date(question: str) -> Asked | None:
    """Return the date that a question names, or None."""
    text = question.lower()
    year = _YEAR.search(text)
    month: int | None = None
    day: str | None = None
    if found := _DAY_OF_MONTH.search(text):
        day, month = found[1], _MONTHS.index(found[2]) + 1
    elif found := _MONTH_AND_DAY.search(text):
        month, day = _MONTHS.index(found[1]) + 1, found[2]
        if found[1] == "may" and day is None and year is None and not _MAY.search(text):
            month = None  # the verb
    if day is not None and not 1 <= int(day) <= 31:
        day = None
    if month is None and year is None:
        return None
    return Asked(int(year[0]) if year else None, month, int(day) if day else None)


def date_match(asked: Asked, said: date) -> float:
    """Return how well the date of a text fits a question: 0 not at all, 1 the month, more for the day."""
    if asked.month is None:
        return 0.3 if said.year == asked.year else 0.0
    same = said.month == asked.month
    if not same and not (said.month == asked.month % 12 + 1 and said.day <= _SOON_AFTER):
        return 0.0
    if asked.year and said.year != asked.year and not (asked.month == 12 and said.year == asked.year + 1):
        return 0.0
    if asked.day and same and abs(said.day - asked.day) <= _NEAR:
        return 1.6 if said.day >= asked.day else 1.3
    return 1.0


def event_days(text: str, words: Iterable[str], said: date) -> tuple[tuple[int, int], ...]:
    """Return the days that a text of this date, whose words are given, refers to, as intervals of day ordinals."""
    if _EVENT_WORDS.isdisjoint(words):
        return ()
    lowered = text.lower()
    today = said.toordinal()
    found = [(today + first, today + last) for words, first, last in _RELATIVE if words in lowered]
    for name in _WEEKDAY.findall(lowered):
        if name in _DAYS:
            back = (said.weekday() - _DAYS.index(name)) % 7 or 7
            found.append((today - back, today - back))
    for count, unit in _AGO.findall(lowered):
        number = _NUMBERS.get(count) or (int(count) if count.isdecimal() and int(count) < 60 else 0)
        days, slack = _UNITS[unit]
        if number:
            found.append((today - number * days - slack, today - number * days + slack))
    return tuple(found)


def event_match(asked: Asked, events: tuple[tuple[int, int], ...], said: date) -> bool:
    """Return whether a text refers to the date of a question."""
    if asked.month is None or not events:
        return False
    first = date(asked.year or said.year, asked.month, min(asked.day or 1, 28)).toordinal()
    last = first if asked.day else first + 30
    return any(begin <= last and end >= first for begin, end in events)
