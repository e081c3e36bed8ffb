"""What a step is called with: keywords, a default name, declared errors, and options that contradict each other."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

import tenuto
from tenuto import InvalidInput, NotHappened, Retry, StepFailed, StepMismatch, Tenuto

from .runs_world import World, killed, resumed


@pytest.fixture
def world() -> World:
    return World()


def send(to: str, text: str, *, key: str = "none") -> str:
    return f"{to}: {text} ({key})"


def test_keywords_are_passed_to_the_function_and_are_its_identity(client: Callable[..., Tenuto]) -> None:
    def body(text: str) -> Callable[[Any], str]:
        return lambda run: run.step("mail", send, "ann", text=text)

    killed(client(), body("hello"))
    assert resumed(client(), lambda run: run.step("mail", send, "ann", text="hello")) == "ann: hello (none)"
    killed(client(), body("hello"), "r2")
    with pytest.raises(StepMismatch, match="argument text: 'hello' became 'bye'"):
        resumed(client(), body("bye"), "r2")


def test_the_order_of_keywords_has_no_meaning(client: Callable[..., Tenuto]) -> None:
    calls = []

    def note(**given: Any) -> None:
        calls.append(given)

    killed(client(), lambda run: run.step("note", note, a=1, b=2))
    resumed(client(), lambda run: run.step("note", note, b=2, a=1))
    assert calls == [{"a": 1, "b": 2}]


def test_kwargs_passes_keywords_that_are_names_of_options(agent: Tenuto) -> None:
    with agent.run("r") as run:
        given = {"text": "hello", "to": "ann", "key": "k-1"}
        assert run.step("mail", send, kwargs=given, key="mail", effect="once") == "ann: hello (k-1)"


def test_a_misspelt_option_is_refused_before_anything_is_stored(agent: Tenuto) -> None:
    with agent.run("r") as run:
        with pytest.raises(TypeError, match=r"'mail' was not run.*'retires'"):
            run.step("mail", send, "ann", "hello", retires=3)
    assert agent.runs.get("r").steps == []


def test_verify_gets_the_keywords_and_secrets_are_revealed(client: Callable[..., Tenuto], world: World) -> None:
    seen = []

    def pay(amount: int, token: str) -> str:
        return world.do("pay", amount, token)

    def verify(intent: Any) -> NotHappened:
        seen.append((intent.args, intent.kwargs))
        return NotHappened()

    def body(run: Any) -> Any:
        return run.step("pay", pay, 7, token=tenuto.secret("sk-1"), effect="once", verify=verify)

    world.dies["pay"] = 1
    killed(client(), body)
    assert resumed(client(), body) == "pay done"
    assert seen == [((7,), {"token": "sk-1"})]
    assert world.calls == [("pay", 7, "sk-1")] * 2
    assert "sk-1" not in repr(client().runs.get("r"))


def test_a_fork_replaces_keywords(agent: Tenuto) -> None:
    def body(run: Any) -> Any:
        return run.step("mail", send, "ann", text="hello")

    resumed(agent, body)
    agent.runs.fork("r", "r2", at="mail", args={"text": "bye"})
    assert resumed(agent, body, "r2") == "ann: bye (none)"


def test_the_name_defaults_to_the_function(agent: Tenuto) -> None:
    with agent.run("r") as run:
        assert run.step(send, "ann", text="hello") == "ann: hello (none)"
        assert run.step(str) == ""
        for nameless in (lambda: 1, functools.partial(send, "ann")):
            with pytest.raises(InvalidInput, match="has no name"):
                run.step(nameless)
    assert [one.name for one in agent.runs.get("r").steps] == ["send", "str"]


class Declined(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


class Stolen(Declined):
    pass


@pytest.mark.parametrize("kind", [Declined, Stolen])
def test_a_declared_error_is_caught_as_it_is_also_on_a_replay(
    client: Callable[..., Tenuto], kind: type[Declined]
) -> None:
    seen: list[Any] = []

    def charge() -> None:
        raise kind(7)

    def body(run: Any) -> None:
        try:
            run.step("charge", charge, errors=(Declined,))
        except Declined as error:
            seen.append((type(error), str(error), error.code))
        run.step("go on", str, 1)

    killed(client(), body)
    resumed(client(), body)
    assert seen == [(Declined, "declined with 7", 7)] * 2


def test_an_error_that_is_not_declared_is_stepfailed(agent: Tenuto) -> None:
    def charge() -> None:
        raise Declined(7)

    with pytest.raises(StepFailed), agent.run("r") as run:
        run.step("charge", charge, errors=(KeyError,))
    with pytest.raises(InvalidInput, match="exception classes"), agent.run("r2") as run:
        run.step("charge", charge, errors=Declined)  # type: ignore[call-overload]


def test_a_retry_of_a_once_step_needs_verify(agent: Tenuto, world: World) -> None:
    with pytest.raises(InvalidInput, match="Pass verify= too"), agent.run("r") as run:
        run.step("pay", world.do, "pay", effect="once", retry=Retry(attempts=3))
    assert world.calls == []
    with agent.run("r2") as run:
        run.step("pay", world.do, "pay", effect="once", retry=Retry(attempts=3), verify=lambda _: NotHappened())
