"""The async API of costs."""

from __future__ import annotations

from tenuto.aio.bridge import Mirror, awaitable
from tenuto.capabilities.costs import Costs
from tenuto.capabilities.runs import Prices


class AsyncCosts(Mirror[Costs]):
    """`Costs`, awaited."""

    @property
    def prices(self) -> Prices:
        """Return the table of prices, shared with the blocking client."""
        return self._sync.prices

    report = awaitable(Costs.report)
