"""A hook that counts: storage calls, their errors and seconds, and signs of lost context. Needs no package."""

from __future__ import annotations

import threading
from collections import Counter

from tenuto.hooks.events import Call, Event, SignFound


class Metrics:
    """Counters of one process: `metrics = Metrics(); Tenuto(hooks=[metrics])`; `metrics.text()` is in Prometheus' format."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._signs: Counter[str] = Counter()

    def __call__(self, event: Event) -> None:
        """Count one event."""
        with self._lock:
            if isinstance(event, Call):
                self._calls[event.verb] += 1
                self._errors[event.verb] += event.error is not None
                self._seconds[event.verb] += event.seconds  # type: ignore[assignment] # a float counts, too
            elif isinstance(event, SignFound):
                self._signs[event.kind] += 1

    @property
    def signs(self) -> dict[str, int]:
        """Return how many signs of lost context were found, by kind."""
        return dict(self._signs)

    def text(self) -> str:
        """Return all counters in the text format that Prometheus reads."""
        lines = []
        for name, label, about, found in (
            ("tenuto_calls_total", "verb", "Storage calls", self._calls),
            ("tenuto_call_errors_total", "verb", "Storage calls that raised", self._errors),
            ("tenuto_call_seconds_total", "verb", "Seconds in storage calls", self._seconds),
            ("tenuto_signs_total", "kind", "Signs of lost context", self._signs),
        ):
            lines += [f"# HELP {name} {about}.", f"# TYPE {name} counter"]
            lines += [f'{name}{{{label}="{one}"}} {value:g}' for one, value in sorted(dict(found).items())]
        return "\n".join(lines) + "\n"
