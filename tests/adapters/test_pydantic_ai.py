"""Pydantic AI on tenuto: durable agents, approvals, streaming, and histories that other frameworks read."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from conftest import Stores
from durable_agents import ANSWER, CALLS, pydantic_ai
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import FunctionModel

from tenuto import Happened, InDoubt, Price, StepMismatch, Tenuto, Waiting
from tenuto.adapters.langchain import TenutoChatHistory
from tenuto.adapters.openai_agents import TenutoSession
from tenuto.adapters.pydantic_ai import TenutoDurability, TenutoHistory
from tenuto.aio import AsyncTenuto
from tenuto.shapes import as_anthropic, as_chat


@pytest.fixture(autouse=True)
def loop() -> Iterator[None]:
    """`run_sync` uses the loop of its thread, and leaves it open if it had to make one."""
    made = asyncio.new_event_loop()
    asyncio.set_event_loop(made)
    yield
    made.close()
    asyncio.set_event_loop(None)


class Stop(Exception):
    """The code of a run fails here."""


def booking(**tool: Any) -> tuple[Agent[None, str], list[str]]:
    """Return an agent that books with a tool, and what was called."""
    called: list[str] = []

    def model(messages: list[ModelMessage], _: Any) -> ModelResponse:
        called.append("model")
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart):
            return ModelResponse(parts=[TextPart(f"Result: {last.content}")])
        return ModelResponse(parts=[ToolCallPart("book", {"flight": one}) for one in ("TP1", "TP2")])

    agent = Agent(FunctionModel(model), name="travel", capabilities=[TenutoDurability()])

    @agent.tool_plain(**tool)
    def book(flight: str) -> str:
        called.append(flight)
        return f"{flight} booked"

    return agent, called


def test_an_agent_outside_a_run_works_as_without_tenuto() -> None:
    agent, called = booking()
    assert agent.run_sync("Book").output == "Result: TP2 booked"
    assert called == ["model", "TP1", "TP2", "model"]


def test_each_call_is_a_step_and_a_second_opening_calls_nothing(stores: Stores) -> None:
    called: list[str] = []
    run = pydantic_ai(lambda when, kind, which: called.append(f"{kind} {which}") if when == "end" else None)

    async def main() -> None:
        async with AsyncTenuto("tester", stores.new()) as agent:
            agent.costs.prices["function:model:"] = Price(1.0, 1.0)
            for _ in range(2):
                async with agent.run("trip") as opened:
                    opened.result = await run("Book three flights.")
            found = await agent.runs.get("trip")
            assert found.result == ANSWER
            names = [step.name for step in found.steps]
            assert sorted(set(names)) == ["book", "find", "travel.model"]
            assert found.cost > 0

    asyncio.run(main())
    assert sorted(called) == sorted(CALLS)


def test_the_blocking_client_and_run_sync_work_too_and_an_agent_needs_no_change() -> None:
    agent, called = booking()
    plain = Agent(agent.model, name="plain")
    plain.tool_plain(name="book")(lambda flight: called.append(flight) or f"{flight} booked")
    with Tenuto("tester", "volatile:") as store:
        for _ in range(2):
            with store.run("trip"):
                assert plain.run_sync("Book", capabilities=[TenutoDurability()]).output == "Result: TP2 booked"
    assert called == ["model", "TP1", "TP2", "model"]


def test_another_prompt_never_gets_the_recorded_answer() -> None:
    agent, called = booking()
    with Tenuto("tester", "volatile:") as store:
        with pytest.raises(Stop), store.run("trip"):
            agent.run_sync("Book")
            raise Stop
        with (
            pytest.raises(StepMismatch, match="another request in its model call 'trip:travel/1/1'"),
            store.run("trip"),
        ):
            agent.run_sync("Cancel")
    assert called == ["model", "TP1", "TP2", "model"]


def test_agents_that_run_at_once_keep_their_calls_apart() -> None:
    called: list[str] = []

    def model(messages: list[ModelMessage], _: Any) -> ModelResponse:
        prompt = messages[0].parts[0].content
        called.append(str(prompt))
        return ModelResponse(parts=[TextPart(f"{prompt}!")])

    agent = Agent(FunctionModel(model), name="echo", capabilities=[TenutoDurability()])

    async def main() -> None:
        async with AsyncTenuto("tester", "volatile:") as store:
            for _ in range(2):
                async with store.run("trip"):
                    found = await asyncio.gather(*(agent.run(word) for word in "abc"))
                    assert [one.output for one in found] == ["a!", "b!", "c!"]

    asyncio.run(main())
    assert sorted(called) == ["a", "b", "c"]


def test_approvals_go_through_the_inbox_all_at_once_and_a_denied_call_is_told_to_the_model(stores: Stores) -> None:
    agent, called = booking(requires_approval=True)

    async def main() -> str:
        async with AsyncTenuto("tester", stores.new()) as store:
            with pytest.raises(Waiting):
                async with store.run("trip"):
                    await agent.run("Book")
            assert called == ["model"]
            first, second = sorted(await store.inbox.list(), key=lambda question: question.text)
            assert first.text == "May the agent call book(flight='TP1')?"
            assert first.context["arguments"] == {"flight": "TP1"}
            await store.inbox.answer(first.id, "approve")
            with pytest.raises(Waiting):
                async with store.run("trip"):
                    await agent.run("Book")
            await store.inbox.answer(second.id, "deny")
            async with store.run("trip"):
                return (await agent.run("Book")).output

    assert asyncio.run(main()) == "Result: The tool call was denied."
    assert called == ["model", "TP1", "model"]


def test_a_tool_with_effect_once_is_not_repeated_when_its_outcome_is_unknown() -> None:
    agent, called = booking()
    tools = agent.toolsets[0].tools  # type: ignore[attr-defined]

    class Killed(BaseException):
        pass

    def dies(flight: str) -> str:
        called.append(flight)
        raise Killed

    made = Agent(agent.model, name="travel", capabilities=[TenutoDurability(tools={"effect": "once"})])
    made.tool_plain(name="book")(dies)
    assert tools
    with Tenuto("tester", "volatile:") as store:
        with pytest.raises(Killed), store.run("trip"):
            made.run_sync("Book")
        with pytest.raises(InDoubt), store.run("trip"):
            made.run_sync("Book")
        for question in store.inbox.list():
            store.inbox.answer(question.id, Happened("by phone"))
    assert called.count("TP1") <= 1
    assert called.count("TP2") <= 1


def test_streamed_text_reaches_the_watchers_of_the_run() -> None:
    async def stream(messages: list[ModelMessage], _: Any) -> AsyncIterator[str]:
        for piece in ("Lis", "bon ", "it is"):
            yield piece

    agent = Agent(FunctionModel(stream_function=stream), name="poet", capabilities=[TenutoDurability(stream=True)])

    async def main() -> None:
        async with AsyncTenuto("tester", "volatile:") as store:
            for _ in range(2):
                async with store.run("trip"):
                    assert (await agent.run("Where?")).output == "Lisbon it is"
            seen = [one.value async for one in store.runs.watch("trip")]
            assert seen == ["Lisbon it is"]

    asyncio.run(main())


MADE: list[ModelMessage] = [
    ModelRequest(parts=[SystemPromptPart("Be brief."), UserPromptPart("Lisbon?")], instructions="Today is Monday."),
    ModelResponse(
        parts=[ThinkingPart("hm", signature="s"), TextPart("Looking."), ToolCallPart("find", {"to": "LIS"}, "c1")]
    ),
    ModelRequest(parts=[ToolReturnPart("find", ["TP 201"], "c1"), UserPromptPart("The cheapest.")]),
    ModelRequest(
        parts=[UserPromptPart(["See", ImageUrl("http://a/b.png"), BinaryContent(b"x", media_type="image/png")])]
    ),
    ModelResponse(parts=[TextPart("TP 201.")], model_name="m"),
]
MESSAGES = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(MADE))
"""As Pydantic AI reads its own: an image is of a more precise class then."""


def test_a_history_comes_back_equal_and_is_readable_elsewhere(stores: Stores) -> None:
    with Tenuto("tester", stores.new()) as agent:
        history = TenutoHistory("t", agent)
        history.add(MESSAGES)
        assert history.messages == MESSAGES
        assert TenutoHistory("t", agent).messages == MESSAGES
        chat = as_chat(agent.thread("t").messages())
        assert [one["role"] for one in chat] == ["user", "assistant", "tool", "user", "user", "assistant"]
        assert chat[1]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"to": "LIS"}'}
        assert chat[2] == {"role": "tool", "tool_call_id": "c1", "content": '["TP 201"]'}
        assert as_anthropic(agent.thread("t").messages()).messages[-2]["content"][-1]["type"] == "image"
        assert TenutoChatHistory("t", agent).messages[-1].content == "TP 201."
        history.clear()
        assert history.messages == []


def test_messages_of_another_framework_are_read_and_their_results_named() -> None:
    async def main() -> None:
        async with AsyncTenuto("tester", "volatile:") as agent:
            session = TenutoSession("t", agent)
            await session.add_items(
                [
                    {"role": "user", "content": "Lisbon?"},
                    {"type": "function_call", "call_id": "c1", "name": "find", "arguments": '{"to": "LIS"}'},
                    {"type": "function_call_output", "call_id": "c1", "output": "TP 201"},
                ]
            )
            history = TenutoHistory("t", agent)
            asked, called, result = await history.aget()
            assert asked.parts[0].content == "Lisbon?"  # type: ignore[union-attr]
            assert called.parts == [ToolCallPart("find", {"to": "LIS"}, "c1")]
            assert result.parts[0].tool_name == "find"  # type: ignore[union-attr]
            await history.aadd([ModelResponse(parts=[TextPart("TP 201, 190.")])])
            assert (await session.get_items())[-1]["content"] == "TP 201, 190."  # type: ignore[typeddict-item]

    asyncio.run(main())
