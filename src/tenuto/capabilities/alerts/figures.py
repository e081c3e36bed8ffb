"""Figures: what a store can be asked about itself now, as numbers, for alerts and for `/metrics`.

It owns no keys. Latencies are of probes: each `now` reads an absent key a few times, so they are those that this process
sees, without hooks and without load of its own. Counts of runs and tasks read their heads, one scan each.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from tenuto.capabilities._core.base import Context
from tenuto.capabilities.alerts.growth import growth_per_day
from tenuto.capabilities.tasks import dead_tasks
from tenuto.kernel import keys
from tenuto.kernel.transact import chance

FIGURES: Final[dict[str, str]] = {
    "lookup.p50": "Median time of a lookup of this process, in seconds",
    "lookup.p95": "95th percentile of the time of a lookup, in seconds",
    "lookup.p99": "99th percentile of the time of a lookup, in seconds",
    "storage.bytes": "Size of the store",
    "storage.records": "Records in the store",
    "storage.growth": "Growth of the store per day in the last week, in bytes",
    "runs.running": "Runs that are executed now",
    "runs.waiting": "Runs that wait for a time, a signal or a person",
    "runs.in_doubt": "Runs with a step that may or may not have happened",
    "runs.interrupted": "Runs that no process executes or resumes",
    "runs.failed": "Runs that failed",
    "questions.open": "Questions without an answer",
    "questions.overdue": "Questions past their deadline",
    "questions.age": "Age of the oldest open question, in seconds",
    "tasks.dead": "Tasks that failed at their last attempt",
    "notices.waiting": "Notifications that wait for delivery",
    "notices.dead": "Notifications that were given up",
    "audit.failed": "Findings of the last audit",
}
"""What can be alerted on."""
ABOUT: Final = "alert"
"""The subject of an alert's question. Alerts do not count it: one on open questions would never end."""
_PROBES: Final = 5
_WINDOW: Final = 300
_PROBE: Final = keys.pack("probe")
_STATUSES: Final = ("running", "waiting", "in_doubt", "interrupted", "failed")


class Figures:
    """The figures of one client's tenant."""

    def __init__(self, context: Context, runs: Any, inbox: Any, notify: Any, audits: Any) -> None:
        self._context = context
        self._runs, self._inbox, self._notify, self._audits = runs, inbox, notify, audits
        self._took: deque[float] = deque(maxlen=_WINDOW)

    def now(self, wanted: Iterable[str] = FIGURES) -> dict[str, float]:
        """Return figures by name; the store is asked only for what is wanted."""
        first = {name.partition(".")[0] for name in wanted}
        parts: dict[str, Callable[[], dict[str, float]]] = {
            "lookup": self._lookups,
            "storage": self._storage,
            "runs": self._of_runs,
            "questions": self._questions,
            "tasks": lambda: {"tasks.dead": float(len(dead_tasks(self._context.kernel)))},
            "notices": self._notices,
            "audit": self._audit,
        }
        found: dict[str, float] = {}
        for name in sorted(first & set(parts)):
            found.update(parts[name]())
        return found

    def _lookups(self) -> dict[str, float]:
        for _ in range(_PROBES):
            key = _PROBE + keys.pack(chance.getrandbits(32))
            began = time.perf_counter()
            self._context.kernel.read([key])
            self._took.append(time.perf_counter() - began)
        ordered = sorted(self._took)
        last = len(ordered) - 1
        shares = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
        return {f"lookup.{name}": ordered[min(int(len(ordered) * share), last)] for name, share in shares}

    def _storage(self) -> dict[str, float]:
        stats = self._context.kernel.stats()
        found = {"storage.records": float(stats["records"])} if "records" in stats else {}
        if "bytes" in stats:
            found["storage.bytes"] = float(stats["bytes"]) + float(stats.get("wal_bytes", 0))
        growth = growth_per_day(self._context)
        return found if growth is None else {**found, "storage.growth": growth}

    def _of_runs(self) -> dict[str, float]:
        counted = Counter(one.status for one in self._runs.list(limit=100_000))
        return {f"runs.{status}": float(counted[status]) for status in _STATUSES}

    def _questions(self) -> dict[str, float]:
        now = self._context.kernel.now()
        found = [one for one in self._inbox.list(limit=10_000) if ABOUT not in one.about]
        late = [one for one in found if one.deadline is not None and one.deadline.timestamp() < now]
        age = max((now - one.asked_at.timestamp() for one in found), default=0.0)
        return {
            "questions.open": float(len(found)),
            "questions.overdue": float(len(late)),
            "questions.age": max(age, 0.0),
        }

    def _notices(self) -> dict[str, float]:
        return {"notices.waiting": float(len(self._notify.outbox())), "notices.dead": float(len(self._notify.dead()))}

    def _audit(self) -> dict[str, float]:
        last = self._audits.last()
        return {} if last is None else {"audit.failed": float(last.counts.get("failed", 0))}
