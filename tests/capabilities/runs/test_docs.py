"""What the guide of runs says, where a stranger stumbled over it; and what an error tells whoever reads it."""

import re
import time
from typing import Any

import pytest

from tenuto import Run, StepMismatch, Tenuto, TimedOut, Waiting


class Killed(BaseException):
    """Stands for kill -9: nothing of tenuto handles it."""


@pytest.fixture
def agent() -> Tenuto:
    return Tenuto("docs", "volatile:")


def killed(agent: Tenuto, run_id: str, body: Any) -> None:
    with pytest.raises(Killed), agent.run(run_id) as run:
        body(run)
        raise Killed


def test_a_step_that_is_given_a_key_in_the_middle_of_a_run_does_not_happen_again(agent: Tenuto) -> None:
    paid: list[int] = []
    killed(agent, "r", lambda run: run.step("pay", paid.append, 5, effect="once"))

    with pytest.raises(StepMismatch, match="'pay' with the key 'bill' where the step 'pay' is recorded"):
        killed(agent, "r", lambda run: run.step("pay", paid.append, 5, key="bill", effect="once"))

    assert paid == [5]


def test_a_step_whose_key_is_taken_away_in_the_middle_of_a_run_does_not_happen_again(agent: Tenuto) -> None:
    paid: list[int] = []
    killed(agent, "r", lambda run: run.step("pay", paid.append, 5, key="bill", effect="once"))

    with pytest.raises(StepMismatch, match="'pay' where the step 'pay' with the key 'bill' is recorded"):
        killed(agent, "r", lambda run: run.step("pay", paid.append, 5, effect="once"))

    assert paid == [5]


def test_keyed_and_other_steps_of_one_name_stand_beside_each_other(agent: Tenuto) -> None:
    said: list[str] = []

    def body(run: Run) -> None:
        run.step("say", said.append, "begin")
        for key in ("a", "b"):
            run.step("say", said.append, key, key=key)
        run.step("say", said.append, "end")

    for _ in range(2):
        killed(agent, "r", body)
    assert said == ["begin", "a", "b", "end"]


def _carried_out(agent: Tenuto, message: str) -> None:
    """Make the call that an error advises, with an id of our own."""
    call = re.search(r"agent\.runs\.fork\(.*?\)", message)
    assert call, message
    eval(call[0], {"agent": agent, "NEW_ID": "forked"})


def test_the_fork_that_a_mismatch_advises_begins_where_the_code_differs(agent: Tenuto) -> None:
    def body(run: Run, cities: list[str]) -> list[str]:
        return [run.step("search", str.upper, city) for city in cities]

    killed(agent, "r", lambda run: body(run, ["lisbon", "porto", "faro"]))
    with pytest.raises(StepMismatch) as caught:
        killed(agent, "r", lambda run: body(run, ["lisbon", "porto", "braga"]))

    _carried_out(agent, str(caught.value))

    with agent.run("forked") as run:
        assert run.reused == 2
        assert body(run, ["lisbon", "porto", "braga"]) == ["LISBON", "PORTO", "BRAGA"]


def test_an_item_of_a_map_that_changed_is_named_and_can_be_forked_at(agent: Tenuto) -> None:
    def body(run: Run, cities: list[str]) -> list[str]:
        return run.map("search", str.upper, cities, concurrency=1)

    killed(agent, "r", lambda run: body(run, ["lisbon", "porto"]))
    with pytest.raises(StepMismatch, match="argument 1: 'porto' became 'faro'") as caught:
        killed(agent, "r", lambda run: body(run, ["lisbon", "faro"]))
    assert "key=" not in str(caught.value), "an item of a map has one already"

    _carried_out(agent, str(caught.value))

    with agent.run("forked") as run:
        assert body(run, ["lisbon", "faro"]) == ["LISBON", "FARO"]


