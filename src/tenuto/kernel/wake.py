"""Sleeping until another thread says that there is something to do.

What the standard library has for it is written in Python: Control-C between two of its lines leaves a lock held, and
whoever comes next waits for ever. This is one lock and nothing else, taken and given back by single calls.
"""

from __future__ import annotations

import threading


class Wake:
    """Wakes one thread, which sleeps in `wait`; said while nobody sleeps, it is heard by who comes next, once."""

    def __init__(self) -> None:
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def set(self) -> None:
        """Wake the one who sleeps, or who comes next. Saying it again changes nothing."""
        try:  # noqa: SIM105 - what that suggests is written in Python too
            self._asleep.release()
        except RuntimeError:  # said already, and not heard yet
            pass

    def wait(self, seconds: float = -1) -> bool:
        """Sleep until it is said, and no longer than so many seconds; tell whether it was."""
        return self._asleep.acquire(timeout=min(seconds, threading.TIMEOUT_MAX) if seconds >= 0 else -1)
