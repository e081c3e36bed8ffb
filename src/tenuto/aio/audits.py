"""The async API of audits."""

from __future__ import annotations

from tenuto.aio.bridge import Mirror, awaitable
from tenuto.capabilities.audits import Audits


class AsyncAudits(Mirror[Audits]):
    """`Audits`, awaited."""

    last = awaitable(Audits.last)
    list = awaitable(Audits.list)
    record = awaitable(Audits.record)