def test_the_resume_line_passes_by_errors_that_the_code_has_handled(agent: Tenuto) -> None:
    def refuse() -> None:
        raise ValueError("no")

    def body(run: Run) -> None:
        with pytest.raises(ValueError, match="no"):
            run.step("try", refuse)
        for number in range(3):
            run.step("read", str, number)

    killed(agent, "r", body)
    with agent.run("r") as run:
        assert str(run) == "resuming r after read number 3 (3 steps reused)"
        body(run)


def test_a_signal_that_comes_too_late_is_taken_by_the_same_call(agent: Tenuto) -> None:
    with pytest.raises(Waiting), agent.run("r") as run:
        run.wait("go", timeout=0.01)
    time.sleep(0.02)
    with pytest.raises(TimedOut, match="send it late"), agent.run("r") as run:
        run.wait("go", timeout=0.01)
    agent.signal("r", "go", 5)
    with agent.run("r") as run:
        assert run.wait("go", timeout=0.01) == 5


def talk(agent: Tenuto, run_id: str, *, thread: str | None = None, crash: bool = False) -> list[str]:
    """An agent's loop: the model is given the whole conversation each time."""
    with agent.run(run_id, thread=thread) as run:
        for number in range(2):
            run.thread.append({"role": "user", "content": f"question {number}"})
            said = run.step("model", lambda messages: f"reply to {len(messages)}", run.thread.messages())
            run.thread.append({"role": "assistant", "content": said})
        if crash:
            raise Killed
        return [message["content"] for message in run.thread.messages()]


def test_a_fork_of_a_run_has_its_conversation_up_to_there(agent: Tenuto) -> None:
    told = talk(agent, "r")

    agent.runs.fork("r", "r2", at="model", occurrence=2)

    assert agent.thread("r2").count() == 3, "the first turn, and the question that the second model call is given"
    assert talk(agent, "r2") == told
    assert agent.thread("r").count() == 4, "the original's is as it was"


def test_a_fork_of_a_run_on_a_shared_conversation_goes_on_with_that(agent: Tenuto) -> None:
    agent.thread("shared").append({"role": "system", "content": "Be brief."})
    talk(agent, "r", thread="shared")
    agent.runs.fork("r", "r2", at="model", occurrence=2)
    assert agent.threads.list()[0].id == "shared"
    assert len(agent.threads.list()) == 1


def test_a_run_whose_conversation_was_deleted_can_still_be_forked(agent: Tenuto) -> None:
    with agent.run("r") as run:
        run.thread.append({"role": "user", "content": "hello"})
        run.step("a", str)
    agent.thread("r").delete()
    agent.runs.fork("r", "r2", at="a")
    assert agent.thread("r2").count() == 0


def test_a_durable_function_called_like_an_ordinary_one_says_how_it_is_called(agent: Tenuto) -> None:
    @agent.durable
    def deploy(run: Run, version: str) -> str:
        return run.step("release", str.upper, version)

    with pytest.raises(TypeError, match=r"deploy\.run\(RUN_ID"):
        deploy("v1")  # type: ignore[call-arg, arg-type]
    with agent.run("r") as run:
        assert deploy(run, "v1") == "V1"


def test_arguments_that_a_durable_function_does_not_take_begin_no_run(agent: Tenuto) -> None:
    @agent.durable
    def deploy(run: Run, version: str) -> str:
        return run.step("release", str.upper, version)

    for call in (deploy.run, deploy.start):
        with pytest.raises(TypeError, match=r"'version'\. No run was started"):
            call("d")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="No run was started"):
            call("d", "v1", "v2")  # type: ignore[call-arg]
    assert agent.runs.list() == []
    assert deploy.run("d", "v1") == "V1"
    assert deploy.run("d") == "V1"  # type: ignore[call-arg]


def test_a_run_that_another_one_queued_is_cancelled_with_it(agent: Tenuto) -> None:
    @agent.durable
    def part(run: Run) -> None:
        run.step("do", str)

    with pytest.raises(Waiting), agent.run("whole") as run:
        part.start("part-1")
        run.wait("never")
    assert agent.runs.get("part-1").parent == "whole"
    agent.runs.cancel("whole")
    assert agent.runs.get("part-1").status == "cancelled"
