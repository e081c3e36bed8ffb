"""Live values of a run: `run.emit(value, durable=False)`, for the tokens of a model before its whole text is emitted.

Key, below the tenant: `(id, "run", "live")`, a record with a ttl, overwritten in place: the live values since the last
durable one of their step, numbered by the process that emits them. A process writes it at most every 0.1 s, fenced by
the run's lease. A durable emit removes the values of its step in its own commit, and resuming a run removes all, so no
reader gets a live value after the durable one that replaces it. Live values are lost in a crash, and at the end of a step without a durable emit.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tenuto.capabilities.runs.engine import current_step
from tenuto.errors import Conflict, StorageUnavailable
from tenuto.kernel import codec
from tenuto.kernel.contract import Delete, Put, Write
from tenuto.kernel.work import Store, Work

if TYPE_CHECKING:
    from tenuto.capabilities.runs.log import RunLog
    from tenuto.capabilities.runs.open_run import OpenRun

TTL: Final = 60.0
PACE: Final = 0.1
"""Seconds between two writes of the record."""
_MOST: Final = 256 * 1024
"""Bytes of the record; beyond, the oldest values are dropped."""
log: Final = logging.getLogger("tenuto.runs")


class Piece(NamedTuple):
    """A live value."""

    number: int
    step: int
    """The number of the step that emits it; 0 outside steps."""
    attempt: int
    value: Any


class LiveValues:
    """The live values of an open run."""

    def __init__(self, log: RunLog) -> None:
        self._key = log.live_key
        self._process = secrets.token_bytes(8)
        self._pieces: list[Piece] = []
        self._next = 1
        self._written = -PACE
        self._lock = threading.Lock()

    def add(self, step: int, attempt: int, value: Any) -> Write | None:
        """Add a value; return the write that publishes it, or None if the next one will."""
        stored = codec.unpack(codec.pack(value))  # what cannot be stored raises here
        with self._lock:
            return self._added(step, attempt, stored)

    def replaced(self, step: int) -> list[Write]:
        """Return the writes that remove the values of a step, for the commit of the durable value."""
        with self._lock:
            return self._without(step)

    def _added(self, step: int, attempt: int, stored: Any) -> Write | None:
        kept = [one for one in self._pieces if one.step != step or one.attempt == attempt]
        self._pieces = [*kept, Piece(self._next, step, attempt, stored)]
        self._next += 1
        now = time.monotonic()
        if now - self._written < PACE:
            return None
        self._written = now
        return self._put()

    def _without(self, step: int) -> list[Write]:
        left = [one for one in self._pieces if one.step != step]
        if len(left) == len(self._pieces):
            return []
        self._pieces = left
        return [self._put() if left else Delete(self._key)]

    def _put(self) -> Write:
        while True:
            data = codec.encode([self._process, [list(one) for one in self._pieces]])
            if len(data) <= _MOST or len(self._pieces) == 1:
                return Put(self._key, data, ttl=TTL)
            del self._pieces[: len(self._pieces) // 2]


def emit_live(run: OpenRun, value: Any) -> Work[None]:
    """Publish a live value to watchers if the store can take it now; a replay publishes nothing."""
    inside = current_step.get()
    if inside is not None and inside.run is run:
        write = run.live.add(inside.n, inside.attempt, value)
    else:
        run.must_go_on("run.emit")
        if run.over or run.past.has_next:
            return
        write = run.live.add(0, 0, value)
    if write is not None:
        yield Store(lambda: _publish(run, write))


def _publish(run: OpenRun, write: Write) -> None:
    try:
        run.context.kernel.commit([run.lease.check], [write])
    except (Conflict, StorageUnavailable) as error:  # the step's own record will find out whether the run is lost
        log.debug("A live value of the run %r was not published: %s", run.id, error)


class LiveReader:
    """What one watcher has read of a run's live values."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._process = b""
        self._seen = 0

    def read(self, number: int) -> list[Piece] | None:
        """Return the values that are new to this watcher and come after the log's line `number`; None if there are none at all."""
        kernel = self._log.context.kernel
        record = kernel.read([self._log.live_key])[0]
        if record is None:
            return None
        process, pieces = codec.decode(record.value)
        if process != self._process:
            self._process, self._seen = process, 0
        found = [Piece._make(one) for one in pieces if one[0] > self._seen]
        if not found or kernel.entries(self._log.own, after=number, limit=1):
            return []  # nothing new, or a line was committed meanwhile and comes first
        self._seen = found[-1].number
        return found
