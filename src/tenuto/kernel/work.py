"""Code that may wait, written once for the blocking and the async API.

`Work` is a generator that yields requests, receives their results, and returns its own. The requests:

- `Sleep(seconds, bell)` waits, until a notification at most;
- `Call(fn, args, …)` calls the user's code and returns its value;
- `Store(part)` runs a part that calls the store and returns its result;
- `Together(works)` runs several works concurrently and returns their results in order;
- `Item(value)` passes a value to the reader of a `Stream`.

`perform` serves them by blocking, `aio.bridge.perform` by awaiting. An event loop must not block, so code runs in
one of two places. Code inside a `Store` may call the store: the async API runs it on a thread, and it may request
only `Sleep`. All other code only decides. It runs in the caller's thread, so on the event loop, in call order and
with the caller's context variables.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, Concatenate, Generic, Literal, NamedTuple, ParamSpec, Protocol, TypeVar

from tenuto.errors import TimedOut
from tenuto.kernel.bell import Bell
from tenuto.kernel.clock import Clock, SystemClock

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
C = TypeVar("C", bound="Clocked")


class Sleep(NamedTuple):
    """Wait this many seconds, or until the bell is set."""

    seconds: float
    bell: Bell | None = None

    def block(self, clock: Clock) -> None:
        """Block this thread. A test's clock advances by itself and ignores the bell."""
        if self.bell is None or not isinstance(clock, SystemClock):
            clock.sleep(self.seconds)
        else:
            self.bell.wait(self.seconds)


class Interrupted(BaseException):
    """A coroutine was cancelled because its caller may no longer write the result."""


class Call(NamedTuple):
    """Call the user's code inside a context manager, and return its value."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    around: Callable[[], AbstractContextManager[object]]
    what: str
    """The name of the call in errors."""
    timeout: float | None = None
    on_lost: Callable[[Callable[[], None] | None], None] | None = None
    """Registers what to call when the result is no longer wanted; a coroutine is then cancelled with `Interrupted`."""

    def block(self) -> Any:
        """Call in this thread, or in a new one if there is a timeout; return the value."""
        if inspect.iscoroutinefunction(self.fn):
            raise TypeError(f"{self.what} is a coroutine function. Use a run of AsyncTenuto to await it.")
        with self.around():
            value = self.fn(*self.args) if self.timeout is None else self._in_thread()
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise TypeError(f"{self.what} returned an awaitable. Use a run of AsyncTenuto to await it.")
        return value

    def _in_thread(self) -> Any:
        """Call in a new thread, which is abandoned after the timeout."""
        outcome: list[Any] = []
        problem: list[BaseException] = []
        context = contextvars.copy_context()

        def run() -> None:
            try:
                outcome.append(context.run(self.fn, *self.args))
            except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
                problem.append(error)

        thread = threading.Thread(target=run, name=f"tenuto {self.what}", daemon=True)
        thread.start()
        thread.join(self.timeout)
        if problem:
            raise problem[0]
        if not outcome:
            raise self.late()
        return outcome[0]

    def late(self) -> TimedOut:
        """Return the error of a call that timed out."""
        return TimedOut(f"{self.what} took longer than {self.timeout:g} s. Its effects may still happen.")


class Store(NamedTuple):
    """Run a part that calls the store, work or a plain function, and return its result."""

    part: Work[Any] | Callable[[], Any]


class Together(NamedTuple):
    """Run works concurrently; return their results in order. All of them end before the first error by order is raised."""

    works: Sequence[Work[Any]]

    def block(self, clock: Clock) -> list[Any]:
        """Run each work in a thread of its own, with the caller's context variables; one alone in this thread."""
        if len(self.works) < 2:
            return [perform(work, clock) for work in self.works]
        with ThreadPoolExecutor(len(self.works), thread_name_prefix="tenuto-together") as pool:
            begun = [pool.submit(contextvars.copy_context().run, perform, work, clock) for work in self.works]
        return [one.result() for one in begun]


class Item(NamedTuple, Generic[T]):
    """Pass a value to the reader of a stream."""

    value: T


Work = Generator[Sleep | Call | Store | Together, Any, R]
"""Code that yields requests and returns its result."""
Stream = Generator[Sleep | Item[T], None, None]
"""Store code that yields items, and sleeps while there are none."""


