"""Arguments and errors that are too deep or too large to be stored: a clear error, and nothing grows without bound."""

from typing import Any

import pytest

import tenuto
from tenuto import NotStorable, StepFailed, Tenuto


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def in_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def dict_in_itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["me"] = value
    return value


HOSTILE = {
    "deep list": lambda: nested(10_000),
    "deep dict": lambda: {"a": {"b": nested(5_000)}},
    "list in itself": in_itself,
    "dict in itself": dict_in_itself,
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_argument_that_is_too_deep_is_refused_before_the_step_runs(agent: Tenuto, make: Any) -> None:
    called = []
    with pytest.raises(NotStorable, match="The step was not run"), agent.run("r") as run:
        run.step("s", called.append, make())
    assert called == []


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_step_with_a_key_takes_any_argument(agent: Tenuto, make: Any) -> None:
    tenuto.secret("search the arguments for secrets")
    value, got = make(), []
    with agent.run("r") as run:
        run.step("s", got.append, value, key="k")
    assert got[0] is value


class Odd(Exception):
    pass


def size_of(agent: Tenuto, run_id: str) -> int:
    from tenuto.capabilities.runs.log import RunLog

    return sum(len(entry.value) for entry in RunLog(agent._context, run_id).entries(1))


@pytest.mark.parametrize("kind", [ValueError, Odd])
def test_a_large_error_message_is_stored_in_part(agent: Tenuto, kind: type[Exception]) -> None:
    def fails() -> None:
        raise kind("x" * 10_000_000)

    expected = ValueError if kind is ValueError else StepFailed
    with pytest.raises(expected), agent.run("r") as run:
        run.step("s", fails)
    found = agent.runs.get("r")
    assert (found.status, found.steps[0].status) == ("failed", "failed")
    error = found.steps[0].error
    assert error is not None
    assert error.type == kind.__name__
    assert 10_000 < len(error.message) < 30_000
    assert size_of(agent, "r") < 300_000


def test_a_large_error_message_is_replayed_with_its_type(agent: Tenuto) -> None:
    def fails() -> None:
        raise ValueError("x" * 10_000_000, {"large": "y" * 100})

    for _ in range(2):
        with agent.run("r") as run:
            with pytest.raises(ValueError, match="xxx"):
                run.step("s", fails)
            run.step("after", int)


def test_an_error_with_large_other_arguments_becomes_step_failed(agent: Tenuto) -> None:
    def fails() -> None:
        raise ValueError(["y" * 1_000_000])

    for _ in range(2):
        with agent.run("r") as run:
            with pytest.raises(StepFailed):
                run.step("s", fails)
            run.step("after", int)


@pytest.mark.parametrize("value", [bytearray(b"ab"), memoryview(b"ab")], ids=["bytearray", "memoryview"])
def test_other_kinds_of_bytes_come_back_as_bytes_everywhere(agent: Tenuto, value: Any) -> None:
    agent.state.set("s", "k", value)
    agent.checkpoint.create("c", {"v": value})
    with agent.run("r") as run:
        found = [run.step("s", lambda: value), run.step("t", bytes, value)]
    found += [agent.state.get("s", "k"), agent.checkpoint.restore("c")["v"]]
    assert found == [b"ab"] * 4
    assert {type(one) for one in found} == {bytes}
