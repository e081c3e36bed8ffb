"""The async face: the same names, awaited. One line for each method; the logic is in the blocking core.

Handles (`state[scope]`, `user`, `thread`, `run`, `lease`, `leader`, `transaction`, `correlation`) are made without `await`;
their methods are awaited. Handles are `async with`, streams are `async for`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from tenuto._aio_runs import AsyncDurable, AsyncInbox, AsyncRun, AsyncRuns, Pools, must_be_coroutine
from tenuto._aio_work import AsyncTasks, AsyncWorkflows
from tenuto._offload import Calls, awaitable, perform, settle, wait
from tenuto.capabilities.checkpoints import Checkpoints, Saver
from tenuto.capabilities.context import Fence
from tenuto.capabilities.durable import Durable
from tenuto.capabilities.journal import Change
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.lineage import Checkpoint
from tenuto.capabilities.once import once
from tenuto.capabilities.retention import Retention
from tenuto.capabilities.state import ScopeView, State, Transaction
from tenuto.capabilities.stepping import Effect, Retry, Verify
from tenuto.capabilities.store import Store
from tenuto.capabilities.threads import Thread, Threads
from tenuto.capabilities.timeline import Event
from tenuto.capabilities.workflows import Action
from tenuto.client import Correlation, Tenuto, register_action, register_function
from tenuto.hooks.events import Hook
from tenuto.kernel import codec
from tenuto.kernel.bell import Pause
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Backend, Check
from tenuto.kernel.durations import Duration

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_CALLS = 64
"""How many of a user's blocking functions run at once, on threads of their own."""
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
        return _watch(self._sync.watching(scope, after=after, timeout=timeout), self._pool, self._sync.clock)


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
        steps = self._sync.state.watching(self.scope, after=after, timeout=timeout)
        return _watch(steps, self._pool, self._sync.clock)

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
    enqueue = awaitable(Transaction.enqueue)
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


