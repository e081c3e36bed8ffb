"""The async API of state."""

from __future__ import annotations

from typing import Any, Self

from tenuto.aio.bridge import Mirror, Pools, awaitable, iterable
from tenuto.capabilities._core.base import Fence
from tenuto.capabilities.state import ScopeView, State, Transaction


class AsyncState(Mirror[State]):
    """`State`, awaited."""

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
        return AsyncScopeView(self._sync[scope], self._pools)

    def transaction(self, scope: str, *, fence: Fence | None = None, gate: str | None = None) -> AsyncTransaction:
        """Return an async context manager that collects writes and commits them atomically at its end."""
        return AsyncTransaction(self._sync.transaction(scope, fence=fence, gate=gate), self._pools)

    watch = iterable(State.watch)


class AsyncScopeView(Mirror[ScopeView]):
    """`ScopeView`, awaited, without the mapping syntax."""

    def __init__(self, sync: ScopeView, pools: Pools) -> None:
        super().__init__(sync, pools)
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

    def transaction(self, *, fence: Fence | None = None, gate: str | None = None) -> AsyncTransaction:
        """Return an async context manager that collects writes and commits them atomically at its end."""
        return AsyncTransaction(self._sync.transaction(fence=fence, gate=gate), self._pools)

    watch = iterable(ScopeView.watch)


class AsyncTransaction(Mirror[Transaction]):
    """`Transaction`, awaited. Adding a write does no I/O and is not awaited: `t["a"] = 1`. Reads are awaited."""

    def __init__(self, sync: Transaction, pools: Pools) -> None:
        super().__init__(sync, pools)
        self.set = sync.set

    get = awaitable(Transaction.get)
    enqueue = awaitable(Transaction.enqueue)
    commit = awaitable(Transaction.commit)

    def __setitem__(self, key: str, value: Any) -> None:
        """Add a write to the transaction."""
        self._sync[key] = value

    def __delitem__(self, key: str) -> None:
        """Add a deletion to the transaction."""
        del self._sync[key]

    async def __aenter__(self) -> Self:
        """Start the transaction."""
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Commit the writes, unless the block raised."""
        if kind is None:
            await self.commit()
