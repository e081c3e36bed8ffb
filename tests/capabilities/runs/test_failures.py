"""A failure says where it came from, a doubt stays on record, and a caught mismatch stops the run all the same."""

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tenuto
from tenuto import InDoubt, NotHappened, NotStorable, Retry, StepMismatch, Tenuto

from .runs_world import Killed, World, killed, resumed


@pytest.fixture
def world() -> World:
    return World()


def look_up(customers: dict[str, Any]) -> Any:
    return customers["ann"]


def test_a_failed_run_and_its_step_keep_the_line_that_raised(agent: Tenuto) -> None:
    with pytest.raises(KeyError), agent.run("r") as run:
        run.step("load", look_up, {})
    found = agent.runs.get("r")
    for error in (found.error, found.steps[0].error):
        assert error is not None
        assert str(error) == "KeyError: 'ann'"
        assert error.traceback is not None
        assert 'return customers["ann"]' in error.traceback
        assert error.traceback.endswith("KeyError: 'ann'")
        assert "tenuto/capabilities" not in error.traceback  # only the user's own frames


def test_an_error_of_tenuto_keeps_the_frames_below_the_users_line(agent: Tenuto) -> None:
    def save() -> None:
        agent.state.set("s", "k", object())

    with pytest.raises(NotStorable), agent.run("r") as run:
        run.step("save", save)
    error = agent.runs.get("r").steps[0].error
    assert error is not None
    assert error.traceback is not None
    own = error.traceback.rpartition("Traceback")[2]  # before it: the TypeError of the encoder
    before, _, after = own.partition('agent.state.set("s", "k", object())')
    assert "tenuto/kernel" not in before
    assert "tenuto/kernel/codec.py" in after


def test_a_step_whose_error_is_caught_keeps_its_traceback(agent: Tenuto) -> None:
    with agent.run("r") as run:
        with pytest.raises(KeyError):
            run.step("load", look_up, {})
        run.step("go on", str, 1)
    error = agent.runs.get("r").steps[0].error
    assert error is not None
    assert "in look_up" in (error.traceback or "")


def test_a_traceback_is_bounded_and_ends_where_it_was_raised(agent: Tenuto) -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("x" * 10_000_000)
        if n % 2:
            deep(n - 1)
        else:
            deep(n - 1)

    with pytest.raises(ValueError, match="xxx"), agent.run("r") as run:
        run.step("deep", deep, 200)
    found = agent.runs.get("r").steps[0]
    assert found.status == "failed"
    assert found.error is not None
    assert found.error.traceback is not None
    assert len(found.error.traceback) <= 4_200
    assert "raise ValueError" in found.error.traceback


def test_a_worker_logs_where_a_run_failed(agent: Tenuto, caplog: pytest.LogCaptureFixture) -> None:
    @agent.durable
    def job(run: Any) -> Any:
        return run.step("load", look_up, {})

    job.start("j")
    stop = threading.Event()
    with caplog.at_level(logging.INFO, "tenuto.runs"):
        work = threading.Thread(target=agent.runs.work, kwargs={"poll": 0.01, "stop": stop})
        work.start()
        list(agent.runs.watch("j"))  # ends with the run
        stop.set()
        work.join()
    raised = [one for one in caplog.records if one.exc_info is not None and one.exc_info[0] is KeyError]
    assert {one.levelname for one in raised} == {"INFO", "WARNING"}  # the step's, the run's
    assert "in look_up" in caplog.text
    assert "tenuto/kernel" not in caplog.text


