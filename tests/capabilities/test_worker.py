"""The engine of workers: what it logs while the store is away, and how it stops."""

import logging
import threading
from typing import Any

import pytest

from tenuto import InvalidInput, StorageUnavailable, Tenuto
from tenuto.capabilities._core.worker import Worker, work
from tenuto.kernel.clock import SystemClock
from tenuto.kernel.work import Sleep, Work


class Jobs:
    """A source that is unavailable for a while, then has one job, and then stops its worker."""

    what = "jobs"
    log = logging.getLogger("tenuto.jobs")
    stream = b"\x02jobs\x00\x02jobs\x00"
    more = False

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.stop: Any = threading.Event()
        self.executed: list[str] = []
        self.abandoned = 0

    def take(self, _ended: Any) -> Work[str | None]:
        yield from ()
        if self.failures:
            self.failures -= 1
            raise StorageUnavailable("gone")
        return "job"

    def execute(self, job: str) -> Work[None]:
        self.executed.append(job)
        self.stop.set()
        yield from ()

    def end(self, _ended: Any) -> Work[None]:
        yield from ()

    def is_empty(self) -> bool:
        return False

    def seconds_left(self) -> float:
        return 60.0

    def abandon(self) -> None:
        self.abandoned += 1


@pytest.fixture
def agent(clock: Any) -> Any:
    with Tenuto("w", "volatile:", clock=clock) as agent:
        yield agent


def test_a_store_that_is_away_is_logged_once_and_once_when_it_is_back(
    agent: Tenuto, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = Jobs(failures=20)
    worker = Worker(agent.kernel, jobs, poll=0.05, until_empty=False, stop=None)
    work(worker, agent.clock, concurrency=1, grace=5, on_signal=False)
    assert jobs.executed == ["job"]
    assert [record.getMessage() for record in caplog.records] == [
        "The worker cannot take jobs now and keeps trying: gone",
        "The worker can take jobs again.",
    ]
    assert jobs.abandoned == 1


@pytest.mark.parametrize("everything", [True, False])
def test_timers_that_cannot_be_looked_for_are_logged_once_and_not_beside_the_jobs(
    agent: Tenuto, caplog: pytest.LogCaptureFixture, everything: bool
) -> None:
    def failing() -> Work[int]:
        yield from ()
        raise StorageUnavailable("gone")

    worker = Worker(agent.kernel, Jobs(0), poll=0.05, until_empty=False, stop=None, chores=failing)
    chores = worker.chores()
    if everything:
        worker._lost(StorageUnavailable("gone"))
    for _ in range(5):
        assert isinstance(next(chores), Sleep)
    cannot = "The worker cannot take jobs now and keeps trying: gone"
    timers = "Looking for timers that are due failed and will be retried: gone"
    assert [record.getMessage() for record in caplog.records] == [cannot if everything else timers]


def test_a_worker_without_lanes_is_refused(agent: Tenuto) -> None:
    worker = Worker(agent.kernel, Jobs(failures=0), poll=0.05, until_empty=False, stop=None)
    with pytest.raises(InvalidInput, match="concurrency"):
        work(worker, agent.clock, concurrency=0, grace=5, on_signal=False)


class Slow(Jobs):
    """A source whose first look takes long and finds a job, while a second one finds nothing."""

    def __init__(self) -> None:
        super().__init__(0)
        self.looking = iter("ab")
        self.other_found_nothing = threading.Event()
        self.stopped_early: list[bool] = []

    def take(self, _ended: Any) -> Work[str | None]:
        yield from ()
        if next(self.looking, None) == "a":
            assert self.other_found_nothing.wait(20)
            return "job"
        return None

    def is_empty(self) -> bool:
        return True

    def execute(self, job: str) -> Work[None]:
        self.executed.append(job)
        self.stopped_early.append(self.stop.is_set())
        yield from ()

    def seconds_left(self) -> float:
        return 0.01


def test_a_worker_that_ends_when_nothing_is_left_first_does_what_a_slow_lane_found(agent: Tenuto) -> None:
    # given a lane that still looks when another finds nothing and ends the worker
    source = Slow()
    worker = Worker(agent._context.kernel, source, poll=0.02, until_empty=True, stop=None)
    wake_all = worker._wake_all

    def noticed() -> None:
        wake_all()
        source.other_found_nothing.set()

    worker._wake_all = noticed  # type: ignore[method-assign]
    # when it works, without a grace period
    work(worker, SystemClock(), concurrency=2, grace=0.0, on_signal=False)
    # then the job is executed before it returns, and not told to stop
    assert (source.executed, source.stopped_early) == (["job"], [False])
