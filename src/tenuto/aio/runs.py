"""The async API of runs.

A step may be a coroutine function, which is awaited, or an ordinary one, which runs on a thread with the caller's
context variables. Several steps may run concurrently.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, overload

from tenuto.aio.bridge import Mirror, Pools, awaitable, in_thread, iterable, perform, stored
from tenuto.aio.worker import work
from tenuto.capabilities._core.base import Stop
from tenuto.capabilities._core.worker import IDLE_CLOCK, Worker
from tenuto.capabilities.runs import (
    MISSING,
    Durable,
    Effect,
    Lanes,
    MapOptions,
    Missed,
    OnError,
    Retry,
    Run,
    RunHandle,
    Runs,
    RunSource,
    RunState,
    RunThread,
    ScheduleInfo,
    Step,
    StepOptions,
    Verify,
    called,
    must_be_run,
    recalled,
    run_step,
)
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.work import work_of

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
S = TypeVar("S")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class AsyncRunState(Mirror[RunState]):
    """`RunState`, awaited, without the mapping syntax."""

    get = awaitable(RunState.get)
    set = awaitable(RunState.set)
    delete = awaitable(RunState.delete)
    keys = awaitable(RunState.keys)
    items = awaitable(RunState.items)


class AsyncRunThread(Mirror[RunThread]):
    """`RunThread`, awaited."""

    def __init__(self, sync: RunThread, pools: Pools) -> None:
        super().__init__(sync, pools)
        self.id = sync.id

    append = awaitable(RunThread.append)
    messages = awaitable(RunThread.messages)
    count = awaitable(RunThread.count)


class AsyncRun(Mirror[Run]):
    """`Run`, awaited: `async with agent.run("trip-42") as run: await run.step(…)`."""

    def __init__(self, sync: Run, pools: Pools) -> None:
        super().__init__(sync, pools)
        sync._running.handle = self
        self.id = sync.id
        self.state = AsyncRunState(sync.state, pools)
        self.thread = AsyncRunThread(sync.thread, pools)

    @property
    def user(self) -> str | None:
        """Return the user of the run."""
        return self._sync.user

    @property
    def resumed(self) -> bool:
        """Return whether this run was started before."""
        return self._sync.resumed

    @property
    def reused(self) -> int:
        """Return the number of completed steps that were recorded when the run was opened."""
        return self._sync.reused

    @property
    def result(self) -> Any:
        """Return the result of the run; set it in the body."""
        return self._sync.result

    @result.setter
    def result(self, value: Any) -> None:
        self._sync.result = value

    @overload
    async def step(
        self, name: str, fn: Callable[[*Ts], Any], /, *args: *Ts, schema: type[S], **options: Unpack[StepOptions]
    ) -> S: ...
    @overload
    async def step(
        self,
        name: str,
        fn: Callable[[*Ts], Awaitable[T]],
        /,
        *args: *Ts,
        schema: None = None,
        **options: Unpack[StepOptions],
    ) -> T: ...
    @overload
    async def step(
        self, name: str, fn: Callable[[*Ts], T], /, *args: *Ts, schema: None = None, **options: Unpack[StepOptions]
    ) -> T: ...
    @overload
    async def step(
        self, name: str, fn: Callable[[*Ts], Any], /, *args: *Ts, schema: object, **options: Unpack[StepOptions]
    ) -> Any: ...
    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        /,
        *args: Any,
        kwargs: Mapping[str, Any],
        **options: Unpack[StepOptions],
    ) -> T: ...
    @overload
    async def step(
        self, name: str, fn: Callable[..., T], /, *args: Any, kwargs: Mapping[str, Any], **options: Unpack[StepOptions]
    ) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step(  # type: ignore[misc]  # noqa: PLR0913 - the API's options
        self,
        name: Any,
        fn: Any = MISSING,
        /,
        *args: Any,
        key: str | None = None,
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schema: Any = None,
        errors: tuple[type[Exception], ...] = (),
        gate: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> Any:
        """Run `fn(*args, **named)` as a durable step, or return its recorded result; see `Run.step`."""
        name, fn, args = called(name, fn, args)
        named = {**kwargs, **named} if kwargs else named
        running = self._sync._running
        if key is None and schema is None and (known := recalled(running, name, fn, args, named)) is not MISSING:
            return known
        step = Step(name, fn, args, key, effect, verify, retry, timeout, schema, errors=errors, gate=gate, kwargs=named)
        return await self._perform(run_step(running, step))

    @overload
    async def map(
        self, name: str, fn: Callable[[A], Any], items: Iterable[A], *, schema: type[S], **options: Unpack[MapOptions]
    ) -> list[S]: ...
    @overload
    async def map(
        self,
        name: str,
        fn: Callable[[A], Awaitable[T]],
        items: Iterable[A],
        *,
        schema: None = None,
        **options: Unpack[MapOptions],
    ) -> list[T]: ...
    @overload
    async def map(
        self, name: str, fn: Callable[[A], T], items: Iterable[A], *, schema: None = None, **options: Unpack[MapOptions]
    ) -> list[T]: ...
    @overload
    async def map(
        self, name: str, fn: Callable[[A], Any], items: Iterable[A], *, schema: object, **options: Unpack[MapOptions]
    ) -> list[Any]: ...
    async def map(  # noqa: PLR0913 - the API's options
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
        """Run `fn(item)` concurrently for each item, each as a durable step; see `Run.map`."""
        step = Step(name, fn, (), None, effect, verify, retry, timeout, schema, "map")
        lanes = Lanes(self._sync._running, step, items, concurrency, on_error)
        found: list[Any] = await self._perform(lanes.all())
        return found

    async def _perform(self, work: Any) -> Any:
        return await perform(self._pools, work, self._sync._clock)

    sleep = awaitable(Run.sleep)
    wait = awaitable(Run.wait)
    ask = awaitable(Run.ask)
    now = awaitable(Run.now)
    uuid = awaitable(Run.uuid)
    random = awaitable(Run.random)
    emit = awaitable(Run.emit)
    heartbeat = awaitable(Run.heartbeat)
    usage = awaitable(Run.usage)
    remember = awaitable(Run.remember)

    async def progress(self) -> Any:
        """Return the progress document of this run, made from its record; see `Run.progress`."""
        from tenuto.aio.sessions import AsyncProgress  # noqa: PLC0415 - most programs never need it

        return AsyncProgress(await in_thread(self._pool, self._sync.progress), self._pools)

    async def __aenter__(self) -> Self:
        """Open the run: start or resume it."""
        await self._perform(self._sync._taking())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the run: completed, failed or paused."""
        await self._perform(self._sync._leaving(error))

    def __str__(self) -> str:
        """Return the status of the run as text."""
        return str(self._sync)


