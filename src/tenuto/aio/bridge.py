"""The one bridge from async code to the blocking core.

Three rules: a call that has begun is never abandoned, whoever cancels; the pool is the client's own, not
the event loop's; and nothing waits in a thread, because what has to wait is a generator of delays.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent import futures
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from tenuto.errors import Closed
from tenuto.kernel.bell import Pause
from tenuto.kernel.clock import Clock, SystemClock
from tenuto.kernel.transact import Steps
from tenuto.kernel.work import Call, Work

P = ParamSpec("P")
R = TypeVar("R")
_END: Any = object()


class Bridged(Protocol):
    """An object of the async face: the blocking one behind it, and the pool to run it on."""

    @property
    def _sync(self) -> Any: ...
    @property
    def _pool(self) -> ThreadPoolExecutor: ...


class Calls(Executor):
    """Where a user's blocking functions run, so many at once: threads that do not keep a process which ends.

    Python waits at its end for the threads of a pool, and so for ever for a function that hangs.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._queued: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._closed = False
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Run a function on a thread, as soon as one is free."""
        future: Future[R] = Future()
        with self._lock:
            if self._closed:
                raise Closed("The client was closed; nothing was run.")
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
            except BaseException as error:  # noqa: BLE001 - it is raised where it is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as it is there
        """Take no more calls; those under way go on."""
        with self._lock:
            self._closed = True


async def settle(pool: ThreadPoolExecutor, call: Callable[[], R], *, hold: float = 0) -> R:
    """Run `call` on the pool and wait for its outcome, even if cancelled meanwhile.

    The cancellation is raised once the outcome is known; the call's own error is then its cause. With `hold` the
    event loop itself waits, for so many seconds at most: nothing else runs before the outcome is known.
    """
    # No future of asyncio's around the pool's own, and no `asyncio.wait`: a hand-over is most of what a short call costs.
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
    # An anyio cancel scope delivers its cancellation again and again until the task yields to it; a
    # scope can only be open if somebody imported anyio.
    anyio = sys.modules.get("anyio")
    return anyio.CancelScope(shield=True) if anyio else nullcontext()


async def drive(pool: ThreadPoolExecutor, steps: Steps[R], clock: Clock, *, hold: float = 0) -> R:
    """Run a generator of delays to its end: its steps on the pool, its waits in the event loop.

    With `hold` its first step keeps the event loop waiting, as `settle` says.
    """

    def step() -> Any:
        try:
            return next(steps), None
        except StopIteration as done:
            return _END, done.value

    while True:
        delay, result = await settle(pool, step, hold=hold)
        if delay is _END:
            return result  # type: ignore[no-any-return]
        hold = 0
        await wait(pool, Pause(delay), clock)


async def wait(pool: ThreadPoolExecutor, pause: Pause, clock: Clock) -> None:
    """Let a pause pass by the client's clock, holding no thread."""
    if not isinstance(clock, SystemClock):  # a test's clock, which does not block
        await settle(pool, functools.partial(clock.sleep, pause.seconds))
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


async def perform(pool: ThreadPoolExecutor, calls: Executor, work: Work[R], clock: Clock) -> R:
    """Do work to its end: its commits on the pool, its waits here, the user's calls here or on threads of their own."""
    given: Any = None
    problem: BaseException | None = None
    while True:
        try:
            asked = work.send(given) if problem is None else work.throw(problem)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        given = problem = None
        try:
            if type(asked) is Call:
                given = await _called(calls, asked)
            elif type(asked) is Pause:
                await wait(pool, asked, clock)
            else:
                given = await drive(pool, asked, clock)  # type: ignore[arg-type]
        except BaseException as error:  # noqa: BLE001 - the work decides what becomes of it
            problem = error


async def _called(calls: Executor, call: Call) -> Any:
    """Make a call of the user's: a coroutine function is awaited, any other runs on a thread."""
    with call.around():
        limit = asyncio.timeout(call.timeout)
        try:
            async with limit:
                if inspect.iscoroutinefunction(call.fn):
                    return await call.fn(*call.args)
                context = contextvars.copy_context()
                begun = functools.partial(context.run, call.fn, *call.args)
                value = await asyncio.get_running_loop().run_in_executor(calls, begun)
                return await value if inspect.isawaitable(value) else value
        except TimeoutError:
            if limit.expired():
                raise call.late() from None
            raise


class awaitable(Generic[P, R]):  # noqa: N801 - used like a decorator
    """Mirror a blocking method as a coroutine method of the same signature."""

    def __init__(self, method: Callable[Concatenate[Any, P], R]) -> None:
        self.method = method
        self.__doc__ = method.__doc__
        self.__name__: str = method.__name__
        self._steps = getattr(method, "steps", None)
        self._work = getattr(method, "work", None)

    @overload
    def __get__(self, view: None, owner: type) -> Self: ...
    @overload
    def __get__(self, view: Bridged, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    def __get__(self, view: Bridged | None, owner: type) -> Any:
        if view is None:
            return self
        return functools.partial(self._call, view)

    async def _call(self, view: Bridged, /, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._steps is not None:
            return await drive(view._pool, self._steps(view._sync, *args, **kwargs), view._sync.clock)
        if self._work is not None:  # none of these calls the user's code
            work = self._work(view._sync, *args, **kwargs)
            return await perform(view._pool, view._pool, work, view._sync.clock)
        # By name: what is mirrored may be a Protocol's method, and what runs is the object's own.
        call = getattr(view._sync, self.__name__)
        return await settle(view._pool, functools.partial(call, *args, **kwargs))
