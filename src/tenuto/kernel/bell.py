"""Bells: what saves a watcher most of its polls, and on which nothing else rests.

A watcher asks the store whether a stream has grown, and waits in between. A store that can tell gives it a
`live` bell, and it asks rarely; a bell that is not live, or falls silent, only means that it asks more often.
So a bell may ring without reason, late or not at all: whoever hears it looks for himself.

The order that loses nothing: `hush`, look, and if there was nothing `wait`. What is added after the look rings
after the `hush`, and a bell that has rung since then is not waited for. There are no locks, so that a process
may fork at any moment, and `ring` may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tenuto.kernel.clock import Clock, SystemClock
from tenuto.kernel.wake import Wake


class Bell:
    """One watcher's bell for one stream. As it is, without a store that rings it, it stays silent."""

    live = False
    """True while the store means to ring it soon after entries were added."""

    def __init__(self, let_go: Callable[[Bell], None] | None = None) -> None:
        self.rung = False
        self._heard: Callable[[], None] | None = None
        self._let_go = let_go

    def ring(self) -> None:
        """Wake whoever waits, now or next."""
        self.rung = True
        heard = self._heard
        if heard is not None:
            heard()

    def hush(self) -> None:
        """Forget that it has rung, before looking."""
        self.rung = False

    def tell(self, heard: Callable[[], None] | None) -> None:
        """Call `heard` when it rings, perhaps more than once, and at once if it has rung; None ends this."""
        self._heard = heard
        if heard is not None and self.rung:
            heard()

    def wait(self, seconds: float) -> None:
        """Wait in this thread until it rings, and no longer than so many seconds."""
        heard = Wake()
        self.tell(heard.set)
        heard.wait(max(0.0, seconds))
        self.tell(None)

    def close(self) -> None:
        """Let go of it. Calling it again does nothing."""
        self.live = False
        let_go, self._let_go = self._let_go, None
        if let_go is not None:
            let_go(self)


class Pause(NamedTuple):
    """How long to wait before looking again, and the bell that may end it early."""

    seconds: float
    bell: Bell | None = None

    def sleep(self, clock: Clock) -> None:
        """Let it pass in this thread. A test's clock is slept by, and no bell heard."""
        if self.bell is None or not isinstance(clock, SystemClock):
            clock.sleep(self.seconds)
        else:
            self.bell.wait(self.seconds)
