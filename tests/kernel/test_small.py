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
from tenuto.kernel import codec, contract, correlation, durations, keys, transact, work
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


def test_a_steady_clock_waits_for_a_clock_that_was_set_back_a_little() -> None:
    clock = HeldClock(1000)
    steady = Steady(clock)
    assert steady.now() == 1000
    clock.advance(-4)
    assert steady.now() == 1000
    clock.advance(-6)
    assert steady.now() == 1000
    clock.advance(15)
    assert steady.now() == 1005


def test_a_steady_clock_follows_a_clock_that_jumped_ahead_and_was_set_right(caplog: pytest.LogCaptureFixture) -> None:
    clock = HeldClock(1000)
    steady = Steady(clock)
    clock.advance(86_400)
    assert steady.now() == 87_400
    clock.advance(-86_400)
    assert [steady.now(), steady.now()] == [1000, 1000]
    assert [record.message[:34] for record in caplog.records] == ["The clock was set back by 86400 s."]
    clock.advance(1)
    assert steady.now() == 1001


def test_small_steps_back_add_up_to_one_that_is_followed() -> None:
    clock = HeldClock(1000)
    steady = Steady(clock)
    steady.now()
    for _ in range(3):
        clock.advance(-4)
        found = steady.now()
    assert found == 988


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
    work.perform(transact.commit_once(Asking(), [], [Put(key, b"1")]), SystemClock())
    work.perform(transact.commit_once(Asking(), [], [Put(key, b"1")], asked[0][0]), SystemClock())
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


def test_a_value_that_two_writes_share_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []
    monkeypatch.setattr(contract, "digest", lambda value: hashed.append(value) or codec.digest(value))
    line, other = b"line" * 100, bytes(bytearray(b"line" * 100))
    writes = [
        contract.Put(b"a", line),
        contract.Append(b"s", line),
        contract.Put(b"b", other, 5.0),
        contract.Delete(b"c"),
        contract.Forget(b"s", 1, 2),
    ]
    found = contract.digests_of(writes)
    assert len(hashed) == 2  # `other` is equal, and not the same object
    assert found == [contract.content_of(write) for write in writes]


def test_a_fingerprint_tells_every_part_of_a_commit_apart() -> None:
    def of(checks: list[contract.AnyCheck], writes: list[contract.Write]) -> bytes:
        return contract.fingerprint(checks, writes, contract.digests_of(writes))

    commits: list[tuple[list[contract.AnyCheck], list[contract.Write]]] = [
        ([], [contract.Put(b"a", b"1")]),
        ([], [contract.Put(b"a", b"2")]),
        ([], [contract.Put(b"b", b"1")]),
        ([], [contract.Put(b"a", b"1", 5.0)]),
        ([], [contract.Append(b"a", b"1")]),
        ([], [contract.Delete(b"a")]),
        ([], [contract.Forget(b"a", 1, 1)]),
        ([], [contract.Forget(b"a", 1, 2)]),
        ([], [contract.Put(b"a", b"1"), contract.Delete(b"b")]),
        ([contract.Check(b"b", 1)], [contract.Put(b"a", b"1")]),
        ([contract.Check(b"b", 2)], [contract.Put(b"a", b"1")]),
        ([contract.CheckEnd(b"b", 1)], [contract.Put(b"a", b"1")]),
        ([contract.Check(b"b", 1), contract.Check(b"c", 1)], [contract.Put(b"a", b"1")]),
    ]
    assert len({of(*commit) for commit in commits}) == len(commits)
    assert of(*commits[0]) == of(*commits[0])
