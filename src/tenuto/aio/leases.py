"""The async API of leases."""

from __future__ import annotations

import asyncio
from typing import Self

from tenuto.aio.bridge import Mirror, Pools, awaitable
from tenuto.capabilities.leases import Lease
from tenuto.kernel.contract import Check


class AsyncLease(Mirror[Lease]):
    """`Lease`, awaited. It is renewed in the background, like the blocking one."""

    def __init__(self, sync: Lease, pools: Pools) -> None:
        super().__init__(sync, pools)
        self.name = sync.name

    renew = awaitable(Lease.renew)
    release = awaitable(Lease.release)
    _acquire = awaitable(Lease.acquire)

    async def acquire(self) -> AsyncLease:
        """Acquire the lease, waiting up to `wait`; raise `LeaseHeld` if another process holds it."""
        before = self._sync.held
        try:
            await self._acquire()
        except asyncio.CancelledError:  # it may just have been acquired: release it, or nothing would
            if not before:
                await self.release()
            raise
        return self

    @property
    def token(self) -> int:
        """Return the fencing token."""
        return self._sync.token

    @property
    def held(self) -> bool:
        """Return whether this process holds the lease, as far as it knows."""
        return self._sync.held

    @property
    def lost(self) -> bool:
        """Return whether the lease is lost, or must be assumed lost."""
        return self._sync.lost

    @property
    def check(self) -> Check:
        """Return the check that a fenced commit makes."""
        return self._sync.check

    async def __aenter__(self) -> Self:
        """Acquire the lease."""
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Release the lease."""
        await self.release()
