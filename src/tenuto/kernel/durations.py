"""Durations: seconds, a timedelta, or text such as "24h"."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from tenuto.errors import InvalidInput

Duration: TypeAlias = float | timedelta | str

_LONGEST = 1_000 * 365.25 * 86_400
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_word = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d|w)")


def seconds(value: Duration, what: str = "duration") -> float:
    """Return a duration in seconds, or raise `InvalidInput` with the accepted forms."""
    if isinstance(value, timedelta):
        length = value.total_seconds()
    elif isinstance(value, str):
        length, at = 0.0, 0
        while found := _word.match(value, at):
            length += float(found[1]) * _UNITS[found[2]]
            at = found.end()
        if at == 0 or value[at:].strip():
            raise InvalidInput(f'A {what} must be seconds, a timedelta or text like "90s" or "1h 30m", not {value!r}.')
    elif isinstance(value, int | float) and not isinstance(value, bool):
        length = float(value)
    else:
        raise InvalidInput(f'A {what} must be seconds, a timedelta or text like "24h", not {type(value).__name__}.')
    if not math.isfinite(length) or length < 0:
        raise InvalidInput(f"A {what} must be finite and 0 or more, not {value!r}.")
    if length > _LONGEST:
        raise InvalidInput(f"A {what} may have up to 1,000 years, not {value!r}.")
    return length


def patience(wait: Duration | None) -> float:
    """Return the seconds that `wait=` allows: None does not wait, `math.inf` waits for ever."""
    return 0.0 if wait is None else math.inf if wait == math.inf else seconds(wait, "wait")


def ttl(value: Duration | None) -> float | None:
    """Return a time to live in seconds, or None for no expiry."""
    if value is None:
        return None
    length = seconds(value, "ttl")
    if length == 0:
        raise InvalidInput("A ttl must be greater than 0. Leave it out for a value without expiry.")
    return length


def moment(at: float) -> datetime:
    """Convert seconds since 1970 to an aware UTC datetime."""
    return datetime.fromtimestamp(at, UTC)
