"""Committing as capabilities do it: with a request id, and again when somebody else was first.

A method that may have to wait is written once, as a generator that yields how many seconds to wait
and returns its result. `paced` makes it an ordinary method, which sleeps; the async face drives the
same generator and awaits instead, so that nothing waits in a thread.
"""

from __future__ import annotations

import functools
import os
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from tenuto.errors import StorageUnavailable
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import AnyCheck, Backend, Commit, Write

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound="Timed")
Steps = Generator[float, None, R]
"""A piece of work that yields how long to wait before it goes on, and returns its result."""

chance = random.Random()  # noqa: S311 - it spreads retries; it guards nothing
"""The randomness behind every back-off; a test seeds it."""


def new_request(now: float) -> bytes:
    """Return a new request id: the store's time in milliseconds, then 80 random bits.

    The time lets a backend refuse an id that is too old for its outcome to be known, and keeps the
    table of requests growing at its end.
    """
    return int(now * 1000).to_bytes(6, "big") + os.urandom(10)


def own_request(now: float) -> bytes:
    """Return a new request id that is used in this process only, until it was used once: a store need not look it up then."""
    try:
        chosen = _chosen.pop()
    except IndexError:  # randomness costs a call of the system: so for many at once
        drawn = os.urandom(10 * 256)
        _chosen.extend([drawn[at : at + 10] for at in range(10, len(drawn), 10)])
        chosen = drawn[:10]
    request = int(now * 1000).to_bytes(6, "big") + chosen
    if len(_unused) > 1_000:  # left by backends that do not ask: then they are looked up
        _unused.clear()
    _unused[request] = None
    return request


_chosen: list[bytes] = []
_unused: dict[bytes, None] = {}


def is_first_use(request: bytes) -> bool:
    """Tell whether this id was made by `own_request` and is used for the first time.

    Then no store can know it, and a backend need not look it up. False when in doubt.
    """
    try:
        del _unused[request]
    except KeyError:
        return False
    return True


if hasattr(os, "register_at_fork"):
    # The parent has the same ones.
    os.register_at_fork(after_in_child=_unused.clear)
    os.register_at_fork(after_in_child=_chosen.clear)


def request_time(request: bytes) -> float:
    """Return when a request id was made, in the store's time."""
    return int.from_bytes(request[:6], "big") / 1000


def backoff(attempts: int | None, *, first: float = 0.001, most: float = 0.1) -> Iterator[float]:
    """Yield jittered delays that double up to `most`, one fewer than `attempts` (None: for ever)."""
    delay, made = first, 1
    while attempts is None or made < attempts:
        yield delay * (0.5 + chance.random())
        delay, made = min(delay * 2, most), made + 1


def settle(
    backend: Backend, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None = None
) -> Steps[Commit]:
    """Commit once, whatever becomes of the replies: a lost one is asked for again by request id.

    Who goes on asking after that gives the same `request` each time, so that it still happens once.
    """
    request = request or own_request(backend.now())
    try:
        return backend.commit(checks, writes, request=request)
    except StorageUnavailable as error:
        return (yield from ask_again(error, backend, checks, writes, request))


def ask_again(
    error: StorageUnavailable, backend: Backend, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes
) -> Steps[Commit]:
    """Go on with a commit that raised an error, if that was the reply's loss: ask what became of it."""
    for delay in backoff(4, first=0.01):
        if error.outcome != "unknown":
            break
        yield delay
        try:
            return backend.commit(checks, writes, request=request)
        except StorageUnavailable as again:
            error = again
    raise error


def done(call: Callable[[], R]) -> Steps[R]:
    """Make a call that waits for nothing but the store a piece of work, so that an event loop need not make it."""
    return call()
    yield 0.0  # what makes it a generator


class Timed(Protocol):
    """Anything whose paced methods may wait: it says by which clock."""

    @property
    def clock(self) -> Clock:
        """Return the clock that waits."""
        ...


def paced(steps: Callable[Concatenate[S, P], Steps[R]]) -> Callable[Concatenate[S, P], R]:
    """Make a generator of delays an ordinary method, which sleeps by its object's `clock`."""

    @functools.wraps(steps)
    def method(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        work = steps(self, *args, **kwargs)
        try:
            delay = next(work)
        except StopIteration as done:  # as nearly always: it waited for nothing
            return done.value  # type: ignore[no-any-return]
        self.clock.sleep(delay)
        return drive(work, self.clock)

    method.steps = steps  # type: ignore[attr-defined]
    return method


def drive(steps: Steps[R], clock: Clock) -> R:
    """Run a generator of delays to its end, sleeping in between."""
    while True:
        try:
            delay = next(steps)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        clock.sleep(delay)
