"""A server's time as its client knows it, over sleeps of the machine, slow replies and a server that is away."""

from typing import Any

import pytest

from tenuto.backends import _server_clock
from tenuto.backends._server_clock import ServerClock, moment
from tenuto.errors import StorageUnavailable
from tenuto.testing import HeldClock


class World:
    """A machine's two clocks and a server's, all in the test's hand."""

    def __init__(self) -> None:
        self.steady, self.wall, self.server = 50.0, 1_000_000.0, 1_000_007.0
        self.asked = 0
        self.away = False
        self.clock = ServerClock()
        self.clock.start_afresh(self.ask)

    def passes(self, seconds: float) -> None:
        self.steady += seconds
        self.wall += seconds
        self.server += seconds

    def sleeps(self, seconds: float) -> None:
        """Suspend the machine: its monotonic clock stands still."""
        self.wall += seconds
        self.server += seconds

    def ask(self) -> float:
        if self.away:
            raise StorageUnavailable("The server is away.")
        self.asked += 1
        self.passes(0.01)
        told = self.server
        self.passes(0.01)
        return told


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(_server_clock, "monotonic", lambda: made.steady)
    monkeypatch.setattr(_server_clock, "wall", lambda: made.wall)
    return made


def near(one: float, other: float) -> bool:
    return abs(one - other) <= 0.02


def test_it_asks_once_and_counts_on(world: World) -> None:
    assert not world.clock.is_set
    assert near(world.clock.now(), world.server)
    for _ in range(10):
        world.passes(5)
        assert near(world.clock.now(), world.server)
    assert world.asked == 1


def test_a_machine_that_slept_asks_before_it_says_anything(world: World) -> None:
    world.clock.now()
    world.sleeps(7_200)
    assert near(world.clock.now(), world.server)
    assert world.asked == 2


def test_after_a_sleep_nothing_is_said_while_the_server_is_away(world: World) -> None:
    world.clock.now()
    world.sleeps(7_200)
    world.away = True
    with pytest.raises(StorageUnavailable):
        world.clock.now()


def test_a_reply_from_before_a_sleep_is_not_believed(world: World) -> None:
    world.clock.now()
    sent, told = moment(), world.server
    world.sleeps(7_200)
    world.clock.heard(told, sent)
    assert near(world.clock.now(), world.server)


def test_a_sleep_while_it_asks_is_noticed(world: World) -> None:
    def slept_once() -> float:
        told = world.ask()
        if world.asked == 1:
            world.sleeps(7_200)
        return told

    world.clock.start_afresh(slept_once)
    assert near(world.clock.now(), world.server)
    assert world.asked == 2


def test_a_reply_corrects_an_estimate_that_nothing_here_could_have_noticed(world: World) -> None:
    world.clock.now()
    world.server += 7_200  # a machine that was paused, with both of its clocks
    sent = moment()
    world.passes(0.01)
    world.clock.heard(world.server, sent)
    assert near(world.clock.now(), world.server)
    assert world.asked == 1


def test_a_slow_reply_does_not_move_an_estimate_that_agrees_with_it(world: World) -> None:
    before = world.clock.now()
    sent = moment()
    world.passes(3)
    told = world.server
    world.passes(3)
    world.clock.heard(told, sent)
    assert world.clock.now() == before + 6


def test_it_asks_again_after_a_minute_and_goes_on_alone_while_the_server_is_away(world: World) -> None:
    world.clock.now()
    world.passes(61)
    world.clock.now()
    assert world.asked == 2
    world.away = True
    world.passes(61)
    assert near(world.clock.now(), world.server)
    world.away = False
    world.clock.now()
    assert world.asked == 2  # not at each call, where each would wait
    world.passes(61)
    world.clock.now()
    assert world.asked == 3


def test_it_never_goes_backwards(world: World) -> None:
    before = world.clock.now()
    world.server -= 100
    world.clock.measure()
    assert world.clock.now() == before
    world.passes(101)
    assert before < world.clock.now() < before + 2


def test_a_given_clock_takes_its_place(world: World) -> None:
    held = HeldClock()
    clock = ServerClock(held)
    clock.start_afresh(world.ask)
    clock.heard(world.server, moment())
    clock.measure()
    assert (clock.now(), clock.given(), clock.is_set, world.asked) == (held.time(), held.time(), True, 0)


def test_outside_of_tests_the_server_goes_by_its_own_time(world: World) -> None:
    given: Any = world.clock.given()
    assert given is None
