"""The async API of the store and of the storage contract."""

from __future__ import annotations

from tenuto.aio.bridge import Mirror, Pools, awaitable
from tenuto.capabilities.store import Store
from tenuto.kernel.contract import Backend


class AsyncStore(Mirror[Store]):
    """`Store`, awaited."""

    stats = awaitable(Store.stats)
    check = awaitable(Store.check)
    backup = awaitable(Store.backup)


class AsyncKernel(Mirror[Backend]):
    """The storage contract, awaited. `now` and `bell` do no I/O and are not awaited."""

    def __init__(self, sync: Backend, pools: Pools) -> None:
        super().__init__(sync, pools)
        self.now = sync.now
        self.bell = sync.bell

    read = awaitable(Backend.read)
    scan = awaitable(Backend.scan)
    entries = awaitable(Backend.entries)
    commit = awaitable(Backend.commit)
    check = awaitable(Backend.check)
    stats = awaitable(Backend.stats)
    close = awaitable(Backend.close)
