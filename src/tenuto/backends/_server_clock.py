"""An estimate of a server's time: set by replies, advanced by the monotonic clock in between, never backwards.

The monotonic clock stops while the machine sleeps and the wall clock does not. If the two differ, the server is
asked before a time is returned. If both clocks stopped (a paused virtual machine), nothing shows it; the next
reply then corrects the estimate.

Request ids begin with this time, and a server refuses an id that is over an hour old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tenuto.errors import TenutoError
from tenuto.kernel.clock import Clock, Steady

_GAP: Final = 1.0
"""Difference of monotonic and wall time, in seconds, above which the estimate is discarded."""
_AGE: Final = 60.0
"""Seconds without a reply after which the server is asked again."""
_TRIES: Final = 3

monotonic = time.monotonic
wall = time.time


class Moment(NamedTuple):
    """One moment on both clocks of this machine."""

    steady: float
    wall: float

    def slept_since(self, earlier: Moment) -> bool:
        """Return whether the machine slept, or its wall clock was set, between the two moments."""
        return abs((self.wall - earlier.wall) - (self.steady - earlier.steady)) > _GAP


class _Estimate(NamedTuple):
    offset: float
    """The offset from the monotonic clock to the server's time."""
    at: Moment


def moment() -> Moment:
    """Return the current moment, to pass to `ServerClock.heard` with the reply."""
    return Moment(monotonic(), wall())


class ServerClock:
    """The time of one server. In tests, a `given` clock replaces it, and the server uses that time too."""

    def __init__(self, given: Clock | None = None) -> None:
        self._given = Steady(given) if given is not None else None
        self._estimate: _Estimate | None = None
        self._latest = 0.0

    def start_afresh(self, ask: Callable[[], float]) -> None:
        """Use `ask` to query the server from now on, as a forked child cannot use the parent's connection and lock."""
        self._ask = ask
        self._lock = threading.Lock()

    @property
    def is_set(self) -> bool:
        """Return whether there is an estimate."""
        return self._estimate is not None or self._given is not None

    def given(self) -> float | None:
        """Return the time that the server must use instead of its own; None outside of tests."""
        return None if self._given is None else self._given.now()

    def now(self) -> float:
        """Return the server's time, never less than before; ask the server only if there is no valid estimate."""
        if self._given is not None:
            return self._given.now()
        known, here = self._estimate, moment()
        if known is None or here.slept_since(known.at):
            known = self._measured()
        elif here.steady - known.at.steady > _AGE:
            known = self._refreshed(known, here)
        with self._lock:
            self._latest = max(self._latest, monotonic() + known.offset)
            return self._latest

    def measure(self) -> None:
        """Ask the server for its time now, because the estimate was wrong."""
        if self._given is None:
            self._measured()

    def _measured(self) -> _Estimate:
        for _ in range(_TRIES):
            sent = moment()
            self.heard(self._ask(), sent)
            known = self._estimate
            if known is not None:
                return known
        return _Estimate(wall() - monotonic(), moment())  # slept each time: the next call asks again

    def heard(self, server_time: float, sent: Moment) -> None:
        """Update the estimate from a reply to a request sent at `sent`, by the smallest correction that fits."""
        here = moment()
        if here.slept_since(sent):
            self._estimate = None  # the age of the reply is unknown
            return
        least, most = server_time - here.steady, server_time - sent.steady
        known = self._estimate
        offset = (least + most) / 2 if known is None else min(max(known.offset, least), most)
        self._estimate = _Estimate(offset, here)

    def _refreshed(self, known: _Estimate, here: Moment) -> _Estimate:
        try:
            return self._measured()
        except TenutoError:
            # The server is unreachable. Until the next attempt the estimate is as good as the machine's clock.
            estimate = self._estimate = known._replace(at=here)
            return estimate
