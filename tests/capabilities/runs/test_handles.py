"""A run from outside: start it, get an id, wait for its result; a run that has none is a typed error."""

import dataclasses
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tenuto import Cancelled, InvalidInput, NotFound, RunBusy, RunFailed, Tenuto, TimedOut

from .runs_world import Killed, killed


@dataclasses.dataclass
class Plan:
    city: str


def executed(agent: Tenuto) -> Any:
    """Execute what is queued, in this thread."""
    stop = threading.Event()
    worker = threading.Thread(target=agent.runs.work, kwargs={"poll": 0.01, "stop": stop})
    worker.start()
    return stop, worker


def test_a_started_run_has_an_id_and_a_result(agent: Tenuto) -> None:
    @agent.durable
    def trip(run: Any, city: str) -> Plan:
        return Plan(run.step("plan", str, city))

    handle = trip.start("trip-1", "Lisbon")
    assert (handle.id, handle.created, bool(handle)) == ("trip-1", True, True)
    with pytest.raises(TimedOut, match="queued"):
        handle.result()
    stop, worker = executed(agent)
    assert handle.result(wait=math.inf) == Plan("Lisbon")
    assert agent.runs.result("trip-1") == {"city": "Lisbon"}  # by id alone the type is not known
    again = trip.start("trip-1", "Lisbon")
    assert not again
    assert again.result() == Plan("Lisbon")
    stop.set()
    worker.join()


def test_waiting_for_a_result_is_bounded(agent: Tenuto) -> None:
    @agent.durable
    def job(run: Any) -> None:
        run.step("a", str, 1)

    handle = job.start(None)
    with pytest.raises(TimedOut, match="Wait for it"):
        handle.result(wait="2s")  # by the test's clock
    with pytest.raises(NotFound):
        agent.runs.result("unknown")
    with pytest.raises(InvalidInput):
        agent.runs.result(handle.id, wait=-1)


def test_a_failed_or_cancelled_run_has_no_result(agent: Tenuto) -> None:
    @agent.durable
    def job(run: Any, how: str) -> Any:
        return run.step("a", int, how)

    with pytest.raises(ValueError, match="many"):
        job.run("failed", "many")
    with pytest.raises(RunFailed, match="invalid literal") as failed:
        agent.runs.result("failed", wait="1h")
    assert failed.value.type == "ValueError"
    job.start("cancelled", "1")
    agent.runs.cancel("cancelled")
    with pytest.raises(RunFailed, match="cancelled") as cancelled:
        agent.runs.result("cancelled")
    assert cancelled.value.type == "Cancelled"


def test_to_start_a_cancelled_run_is_no_error_and_changes_nothing(agent: Tenuto) -> None:
    @agent.durable
    def order(run: Any, item: str) -> Any:
        return run.step("p", str.upper, item)

    order.start("o-1", "lamp")
    agent.runs.cancel("o-1")
    assert not order.start("o-1", "lamp")
    assert agent.runs.get("o-1").status == "cancelled"
    with pytest.raises(Cancelled):
        order.run("o-1", "lamp")


def test_a_run_without_an_id_gets_a_new_one(agent: Tenuto) -> None:
    @agent.durable
    def job(run: Any, n: int) -> int:
        return n + len(run.step("a", str, n))

    assert job.run(None, 1) == job.run(None, 1) == 2
    first, second = job.start(None, 2), job.start(None, 2)
    assert first.id.startswith("job-")
    assert first.created
    assert second.created
    with agent.run() as run:
        run.step("a", str, 1)
    ids = [one.id for one in agent.runs.list()]
    assert len(set(ids)) == 5
    assert run.id in ids


def test_inside_a_run_an_id_is_needed(agent: Tenuto) -> None:
    @agent.durable
    def job(run: Any) -> None:
        run.step("a", str, 1)

    for begin in (lambda: job.run(None), lambda: job.start(None), agent.run):
        with pytest.raises(InvalidInput, match="a replay would start another"), agent.run("outer"):
            begin()
    assert [one.id for one in agent.runs.list()] == ["outer"]


def test_arguments_without_an_id_are_refused_with_the_reason(agent: Tenuto) -> None:
    @agent.durable
    def deploy(run: Any, version: str) -> None:
        run.step("a", str, version)

    with pytest.raises(TypeError, match="The first argument of run and start is the run's id"):
        deploy.start("1.2.3")  # type: ignore[call-arg]
    assert agent.runs.list() == []


@pytest.mark.races
def test_a_result_is_awaited_across_clients(client: Callable[..., Tenuto]) -> None:
    ours, theirs = client("ours"), client("theirs")
    found: list[Any] = []
    with theirs.run("r") as run:
        waiter = threading.Thread(target=lambda: found.append(ours.runs.result("r", wait=math.inf)))
        waiter.start()
        run.result = run.step("a", str.upper, "done")
    waiter.join()
    assert found == ["DONE"]


def test_wait_none_does_not_wait(client: Callable[..., Tenuto]) -> None:
    with client("holder").run("r"):
        with pytest.raises(RunBusy):
            client("other").run("r", wait=None).__enter__()
    with client("holder").run("once:k"):
        with pytest.raises(RunBusy):
            client("other").once("k", str, 1, wait=None)


def test_a_deleted_run_has_no_result(agent: Tenuto) -> None:
    killed(agent, lambda run: run.step("a", str, 1))
    with pytest.raises(Killed), agent.run("r"):
        raise Killed
    agent.runs.delete("r")
    with pytest.raises(NotFound):
        agent.runs.result("r")
