"""Recurring runs: schedules whose times are runs of a durable function.

Keys, below the tenant: `("runs", "schedule", function, name)`. The workers that know the function fire them
(`_core/schedules.py`); the queued run of a time is written in the commit that advances the schedule. Its id is
`function/name@time`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any, Final

from tenuto.capabilities._core import schedules
from tenuto.capabilities._core.base import scan_all
from tenuto.capabilities._core.schedules import Firing, ScheduleInfo
from tenuto.capabilities.runs.engine import Engine, Given, queued
from tenuto.capabilities.runs.log import RunLog
from tenuto.capabilities.runs.open_run import OpenRun
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Check, CheckEnd, Record, Write
from tenuto.kernel.durations import moment
from tenuto.kernel.work import Work

_SCHEDULES: Final = keys.pack("runs", "schedule")
_OFTEN: Final = 0.1


def prefix(function: str) -> bytes:
    """Return the key prefix of a function's schedules."""
    return _SCHEDULES + keys.named(function, "function's name")


def all_recurring(engine: Engine) -> list[ScheduleInfo]:
    """Return all schedules, by function and name."""
    found: dict[str, None] = dict.fromkeys(_function(one) for one in scan_all(engine.context.kernel, _SCHEDULES))
    return [info for function in found for info in schedules.listed(engine.context, prefix(function), function)]


class Firings:
    """Fires the schedules of a worker's functions, at most every 0.1 s."""

    def __init__(self, engine: Engine, functions: Collection[str]) -> None:
        self._engine = engine
        self._functions = functions
        self._after = 0.0
        self.next = math.inf
        """When the next schedule is due."""

    def fire(self, now: float) -> Work[None]:
        """Queue the runs that are due durably, once per time."""
        if now < self._after:
            return
        self._after = now + _OFTEN
        yield from schedules.fire(self._engine.context, self._ours(), self._started)

    def _ours(self) -> Iterator[Record]:
        self.next = math.inf
        for record in scan_all(self._engine.context.kernel, _SCHEDULES):
            if _function(record) in self._functions:
                self.next = min(self.next, schedules.next_of(record))
                yield record

    def _started(self, firing: Firing) -> tuple[list[AnyCheck], list[Write]]:
        function, schedule = str(keys.unpack(firing.key)[-2]), firing.schedule
        self.next = min(self.next, schedule.next)
        given: dict[str, Any] = schedule.payload
        checks: list[AnyCheck] = []
        writes: list[Write] = []
        for at in firing.times:
            run_id = f"{function}/{firing.name}@{moment(at):%Y-%m-%dT%H:%M:%SZ}"
            log = RunLog(self._engine.context, run_id)
            head, version = log.head()
            if head is not None:  # fired by a deleted schedule of this name
                continue
            call = Given(function, given["args"], given["kwargs"])
            running = OpenRun(self._engine, run_id, user=schedule.user, given=call)
            last = log.last()
            checks += [Check(log.head_key, version), CheckEnd(log.own, last)]
            writes += queued(running, log, call, firing.now, last, schedule.priority, given["deadline"])
        return checks, writes


def _function(record: Record) -> str:
    return str(keys.unpack(record.key)[-2])
