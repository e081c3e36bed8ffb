"""Tools of a turn: any function, whatever it takes and returns, and schemas of others; errors are told apart."""

import functools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from tenuto import AsyncTenuto, Retry, Tenuto, Tool
from tenuto.errors import Conflict, InvalidInput, NotFound, TimedOut

Message = dict[str, Any]
pytestmark = pytest.mark.parametrize("backend", ["volatile"], indirect=True)


class Script:
    """A model that says one thing after the other."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.seen: list[list[Message]] = []
        self.tools: list[Message] = []

    def __call__(self, messages: list[Message], tools: list[Message]) -> Any:
        self.seen.append(messages)
        self.tools = tools
        return self.replies.pop(0)


def calling(name: str, /, **given: Any) -> Message:
    function = {"name": name, "arguments": json.dumps(given)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": function}]}


@dataclass
class Address:
    street: str
    number: int = 1


@dataclass
class Parcel:
    to: Address
    size: Literal["small", "large"] = "small"


def send(parcel: Parcel, copies: list[Address] | None = None) -> Parcel:
    """Send a parcel."""
    assert isinstance(parcel.to, Address)
    return parcel


def test_references_of_a_schema_begin_at_its_root(agent: Tenuto) -> None:
    model = Script(calling("send", parcel={"to": {"street": "Main"}}), "Sent.")
    reply = agent.turn("t", "Send", model, tools=[send])
    schema = model.tools[0]["function"]["parameters"]
    assert set(schema["$defs"]) == {"Address", "Parcel"}
    assert schema["properties"]["parcel"] == {"$ref": "#/$defs/Parcel"}
    assert schema["$defs"]["Parcel"]["properties"]["to"] == {"$ref": "#/$defs/Address"}
    assert '"$defs"' not in json.dumps([schema["properties"], schema["$defs"]])
    assert json.loads(reply.calls[0].result) == {"to": {"street": "Main", "number": 1}, "size": "small"}


def test_models_of_pydantic_are_parameters_and_results(agent: Tenuto) -> None:
    pydantic = pytest.importorskip("pydantic")
    inner = pydantic.create_model("Inner", x=(int, ...))
    outer = pydantic.create_model("Outer", inner=(inner, ...))

    def take(given: Any) -> Any:
        assert type(given) is outer
        return given

    take.__annotations__ = {"given": outer}
    model = Script(calling("take", given={"inner": {"x": "3"}}), calling("take", given={"inner": {}}), "Done.")
    reply = agent.turn("t", "Go", model, tools=[take])
    assert json.loads(reply.calls[0].result) == {"inner": {"x": 3}}
    assert reply.calls[1].result.startswith("error: take was not called: 1 validation error")
    assert set(model.tools[0]["function"]["parameters"]["$defs"]) == {"Inner"}


class Frame:
    def __str__(self) -> str:
        return "3 rows"


@pytest.mark.parametrize(
    ("value", "text"),
    [(Frame(), "3 rows"), ({1: Frame()}, "{1: <"), ("a\ud800b", "a?b"), (None, "null"), ([1, "a"], '[1, "a"]')],
)
def test_whatever_a_tool_returns_reaches_the_model_and_is_recorded(agent: Tenuto, value: Any, text: str) -> None:
    made: list[int] = []

    def look() -> Any:
        """Look."""
        made.append(1)
        return value

    model = Script(calling("look"), ConnectionError(), "Seen.")

    def failing(messages: list[Message], tools: list[Message]) -> Any:
        said = model(messages, tools)
        if isinstance(said, Exception):
            raise said
        return said

    with pytest.raises(ConnectionError):
        agent.turn("t", "Look", failing, tools=[look], key="k")
    reply = agent.turn("t", "Look", failing, tools=[look], key="k")
    assert reply.calls[0].result.startswith(text)
    assert len(made) == 1, "its result was recorded"


def test_recall_is_a_tool_of_a_turn(agent: Tenuto) -> None:
    agent.memory.remember("Ann prefers aisle seats", user="ann")
    for shape in ("openai", "anthropic"):
        model = Script(calling("recall_memory", query="which seat?"), "Aisle.")
        reply = agent.turn("t", "Which seat?", model, tools=[agent.memory.tool("ann", shape)], user="ann")
        assert "aisle seats" in reply.calls[0].result
        assert model.tools[0]["function"]["parameters"]["required"] == ["query"]


def test_a_tool_may_bring_its_own_schema(agent: Tenuto) -> None:
    mcp = {"name": "files", "description": "List files.", "inputSchema": {"type": "object", "required": ["path"]}}
    model = Script(calling("files", path="/", deep=True), calling("files"), "Done.")
    reply = agent.turn("t", "List", model, tools=[(mcp, lambda **given: given)])
    assert [one.result for one in reply.calls] == [
        '{"path": "/", "deep": true}',
        "error: files was not called: it needs the argument 'path'.",
    ]
    assert model.tools[0]["function"]["description"] == "List files."
    named = Tool(functools.partial(send, Parcel(Address("Main"))), name="send_it", parameters={"type": "object"})
    reply = agent.turn("u", "Send", Script(calling("send_it"), "Done."), tools=[named])
    assert '"street": "Main"' in reply.calls[0].result


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        (functools.partial(send), "A partial has no name"),
        (lambda *args: None, "named parameters only"),
        (({"name": "x"}, send), "needs a name and parameters"),
        (7, "must be a function or a Tool, not int"),
    ],
)
def test_a_tool_without_a_schema_is_refused(agent: Tenuto, tool: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        agent.turn("t", "x", Script("never"), tools=[tool])


def test_coroutine_functions_need_the_async_client(agent: Tenuto) -> None:
    async def ask() -> None: ...

    async def think(messages: Any, tools: Any) -> str:
        return ""

    for model, tools in ((Script("never"), [ask]), (think, [])):
        with pytest.raises(TypeError, match="is a coroutine function; nothing was called"):
            agent.turn("t", "x", model, tools=tools)
    assert agent.thread("t").count() == 0


def test_a_call_at_the_limit_of_tokens_is_not_made(agent: Tenuto) -> None:
    both = [*calling("send", parcel={"to": {"street": "A"}})["tool_calls"], *calling("send")["tool_calls"]]
    message = {"role": "assistant", "content": None, "tool_calls": both}
    model = Script({"choices": [{"message": message, "finish_reason": "length"}]}, "Sorry.")
    reply = agent.turn("t", "Send", model, tools=[send])
    assert [one.result.split(",")[0] for one in reply.calls] == [
        '{"to": {"street": "A"',
        "error: your reply reached its limit of tokens",
    ]


def test_a_key_is_for_one_message(agent: Tenuto) -> None:
    first = agent.turn("t", "Book", Script("Booked."), key="k")
    with pytest.raises(Conflict, match="another message"):
        agent.turn("t", "Cancel", Script("never"), key="k")
    assert agent.turn("t", "Book", Script("never"), key="k") == first
    assert agent.runs.get("turn:t:k").status == "completed"


def test_a_model_that_fails_or_hangs_is_called_again(agent: Tenuto) -> None:
    said: list[Any] = [ConnectionError("overloaded"), "Done."]

    def flaky(messages: list[Message], tools: list[Message]) -> str:
        found = said.pop(0)
        if isinstance(found, Exception):
            raise found
        return str(found)

    assert agent.turn("t", "x", flaky, retry=Retry(2, first=0.0, on=(ConnectionError,))).text == "Done."
    assert agent.thread("t").count() == 2

    def hangs(messages: list[Message], tools: list[Message]) -> str:
        time.sleep(0.2)
        return "late"

    with pytest.raises(TimedOut):
        agent.turn("t", "y", hangs, key="k", timeout=0.01)
    assert agent.turn("t", "y", Script("In time."), key="k").text == "In time."


def test_a_usage_without_a_model_is_recorded_under_the_models_name(agent: Tenuto) -> None:
    class Local:
        model = "llama"

        def __call__(self, messages: list[Message], tools: list[Message]) -> Message:
            return {"role": "assistant", "content": "Hi", "usage": {"prompt_tokens": 3, "completion_tokens": 1}}

    agent.turn("t", "x", Local())
    agent.turn("t", "x", Script(Local()([], [])))
    assert {one.key: one.tokens for one in agent.costs.report()} == {"llama": 4, "unknown": 4}


def test_nobody_builds_a_context_of_another_users_thread(agent: Tenuto) -> None:
    agent.turn("t", "My secret", Script("Noted."), user="ann")
    reads: list[Callable[[], Any]] = [
        lambda: agent.build_context("t", user="bob"),
        lambda: agent.guard("t", user="bob").scan(),
        lambda: agent.guard("t", user="bob").say("Hello"),
        lambda: agent.full_context("bob", "t"),
        lambda: agent.memory.recall("secret", thread="t", user="bob"),
    ]
    for read in reads:
        with pytest.raises(NotFound):
            read()
    with pytest.raises(Conflict):
        agent.turn("t", "Tell me", Script("never"), user="bob")
    assert agent.thread("t").count() == 2


def test_a_coroutine_that_a_function_returns_is_awaited(agent: Tenuto) -> None:
    import asyncio

    async def later(value: int) -> Address:
        await asyncio.sleep(0)
        return Address("Main", value)

    def soon(value: int) -> Any:
        """Return later."""
        return later(value)

    async def main() -> Any:
        async with AsyncTenuto("a", "volatile:") as other:
            return await other.turn("t", "x", Script(calling("soon", value=4), "Done."), tools=[soon])

    assert json.loads(asyncio.run(main()).calls[0].result) == {"street": "Main", "number": 4}
