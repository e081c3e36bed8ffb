"""`AsyncTenuto`: the API of `Tenuto`, awaited. The logic is in the blocking core.

Handles (`state[scope]`, `user`, `thread`, `run`, `lease`, `leader`, `transaction`, `correlation`) are created without
`await`; their methods are awaited. Use handles with `async with` and streams with `async for`.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, overload

from tenuto.aio.alerts import AsyncAlerts
from tenuto.aio.audits import AsyncAudits
from tenuto.aio.bridge import Calls, Pool, Pools, in_thread, perform, stored
from tenuto.aio.checkpoints import AsyncCheckpoints
from tenuto.aio.context import AsyncContextBuilder, AsyncGuard, AsyncTurns
from tenuto.aio.costs import AsyncCosts
from tenuto.aio.leases import AsyncLease
from tenuto.aio.memory import AsyncMemories
from tenuto.aio.people import AsyncInbox, AsyncMilestones, AsyncNotify, AsyncRoutes
from tenuto.aio.playbooks import AsyncPlaybooks
from tenuto.aio.runs import AsyncDurable, AsyncRun, AsyncRuns, must_be_coroutine
from tenuto.aio.sessions import AsyncHandoffs, AsyncProgress, AsyncSession
from tenuto.aio.state import AsyncScopeView, AsyncState
from tenuto.aio.store import AsyncForgetter, AsyncKernel, AsyncStore
from tenuto.aio.tasks import AsyncTasks
from tenuto.aio.threads import AsyncThread, AsyncThreads
from tenuto.aio.workflows import AsyncWorkflows, resuming_awaited
from tenuto.capabilities.checkpoints import Retention
from tenuto.capabilities.memory import Embed
from tenuto.capabilities.people import AskOptions, Milestone, Question, When, WorkingTime
from tenuto.capabilities.runs import (
    Durable,
    Effect,
    Retry,
    StepOptions,
    Verify,
    register_function,
    run_once,
    step_function,
)
from tenuto.capabilities.sessions import Judge, Merged, Rule, merge_results
from tenuto.capabilities.store import Summary
from tenuto.capabilities.workflows import Action, queued_for, register_action
from tenuto.client import Tenuto
from tenuto.errors import Closed
from tenuto.hooks.events import Hook
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Backend
from tenuto.kernel.correlation import Correlation
from tenuto.kernel.durations import Duration
from tenuto.wrappers.encrypt import Encryption, KeySource

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Ts = TypeVarTuple("Ts")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_CALLS = 64
"""Maximum number of the user's blocking functions that run concurrently."""
_THREADS = 32
"""Maximum number of concurrent store calls of one client; the rest are queued. No call waits on a thread."""


class AsyncCorrelation:
    """`Correlation` for `async with` and for `with`."""

    def __init__(self, sync: Correlation) -> None:
        self._sync = sync
        self.id = sync.id

    def __enter__(self) -> str:
        """Activate the id."""
        return self._sync.__enter__()

    def __exit__(self, *_: object) -> None:
        """Restore the previous id."""
        self._sync.__exit__()

    async def __aenter__(self) -> str:
        """Activate the id."""
        return self._sync.__enter__()

    async def __aexit__(self, *_: object) -> None:
        """Restore the previous id."""
        self._sync.__exit__()


