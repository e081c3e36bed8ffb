"""`/metrics`: what Prometheus reads from a server process: its own calls, and the figures of the store.

The figures (`tenuto_questions_overdue`, `tenuto_storage_bytes`, …) cost scans of the store, so they are kept for 15 seconds.
They are those of the tenant of the API key. With several worker processes each answers for itself: sum the counters.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from tenuto.capabilities.alerts import FIGURES
from tenuto.client import Tenuto
from tenuto.kernel.contract import Backend
from tenuto.wrappers.observe import Observe

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
_KEPT: Final = 15.0


class ServedMetrics:
    """The metrics of one server process."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra

        from tenuto.hooks.prometheus import Prometheus  # noqa: PLC0415

        self._registry: CollectorRegistry = CollectorRegistry()
        self._hook = Prometheus(self._registry)
        self._lock = threading.Lock()
        self._figures: dict[str, tuple[float, str]] = {}

    def observed(self, backend: Backend) -> Backend:
        """Return a backend whose calls are counted."""
        return Observe(backend, [self._hook])

    def text(self, agent: Tenuto, tenant: str, *, whole: bool) -> bytes:
        """Return the figures of a tenant in Prometheus' text format; `whole`: also those of the process, of all tenants."""
        with self._lock:
            at, figures = self._figures.get(tenant, (0.0, ""))
            if not figures or time.monotonic() - at > _KEPT:
                figures = figures_text(agent)
                self._figures[tenant] = (time.monotonic(), figures)
        return ((self._hook.text() if whole else "") + figures).encode()


def figures_text(agent: Tenuto) -> str:
    """Return the figures of a store, and its costs, in Prometheus' text format."""
    lines: list[str] = []
    for name, value in agent.alerts.figures.now().items():
        metric = f"tenuto_{name.replace('.', '_')}" + ("_seconds" if name.startswith("lookup.") else "")
        lines += [f"# HELP {metric} {FIGURES[name]}.", f"# TYPE {metric} gauge", f"{metric} {value!r}"]
    costs = agent.costs.report("model")
    for metric, about, found in (
        ("tenuto_cost_dollars", "Spent on models, of the runs that are stored", sum(one.spent for one in costs)),
        ("tenuto_cost_saved_dollars", "Not spent again, as steps were reused", sum(one.saved for one in costs)),
        ("tenuto_model_tokens", "Tokens of model calls", float(sum(one.tokens for one in costs))),
        (
            "tenuto_model_cached_tokens",
            "Input tokens the provider had cached",
            float(sum(one.cached_tokens for one in costs)),
        ),
    ):
        lines += [f"# HELP {metric} {about}.", f"# TYPE {metric} gauge", f"{metric} {found!r}"]
    return "\n".join(lines) + "\n"
