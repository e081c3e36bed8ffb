"""The history of a run: each line of its log, with who wrote it and with which correlation id. It only reads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities.runs.log import (
    AGAIN,
    CANCELLED,
    COMPLETED,
    DOUBT,
    EMITTED,
    ERROR,
    FAILED,
    HALTED,
    INTENT,
    QUEUED,
    RESULT,
    RESUMED,
    SIGNALLED,
    STARTED,
    WAITS,
    RunLog,
    identity_of,
)
from tenuto.kernel import codec
from tenuto.kernel.contract import Entry
from tenuto.kernel.durations import moment

_WORDS: Final = {
    STARTED: "started", RESUMED: "resumed", INTENT: "intent", AGAIN: "attempt", RESULT: "result", ERROR: "error",
    DOUBT: "in doubt", HALTED: "halted", WAITS: "waits", EMITTED: "emitted", SIGNALLED: "signalled",
    COMPLETED: "completed", FAILED: "failed", CANCELLED: "cancelled", QUEUED: "queued",
}  # fmt: skip
_IDENTIFIED: Final = frozenset({RESULT, ERROR, AGAIN, WAITS})
"""The kinds of lines whose data begins with the identity of the step, if it is the step's first line."""


class RunEvent(NamedTuple):
    """One line of a run's log."""

    number: int
    """Pass it as `after` to continue."""
    what: str
    """started, resumed, queued, intent, attempt, result, error, in doubt, halted, waits, emitted, signalled, completed, …"""
    step: str | None
    """The name of its step; None if the line is about the run, or the step began before the first line read."""
    step_number: int
    """The number of its step in the run; 0 if it is about the run."""
    at: datetime
    writer: str
    correlation_id: str | None


class Reader:
    """Reads lines in order; it remembers the names of steps, which only their first line has."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}

    def event(self, entry: Entry) -> Iterator[RunEvent]:
        """Yield the event of a line; nothing if its content was forgotten."""
        if entry.forgotten:
            return
        writer, correlation, kind, n, data, *_ = codec.decode(entry.value)
        name = _name_in(kind, data)
        if name is not None:
            self._names[n] = name
        what = _WORDS.get(kind, f"kind {kind}")  # written by a newer version
        yield RunEvent(entry.number, what, self._names.get(n), n, moment(entry.written_at), writer, correlation)


def events(log: RunLog, first: int, after: int) -> list[RunEvent]:
    """Return the events of a run's log from its first line, without those up to number `after`."""
    reader = Reader()
    return [event for entry in log.entries(first) for event in reader.event(entry) if event.number > after]


def _name_in(kind: int, data: Any) -> str | None:
    stored = data if kind == INTENT else data[0] if kind in _IDENTIFIED and data else None
    return identity_of(stored).name if stored else None
