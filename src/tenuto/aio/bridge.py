"""The bridge from async code to the blocking core: the async driver of `kernel.work`, and the async mirrors of methods.

Three rules: a call that has started is never abandoned, even if the task is cancelled; the client owns its thread
pool; no thread is blocked by a wait.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from tenuto.errors import Closed
from tenuto.kernel.clock import Clock, SystemClock
from tenuto.kernel.work import Call, Interrupted, Item, Sleep, Store, Stream, Together, Work, kind_of

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class Pools(NamedTuple):
    """The threads of a client: for calls of the store, and for the user's functions, which may take minutes."""

    store: ThreadPoolExecutor
    user: Executor


class Pool(ThreadPoolExecutor):
    """A thread pool for calls of the store that survives a fork.

    A forked child has none of its parent's threads, so it starts a new pool. Calls that the parent queued stay with
    the parent.
    """

    def __init__(self, most: int, name: str) -> None:
        super().__init__(most, thread_name_prefix=name)
        self._pid, self._most, self._name = os.getpid(), most, name
        self._closed = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a function on a thread of this process as soon as one is free; `Closed` after `shutdown`."""
        if self._closed:
            raise Closed("The client is closed; nothing was done. Open a new client.")
        if self._pid != os.getpid():
            Pool.__init__(self, self._most, self._name)
        return super().submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's signature
        """Accept no more calls; calls that were accepted are done."""
        self._closed = True
        super().shutdown(wait, cancel_futures=cancel_futures)


class Calls(Executor):
    """Daemon threads for the user's blocking functions, up to `most` concurrently.

    At exit Python joins the threads of a `ThreadPoolExecutor`, so a function that hangs would block the exit for ever.
    After a fork the child starts again, as `Pool` does.
    """

    def __init__(self, most: int) -> None:
        self._pid = os.getpid()
        self._most = self._free = most
        self._queued: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a function on a thread as soon as one is free."""
        if self._pid != os.getpid():
            Calls.__init__(self, self._most)
        future: Future[R] = Future()
        with self._lock:
            if self._closed:
                raise Closed("The client is closed, so the function was not called. Open a new client.")
            self._queued.append((future, functools.partial(fn, *args, **kwargs)))
            if not self._free:
                return future
            self._free -= 1
        threading.Thread(target=self._work, name="tenuto-call", daemon=True).start()
        return future

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queued:
                    self._free += 1
                    return
                future, call = self._queued.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - raised where it is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - Executor's signature
        """Accept no more calls; running calls continue."""
        with self._lock:
            self._closed = True


async def in_thread(pool: ThreadPoolExecutor, call: Callable[[], R], *, hold: float = 0) -> R:
    """Run `call` on the pool and wait for its outcome, even if cancelled meanwhile.

    The cancellation is raised after the call has ended, with the call's error as its cause. `hold` blocks the event
    loop for up to that many seconds, so that nothing else runs before the call has ended.
    """
    # No asyncio future around the pool's future, and no `asyncio.wait`: the hand-over dominates a short call's cost.
    loop = asyncio.get_running_loop()
    begun = pool.submit(contextvars.copy_context().run, call)
    if hold and not futures.wait([begun], hold).not_done:
        return begun.result()
    waiter = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def tell(_: Future[R]) -> None:
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(wake)

    begun.add_done_callback(tell)
    cancelled: asyncio.CancelledError | None = None
    with _shield():
        while True:
            try:
                await waiter
            except asyncio.CancelledError as error:
                cancelled = cancelled or error
                if begun.done():
                    break
                waiter = loop.create_future()
            else:
                break
    if cancelled is not None:
        raise cancelled from begun.exception()
    return begun.result()


def _shield() -> AbstractContextManager[object]:
    # An anyio cancel scope repeats its cancellation until the task yields to it. A scope can only be open if anyio
    # was imported.
    anyio = sys.modules.get("anyio")
    return anyio.CancelScope(shield=True) if anyio else nullcontext()


async def perform(pools: Pools, work: Work[R], clock: Clock) -> R:
    """Run work to its end: store code on the pool, waits in the event loop, the user's calls here or on threads."""
    given: Any = None
    problem: BaseException | None = None
    while True:
        try:
            request = work.send(given) if problem is None else work.throw(problem)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        given = problem = None
        try:
            if isinstance(request, Store):
                given = await stored(pools.store, request.part, clock)
            elif isinstance(request, Call):
                given = await _called(pools.user, request)
            elif isinstance(request, Together):
                given = await _together([perform(pools, one, clock) for one in request.works])
            else:
                await wait(pools.store, request, clock)
        except BaseException as error:  # noqa: BLE001 - the work handles it
            problem = error


