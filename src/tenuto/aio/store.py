"""The async API of the store and of the storage contract."""

from __future__ import annotations

import functools

from tenuto.aio.bridge import Mirror, Pools, awaitable, in_thread
from tenuto.capabilities.store import Advance, Difference, Imported, Store
from tenuto.capabilities.upkeep import Forgetter
from tenuto.kernel.contract import Backend


class AsyncStore(Mirror[Store]):
    """`Store`, awaited."""

    stats = awaitable(Store.stats)
    check = awaitable(Store.check)
    backup = awaitable(Store.backup)
    compact = awaitable(Store.compact)
    rotate = awaitable(Store.rotate)
    destroy_user_key = awaitable(Store.destroy_user_key)
    export = awaitable(Store.export)
    import_ = awaitable(Store.import_)
    prune = awaitable(Store.prune)
    archive = awaitable(Store.archive)
    archived = awaitable(Store.archived)
    summary = awaitable(Store.summary)

    async def copy_from(self, other: AsyncStore, *, progress: Advance | None = None) -> Imported:
        """Store everything of another store's tenant here, as `import_` does."""
        return await in_thread(self._pool, functools.partial(self._sync.copy_from, other._sync, progress=progress))

    async def compare(
        self, other: AsyncStore, *, limit: int = 100, progress: Advance | None = None
    ) -> list[Difference]:
        """Return up to `limit` rows that differ between this store's tenant and another's."""
        call = functools.partial(self._sync.compare, other._sync, limit=limit, progress=progress)
        return await in_thread(self._pool, call)


class AsyncForgetter(Mirror[Forgetter]):
    """`Forgetter`, awaited."""

    forget_user = awaitable(Forgetter.forget_user)
    verify_receipt = awaitable(Forgetter.verify_receipt)


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
    streams = awaitable(Backend.streams)
    load = awaitable(Backend.load)
    trim = awaitable(Backend.trim)
    check = awaitable(Backend.check)
    stats = awaitable(Backend.stats)
    close = awaitable(Backend.close)
