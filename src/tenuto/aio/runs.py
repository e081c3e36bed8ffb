"""The async face of runs: the same names, awaited; a part of `aio`.

Steps of an async run may be coroutine functions, which are awaited, or ordinary ones, which run on threads of their
own with the caller's context. Several may be in flight at once.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import signal as signals
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, overload

from tenuto._offload import awaitable, drive, perform, settle, wait
from tenuto.capabilities.durable import Durable, must_be_run
from tenuto.capabilities.questions import Inbox
from tenuto.capabilities.recovery import Crew, Due, log
from tenuto.capabilities.run import Lanes, OnError, Run, RunState, RunThread
from tenuto.capabilities.runs import Emitted, Runs
from tenuto.capabilities.stepping import MISSING, Effect, Retry, Step, Verify, recalled, stepping
from tenuto.errors import Closed, InvalidInput, TenutoError
from tenuto.kernel.bell import Pause
from tenuto.kernel.durations import Duration, seconds

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Pools(NamedTuple):
    """Where a client's calls run: those of the store, and the user's own, which may take minutes."""

    store: ThreadPoolExecutor
    user: Executor


class AsyncRunState:
    """`RunState`, awaited. The mapping syntax is the blocking face's alone."""

    def __init__(self, sync: RunState, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    get = awaitable(RunState.get)
    set = awaitable(RunState.set)
    delete = awaitable(RunState.delete)
    keys = awaitable(RunState.keys)
    items = awaitable(RunState.items)


class AsyncRunThread:
    """`RunThread`, awaited."""

    def __init__(self, sync: RunThread, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool
        self.id = sync.id

    append = awaitable(RunThread.append)
    messages = awaitable(RunThread.messages)
    count = awaitable(RunThread.count)


class AsyncRun:
    """`Run`, awaited: `async with agent.run("trip-42") as run: await run.step(…)`."""

    def __init__(self, sync: Run, pools: Pools) -> None:
        self._sync = sync
        self._pool = pools.store
        self._pools = pools
        sync._running.handle = self
        self.id = sync.id
        self.state = AsyncRunState(sync.state, pools.store)
        self.thread = AsyncRunThread(sync.thread, pools.store)

    @property
    def user(self) -> str | None:
        """Return whose run it is."""
        return self._sync.user

    @property
    def resumed(self) -> bool:
        """Tell whether this run had been begun before."""
        return self._sync.resumed

    @property
    def reused(self) -> int:
        """Return how many finished steps were on record when it was taken."""
        return self._sync.reused

    @property
    def result(self) -> Any:
        """Return what the run comes to; set it in the body."""
        return self._sync.result

    @result.setter
    def result(self, value: Any) -> None:
        self._sync.result = value

    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        *args: Any,
        key: str | None = None,
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schema: Any = None,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., T],
        *args: Any,
        key: str | None = None,
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schema: Any = None,
    ) -> T: ...
    async def step(  # noqa: PLR0913 - the words of the API
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        key: str | None = None,
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schema: Any = None,
    ) -> Any:
        """Run `fn(*args)`, durably, or return what came of it before; see `Run.step`."""
        if key is None and schema is None and (told := recalled(self._sync._running, name, fn, args)) is not MISSING:
            return told
        step = Step(name, fn, args, key, effect, verify, retry, timeout, schema)
        return await self._perform(stepping(self._sync._running, step))

    async def map(  # noqa: PLR0913 - the words of the API
        self,
        name: str,
        fn: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        concurrency: int = 4,
        on_error: OnError = "raise",
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schema: Any = None,
    ) -> list[Any]:
        """Run `fn(item)` for each item, some at once, each a step of its own; see `Run.map`."""
        step = Step(name, fn, (), None, effect, verify, retry, timeout, schema, "map")
        lanes = Lanes(self._sync._running, step, items, concurrency, on_error)
        async with _Together() as together:
            for work in lanes.works:
                together.begin(self._perform(work))
        return lanes.results()

    async def _perform(self, work: Any) -> Any:
        return await perform(self._pools.store, self._pools.user, work, self._sync.clock)

    sleep = awaitable(Run.sleep)
    wait = awaitable(Run.wait)
    ask = awaitable(Run.ask)
    now = awaitable(Run.now)
    uuid = awaitable(Run.uuid)
    random = awaitable(Run.random)
    emit = awaitable(Run.emit)
    usage = awaitable(Run.usage)

    async def __aenter__(self) -> Self:
        """Take the run: begin it, or resume it."""
        await self._perform(self._sync.taking())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave it: completed, failed, or paused."""
        await self._perform(self._sync.leaving(error))

    def __str__(self) -> str:
        """Say where the run stands."""
        return str(self._sync)

    def __repr__(self) -> str:
        """Say which run this is."""
        return repr(self._sync)


class _Together:
    """Tasks that all come to their end before anything is raised; a cancellation is passed on to them."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[Any]] = []

    def begin(self, work: Any) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._tasks:
            return
        try:
            await asyncio.wait(self._tasks)
        except asyncio.CancelledError:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            raise
        for task in self._tasks:
            task.result()


