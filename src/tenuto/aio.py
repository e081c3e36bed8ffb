"""The async face: the same names, awaited. One line for each method; the logic is in the blocking core.

Handles (`state[scope]`, `user`, `lease`, `leader`, `transaction`, `correlation`) are made without `await`;
their methods are awaited. Handles are `async with`, streams are `async for`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from tenuto._offload import awaitable, settle, wait
from tenuto.capabilities.context import Fence
from tenuto.capabilities.journal import Change
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.state import ScopeView, State, Transaction
from tenuto.capabilities.store import Store
from tenuto.client import Correlation, Tenuto
from tenuto.hooks.events import Hook
from tenuto.kernel.bell import Pause
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Backend, Check
from tenuto.kernel.durations import Duration

_THREADS = 32
"""How many calls of one client run at once; the rest queue up. None of them is ever one that waits."""


class AsyncKernel:
    """The storage contract, awaited. `now` and `bell` ask nobody and are not."""

    def __init__(self, sync: Backend, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool
        self.now = sync.now
        self.bell = sync.bell

    read = awaitable(Backend.read)
    scan = awaitable(Backend.scan)
    entries = awaitable(Backend.entries)
    commit = awaitable(Backend.commit)
    check = awaitable(Backend.check)
    stats = awaitable(Backend.stats)
    close = awaitable(Backend.close)


class AsyncState:
    """`State`, awaited."""

    def __init__(self, sync: State, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    get = awaitable(State.get)
    set = awaitable(State.set)
    entry = awaitable(State.entry)
    update = awaitable(State.update)
    delete = awaitable(State.delete)
    keys = awaitable(State.keys)
    items = awaitable(State.items)
    history = awaitable(State.history)
    at = awaitable(State.at)
    last = awaitable(State.last)

    def __getitem__(self, scope: str) -> AsyncScopeView:
        """Return a view of one scope."""
        return AsyncScopeView(self._sync[scope], self._pool)

    def transaction(self, scope: str, *, fence: Fence | None = None) -> AsyncTransaction:
        """Return an async context manager in which writes are gathered and committed at its end."""
        return AsyncTransaction(self._sync.transaction(scope, fence=fence), self._pool)

    def watch(self, scope: str, *, after: int | None = None, timeout: Duration | None = None) -> AsyncIterator[Change]:
        """Yield the changes of a scope as they land, across processes; see `State.watch`."""
        return _watch(self._sync, self._pool, scope, after, timeout)


class AsyncScopeView:
    """`ScopeView`, awaited. The mapping syntax is the blocking face's alone."""

    def __init__(self, sync: ScopeView, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool
        self.scope = sync.scope

    get = awaitable(ScopeView.get)
    set = awaitable(ScopeView.set)
    entry = awaitable(ScopeView.entry)
    update = awaitable(ScopeView.update)
    delete = awaitable(ScopeView.delete)
    keys = awaitable(ScopeView.keys)
    items = awaitable(ScopeView.items)
    history = awaitable(ScopeView.history)
    at = awaitable(ScopeView.at)
    last = awaitable(ScopeView.last)

    def transaction(self, *, fence: Fence | None = None) -> AsyncTransaction:
        """Return an async context manager in which writes are gathered and committed at its end."""
        return AsyncTransaction(self._sync.transaction(fence=fence), self._pool)

    def watch(self, *, after: int | None = None, timeout: Duration | None = None) -> AsyncIterator[Change]:
        """Yield the changes of this scope as they land, across processes; see `State.watch`."""
        return _watch(self._sync.state, self._pool, self.scope, after, timeout)

    def __repr__(self) -> str:
        """Say which scope this is; nothing is read."""
        return repr(self._sync)


class AsyncTransaction:
    """`Transaction`, awaited. Gathering a write asks nobody and is not: `t["a"] = 1`; reading is."""

    def __init__(self, sync: Transaction, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool
        self.set = sync.set

    get = awaitable(Transaction.get)
    commit = awaitable(Transaction.commit)

    def __setitem__(self, key: str, value: Any) -> None:
        """Gather a write."""
        self._sync[key] = value

    def __delitem__(self, key: str) -> None:
        """Gather the end of a value."""
        del self._sync[key]

    async def __aenter__(self) -> Self:
        """Begin gathering."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Commit what was gathered, unless the block failed."""
        if kind is None:
            await self.commit()


class AsyncLease:
    """`Lease`, awaited. It is renewed in the background as the blocking one is."""

    def __init__(self, sync: Lease, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool
        self.name = sync.name

    renew = awaitable(Lease.renew)
    release = awaitable(Lease.release)
    _acquire = awaitable(Lease.acquire)

    async def acquire(self) -> Self:
        """Take the lease, waiting if that was asked for; `LeaseHeld` if somebody else has it."""
        await self._acquire()
        return self

    @property
    def token(self) -> int:
        """Return the fencing token."""
        return self._sync.token

    @property
    def held(self) -> bool:
        """Tell whether this is held, as far as this process knows."""
        return self._sync.held

    @property
    def lost(self) -> bool:
        """Tell whether the hold is known, or must be assumed, to have passed on."""
        return self._sync.lost

    @property
    def check(self) -> Check:
        """Return the check that a fenced commit makes."""
        return self._sync.check

    async def __aenter__(self) -> Self:
        """Take the lease."""
        return await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        """Give it up."""
        await self.release()

    def __repr__(self) -> str:
        """Say what is known without asking the store."""
        return repr(self._sync)


class AsyncStore:
    """`Store`, awaited."""

    def __init__(self, sync: Store, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    stats = awaitable(Store.stats)
    check = awaitable(Store.check)


class AsyncCorrelation:
    """`Correlation` for `async with`, and for `with`: it waits for nothing."""

    def __init__(self, sync: Correlation) -> None:
        self._sync = sync
        self.id = sync.id

    def __enter__(self) -> str:
        """Put the id in force."""
        return self._sync.__enter__()

    def __exit__(self, *_: object) -> None:
        """Put back what was in force before."""
        self._sync.__exit__()

    async def __aenter__(self) -> str:
        """Put the id in force."""
        return self._sync.__enter__()

    async def __aexit__(self, *_: object) -> None:
        """Put back what was in force before."""
        self._sync.__exit__()


class AsyncTenuto:
    """`Tenuto`, awaited: the same arguments, the same names, the same store."""

    def __init__(
        self,
        name: str = "default",
        url: str | os.PathLike[str] | Backend | None = None,
        *,
        tenant: str = "default",
        durability: str = "full",
        clock: Clock | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        sync = Tenuto(name, url, tenant=tenant, durability=durability, clock=clock, hooks=hooks)
        self._compose(sync, ThreadPoolExecutor(_THREADS, thread_name_prefix="tenuto"))

    def _compose(self, sync: Tenuto, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool
        self.name = sync.name
        self.tenant = sync.tenant
        self.clock = sync.clock
        self.kernel = AsyncKernel(sync.kernel, pool)
        self.state = AsyncState(sync.state, pool)
        self.store = AsyncStore(sync.store, pool)

    def user(self, user_id: str) -> AsyncScopeView:
        """Return a view of a user's preferences, exact by key, shared by all agents of the tenant."""
        return AsyncScopeView(self._sync.user(user_id), self._pool)

    def lease(self, name: str, *, ttl: Duration = 10, wait: Duration | None = None) -> AsyncLease:
        """Return a lease on a name; see `Tenuto.lease`."""
        return AsyncLease(self._sync.lease(name, ttl=ttl, wait=wait), self._pool)

    def leader(self, name: str, *, ttl: Duration = 10) -> AsyncLease:
        """Return a lease that is waited for without end."""
        return AsyncLease(self._sync.leader(name, ttl=ttl), self._pool)

    def correlation(self, correlation_id: str) -> AsyncCorrelation:
        """Stamp every write, event and log line inside the block with an id."""
        return AsyncCorrelation(self._sync.correlation(correlation_id))

    def for_tenant(self, tenant: str) -> Self:
        """Return a client for another tenant of the same store, sharing this one's connections."""
        view = object.__new__(type(self))
        view._compose(self._sync.for_tenant(tenant), self._pool)
        return view

    async def open(self) -> Self:
        """Open the store now instead of at the first call."""
        await settle(self._pool, self._sync.open)
        return self

    async def close(self) -> None:
        """Let go of the store and of the threads."""
        await settle(self._pool, self._sync.close)
        self._pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        """Open the store."""
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self.close()

    def __repr__(self) -> str:
        """Say who and where; nothing is opened."""
        return f"<AsyncTenuto {self.name!r} of tenant {self.tenant!r}>"


async def _watch(
    state: State, pool: ThreadPoolExecutor, scope: str, after: int | None, timeout: Duration | None
) -> AsyncIterator[Change]:
    steps = state.watching(scope, after=after, timeout=timeout)
    try:
        while (step := await settle(pool, lambda: next(steps, None))) is not None:
            if isinstance(step, Pause):
                await wait(pool, step, state.clock)
            else:
                yield step
    finally:
        steps.close()  # it never runs here: what has begun on the pool was waited for
