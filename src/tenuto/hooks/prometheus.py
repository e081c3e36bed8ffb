"""A hook that counts for Prometheus. It needs the extra: pip install "tenuto[prometheus]".

Names begin with `tenuto_`. Labels have few values: verbs, outcomes, statuses; never a key, an id or a name of a user.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tenuto.errors import MissingDriver
from tenuto.hooks.events import Call, Event, MemoryUsed, RunLeft, RunOpened, SignFound, StepEnded

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, Metric, generate_latest
    from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
except ImportError as error:
    raise MissingDriver(
        'hooks.Prometheus needs prometheus-client. Install it with: pip install "tenuto[prometheus]"'
    ) from error

_BUCKETS: Final = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
_VERBS: Final = ("read", "scan", "entries", "commit")
_LONG: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1_800.0)
_BROKEN: Final = ("Damaged", "StaleLease", "RequestReused", "RequestExpired")
_made: dict[int, tuple[CollectorRegistry, dict[str, Any]]] = {}
_making: Final = threading.Lock()


class Prometheus:
    """Count storage calls, runs, steps and signs of lost context: `Tenuto("agent", hooks=[Prometheus()])`.

    The metrics are in `registry`, by default the one of prometheus-client, which its `start_http_server` serves. Several
    hooks of one registry share their metrics.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or REGISTRY
        with _making:
            _, metrics = _made.setdefault(id(self.registry), (self.registry, {}))
            if not metrics:
                metrics.update(_metrics(self.registry))
        self._calls: _Calls = metrics["calls"]
        self._all = metrics

    def __call__(self, event: Event) -> None:
        """Count one event."""
        if type(event) is Call:
            self._called(event)
        elif type(event) is StepEnded:
            self._all["steps"].labels(event.outcome).inc()
            self._all["step"].observe(event.seconds)
            self._all["again"].inc(max(event.attempts - 1, 0))
        elif type(event) is RunOpened:
            self._all["opened"].labels("resumed" if event.resumed else "started").inc()
            if event.taken_over:
                self._all["takeovers"].inc()
        elif type(event) is RunLeft:
            self._all["left"].labels(event.status).inc()
            self._all["reused"].inc(event.reused)
        elif type(event) is MemoryUsed:
            self._all["memory"].labels(event.operation).observe(event.seconds)
        elif type(event) is SignFound:
            self._all["signs"].labels(event.kind).inc()

    def _called(self, call: Call) -> None:
        if call.error is None:
            self._calls.add(call.verb, "ok", call.seconds, call.size)
            if call.repeated:
                self._all["retries"].inc()
            return
        conflict = "Conflict" in call.error
        outcome = "conflict" if conflict else "unavailable" if call.error.startswith("Storage") else "error"
        self._calls.add(call.verb, outcome, None, 0)
        if conflict:
            self._all["conflicts"].inc()
        if call.error in _BROKEN:
            self._all["broken"].labels(call.error).inc()

    def text(self) -> str:
        """Return all metrics of the registry in Prometheus' text format."""
        return generate_latest(self.registry).decode()


class _Calls:
    """The figures of storage calls, kept in plain lists: a lookup takes microseconds, and six metrics would take ten more."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, str], int] = dict.fromkeys(((verb, "ok") for verb in _VERBS), 0)
        self._bytes = dict.fromkeys(_VERBS, 0)
        self._seconds = dict.fromkeys(_VERBS, 0.0)
        self._buckets = {verb: [0] * (len(_BUCKETS) + 1) for verb in _VERBS}
        registry.register(self)

    def add(self, verb: str, outcome: str, seconds: float | None, size: int) -> None:
        """Count a call; a failed one has no time."""
        key = (verb, outcome)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + 1
            if seconds is not None and verb in self._bytes:
                self._bytes[verb] += size
                self._seconds[verb] += seconds
                self._buckets[verb][bisect_left(_BUCKETS, seconds)] += 1

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics, so that a registry knows their names."""
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics as of now."""
        with self._lock:
            counts, sizes, seconds = dict(self._counts), dict(self._bytes), dict(self._seconds)
            buckets = _copied(self._buckets)
        calls = CounterMetricFamily("tenuto_calls", "Storage calls by outcome", labels=["verb", "outcome"])
        for key, count in counts.items():
            calls.add_metric(key, count)
        read = CounterMetricFamily("tenuto_bytes", "Bytes of values read and written", labels=["verb"])
        for verb, size in sizes.items():
            read.add_metric([verb], size)
        lookups = HistogramMetricFamily("tenuto_lookup_seconds", "Time of a lookup", labels=["verb"])
        commits = HistogramMetricFamily("tenuto_commit_seconds", "Time of a commit")
        for verb, found in buckets.items():
            sums = [(_bound(at), float(sum(found[: at + 1]))) for at in range(len(found))]
            if verb == "commit":
                commits.add_metric([], sums, seconds[verb])
            else:
                lookups.add_metric([verb], sums, seconds[verb])
        yield from (calls, read, lookups, commits)


def _bound(at: int) -> str:
    return repr(_BUCKETS[at]) if at < len(_BUCKETS) else "+Inf"


def _metrics(registry: CollectorRegistry) -> dict[str, Any]:
    def counter(name: str, about: str, *labels: str) -> Counter:
        return Counter(f"tenuto_{name}", about, labels, registry=registry)

    return {
        "calls": _Calls(registry),
        "conflicts": counter("conflicts", "Commits refused because another writer was first"),
        "broken": counter("consistency_errors", "Damaged records, stale leases and misused request ids", "error"),
        "retries": counter("repeated_commits", "Commits that were already applied under their request id"),
        "opened": counter("runs_opened", "Runs started and resumed", "how"),
        "takeovers": counter("lease_takeovers", "Runs taken over from a process that did not end them"),
        "left": counter("runs_left", "Runs left, by status", "status"),
        "reused": counter("steps_reused", "Recorded steps that resumed runs did not repeat"),
        "steps": counter("steps", "Steps executed, by outcome", "outcome"),
        "again": counter("step_retries", "Attempts of steps beyond their first"),
        "step": Histogram("tenuto_step_seconds", "Time of a step", registry=registry, buckets=_LONG),
        "memory": Histogram(
            "tenuto_memory_seconds",
            "Time of an operation on memories",
            ["operation"],
            registry=registry,
            buckets=_BUCKETS,
        ),
        "signs": counter("signs", "Signs of lost context, found by a guard", "kind"),
    }


def _copied(buckets: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    return {verb: list(found) for verb, found in buckets.items()}