class AsyncDurable(Generic[P, R]):
    """`Durable`, awaited: a coroutine function whose calls are runs."""

    def __init__(self, sync: Durable[P, Any], pools: Pools) -> None:
        self._sync = sync
        self._pools = pools
        self.name = sync.name
        self.fn = sync.fn
        functools.update_wrapper(self, sync.fn)

    def __call__(self, run: AsyncRun, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Call the function inside of a run that is open already; its steps are that run's."""
        must_be_run(self.name, run)
        begun: Awaitable[R] = self.fn(run, *args, **kwargs)
        return begun

    def using(self, **options: Any) -> AsyncDurable[P, R]:
        """Return the same function with options for its runs; see `Durable.using`."""
        return AsyncDurable(self._sync.using(**options), self._pools)

    async def run(self, run_id: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it under this id and return its result: begun, resumed, or what it came to before."""
        work = self._sync.running(run_id, args, kwargs, face=lambda run: AsyncRun(run, self._pools))
        return await perform(self._pools.store, self._pools.user, work, self._sync.clock)

    async def start(self, run_id: str, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Let a worker run it: durably queued when this returns. False if there is a run of this id already."""
        return await drive(self._pools.store, self._sync.queueing(run_id, args, kwargs), self._sync.clock)

    def __repr__(self) -> str:
        """Say which function this is."""
        return repr(self._sync)


class AsyncRuns:
    """`Runs`, awaited."""

    def __init__(self, sync: Runs, pools: Pools) -> None:
        self._sync = sync
        self._pool = pools.store
        self._pools = pools

    list = awaitable(Runs.list)
    get = awaitable(Runs.get)
    info = awaitable(Runs.info)
    signal = awaitable(Runs.signal)
    cancel = awaitable(Runs.cancel)
    retry = awaitable(Runs.retry)
    fork = awaitable(Runs.fork)
    delete = awaitable(Runs.delete)

    async def watch(
        self, run_id: str, *, after: int | None = None, timeout: Duration | None = None
    ) -> AsyncIterator[Emitted]:
        """Iterate over what a run emits, as it lands, until the run is over; see `Runs.watch`."""
        steps = self._sync.watching(run_id, after=after, timeout=timeout)
        try:
            while (step := await settle(self._pool, lambda: next(steps, None))) is not None:
                if isinstance(step, Pause):
                    await wait(self._pool, step, self._sync.clock)
                else:
                    yield step
        finally:
            steps.close()

    async def recover(self) -> dict[str, str]:
        """Go on with the registered runs that were interrupted, or are due to wake; see `Runs.recover`."""
        crew = Crew(self._sync._engine, self._sync._functions, queued=False)
        return await self._work(crew, concurrency=4, poll=0.02, grace=0.0, once=True)

    async def work(
        self,
        *,
        concurrency: int = 4,
        poll: Duration = 0.25,
        grace: Duration = 30,
        stop: Any = None,
        on_signal: bool = False,
    ) -> None:
        """Be a worker, until told to stop by `stop`, an event, or by a signal; see `Runs.work`."""
        crew = Crew(self._sync._engine, self._sync._functions, queued=True)
        if stop is not None:
            crew.stop = stop
        if on_signal:
            loop = asyncio.get_running_loop()
            for number in (signals.SIGTERM, signals.SIGINT):
                loop.add_signal_handler(number, crew.stop.set)
        await self._work(crew, concurrency=concurrency, poll=seconds(poll), grace=seconds(grace), once=False)

    async def _work(  # noqa: C901 - one loop
        self, crew: Crew, *, concurrency: int, poll: float, grace: float, once: bool
    ) -> dict[str, str]:
        if concurrency < 1:
            raise InvalidInput(f"A worker goes on with at least one run at a time, not {concurrency}.")
        tasks: set[asyncio.Task[str]] = set()
        done: dict[str, str] = {}
        clock = self._sync.clock

        async def go(one: Due) -> str:
            try:
                work = crew.resuming(one, lambda run: AsyncRun(run, self._pools))
                done[one.id] = await perform(self._pools.store, self._pools.user, work, clock)
            finally:
                crew.in_hand.discard(one.id)
            return done[one.id]

        try:
            while not crew.stop.is_set():
                free = concurrency - len(crew.in_hand)
                found: list[Due] = []
                try:
                    found = await drive(self._pool, crew.next(free), clock) if free else []
                except Closed:
                    break
                except TenutoError as error:
                    log.warning("Runs cannot be looked for now: %s", error)
                fresh = [one for one in found if not (once and one.id in done)]
                for one in fresh:
                    crew.in_hand.add(one.id)
                    task = asyncio.ensure_future(go(one))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                if once and not fresh and not tasks:
                    break
                if tasks:
                    await asyncio.wait(tasks, timeout=poll, return_when=asyncio.FIRST_COMPLETED)
                else:
                    await asyncio.sleep(poll)
        finally:
            crew.stop.set()
            if tasks:
                await asyncio.wait(tasks, timeout=grace)
            for task in tasks:
                task.cancel()
        return done


class AsyncInbox:
    """`Inbox`, awaited."""

    def __init__(self, sync: Inbox, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    list = awaitable(Inbox.list)
    get = awaitable(Inbox.get)
    answer = awaitable(Inbox.answer)
    cancel = awaitable(Inbox.cancel)


def must_be_coroutine(fn: Callable[..., Any]) -> None:
    """Raise unless a function can be a durable one of an async client."""
    if not inspect.iscoroutinefunction(fn):
        raise TypeError(f"{getattr(fn, '__name__', fn)} is no coroutine function; an AsyncTenuto runs `async def`.")
