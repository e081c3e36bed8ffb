"""Time and chance, both of which a test can hold."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Where a client's time comes from. `tenuto.testing.HeldClock` is one that a test moves."""

    def time(self) -> float:
        """Return seconds since 1970. It may jump; a backend makes it steady."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass."""
        ...


class SystemClock:
    """The machine's clock."""

    time = staticmethod(time.time)

    def sleep(self, seconds: float) -> None:
        """Wait in this thread."""
        time.sleep(seconds)


class Steady:
    """A clock's time that never goes backwards: it stands still until a clock set back catches up."""

    def __init__(self, clock: Clock) -> None:
        self._time = clock.time
        self._last = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        """Return the time, never less than what was returned before."""
        now = self._time()
        if now >= self._last:
            # Two threads may store out of order by the time one read takes; the lock below is only
            # for the rare clock that went back, where the larger of the two must stay.
            self._last = now
            return now
        with self._lock:
            self._last = max(self._last, now)
            return self._last
