"""A manual clock for tests."""

from __future__ import annotations

import threading


class HeldClock:
    """A clock that moves only when the test advances it, or when code sleeps by it.

    Pass it as `Tenuto(clock=…)`. Sleeping takes no real time: it advances the clock.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start
        self._lock = threading.Lock()

    def time(self) -> float:
        """Return the current time of this clock."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Advance the clock immediately."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the clock; a negative number sets it back."""
        with self._lock:
            self._now += seconds
