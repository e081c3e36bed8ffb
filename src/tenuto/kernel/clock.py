"""Clocks, which a test can replace and control."""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

_log = logging.getLogger("tenuto.clock")


class Clock(Protocol):
    """The source of a client's time. In tests, use `tenuto.testing.HeldClock`."""

    def time(self) -> float:
        """Return seconds since 1970. The value may jump; backends correct it with `Steady`."""
        ...

    def sleep(self, seconds: float) -> None:
        """Sleep for this many seconds."""
        ...


class SystemClock:
    """The machine's clock."""

    time = staticmethod(time.time)

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        time.sleep(seconds)


MOST_BEHIND: Final = 10.0
"""A clock set back by at most this many seconds is waited for; one set back further is followed."""


class Steady:
    """A clock's time, which goes backwards only if the clock was set back by more than `MOST_BEHIND`.

    After a small correction the time stands still until the clock has caught up. After a large one it follows the clock
    at once, with a warning; otherwise no ttl would expire and no sleep would end until then. So never order events by
    time: versions, fencing tokens and entry numbers give the order. A backend never writes an entry with an earlier
    time than the entry before it.
    """

    def __init__(self, clock: Clock) -> None:
        self._time = clock.time
        self._last = 0.0

    def now(self) -> float:
        """Return the time, never less than before unless the clock was set back by more than `MOST_BEHIND`."""
        # No lock: two threads can store out of order only by the duration of one clock reading.
        now = self._time()
        behind = self._last - now
        if behind > 0:
            if behind <= MOST_BEHIND:
                return self._last
            _log.warning(
                "The clock was set back by %.0f s. Records written before that with a ttl expire later by as much. "
                "Versions, fencing tokens and the order of entries are not affected.",
                behind,
            )
        self._last = now
        return now
