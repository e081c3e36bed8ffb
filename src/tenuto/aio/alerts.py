"""The async API of alerts."""

from __future__ import annotations

from tenuto.aio.bridge import Mirror, awaitable
from tenuto.capabilities.alerts import Alerts, Figures


class AsyncFigures(Mirror[Figures]):
    """`Figures`, awaited."""

    now = awaitable(Figures.now)


class AsyncAlerts(Mirror[Alerts]):
    """`Alerts`, awaited."""

    @property
    def figures(self) -> AsyncFigures:
        """Return what can be alerted on."""
        return AsyncFigures(self._sync.figures, self._pools)

    add = awaitable(Alerts.add)
    remove = awaitable(Alerts.remove)
    list = awaitable(Alerts.list)
    check = awaitable(Alerts.check)
    sample = awaitable(Alerts.sample)
    growth = awaitable(Alerts.growth)