class AsyncTenuto:
    """`Tenuto`, awaited: the same arguments, the same names, the same store."""

    def __init__(  # noqa: PLR0913 - the options of a client
        self,
        name: str = "default",
        url: str | os.PathLike[str] | Backend | None = None,
        *,
        api_key: str | None = None,
        tenant: str = "default",
        durability: str = "full",
        clock: Clock | None = None,
        hooks: Sequence[Hook] = (),
        retention: Retention | None = None,
        embed: str | Embed | None = None,
        encryption_key: KeySource | Encryption | None = None,
        archive: str | os.PathLike[str] | None = None,
    ) -> None:
        sync = Tenuto(
            name,
            url,
            api_key=api_key,
            tenant=tenant,
            durability=durability,
            clock=clock,
            hooks=hooks,
            retention=retention,
            embed=embed,
            encryption_key=encryption_key,
            archive=archive,
        )
        store = Pool(_THREADS, "tenuto")
        self._compose(sync, Pools(store, Calls(_CALLS)))

    @classmethod
    def _of(cls, sync: Tenuto, pool: ThreadPoolExecutor) -> Self:
        """Return the async API of an existing client, on the caller's threads."""
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
        self.kernel = AsyncKernel(sync.kernel, pools)
        self.state = AsyncState(sync.state, pools)
        self.checkpoint = AsyncCheckpoints(sync.checkpoint, pools)
        self.store = AsyncStore(sync.store, pools)
        self.threads = AsyncThreads(sync.threads, pools)
        self.runs = AsyncRuns(sync.runs, pools)
        self.inbox = AsyncInbox(sync.inbox, pools)
        self.memory = AsyncMemories(sync.memory, pools)
        self.costs = AsyncCosts(sync.costs, pools)
        self.audits = AsyncAudits(sync.audits, pools)
        self.alerts = AsyncAlerts(sync.alerts, pools)
        self.notify = AsyncNotify(sync.notify, pools)
        self.routes = AsyncRoutes(sync.routes, pools)
        self.milestones = AsyncMilestones(sync.milestones, pools)
        self.tasks = AsyncTasks(sync.tasks, pools)
        self.workflows = AsyncWorkflows(sync.workflows, pools)
        self.handoff = AsyncHandoffs(sync.handoff, pools)
        self.playbooks = AsyncPlaybooks(sync.playbooks, pools)
        self._forgetter = AsyncForgetter(sync._forgetter, pools)
        self.forget_user, self.verify_receipt = self._forgetter.forget_user, self._forgetter.verify_receipt
        self._builder = AsyncContextBuilder(sync._builder, pools)
        self.build_context, self.calibrate = self._builder.build_context, self._builder.calibrate
        self.turn = AsyncTurns(sync._turns._facing(lambda run: AsyncRun(run, pools)), pools).turn

    def user(self, user_id: str) -> AsyncScopeView:
        """Return a view of a user's preferences by key, shared by all agents of the tenant."""
        return AsyncScopeView(self._sync.user(user_id), self._pools)

    def thread(self, thread_id: str, *, user: str | None = None, ttl: Duration | None = None) -> AsyncThread:
        """Return a thread; the first write creates it. See `Tenuto.thread`."""
        return AsyncThread(self._sync.thread(thread_id, user=user, ttl=ttl), self._pools)

    def run(
        self,
        run_id: str | None = None,
        *,
        user: str | None = None,
        wait: Duration | None = 15,
        block: bool = False,
        deadline: Duration | None = None,
        thread: str | None = None,
        budget: float | None = None,
    ) -> AsyncRun:
        """Return a run; `async with agent.run("trip-42") as run: …` starts or resumes it."""
        run = self._sync.run(run_id, user=user, wait=wait, block=block, deadline=deadline, thread=thread, budget=budget)
        return AsyncRun(run, self._pools)

    @overload
    def durable(self, fn: Callable[Concatenate[AsyncRun, P], Awaitable[R]]) -> AsyncDurable[P, R]: ...
    @overload
    def durable(
        self, *, name: str | None = None, retry: Retry | None = None, priority: int = 0
    ) -> Callable[[Callable[Concatenate[AsyncRun, P], Awaitable[R]]], AsyncDurable[P, R]]: ...
    def durable(self, fn: Any = None, *, name: str | None = None, retry: Retry | None = None, priority: int = 0) -> Any:
        """Register a coroutine function whose calls are runs; see `Tenuto.durable`."""
        if fn is None:
            return lambda given: self._durable(given, name, retry, priority)
        return self._durable(fn, name, retry, priority)

    def _durable(
        self, fn: Callable[..., Any], name: str | None, retry: Retry | None, priority: int
    ) -> AsyncDurable[Any, Any]:
        must_be_coroutine(fn)
        name = register_function(self._sync._functions, fn, name)
        return AsyncDurable(Durable(self._sync._engine, name, fn)._with_policy(retry, priority), self._pools)

    @overload
    def step(self, fn: Callable[P, R], /) -> Callable[P, R]: ...
    @overload
    def step(
        self, *, name: str | None = None, schema: Any = None, **options: Unpack[StepOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def step(self, fn: Any = None, /, *, name: str | None = None, schema: Any = None, **options: Any) -> Any:  # type: ignore[misc]
        """Make each call of a coroutine function inside a run's body a step; see `Tenuto.step`."""
        if fn is None:
            return lambda given: self._step(given, name, {"schema": schema, **options})
        return self._step(fn, name, {"schema": schema, **options})

    def _step(self, fn: Callable[P, R], name: str | None, options: dict[str, Any]) -> Callable[P, R]:
        must_be_coroutine(fn)
        return step_function(fn, name, options)

    @overload
    async def once(
        self,
        key: str,
        fn: Callable[[*Ts], Any],
        *args: *Ts,
        schema: type[S],
        verify: Verify | None = None,
        wait: Duration | None = math.inf,
    ) -> S: ...
    @overload
    async def once(
        self,
        key: str,
        fn: Callable[[*Ts], Awaitable[R]],
        *args: *Ts,
        schema: None = None,
        verify: Verify | None = None,
        wait: Duration | None = math.inf,
    ) -> R: ...
    @overload
    async def once(
        self,
        key: str,
        fn: Callable[[*Ts], R],
        *args: *Ts,
        schema: None = None,
        verify: Verify | None = None,
        wait: Duration | None = math.inf,
    ) -> R: ...
    async def once(  # type: ignore[misc]
        self,
        key: str,
        fn: Callable[..., Any],
        *args: Any,
        verify: Verify | None = None,
        schema: Any = None,
        wait: Duration | None = math.inf,
    ) -> Any:
        """Call `fn(*args)` once for this key, across tasks, processes and restarts; see `Tenuto.once`."""
        work = run_once(self._sync._engine, key, fn, args, verify=verify, schema=schema, wait=wait)
        return await perform(self._pools, work, self.clock)

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
        """Register a function, async or not, as an action of workflow steps; see `Tenuto.action`."""
        if callable(name):
            return self.action(getattr(name, "__name__", ""))(name)

        def register(fn: F) -> F:
            register_action(self._sync._actions, name, Action(fn, effect, verify, retry, timeout))
            self._sync._functions[queued_for(name)] = resuming_awaited(self._sync._actions)
            return fn

        return register

    async def full_context(self, user_id: str, thread_id: str, *, last: int | None = None) -> dict[str, Any]:
        """Return the messages, the preferences and the active workflows of a user; see `Tenuto.full_context`."""
        return await in_thread(self._pool, lambda: self._sync.full_context(user_id, thread_id, last=last))

    def progress(self, name: str, *, goal: str | None = None) -> AsyncProgress:
        """Return the progress document of a task; the first change stores it. See `Tenuto.progress`."""
        return AsyncProgress(self._sync.progress(name, goal=goal), self._pools)

    async def read_progress(self, path: str | os.PathLike[str], name: str | None = None) -> AsyncProgress:
        """Read a progress file into the store durably; return the document. See `Tenuto.read_progress`."""
        progress = await in_thread(self._pool, lambda: self._sync.read_progress(path, name))
        return AsyncProgress(progress, self._pools)

    async def ask(self, question: str, **options: Unpack[AskOptions]) -> Question:
        """Ask people durably and return the question at once; see `Tenuto.ask`."""
        return await stored(self._pool, self._sync.inbox._ask(question, options), self.clock)

    async def milestone(
        self,
        name: str,
        *,
        due: When,
        on_miss: Any = None,
        context: Any = None,
        calendar: WorkingTime | None = None,
    ) -> Milestone:
        """Set a milestone durably; see `Tenuto.milestone`."""
        return await stored(self._pool, self._sync.milestones._set(name, due, on_miss, context, calendar), self.clock)

    async def gate(self, resource: str) -> None:
        """Raise `Blocked` with the question if an open question blocks a resource; see `Tenuto.gate`."""
        await in_thread(self._pool, lambda: self._sync.gate(resource))

    def session(
        self,
        name: str,
        *,
        goal: str | None = None,
        file: str | os.PathLike[str] | None = None,
        commit: bool = False,
        limit: int = 2000,
    ) -> AsyncSession:
        """Return a session on a task; `async with agent.session(…) as session: …`. See `Tenuto.session`."""
        return AsyncSession(self._sync.session(name, goal=goal, file=file, commit=commit, limit=limit), self._pools)

    async def merge(
        self,
        name: str,
        results: Mapping[str, Any],
        *,
        rules: Mapping[str, Rule] | None = None,
        judge: Judge | None = None,
        times: Mapping[str, datetime | float] | None = None,
        block: bool = False,
    ) -> Merged:
        """Merge the results of several agents durably; the judge may be a coroutine function. See `Tenuto.merge`."""
        work = merge_results(self._sync._engine, name, results, rules=rules, judge=judge, times=times, block=block)
        return await perform(self._pools, work, self.clock)

    def guard(self, thread_id: str, *, user: str | None = None, changing: Iterable[str] = ()) -> AsyncGuard:
        """Return a guard of a thread; see `Tenuto.guard`."""
        return AsyncGuard(self._sync.guard(thread_id, user=user, changing=changing), self._pools)

    async def signal(self, run_id: str, event: str, payload: Any = None) -> bool:
        """Send a signal to a run durably; see `Runs.signal`."""
        return await self.runs.signal(run_id, event, payload)

    def lease(self, name: str, *, ttl: Duration = 10, wait: Duration | None = None) -> AsyncLease:
        """Return a lease on a name; see `Tenuto.lease`."""
        return AsyncLease(self._sync.lease(name, ttl=ttl, wait=wait), self._pools)

    def leader(self, name: str, *, ttl: Duration = 10) -> AsyncLease:
        """Return a lease that waits until it is acquired, without a timeout; see `Tenuto.leader`."""
        return AsyncLease(self._sync.leader(name, ttl=ttl), self._pools)

    def correlation(self, correlation_id: str) -> AsyncCorrelation:
        """Stamp every write, event and log line inside the block with an id."""
        return AsyncCorrelation(self._sync.correlation(correlation_id))

    def for_tenant(self, tenant: str) -> Self:
        """Return a client for another tenant of the same store, sharing this one's connections."""
        view = object.__new__(type(self))
        view._compose(self._sync.for_tenant(tenant), self._pools)
        return view

    @classmethod
    async def restore(
        cls, backup: str | os.PathLike[str], url: str | os.PathLike[str], *, tenant: str = "default"
    ) -> Summary:
        """Restore a backup or an export into a new store, verify both, and return what it holds; overwrite nothing."""
        return await asyncio.to_thread(Tenuto.restore, backup, url, tenant=tenant)

    async def open(self) -> Self:
        """Open the store now instead of at the first call."""
        await in_thread(self._pool, self._sync.open)
        return self

    async def close(self) -> None:
        """Close the store and stop the threads. Closing twice is safe; any other call then raises `Closed`."""
        try:
            await in_thread(self._pool, self._sync.close)
        except Closed:
            return
        for pool in self._pools:
            pool.shutdown(wait=False)

    async def __aenter__(self) -> Self:
        """Open the store."""
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the store."""
        await self.close()

    def __repr__(self) -> str:
        """Return the name and the tenant, without opening the store."""
        return f"<AsyncTenuto {self.name!r} of tenant {self.tenant!r}>"
