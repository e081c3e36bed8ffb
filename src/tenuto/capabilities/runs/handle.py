"""A run from outside: its id, and its result once it has one.

It reads the run's head and log and writes nothing. While the run is not over it waits for new lines of the log, woken by
the store's notifications where there are any.
"""

from __future__ import annotations

import time
from typing import Any, Generic, TypeVar

from tenuto.capabilities._core.base import Timed
from tenuto.capabilities.runs.engine import Engine
from tenuto.capabilities.runs.log import LOWERED, RunLog
from tenuto.capabilities.runs.results import Schema, from_stored
from tenuto.errors import RunFailed, TimedOut
from tenuto.kernel.bell import Bell
from tenuto.kernel.durations import Duration, patience
from tenuto.kernel.work import Sleep, Work, on_store

R = TypeVar("R")
_FIRST, _OFTEN, _RARELY = 0.005, 0.05, 1.0


class RunHandle(Timed, Generic[R]):
    """A run that was started for a worker. It is true if this call created the run, false if the run existed."""

    def __init__(self, engine: Engine, run_id: str, schema: Schema, *, created: bool) -> None:
        self._context = engine.context
        self._schema = schema
        self.id = run_id
        self.created = created
        """Whether this call created the run."""

    @on_store
    def result(self, wait: Duration | None = None) -> Work[R]:
        """Return the run's result, waiting up to `wait` for it; see `Runs.result`."""
        return (yield from run_result(RunLog(self._context, self.id), wait, self._schema))  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        """Return whether this call created the run."""
        return self.created

    def __repr__(self) -> str:
        """Name the run."""
        return f"<run {self.id!r}, {'created' if self.created else 'existing'}>"


def run_result(log: RunLog, wait: Duration | None, schema: Schema) -> Work[Any]:
    """Return the result of a run; raise `RunFailed` if it failed or was cancelled, `TimedOut` if it is not over."""
    left, delay = patience(wait), _FIRST  # counts the time slept: a clock set back would never end the wait
    bell: Bell | None = None
    try:
        while True:
            if bell is not None:
                bell.hush()
            head, _ = log.must()
            if head.status in ("completed", "failed", "cancelled"):
                return _outcome(log, head.status, head.first, schema)
            if left <= 0:
                raise TimedOut(
                    f"The run {log.id!r} is {head.status} and has no result yet. Wait for it with wait=, or see "
                    f"agent.runs.get({log.id!r})."
                )
            if bell is None and delay >= _OFTEN:
                bell = log.context.kernel.bell(log.own)
            pause = Sleep(min(_RARELY if bell is not None and bell.live else delay, left), bell)
            begun = time.monotonic()
            yield pause
            early = bell is not None and bell.rung
            left -= min(pause.seconds, time.monotonic() - begun) if early else pause.seconds
            delay = min(delay * 1.5, _OFTEN)
    finally:
        if bell is not None:
            bell.close()


def _outcome(log: RunLog, status: str, first: int, schema: Schema) -> Any:
    history = log.read(first)
    log.must()  # a deletion removes lines: what was read then is not the whole log
    if status == "completed":
        return from_stored(log.whole(history.form, history.value, history.raw, 1), bool(history.form & LOWERED), schema)
    error = {"type": "Cancelled", "message": "it was cancelled"} if status == "cancelled" else history.error or {}
    name, said = error.get("type", ""), error.get("message", "")
    raise RunFailed(
        f"The run {log.id!r} is {status} ({name}: {said:.500}); its finished steps are recorded. To continue it, call "
        f"agent.runs.retry({log.id!r}).",
        name,
        said,
    )
