"""Durations, the steady clock, back-off, correlation, request ids."""

import os
import subprocess
import sys
import threading
from datetime import timedelta
from itertools import islice
from typing import Any

import pytest

from tenuto.backends.volatile import VolatileBackend
from tenuto.errors import InvalidInput
from tenuto.kernel import correlation, durations, keys, transact
from tenuto.kernel.clock import Steady, SystemClock
from tenuto.kernel.contract import Commit, Put
from tenuto.kernel.wake import Wake
from tenuto.testing import HeldClock


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (5, 5),
        (0.5, 0.5),
        (timedelta(minutes=2), 120),
        ("90s", 90),
        ("24h", 86400),
        ("1h 30m", 5400),
        ("1h30min", 5400),
        ("250ms", 0.25),
        ("2d", 172800),
        ("1.5 w", 907200),
    ],
)
def test_a_duration_is_seconds_a_timedelta_or_words(written: durations.Duration, seconds: float) -> None:
    assert durations.seconds(written) == seconds


@pytest.mark.parametrize(
    "bad", [-1, float("nan"), float("inf"), "", "soon", "5", "h", "1h soon", "-5s", None, True, timedelta(-1), [5]]
)
def test_a_duration_that_is_none_is_refused(bad: object) -> None:
    with pytest.raises(InvalidInput):
        durations.seconds(bad)  # type: ignore[arg-type]


def test_a_time_to_live_of_nothing_is_refused() -> None:
    assert durations.ttl(None) is None
    with pytest.raises(InvalidInput):
        durations.ttl(0)


def test_a_steady_clock_stands_still_until_the_clock_catches_up() -> None:
    clock = HeldClock(1000)
    steady = Steady(clock)
    assert steady.now() == 1000
    clock.advance(-100)
    assert steady.now() == 1000
    clock.advance(150)
    assert steady.now() == 1050


def test_the_system_clock_tells_and_takes_time() -> None:
    clock = SystemClock()
    before = clock.time()
    clock.sleep(0.001)
    assert clock.time() > before


def test_back_off_doubles_with_jitter_and_ends() -> None:
    transact.chance.seed(1)
    delays = list(transact.backoff(6, first=1, most=4))
    assert len(delays) == 5
    assert all(0.5 * base <= delay <= 1.5 * base for delay, base in zip(delays, (1, 2, 4, 4, 4), strict=True))
    assert len(list(islice(transact.backoff(None), 50))) == 50


def test_a_request_id_tells_when_it_was_made_and_is_new_once() -> None:
    request = transact.new_request(1234.567)
    assert len(request) == 16
    assert transact.request_time(request) == 1234.567
    assert not transact.is_first_use(request)  # whoever made it may have handed it on
    own = transact.own_request(1234.567)
    assert [transact.is_first_use(own) for _ in range(2)] == [True, False]


def test_a_wake_is_heard_once_by_who_sleeps_or_who_comes_next() -> None:
    wake = Wake()
    assert not wake.wait(0)
    wake.set()
    wake.set()
    assert wake.wait(0)
    assert not wake.wait(0.001)
    heard: list[bool] = []
    sleeper = threading.Thread(target=lambda: heard.append(wake.wait()))
    sleeper.start()
    wake.set()
    sleeper.join(10)
    assert heard == [True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_makes_other_request_ids() -> None:
    transact.own_request(1.0)  # from now on some are drawn beforehand
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, b"".join(transact.own_request(1.0) for _ in range(300)))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        theirs = file.read()
    os.waitpid(child, 0)
    made = [transact.own_request(1.0) for _ in range(300)] + [theirs[at : at + 16] for at in range(0, len(theirs), 16)]
    assert len(set(made)) == len(made) == 600


def test_a_request_id_that_settling_made_is_new_once() -> None:
    asked: list[tuple[bytes, list[bool]]] = []

    class Asking(VolatileBackend):
        def commit(self, checks: Any, writes: Any, *, request: bytes | None = None) -> Commit:
            assert request is not None
            asked.append((request, [transact.is_first_use(request) for _ in range(2)]))
            return super().commit(checks, writes, request=request)

    key = keys.pack("t", "s", "k")
    transact.drive(transact.settle(Asking(), [], [Put(key, b"1")]), SystemClock())
    transact.drive(transact.settle(Asking(), [], [Put(key, b"1")], asked[0][0]), SystemClock())
    assert asked == [(asked[0][0], [True, False]), (asked[0][0], [False, False])]


def test_a_traceparent_gives_its_trace_id() -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert correlation.trace_id(f"00-{trace}-00f067aa0ba902b7-01") == trace
    assert correlation.trace_id(f"00-{'0' * 32}-00f067aa0ba902b7-01") is None
    assert correlation.trace_id("req-17") is None


def test_a_traceparent_is_taken_up_from_the_environment() -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    code = "from tenuto.kernel import correlation; print(correlation.current())"
    env = {"TRACEPARENT": f"00-{trace}-00f067aa0ba902b7-01", "PATH": ""}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip() == trace
