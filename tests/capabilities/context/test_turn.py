"""A turn calls nothing twice that is recorded, appends each message once, and gives errors of tools to the model."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tenuto import AsyncTenuto, Tenuto, Tool
from tenuto.adapters.models import AnthropicModel, OpenAIModel
from tenuto.errors import BudgetExceeded, InvalidInput, Waiting


def calling(name: str, number: int = 0, **given: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(given)}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
    }


class Script:
    """A model that says one thing after the other."""

    def __init__(self, *replies: Any) -> None:
        self.replies = replies
        self.seen: list[list[dict[str, Any]]] = []
        self.tools: list[dict[str, Any]] = []

    def __call__(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        self.seen.append(messages)
        self.tools = tools
        return self.replies[sum(one["role"] == "assistant" for one in messages)]


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


def test_a_turn_calls_tools_and_appends_each_message_once(agent: Tenuto) -> None:
    model = Script(calling("add", a=2, b=3), "It is 5.")
    reply = agent.turn("t", "How much is 2 + 3?", model, tools=[add], key="k", instructions="Count.")
    assert (reply.text, [tuple(one) for one in reply.calls]) == ("It is 5.", [("add", '{"a": 2, "b": 3}', "5")])
    roles = [one["role"] for one in agent.thread("t").messages()]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert agent.turn("t", "How much is 2 + 3?", model, tools=[add], key="k", instructions="Count.") == reply
    assert len(model.seen) == 2
    assert agent.thread("t").count() == 4
    assert model.seen[0][0] == {"role": "system", "content": "Count."}


def test_the_schema_comes_from_the_signature(agent: Tenuto) -> None:
    model = Script("Hello")
    agent.turn("t", "Hi", model, tools=[add])
    (schema,) = model.tools
    assert schema["function"]["name"] == "add"
    assert schema["function"]["description"] == "Add two numbers."
    assert schema["function"]["parameters"] == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (calling("add", a="two"), "error: add was not called"),
        (calling("add"), "error: add was not called"),
        (calling("add", a=1, c=2), "error: add was not called: add has no argument 'c'"),
        (calling("subtract", a=1), "error: there is no tool 'subtract'"),
        (calling("fail"), "error: ZeroDivisionError"),
    ],
)
def test_an_error_of_a_tool_is_given_to_the_model(agent: Tenuto, call: dict[str, Any], said: str) -> None:
    def fail() -> float:
        return 1 / 0

    model = Script(call, "Sorry.")
    reply = agent.turn("t", "Go", model, tools=[add, fail], key="k")
    assert reply.calls[0].result.startswith(said)
    assert reply.text == "Sorry."
    assert agent.turn("t", "Go", model, tools=[add, fail], key="k") == reply


def test_a_dangerous_tool_waits_for_approval(agent: Tenuto) -> None:
    paid: list[int] = []

    def pay(amount: int) -> str:
        paid.append(amount)
        return "paid"

    model = Script(calling("pay", amount=7), "Done.")
    tools = [Tool(pay, effect="once", approve="finance")]
    with pytest.raises(Waiting):
        agent.turn("t", "Pay 7", model, tools=tools, key="k")
    assert paid == []
    (question,) = agent.inbox.list(to="finance")
    assert question.text == "May the agent call pay(amount=7)?"
    agent.inbox.answer(question.id, "approve", by="ann")
    assert agent.turn("t", "Pay 7", model, tools=tools, key="k").text == "Done."
    assert (paid, len(model.seen)) == ([7], 2)


def test_a_rejected_call_is_not_made(agent: Tenuto) -> None:
    model = Script(calling("add", a=1), "I may not.")
    with pytest.raises(Waiting):
        agent.turn("t", "Add", model, tools=[Tool(add, approve="ann")], key="k")
    agent.inbox.answer(agent.inbox.list(to="ann")[0].id, "reject", by="ann")
    reply = agent.turn("t", "Add", model, tools=[Tool(add, approve="ann")], key="k")
    assert reply.calls[0].result == "error: a person rejected this call"


def test_usage_is_recorded_and_limits_the_turn(agent: Tenuto) -> None:
    agent.costs.prices["m"] = (10.0, 10.0)  # type: ignore[assignment]

    def model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        usage = {"prompt_tokens": 90_000, "completion_tokens": 10_000}
        return {"model": "m", "usage": usage, "choices": [{"message": calling("add", a=1)}]}

    with pytest.raises(BudgetExceeded):
        agent.turn("t", "Loop", model, tools=[add], key="k", spend=1.5)
    assert agent.costs.report()[0].spent == 2.0
    with pytest.raises(InvalidInput, match="after 3 rounds"):
        agent.turn("t", "Loop", model, tools=[add], key="k", rounds=3)


def test_it_learns_what_the_user_stated(agent: Tenuto) -> None:
    agent.turn("t", "Remember that I am allergic to nuts.", Script("Noted."), user="u", learn=True)
    assert "allergic" in agent.memory.recall("allergic to nuts", user="u")[0].memory.text


def test_the_clients_of_openai_and_anthropic_are_models(agent: Tenuto) -> None:
    asked: list[dict[str, Any]] = []

    def chat(**given: Any) -> Any:
        asked.append(given)
        return {"model": "m", "choices": [{"message": {"role": "assistant", "content": "Hello", "refusal": None}}]}

    def create(**given: Any) -> Any:
        asked.append(given)
        if any(
            isinstance(one["content"], list) and one["content"][0]["type"] == "tool_result" for one in given["messages"]
        ):
            return {
                "role": "assistant",
                "content": [{"type": "text", "text": "It is 3."}],
                "model": "m",
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        return {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "x", "name": "add", "input": {"a": 2}}],
            "model": "m",
        }

    openai = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=chat)))
    anthropic = SimpleNamespace(messages=SimpleNamespace(create=create))
    assert agent.turn("o", "Hi", OpenAIModel(openai, "m")).text == "Hello"
    reply = agent.turn("a", "2 + 1?", AnthropicModel(anthropic, "m"), tools=[add], instructions="Count.")
    assert (reply.text, reply.calls[0].result) == ("It is 3.", "3")
    assert asked[1]["system"] == "Count."
    assert asked[1]["tools"][0]["input_schema"]["required"] == ["a"]


def test_bad_input_is_said_clearly(agent: Tenuto) -> None:
    with pytest.raises(InvalidInput, match="model must be"):
        agent.turn("t", "x", "gpt")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="Two tools are named"):
        agent.turn("t", "x", Script(), tools=[add, add])
    with pytest.raises(InvalidInput, match="The model returned 5"):
        agent.turn("t", "x", Script(5))
    assert agent.thread("t").count() == 1


@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
def test_models_and_tools_may_be_coroutines(agent: Tenuto) -> None:
    import asyncio

    async def double(value: int) -> int:
        await asyncio.sleep(0)
        return value * 2

    async def model(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        await asyncio.sleep(0)
        return "8" if messages[-1]["role"] == "tool" else calling("double", value=4)

    async def main() -> Any:
        async with AsyncTenuto("a", "volatile:") as other:
            return await other.turn("t", "4 * 2?", model, tools=[double])

    reply = asyncio.run(main())
    assert (reply.text, reply.calls[0].result) == ("8", "8")


def test_the_example_with_three_tools_is_short_and_calls_nothing_twice(tmp_path: Path) -> None:
    path = Path(__file__).parents[3] / "examples" / "turn.py"
    command = [sys.executable, str(path), str(tmp_path / "store.db")]
    first, again = (subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert "booking TP009" in first
    assert first.endswith(again)
    assert len(again.splitlines()) == 1, "the second run calls neither the model nor a tool"
    code = path.read_text().split('"""', 2)[2]
    theirs = re.sub(r"PLAN = .*?(?=\n\n\nwith )", "", code, flags=re.DOTALL)  # without the stand-in for a provider
    assert len([line for line in theirs.splitlines() if line.strip()]) <= 30