class AsyncRunHandle(Mirror[RunHandle[R]], Generic[R]):
    """`RunHandle`, awaited."""

    def __init__(self, sync: RunHandle[R], pools: Pools) -> None:
        super().__init__(sync, pools)
        self.id = sync.id
        self.created = sync.created

    async def result(self, wait: Duration | None = None) -> R:
        """Return the run's result, waiting up to `wait` for it; see `Runs.result`."""
        return await stored(self._pool, work_of(self._sync.result)(wait), self._sync._clock)

    def __bool__(self) -> bool:
        """Return whether the call created the run."""
        return self.created


class AsyncDurable(Mirror[Durable[P, Any]], Generic[P, R]):
    """`Durable`, awaited: a coroutine function whose calls are runs."""

    def __init__(self, sync: Durable[P, Any], pools: Pools) -> None:
        super().__init__(sync, pools)
        self.name = sync.name
        self.fn = sync.fn
        functools.update_wrapper(self, sync.fn)

    def __call__(self, run: AsyncRun, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Call the function inside an open run; its steps belong to that run."""
        must_be_run(self.name, run)
        begun: Awaitable[R] = self.fn(run, *args, **kwargs)
        return begun

    def using(self, **options: Any) -> AsyncDurable[P, R]:
        """Return the function with options for its runs; see `Durable.using`."""
        return AsyncDurable(self._sync.using(**options), self._pools)

    async def run(self, run_id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start or resume the run with this id and return its result, or the recorded one if it is completed."""
        work = self._sync._running(run_id, args, kwargs, face=lambda run: AsyncRun(run, self._pools))
        return await perform(self._pools, work, self._sync._clock)

    async def start(self, run_id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> AsyncRunHandle[R]:
        """Queue a run durably for a worker and return its handle; see `Durable.start`."""
        handle = await stored(self._pool, self._sync._queueing(run_id, args, kwargs), self._sync._clock)
        return AsyncRunHandle(handle, self._pools)

    async def every(  # noqa: PLR0913 - the words of the API
        self,
        name: str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        cron: str | None = None,
        interval: Duration | None = None,
        timezone: str = "UTC",
        missed: Missed = "once",
        grace: Duration = 60,
    ) -> ScheduleInfo:
        """Schedule recurring runs durably; see `Durable.every`."""
        work = self._sync._scheduling(name, args, kwargs or {}, cron, interval, timezone, missed, grace)
        return await stored(self._pool, work, self._sync._clock)


class AsyncRuns(Mirror[Runs]):
    """`Runs`, awaited."""

    list = awaitable(Runs.list)
    get = awaitable(Runs.get)
    history = awaitable(Runs.history)
    info = awaitable(Runs.info)
    result = awaitable(Runs.result)
    signal = awaitable(Runs.signal)
    cancel = awaitable(Runs.cancel)
    retry = awaitable(Runs.retry)
    fork = awaitable(Runs.fork)
    delete = awaitable(Runs.delete)
    recurring = awaitable(Runs.recurring)
    stop_recurring = awaitable(Runs.stop_recurring)

    watch = iterable(Runs.watch)
    follow = iterable(Runs.follow)

    async def recover(self) -> dict[str, str]:
        """Resume the registered runs that are interrupted or due; see `Runs.recover`."""
        source = self._source(recover=True)
        worker = Worker(self._sync._kernel, source, poll=0.02, until_empty=True, stop=None)
        await work(self._pools, worker, IDLE_CLOCK, concurrency=4, grace=0.0, on_signal=False)
        return source.outcomes

    async def work(
        self,
        *,
        concurrency: int = 4,
        poll: Duration = 0.25,
        grace: Duration = 30,
        stop: Stop | None = None,
        on_signal: bool = False,
    ) -> None:
        """Resume runs as a worker until the event `stop` is set or a signal arrives; see `Runs.work`."""
        worker = Worker(
            self._sync._kernel,
            self._source(recover=False),
            poll=seconds(poll, "poll"),
            until_empty=False,
            stop=stop,
            chores=self._sync._chores,
        )
        await work(
            self._pools,
            worker,
            IDLE_CLOCK,
            concurrency=concurrency,
            grace=seconds(grace, "grace"),
            on_signal=on_signal,
        )

    def _source(self, *, recover: bool) -> RunSource:
        return RunSource(
            self._sync._engine,
            self._sync._functions,
            recover=recover,
            face=lambda run: AsyncRun(run, self._pools),
        )


def must_be_coroutine(fn: Callable[..., Any]) -> None:
    """Raise `TypeError` unless a function is a coroutine function."""
    if not inspect.iscoroutinefunction(fn):
        raise TypeError(f"{getattr(fn, '__name__', fn)} is not a coroutine function. Define it with `async def`.")