class Clocked(Protocol):
    """An object whose methods may wait, by its clock."""

    @property
    def _clock(self) -> Clock: ...


class Kind(NamedTuple):
    """The generator that a public method was made from, and where it runs."""

    make: Callable[..., Any]
    where: Literal["store", "caller", "stream"]


_KINDS: dict[Callable[..., Any], Kind] = {}


def kind_of(method: Callable[..., Any]) -> Kind | None:
    """Return the kind of a method made by a decorator of this module, else None."""
    return _KINDS.get(method)


def register(method: Callable[..., Any], kind: Kind) -> None:
    """Record the kind of a method, for the async API and for `work_of`."""
    _KINDS[method] = kind


def work_of(method: Callable[P, R]) -> Callable[P, Work[R]]:
    """Return the work of a bound method, for use as a part of other work."""
    return functools.partial(_KINDS[method.__func__].make, method.__self__)  # type: ignore[attr-defined]


def on_store(make: Callable[Concatenate[C, P], Work[R]]) -> Callable[Concatenate[C, P], R]:
    """Make store code a blocking method. The async API runs it on a thread."""

    @functools.wraps(make)
    def method(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        work = make(self, *args, **kwargs)
        try:
            request = work.send(None)
        except StopIteration as done:  # the usual case: it waited for nothing
            return done.value  # type: ignore[no-any-return]
        return _answer(work, request, self._clock)

    return _made(method, Kind(make, "store"))


def on_caller(make: Callable[Concatenate[C, P], Work[R]]) -> Callable[Concatenate[C, P], R]:
    """Make work that does not call the store itself a blocking method. The async API runs it on the event loop."""

    @functools.wraps(make)
    def method(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return perform(make(self, *args, **kwargs), self._clock)

    return _made(method, Kind(make, "caller"))


def streamed(make: Callable[Concatenate[C, P], Stream[T]]) -> Callable[Concatenate[C, P], Iterator[T]]:
    """Make a stream a method that returns a blocking iterator."""

    @functools.wraps(make)
    def method(self: C, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return Items(make(self, *args, **kwargs), self._clock)

    return _made(method, Kind(make, "stream"))


def _made(method: Callable[P, R], kind: Kind) -> Callable[P, R]:
    """Give a method the return type of its work, and record its kind."""
    shown = str(kind.make.__annotations__["return"])
    inner = shown[shown.index("[") + 1 : -1]
    method.__annotations__["return"] = f"Iterator[{inner}]" if kind.where == "stream" else inner
    del method.__wrapped__  # type: ignore[attr-defined]
    method.__signature__ = inspect.signature(kind.make).replace(  # type: ignore[attr-defined]
        return_annotation=method.__annotations__["return"]
    )
    register(method, kind)
    return method


def perform(work: Work[R], clock: Clock) -> R:
    """Run work to its end in this thread."""
    try:
        request = work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    return _answer(work, request, clock)


def _answer(work: Work[R], request: Sleep | Call | Store | Together, clock: Clock) -> R:
    while True:
        given: Any = None
        problem: BaseException | None = None
        try:
            kind = type(request)
            if kind is Store:
                part = request.part  # type: ignore[union-attr]
                given = part() if callable(part) else perform(part, clock)
            elif kind is Call:
                given = request.block()  # type: ignore[union-attr, call-arg]
            else:
                given = request.block(clock)  # type: ignore[union-attr, call-arg]
        except BaseException as error:  # noqa: BLE001 - passed to the work, which decides
            problem = error
        try:
            request = work.send(given) if problem is None else work.throw(problem)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]


class Items(Iterator[T]):
    """A stream as a blocking iterator. `stream` and `clock` let an event loop wait for it instead."""

    def __init__(self, stream: Stream[T], clock: Clock) -> None:
        self.stream = stream
        self.clock = clock

    def __next__(self) -> T:
        """Return the next item; wait for it."""
        for request in self.stream:
            if isinstance(request, Item):
                return request.value  # type: ignore[no-any-return]
            request.block(self.clock)
        raise StopIteration

    def close(self) -> None:
        """End the stream."""
        self.stream.close()
