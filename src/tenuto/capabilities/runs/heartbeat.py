"""Heartbeats of long steps: `run.heartbeat("page 31 of 80")` inside a step says that it still works.

Key, below the tenant: `(id, "run", "heartbeat")`, one record with a ttl, overwritten in place: for each step in flight
its attempt, when it last reported, and the detail. A process writes it at most once a second, fenced by the run's
lease; so a step learns here that its run was cancelled or taken over. A crash leaves the record; a further attempt of
the step ignores it.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tenuto.capabilities._core.base import commit
from tenuto.capabilities.runs.engine import current_step
from tenuto.errors import InvalidInput, StaleLease, StorageUnavailable
from tenuto.kernel import codec
from tenuto.kernel.contract import Put
from tenuto.kernel.work import Store, Work

if TYPE_CHECKING:
    from tenuto.capabilities.runs.log import RunLog
    from tenuto.capabilities.runs.open_run import OpenRun

PACE: Final = 1.0
"""Seconds between two writes of the record."""
_TTL: Final = 86_400.0
log: Final = logging.getLogger("tenuto.runs")


class Beat(NamedTuple):
    """The last report of a step."""

    attempt: int
    at: float
    detail: Any


class Heartbeats:
    """The heartbeats of an open run."""

    def __init__(self) -> None:
        self._beats: dict[int, Beat] = {}
        self._written: dict[int, float] = {}
        self._lock = threading.Lock()

    def add(self, n: int, beat: Beat) -> dict[int, Beat] | None:
        """Note a heartbeat of a step; return what to store, or None if it was stored less than a second ago."""
        now = time.monotonic()
        with self._lock:
            again = n in self._beats and self._beats[n].attempt == beat.attempt
            if again and now - self._written[n] < PACE:
                return None
            self._beats[n], self._written[n] = beat, now
            return dict(self._beats)

    def end(self, n: int) -> None:
        """Forget the heartbeats of a step that has ended."""
        with self._lock:
            self._beats.pop(n, None)


def beat(run: OpenRun, detail: Any) -> Work[None]:
    """Report that the current step still works; raise if its run was cancelled or taken over."""
    inside = current_step.get()
    if inside is None or inside.run is not run:
        raise InvalidInput(
            "run.heartbeat reports on the current step; nothing was stored. Call it in a step's function."
        )
    stored = codec.unpack(codec.pack(detail))  # what cannot be stored raises here
    beats = run.beats.add(inside.n, Beat(inside.attempt, run.context.kernel.now(), stored))
    if beats is not None:
        yield Store(_publish(run, beats))


def _publish(run: OpenRun, beats: dict[int, Beat]) -> Work[None]:
    record = Put(run.log.heartbeat_key, codec.encode([[n, *one] for n, one in beats.items()]), ttl=_TTL)
    try:
        yield from commit(run.context, [], [record], run.lease, f"The run {run.id!r}")
    except StaleLease as error:
        raise (yield from run.fenced_out(error, (), ())) from error
    except StorageUnavailable as error:  # the step may finish before the store is back
        log.debug("A heartbeat of the run %r was not stored: %s", run.id, error)


def beats_of(own: RunLog) -> dict[int, Beat]:
    """Return the last heartbeat of each step in flight."""
    record = own.context.kernel.read([own.heartbeat_key])[0]
    return {} if record is None else {n: Beat(*rest) for n, *rest in codec.decode(record.value)}