@pytest.mark.parametrize("who", ["verify", "ann"])
def test_who_let_a_step_run_again_is_on_record(
    client: Callable[..., Tenuto], world: World, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    verify = (lambda _: NotHappened()) if who == "verify" else None

    def body(run: Any) -> Any:
        return run.step("pay", world.do, "pay", effect="once", verify=verify)

    world.dies["pay"] = 1
    killed(client(), body)
    agent = client()
    if who == "ann":
        with pytest.raises(InDoubt):
            resumed(agent, body)
        assert "must not happen twice" in caplog.text  # a run that stops in doubt is a warning
        assert caplog.records[-1].levelname == "WARNING"
        (question,) = agent.inbox.list(run="r")
        agent.inbox.answer(question.id, NotHappened(), by="ann")
    assert resumed(agent, body) == "pay done"
    (step,) = agent.runs.get("r").steps
    assert (step.attempts, step.repeated_in_doubt, step.verified) == (2, 0, False)
    (repeat,) = step.repeats
    assert (repeat.attempt, repeat.why, repeat.said_by) == (2, "not happened", who)
    assert repeat.said_at is not None
    assert step.started <= repeat.said_at <= repeat.at
    assert f"{who} said that it did not happen" in caplog.text


@pytest.mark.parametrize("who", ["verify", "ann"])
def test_who_said_that_a_step_happened_is_on_record(client: Callable[..., Tenuto], world: World, who: str) -> None:
    verify = (lambda _: tenuto.Happened("found")) if who == "verify" else None

    def body(run: Any) -> Any:
        return run.step("pay", world.do, "pay", effect="once", verify=verify)

    world.dies["pay"] = 1
    killed(client(), body)
    agent = client()
    if who == "ann":
        with pytest.raises(InDoubt):
            resumed(agent, body)
        agent.inbox.answer(agent.inbox.list(run="r")[0].id, tenuto.Happened("found"), by="ann")
    assert resumed(agent, body) == "found"
    (step,) = agent.runs.get("r").steps
    assert (step.verified, step.verified_by, step.repeats) == (True, who, [])


def test_each_repeat_has_its_reason(agent: Tenuto, world: World) -> None:
    def flaky() -> str:
        if world.count("flaky") == 0:
            world.do("flaky")
            raise ConnectionError
        return world.do("flaky")

    world.dies["flaky"] = 0
    with agent.run("r") as run:
        run.step("flaky", flaky, retry=Retry(attempts=2, first=0))
    (repeat,) = agent.runs.get("r").steps[0].repeats
    assert (repeat.attempt, repeat.why, repeat.said_by, repeat.said_at) == (2, "retry", None, None)


def tool_loop(agent: Tenuto, world: World, items: list[str], run_id: str = "r", *, dies: bool = False) -> list[str]:
    """The usual loop: an error of a tool is shown to the model, which goes on."""
    found = []
    with agent.run(run_id) as run:
        for item in items:
            try:
                found.append(run.step("tool", world.do, item, effect="once"))
            except Exception as error:
                found.append(type(error).__name__)
        if dies:
            raise Killed
    return found


@pytest.mark.parametrize("items", [["x", "b", "c"], ["new", "a", "b", "c"]])
def test_a_caught_mismatch_stops_the_run(client: Callable[..., Tenuto], world: World, items: list[str]) -> None:
    with pytest.raises(Killed):
        tool_loop(client(), world, ["a", "b"], dies=True)
    agent = client()
    with pytest.raises(StepMismatch, match="became"):
        tool_loop(agent, world, items)
    assert world.names == ["a", "b"]  # nothing ran after the mismatch
    found = agent.runs.get("r")
    assert found.status == "failed"
    assert found.error is not None
    assert found.error.type == "StepMismatch"
    assert tool_loop(agent, world, ["a", "b", "c"]) == ["a done", "b done", "c done"]


def test_after_a_mismatch_every_call_of_the_run_raises_it(client: Callable[..., Tenuto], world: World) -> None:
    killed(client(), lambda run: run.step("a", world.do, "a"))
    with pytest.raises(StepMismatch) as left, client().run("r") as run:
        with pytest.raises(StepMismatch) as first:
            run.step("b", world.do, "b")
        for call in (lambda: run.step("a", world.do, "a"), run.now, lambda: run.emit(1), lambda: run.wait("x")):
            with pytest.raises(StepMismatch) as again:
                call()
            assert again.value is first.value
    assert left.value is first.value


def test_a_mismatch_caught_in_a_completed_run_is_raised_too(agent: Tenuto, world: World) -> None:
    tool_loop(agent, world, ["a"])
    with pytest.raises(StepMismatch, match="is completed"):
        tool_loop(agent, world, ["a", "b"])
    assert world.names == ["a"]
    assert agent.runs.get("r").status == "completed"


def test_an_error_caused_by_a_mismatch_keeps_its_own_type(client: Callable[..., Tenuto], world: World) -> None:
    killed(client(), lambda run: run.step("a", world.do, "a"))
    with pytest.raises(LookupError), client().run("r") as run:
        try:
            run.step("b", world.do, "b")
        except StepMismatch as error:
            raise LookupError("no such tool") from error


def test_a_later_error_does_not_hide_a_caught_mismatch(client: Callable[..., Tenuto], world: World) -> None:
    killed(client(), lambda run: run.step("a", world.do, "a"))
    with pytest.raises(StepMismatch) as caught, client().run("r") as run:
        with pytest.raises(StepMismatch):
            run.step("b", world.do, "b")
        raise LookupError("no such tool")
    assert isinstance(caught.value.__cause__, LookupError)