async def _together(works: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Await works concurrently: all of them end before an error is raised; a cancellation cancels them all."""
    tasks = [asyncio.ensure_future(work) for work in works]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    return [task.result() for task in tasks]


async def stored(pool: ThreadPoolExecutor, part: Work[R] | Callable[[], R], clock: Clock, *, hold: float = 0) -> R:
    """Run store code to its end on the pool; wait in the event loop.

    `hold` blocks the event loop until the first wait, as in `in_thread`.
    """
    if callable(part):
        return await in_thread(pool, part, hold=hold)

    def advance() -> tuple[Any, Any]:
        try:
            return part.send(None), None
        except StopIteration as done:
            return None, done.value

    while True:
        request, result = await in_thread(pool, advance, hold=hold)
        if request is None:
            return result  # type: ignore[no-any-return]
        hold = 0
        await wait(pool, request, clock)


async def iterate(pool: ThreadPoolExecutor, stream: Stream[T], clock: Clock) -> AsyncIterator[T]:
    """Iterate over a stream: read the store on the pool, wait in the event loop."""
    try:
        while (request := await in_thread(pool, lambda: next(stream, None))) is not None:
            if isinstance(request, Item):
                yield request.value
            else:
                await wait(pool, request, clock)
    finally:
        stream.close()  # safe: no call of the stream is running, `in_thread` waits for each


async def wait(pool: ThreadPoolExecutor, pause: Sleep, clock: Clock) -> None:
    """Wait by the client's clock, blocking no thread."""
    if not isinstance(clock, SystemClock):  # a test's clock, which does not block
        await in_thread(pool, functools.partial(clock.sleep, pause.seconds))
    elif pause.bell is None:
        await asyncio.sleep(pause.seconds)
    else:
        loop, heard = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed already
                loop.call_soon_threadsafe(heard.set)

        pause.bell.tell(tell)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause.seconds):
                    await heard.wait()
        finally:
            pause.bell.tell(None)


async def _called(calls: Executor, call: Call) -> Any:
    """Call the user's function: await a coroutine function, run any other on a thread."""
    with call.around():
        limit = asyncio.timeout(call.timeout)
        try:
            async with limit:
                if inspect.iscoroutinefunction(call.fn):
                    return await _unless_lost(call)
                context = contextvars.copy_context()
                begun = functools.partial(context.run, call.fn, *call.args)
                value = await asyncio.get_running_loop().run_in_executor(calls, begun)
                return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if limit.expired():
                raise call.late() from None
            raise


async def _unless_lost(call: Call) -> Any:
    """Await a coroutine function; cancel it and raise `Interrupted` when its result is no longer wanted."""
    if call.on_lost is None:
        return await call.fn(*call.args)
    loop, limit = asyncio.get_running_loop(), asyncio.timeout(None)
    lost = False

    def stop() -> None:
        nonlocal lost
        lost = True
        with suppress(RuntimeError):  # it has ended just now
            limit.reschedule(loop.time())

    def tell() -> None:
        with suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(stop)

    call.on_lost(tell)
    try:
        async with limit:
            return await call.fn(*call.args)
    except TimeoutError:
        if lost and limit.expired():
            raise Interrupted from None
        raise
    finally:
        call.on_lost(None)


class Mirror(Generic[S]):
    """An async object: the blocking object that it wraps, and the threads that run it."""

    def __init__(self, sync: S, pools: Pools) -> None:
        self._sync = sync
        self._pools = pools
        self._pool = pools.store

    def __repr__(self) -> str:
        """Return the repr of the blocking object."""
        return repr(self._sync)


def awaitable(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]:
    """Mirror a blocking method as a coroutine method of the same signature."""
    kind = kind_of(method)

    async def mirror(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if kind is None:
            # By name: `method` may belong to a Protocol; the object's own method must run.
            call = functools.partial(getattr(self._sync, method.__name__), *args, **kwargs)
            return await in_thread(self._pool, call)
        work = kind.make(self._sync, *args, **kwargs)
        if kind.where == "store":
            return await stored(self._pool, work, self._sync._clock)
        return await perform(self._pools, work, self._sync._clock)

    return _shown(mirror, method)


def iterable(method: Callable[Concatenate[Any, P], Iterator[T]]) -> Callable[Concatenate[Any, P], AsyncIterator[T]]:
    """Mirror a method that returns an iterator as one that returns an async iterator."""
    kind = kind_of(method)
    assert kind is not None

    def mirror(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        return iterate(self._pool, kind.make(self._sync, *args, **kwargs), self._sync._clock)

    return _shown(mirror, method)


def _shown(mirror: Callable[P, R], method: Callable[..., Any]) -> Callable[P, R]:
    """Copy the name, documentation and signature of a method to its mirror."""
    shown = inspect.signature(method)
    returns = shown.return_annotation
    if isinstance(returns, str):
        returns = returns.replace("Iterator[", "AsyncIterator[")
    mirror.__name__ = method.__name__
    mirror.__module__ = method.__module__
    mirror.__qualname__ = f"Async{method.__qualname__}"
    mirror.__doc__ = method.__doc__
    mirror.__signature__ = shown.replace(return_annotation=returns)  # type: ignore[attr-defined]
    mirror.__annotations__ = {**method.__annotations__, "return": returns}
    return mirror
