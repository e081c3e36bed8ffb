"""Work: one generator, answered by blocking and by awaiting; both give it the same answers and the same errors."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest

from tenuto.aio import bridge
from tenuto.aio.bridge import Mirror, Pools, awaitable, iterable
from tenuto.kernel.work import (
    Call,
    Item,
    Sleep,
    Store,
    Stream,
    Work,
    kind_of,
    on_caller,
    on_store,
    perform,
    streamed,
    work_of,
)
from tenuto.testing import HeldClock

Driver = Callable[[Work[Any], HeldClock], Any]


def awaiting(work: Work[Any], clock: HeldClock) -> Any:
    with ThreadPoolExecutor(2) as pool:
        return asyncio.run(bridge.perform(Pools(pool, pool), work, clock))


@pytest.fixture(params=[perform, awaiting], ids=["blocking", "awaiting"])
def driver(request: pytest.FixtureRequest) -> Driver:
    return request.param  # type: ignore[no-any-return]


def slept_and_stored(home: int) -> Work[list[Any]]:
    yield Sleep(1.0)
    inside = yield Store(store_part(home))
    plain = yield Store(lambda: "plain")
    called = yield Call(lambda a, b: a + b, (1, 2), nullcontext, "The call")
    return [inside, plain, called]


def store_part(home: int) -> Work[tuple[bool, int]]:
    yield Sleep(2.0)
    return threading.get_ident() == home, 7


def test_every_request_is_answered(driver: Driver) -> None:
    clock = HeldClock()
    begun = clock.time()
    inside, plain, called = driver(slept_and_stored(threading.get_ident()), clock)
    assert (inside[1], plain, called) == (7, "plain", 3)
    assert inside[0] is (driver is perform), "store code never runs on an event loop"
    assert clock.time() - begun == 3.0


def test_an_error_is_raised_where_the_request_was_made(driver: Driver) -> None:
    def work() -> Work[list[str]]:
        met = []
        for request in (
            Store(lambda: 1 / 0),
            Store(failing()),
            Call([].pop, (), nullcontext, "The call"),
        ):
            try:
                yield request
            except (ArithmeticError, LookupError) as error:
                met.append(type(error).__name__)
        return met

    def failing() -> Work[None]:
        yield Sleep(0.5)
        raise KeyError

    assert driver(work(), HeldClock()) == ["ZeroDivisionError", "KeyError", "IndexError"]


class Counter:
    """Something with methods that wait."""

    def __init__(self) -> None:
        self._clock = HeldClock()

    @on_store
    def add(self, number: int, *, more: int = 1) -> Work[int]:
        """Return a sum."""
        yield Sleep(1.0)
        return number + more

    @on_caller
    def twice(self, number: int) -> Work[int]:
        """Return a sum, twice."""
        return (yield Store(work_of(self.add)(number))) * 2

    @streamed
    def count(self, upto: int) -> Stream[int]:
        """Yield numbers."""
        for number in range(upto):
            yield Sleep(1.0)
            yield Item(number)


class AsyncCounter(Mirror[Counter]):
    add = awaitable(Counter.add)
    twice = awaitable(Counter.twice)
    count = iterable(Counter.count)


def test_methods_are_ordinary_ones_in_both_faces() -> None:
    async def main() -> list[Any]:
        with ThreadPoolExecutor(2) as pool:
            mirror = AsyncCounter(Counter(), Pools(pool, pool))
            return [await mirror.add(1, more=2), await mirror.twice(3), [n async for n in mirror.count(3)]]

    counter = Counter()
    blocking = [counter.add(1, more=2), counter.twice(3), list(counter.count(3))]
    assert blocking == asyncio.run(main()) == [3, 8, [0, 1, 2]]


def test_help_shows_what_a_method_takes_and_returns() -> None:
    assert str(inspect.signature(Counter.add)) == "(self, number: 'int', *, more: 'int' = 1) -> 'int'"
    assert str(inspect.signature(Counter().add)) == str(inspect.signature(AsyncCounter.add)).replace("self, ", "")
    assert "AsyncIterator[int]" in str(inspect.signature(AsyncCounter.count))
    assert AsyncCounter.add.__doc__ == "Return a sum."
    assert inspect.iscoroutinefunction(AsyncCounter.add)
    assert not hasattr(Counter.add, "steps")


def test_a_plain_method_has_no_work() -> None:
    assert kind_of(Counter.__init__) is None
    assert isinstance(Counter().count(1), Iterator)
