"""A clock that stands still until it is moved."""

from __future__ import annotations

import threading


class HeldClock:
    """A clock in the test's hand: time passes when the test says so, or when somebody sleeps by it.

    Give it as `Tenuto(clock=…)`. Sleeping takes no real time: it moves the clock.
    """

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self._now = start
        self._lock = threading.Lock()

    def time(self) -> float:
        """Return the time at which the clock stands."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let so much time pass at once."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move the clock; a negative number sets it back, as a machine's clock can be."""
        with self._lock:
            self._now += seconds
