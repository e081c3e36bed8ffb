"""An event for one waiting thread that is safe against Control-C.

`threading.Event` is written in Python: Control-C between two of its lines can leave its lock held, and the next
caller blocks for ever. This class is a single lock, acquired and released by single C calls.
"""

from __future__ import annotations

import threading


class Wake:
    """An event that wakes one thread from `wait`, now or at its next call, and is then cleared."""

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def set(self) -> None:
        """Wake the waiting thread, or the next one to wait. Setting it twice is the same as once."""
        try:  # noqa: SIM105 - contextlib.suppress is written in Python too
            self._asleep.release()
        except RuntimeError:  # already set
            pass

    def wait(self, seconds: float = -1) -> bool:
        """Block until the event is set, for at most `seconds`; return whether it was set."""
        return self._asleep.acquire(timeout=min(seconds, threading.TIMEOUT_MAX) if seconds >= 0 else -1)
