"""Load: many agents take turns on a scratch store, without agent logic, and every operation is timed.

A turn is what an agent's storage does for one message: look up its state and the end of its conversation, append the answer,
and now and then change a value that all agents share, which is where conflicts come from. Agents are threads of a few child
processes, as replicas are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tenuto.audit.bench import latencies
from tenuto.audit.replicas import Gone, Refused, replicas
from tenuto.audit.scratch import scratch
from tenuto.errors import TenutoError

_NEWS = 0.2


class Measured(NamedTuple):
    """The times of one kind of operation, in milliseconds."""

    operation: str
    times: int
    per_second: float
    p50: float
    p95: float
    p99: float
    max: float


class Second(NamedTuple):
    """One second of a load test."""

    at: int
    operations: int
    p95: float
    """Of lookups, in milliseconds."""


class LoadReport(NamedTuple):
    """The outcome of a load test."""

    agents: int
    processes: int
    seconds: float
    operations: int
    per_second: float
    conflicts: int
    """Commits refused because another agent was first, and then retried."""
    errors: int
    first_error: str | None
    measured: list[Measured]
    timeline: list[Second]


Progress = Callable[[float, int, float], None]


def load(
    url: str,
    *,
    tenant: str = "default",
    agents: int = 100,
    seconds: float = 60.0,
    pause: float = 0.2,
    processes: int = 2,
    progress: Progress = lambda _done, _operations, _p95: None,
) -> LoadReport:
    """Let agents take turns on a scratch store next to a store; return what was measured.

    `pause` is the time between two turns of an agent. `progress` is called with the part done, operations so far, and the
    p95 of lookups in the last second, in milliseconds.
    """
    processes = min(processes, agents)
    shares = [agents // processes + (one < agents % processes) for one in range(processes)]
    collected = _Collected()
    with scratch(url, tenant) as target, replicas(target, processes) as drivers:
        began = time.monotonic()
        for number, (driver, share) in enumerate(zip(drivers, shares, strict=True)):
            driver.begin("drive", number, share, seconds, pause)
        waiting = set(range(processes))
        while waiting:
            if time.monotonic() - began > seconds + 60:
                raise TenutoError("The load test did not end: its processes no longer answer.")
            for number in list(waiting):
                found = drivers[number].news(_NEWS)
                if found is None:
                    continue
                is_fine, news = found
                if not is_fine:
                    raise Refused(*news[:2], conflict=news[2])
                if news is None:
                    waiting.discard(number)
                else:
                    collected.add(news)
            spent = time.monotonic() - began
            progress(min(spent / seconds, 1.0), collected.count, collected.last)
        return collected.report(agents, processes, time.monotonic() - began, seconds)


class _Collected:
    """What the replicas have reported."""

    def __init__(self) -> None:
        self._took: dict[str, list[float]] = {}
        self._seconds: dict[int, tuple[int, list[float]]] = {}
        self.count = self.conflicts = 0
        self.errors: list[str] = []
        self.last = 0.0

    def add(self, news: dict[str, Any]) -> None:
        """Add one second of one replica."""
        lookups: list[float] = news["took"].get("state lookup", [])
        for operation, took in news["took"].items():
            self._took.setdefault(operation, []).extend(took)
            self.count += len(took)
        self.conflicts += news["conflicts"]
        self.errors += news["errors"]
        count, before = self._seconds.get(news["second"], (0, []))
        both = before + lookups
        self._seconds[news["second"]] = (count + sum(map(len, news["took"].values())), both)
        self.last = latencies(both)["p95"]

    def report(self, agents: int, processes: int, seconds: float, asked: float) -> LoadReport:
        """Return the report of a test that took `seconds`, of which the agents worked `asked`."""
        measured = [
            Measured(name, len(took), round(len(took) / seconds, 1), **latencies(took))
            for name, took in sorted(self._took.items())
        ]
        whole = sorted(self._seconds.items())[
            : max(1, int(asked))
        ]  # what comes after the last whole second is a part of one
        timeline = [Second(at, count, latencies(took)["p95"]) for at, (count, took) in whole]
        first = self.errors[0] if self.errors else None
        rate = round(self.count / seconds, 1)
        return LoadReport(
            agents,
            processes,
            round(seconds, 1),
            self.count,
            rate,
            self.conflicts,
            len(self.errors),
            first,
            measured,
            timeline,
        )


__all__ = ["Gone", "LoadReport", "Measured", "Second", "load"]
