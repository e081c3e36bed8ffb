"""Waiting: for a time, a signal, an answer; the process may end meanwhile."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from tenuto import Conflict, InvalidInput, NotFound, Tenuto, TimedOut, Waiting

from .runs_world import Killed, World, killed, resumed


@pytest.fixture
def world() -> World:
    return World()


def test_a_sleep_is_counted_from_when_it_was_first_asked_for(agent: Tenuto, clock: Any, world: World) -> None:
    def body(run: Any) -> str:
        run.step("before", world.do, "before")
        run.sleep("24h")
        return run.step("after", world.do, "after")

    with pytest.raises(Waiting) as caught:
        resumed(agent, body)
    began = clock.time()
    assert caught.value.until == pytest.approx(began + 86_400)
    info = agent.runs.get("r")
    assert info.status == "waiting"
    assert info.wakes == datetime.fromtimestamp(began + 86_400, UTC)
    assert info.steps[1].status == "waiting"
    clock.advance(80_000)
    with pytest.raises(Waiting):
        resumed(agent, body)
    clock.advance(6_401)
    assert resumed(agent, body) == "after done"
    assert world.names == ["before", "after"]
    assert [step.status for step in agent.runs.get("r").steps] == ["completed"] * 3


def test_waiting_cannot_be_swallowed(agent: Tenuto, world: World) -> None:
    with pytest.raises(Waiting), agent.run("r") as run:
        try:
            run.sleep(1)
        except Exception:
            world.do("swallowed")
    assert world.calls == []


def test_with_block_it_waits_in_place(agent: Tenuto, clock: Any) -> None:
    before = clock.time()
    with agent.run("r", block=True) as run:
        run.sleep("1h")
    assert clock.time() - before >= 3_600
    assert agent.runs.get("r").status == "completed"


def test_a_signal_that_comes_early_is_kept_and_the_first_wins(agent: Tenuto) -> None:
    assert agent.signal("r", "approved", {"by": "ann"}) is True
    assert agent.signal("r", "approved", {"by": "bob"}) is False

    def body(run: Any) -> list[Any]:
        return [run.wait("approved"), run.wait("approved")]

    with pytest.raises(Waiting, match="'approved'"):
        resumed(agent, body)
    assert agent.runs.get("r").waits_for == (("signal", "approved"),)
    assert agent.signal("r", "approved", {"by": "carl"}) is True  # the first was taken: this is the next
    assert resumed(agent, body) == [{"by": "ann"}, {"by": "carl"}]
    assert resumed(agent, body) == [{"by": "ann"}, {"by": "carl"}]
    with pytest.raises(InvalidInput, match="1 MB"):
        agent.signal("r", "large", "x" * 2_000_000)


def test_a_signal_that_does_not_come_times_out(agent: Tenuto, clock: Any, world: World) -> None:
    def body(run: Any) -> str:
        try:
            return run.wait("approved", timeout="1h")
        except TimedOut:
            return run.step("escalate", world.do, "escalate")

    with pytest.raises(Waiting):
        resumed(agent, body)
    clock.advance(3_601)
    killed(agent, body)
    agent.signal("r", "approved", "too late")
    assert resumed(agent, body) == "escalate done"  # the decision stands
    assert world.count("escalate") == 1


def test_a_signal_ends_waiting_in_place(agent: Tenuto, client: Callable[..., Tenuto], clock: Any) -> None:
    clock.sleep = lambda seconds: threading.Event().wait(min(seconds, 0.01))
    sender = threading.Timer(0.1, lambda: client("other").signal("r", "go", 7))
    sender.start()
    with agent.run("r", block=True) as run:
        assert run.wait("go") == 7
    sender.join()


def test_people_are_asked_and_their_answer_comes_back(agent: Tenuto, clock: Any) -> None:
    def body(run: Any) -> Any:
        return run.ask("Pay invoice 881?", to="finance", context={"amount": 30}, choices=["yes", "no"], deadline="24h")

    for _ in range(2):
        with pytest.raises(Waiting, match="Pay invoice"):
            resumed(agent, body)
    [question] = agent.inbox.list(to="finance")
    assert (question.text, question.context, question.choices) == ("Pay invoice 881?", {"amount": 30}, ["yes", "no"])
    assert (question.run, question.status, question.step) == ("r", "pending", None)
    assert question.deadline == datetime.fromtimestamp(clock.time() + 86_400, UTC)
    assert agent.inbox.list(to="legal") == []
    with pytest.raises(InvalidInput, match="not a choice"):
        agent.inbox.answer(question.id, "maybe")
    told = agent.inbox.answer(question.id, "yes", by="ann")
    assert (told.status, told.answer, told.by) == ("answered", "yes", "ann")
    with pytest.raises(Conflict, match="already answered by ann"):
        agent.inbox.answer(question.id, "no", by="bob")
    with pytest.raises(Conflict):
        agent.inbox.cancel(question.id)
    assert resumed(agent, body) == "yes"
    assert agent.inbox.list() == []
    assert [one.id for one in agent.inbox.list(status="answered")] == [question.id]
    assert [one.id for one in agent.inbox.list(status=None, run="r")] == [question.id]
    with pytest.raises(NotFound):
        agent.inbox.get("nothing")
    with pytest.raises(InvalidInput):
        agent.inbox.list(status="open")  # type: ignore[arg-type]


def test_a_question_that_nobody_answers_times_out(agent: Tenuto, clock: Any) -> None:
    def body(run: Any) -> Any:
        try:
            return run.ask("Pay?", deadline=60, on_timeout="fail")
        except TimedOut:
            return run.step("after", lambda: "nobody")

    with pytest.raises(Waiting):
        resumed(agent, body)
    clock.advance(61)
    assert resumed(agent, body) == resumed(agent, body) == "nobody"
    assert agent.inbox.list() == []
    assert agent.inbox.list(status="expired")[0].text == "Pay?"


def test_a_question_that_is_taken_back_ends_the_waiting(agent: Tenuto) -> None:
    def body(run: Any) -> Any:
        try:
            return run.ask("Pay?")
        except Conflict as error:
            return str(error)

    with pytest.raises(Waiting):
        resumed(agent, body)
    agent.inbox.cancel(agent.inbox.list()[0].id, by="ann")
    assert "was cancelled" in resumed(agent, body)
    with pytest.raises(InvalidInput), agent.run("r2") as run:
        run.ask("")


def test_a_deadline_ends_a_run_also_while_it_waits(agent: Tenuto, clock: Any, world: World) -> None:
    def body(run: Any) -> None:
        run.step("a", world.do, "a")
        run.sleep("2h")
        run.step("b", world.do, "b")

    with pytest.raises(Waiting):
        resumed(agent, body, deadline="1h")
    assert agent.runs.get("r").wakes == agent.runs.get("r").deadline
    clock.advance(7_300)
    with pytest.raises(TimedOut, match="deadline"):
        resumed(agent, body)
    assert agent.runs.get("r").status == "failed"
    with pytest.raises(TimedOut):
        resumed(agent, body, deadline="1h")  # the same call does not put it off
    resumed(agent, body, deadline="3h")
    assert world.names == ["a", "b"]


def test_a_crash_before_the_pause_is_written_loses_nothing(agent: Tenuto, clock: Any) -> None:
    def body(run: Any) -> str:
        try:
            run.sleep(60)
        except Waiting:
            raise Killed from None  # the line is there, the head is not
        return "awake"

    with pytest.raises(Killed):
        resumed(agent, body)
    assert agent.runs.get("r").status == "interrupted"
    clock.advance(61)
    assert resumed(agent, body) == "awake"
