"""Hooks: frozen events for observers, and observers that use them.

`OpenTelemetry` needs the extra `otel`, `Prometheus` the extra `prometheus`; each is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

from tenuto.hooks.events import Call, Event, Hook, MemoryUsed, RunLeft, RunOpened, SignFound, StepEnded
from tenuto.hooks.logs import LogCalls
from tenuto.hooks.metrics import Metrics

if TYPE_CHECKING:
    from tenuto.hooks.otel import OpenTelemetry
    from tenuto.hooks.prometheus import Prometheus

__all__ = [
    "Call",
    "Event",
    "Hook",
    "LogCalls",
    "MemoryUsed",
    "Metrics",
    "OpenTelemetry",
    "Prometheus",
    "RunLeft",
    "RunOpened",
    "SignFound",
    "StepEnded",
]


def __getattr__(name: str) -> Any:
    if name == "OpenTelemetry":
        from tenuto.hooks.otel import OpenTelemetry  # noqa: PLC0415 - an extra

        return OpenTelemetry
    if name == "Prometheus":
        from tenuto.hooks.prometheus import Prometheus  # noqa: PLC0415 - an extra

        return Prometheus
    raise AttributeError(f"module 'tenuto.hooks' has no attribute {name!r}")