class AsyncThread:
    """`Thread`, awaited. `scratch` is in memory and is not."""

    def __init__(self, sync: Thread, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool
        self.id = sync.id
        self.user = sync.user

    append = awaitable(Thread.append)
    messages = awaitable(Thread.messages)
    count = awaitable(Thread.count)
    decide = awaitable(Thread.decide)
    decisions = awaitable(Thread.decisions)
    tool_call = awaitable(Thread.tool_call)
    tool_calls = awaitable(Thread.tool_calls)
    repair = awaitable(Thread.repair)
    take_back = awaitable(Thread.take_back)
    news = awaitable(Thread.news)
    unbegun = awaitable(Thread.unbegun)
    compact = awaitable(Thread.compact)
    delete = awaitable(Thread.delete)
    timeline = awaitable(Thread.timeline)
    _fork = awaitable(Thread.fork)

    @property
    def scratch(self) -> dict[str, Any]:
        """Return a plain dict in memory, the same one for this thread throughout this client."""
        return self._sync.scratch

    async def fork(
        self, thread_id: str, at: int | None = None, *, user: str | None = None, ttl: Duration | None = None
    ) -> AsyncThread:
        """Begin another thread with this one's past up to message `at`; see `Thread.fork`."""
        return AsyncThread(await self._fork(thread_id, at, user=user, ttl=ttl), self._pool)

    def watch(self, *, after: int | None = None, timeout: Duration | None = None) -> AsyncIterator[Event]:
        """Yield what happens in the thread as it lands, across processes; see `Thread.watch`."""
        return _watch(self._sync.watching(after=after, timeout=timeout), self._pool, self._sync.clock)

    def __repr__(self) -> str:
        """Say which thread this is; nothing is read."""
        return repr(self._sync)


class AsyncThreads:
    """`Threads`, awaited."""

    def __init__(self, sync: Threads, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    list = awaitable(Threads.list)


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
        before = self._sync.held
        try:
            await self._acquire()
        except asyncio.CancelledError:  # perhaps it had just been taken: nobody else would let go of it
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


class AsyncCheckpoints:
    """`Checkpoints`, awaited."""

    def __init__(self, sync: Checkpoints, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    @property
    def limit(self) -> int:
        """Return the largest state, in bytes; see `Checkpoints.limit`."""
        return self._sync.limit

    @limit.setter
    def limit(self, most: int) -> None:
        self._sync.limit = most

    _create = awaitable(Checkpoints.create)
    restore = awaitable(Checkpoints.restore)
    restore_as = awaitable(Checkpoints.restore_as)
    get = awaitable(Checkpoints.get)
    list = awaitable(Checkpoints.list)
    diff = awaitable(Checkpoints.diff)
    fork = awaitable(Checkpoints.fork)
    delete = awaitable(Checkpoints.delete)
    prune = awaitable(Checkpoints.prune)

    async def create(
        self, name: str, state: dict[str, Any], *, thread: str | None = None, user: str | None = None, meta: Any = None
    ) -> Checkpoint:
        """Save a state as it is now; what other tasks do to it meanwhile is not in it. See `Checkpoints.create`."""
        return await self._create(name, _as_it_is(state), thread=thread, user=user, meta=meta)

    def every(self, count: int, *, thread: str | None = None, name: str = "auto") -> AsyncSaver:
        """Return a saver whose every `count`-th tick saves."""
        return AsyncSaver(self._sync.every(count, thread=thread, name=name), self._pool)


class AsyncSaver:
    """`Saver`, awaited."""

    def __init__(self, sync: Saver, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    ticks = awaitable(Saver.ticks)
    _tick = awaitable(Saver.tick)

    async def tick(self, state: dict[str, Any]) -> Checkpoint | None:
        """Count one tick; save the state if it is time, and return the checkpoint."""
        return await self._tick(_as_it_is(state))


def _as_it_is(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy that is made before anything is awaited."""
    copy: dict[str, Any] = codec.unpack(codec.pack(dict(state))) if isinstance(state, dict) else state
    return copy


class AsyncStore:
    """`Store`, awaited."""

    def __init__(self, sync: Store, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    stats = awaitable(Store.stats)
    check = awaitable(Store.check)
    backup = awaitable(Store.backup)


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
        retention: Retention | None = None,
    ) -> None:
        sync = Tenuto(name, url, tenant=tenant, durability=durability, clock=clock, hooks=hooks, retention=retention)
        store = ThreadPoolExecutor(_THREADS, thread_name_prefix="tenuto")
        self._compose(sync, Pools(store, Calls(_CALLS)))

    @classmethod
    def of(cls, sync: Tenuto, pool: ThreadPoolExecutor) -> Self:
        """Return the awaited face of a client that is there already, on threads of whoever asks."""
        view = object.__new__(cls)
        view._compose(sync, Pools(pool, pool))
        return view

    def _compose(self, sync: Tenuto, pools: Pools) -> None:
        pool = pools.store
        self._sync = sync
        self._pool = pool
        self._pools = pools
        self.name = sync.name
        self.tenant = sync.tenant
        self.clock = sync.clock
        self.kernel = AsyncKernel(sync.kernel, pool)
        self.state = AsyncState(sync.state, pool)
        self.checkpoint = AsyncCheckpoints(sync.checkpoint, pool)
        self.store = AsyncStore(sync.store, pool)
        self.threads = AsyncThreads(sync.threads, pool)
        self.runs = AsyncRuns(sync.runs, pools)
        self.inbox = AsyncInbox(sync.inbox, pool)
        self.tasks = AsyncTasks(sync.tasks, pools)
        self.workflows = AsyncWorkflows(sync.workflows, pools)

    def user(self, user_id: str) -> AsyncScopeView:
        """Return a view of a user's preferences, exact by key, shared by all agents of the tenant."""
        return AsyncScopeView(self._sync.user(user_id), self._pool)

    def thread(self, thread_id: str, *, user: str | None = None, ttl: Duration | None = None) -> AsyncThread:
        """Return a conversation, which begins with what is first written to it; see `Tenuto.thread`."""
        return AsyncThread(self._sync.thread(thread_id, user=user, ttl=ttl), self._pool)

    def run(
        self,
        run_id: str,
        *,
        user: str | None = None,
        wait: Duration = 15,
        block: bool = False,
        deadline: Duration | None = None,
        thread: str | None = None,
    ) -> AsyncRun:
        """Return a run, which begins, or is resumed, with `async with agent.run("trip-42") as run: …`."""
        run = self._sync.run(run_id, user=user, wait=wait, block=block, deadline=deadline, thread=thread)
        return AsyncRun(run, self._pools)

    @overload
    def durable(self, fn: Callable[Concatenate[AsyncRun, P], Awaitable[R]]) -> AsyncDurable[P, R]: ...
    @overload
    def durable(
        self, *, name: str
    ) -> Callable[[Callable[Concatenate[AsyncRun, P], Awaitable[R]]], AsyncDurable[P, R]]: ...
    def durable(self, fn: Any = None, *, name: str | None = None) -> Any:
        """Register a coroutine function whose calls are runs; see `Tenuto.durable`."""
        if fn is None:
            return lambda given: self._durable(given, name)
        return self._durable(fn, name)

    def _durable(self, fn: Callable[..., Any], name: str | None) -> AsyncDurable[Any, Any]:
        must_be_coroutine(fn)
        name = register_function(self._sync._functions, fn, name)
        return AsyncDurable(Durable(self._sync._engine, name, fn), self._pools)

    @overload
    async def once(
        self,
        key: str,
        fn: Callable[..., Awaitable[R]],
        *args: Any,
        verify: Verify | None = None,
        schema: Any = None,
        wait: Duration | None = None,
    ) -> R: ...
    @overload
    async def once(
        self,
        key: str,
        fn: Callable[..., R],
        *args: Any,
        verify: Verify | None = None,
        schema: Any = None,
        wait: Duration | None = None,
    ) -> R: ...
    async def once(
        self,
        key: str,
        fn: Callable[..., Any],
        *args: Any,
        verify: Verify | None = None,
        schema: Any = None,
        wait: Duration | None = None,
    ) -> Any:
        """Call `fn(*args)` once for this key, across tasks, processes and restarts; see `Tenuto.once`."""
        work = once(self._sync._engine, key, fn, args, verify=verify, schema=schema, wait=wait)
        return await perform(self._pools.store, self._pools.user, work, self.clock)

    @overload
    def action(self, name: F) -> F: ...
    @overload
    def action(
        self,
        name: str,
        *,
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Callable[[F], F]: ...
    def action(
        self,
        name: Any,
        *,
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
    ) -> Any:
        """Register what the steps of workflows call, a coroutine function or an ordinary one; see `Tenuto.action`."""
        if callable(name):
            return self.action(getattr(name, "__name__", ""))(name)

        def register(fn: F) -> F:
            register_action(self._sync._actions, name, Action(fn, effect, verify, retry, timeout))
            return fn

        return register

    async def full_context(self, user_id: str, thread_id: str, *, last: int | None = None) -> dict[str, Any]:
        """Return the conversation, the preferences and the active workflows of a user; see `Tenuto.full_context`."""
        return await settle(self._pool, lambda: self._sync.full_context(user_id, thread_id, last=last))

    async def signal(self, run_id: str, event: str, payload: Any = None) -> bool:
        """Send a signal to a run, durably; see `Runs.signal`."""
        return await self.runs.signal(run_id, event, payload)

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
        view._compose(self._sync.for_tenant(tenant), self._pools)
        return view

    async def open(self) -> Self:
        """Open the store now instead of at the first call."""
        await settle(self._pool, self._sync.open)
        return self

    async def close(self) -> None:
        """Let go of the store and of the threads."""
        await settle(self._pool, self._sync.close)
        for pool in self._pools:
            pool.shutdown(wait=False)

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


async def _watch(steps: Generator[T | Pause, None, None], pool: ThreadPoolExecutor, clock: Clock) -> AsyncIterator[T]:
    try:
        while (step := await settle(pool, lambda: next(steps, None))) is not None:
            if isinstance(step, Pause):
                await wait(pool, step, clock)
            else:
                yield step
    finally:
        steps.close()  # it never runs here: what has begun on the pool was waited for
