"""Runs of the OpenAI Agents SDK as durable runs: sessions, approvals, handoffs, streaming, and what is refused."""

import asyncio
from typing import Any

import pytest
from agents import Agent, RunState, ShellTool, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call
from conftest import Stores
from durable_agents import ANSWER, CALLS, openai_agents

from tenuto import InvalidInput, StepFailed, StepMismatch, Waiting
from tenuto.adapters.openai_agents import TenutoRunner, TenutoSession, run_state
from tenuto.aio import AsyncTenuto

set_tracing_disabled(disabled=True)
SCRIPT: list[Any] = [
    [function_call("find", {"to": "LIS"}, call_id="c1")],
    [function_call("transfer_to_booker", {}, call_id="c2")],
    [function_call("book", {"flight": "TP1"}, call_id="c3"), function_call("book", {"flight": "TP2"}, call_id="c4")],
    [assistant_message("Done.")],
]


class Stop(Exception):
    """The code of a run fails here."""


def travel(model: ScriptedModel, called: list[str], *, approval: bool = False) -> Agent[Any]:
    @function_tool
    def find(to: str) -> dict[str, str]:
        called.append(f"find {to}")
        return {"flight": "TP1"}

    @function_tool(needs_approval=approval)
    def book(flight: str) -> str:
        called.append(f"book {flight}")
        return f"{flight} booked"

    booker = Agent(name="booker", model=model, tools=[book])
    return Agent(name="travel", model=model, tools=[find], handoffs=[booker])


def test_a_session_gets_each_turn_once_however_often_the_run_is_opened(stores: Stores) -> None:
    called: list[str] = []
    stops = ["4", "6"]

    def act(when: str, kind: str, which: str) -> None:
        if when == "begin" and kind == "model" and which in stops:
            stops.remove(which)
            raise Stop
        if when == "end":
            called.append(f"{kind} {which}")

    async def main() -> None:
        async with AsyncTenuto("tester", stores.new()) as agent:
            session = TenutoSession("trip", agent)
            await session.add_items([{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}])
            for _ in range(2):
                with pytest.raises(StepFailed, match="Stop"):
                    async with agent.run("trip"):
                        await openai_agents(act, session)("Book three flights.")
            for _ in range(2):
                async with agent.run("trip"):
                    assert await openai_agents(act, session)("Book three flights.") == ANSWER
            items = await session.get_items()
            assert [item.get("content") for item in items[:3]] == ["Hello", "Hi", "Book three flights."]
            ids = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
            assert ids == [f"call-{at}" for at in range(1, 7)]
            assert len(items) == 3 + 12 + 1
            assert sorted(called) == sorted(CALLS)

    asyncio.run(main())


def test_approvals_pause_the_run_and_its_state_can_be_read_by_the_sdk(stores: Stores) -> None:
    called: list[str] = []

    async def main() -> None:
        async with AsyncTenuto("tester", stores.new()) as agent:
            with pytest.raises(Waiting):
                async with agent.run("trip"):
                    await TenutoRunner().run(travel(ScriptedModel(SCRIPT[:3]), called, approval=True), "Book")
            assert called == ["find LIS"]
            state = await run_state(agent, "trip")
            assert state is not None
            restored = await RunState.from_json(travel(ScriptedModel([]), called, approval=True), state)
            assert [item.call_id for item in restored.get_interruptions()] == ["c3", "c4"]
            first, second = sorted(await agent.inbox.list(), key=lambda question: question.text)
            await agent.inbox.answer(first.id, "approve")
            await agent.inbox.answer(second.id, "deny")
            model = ScriptedModel(SCRIPT[3:])
            async with agent.run("trip"):
                result = await TenutoRunner().run(travel(model, called, approval=True), "Book")
            assert (result.final_output, result.last_agent.name) == ("Done.", "booker")
            results = {item["call_id"]: item["output"] for item in model.calls[0].input if "output" in item}
            assert (results["c3"], results["c4"]) == ("TP1 booked", "The tool call was denied.")
            assert await run_state(agent, "trip") == state

    asyncio.run(main())
    assert called == ["find LIS", "book TP1"]


def test_a_recorded_output_says_the_same_to_the_model_as_the_first_time() -> None:
    called: list[str] = []
    first, second = ScriptedModel(SCRIPT[:2]), ScriptedModel(SCRIPT[2:])

    async def main() -> None:
        async with AsyncTenuto("tester", "volatile:") as agent:
            with pytest.raises(StepFailed, match="UnexpectedModelCall"):
                async with agent.run("trip"):
                    await TenutoRunner().run(travel(first, called), "Book")
            async with agent.run("trip"):
                await TenutoRunner().run(travel(second, called), "Book")

    asyncio.run(main())
    assert called == ["find LIS", "book TP1", "book TP2"]
    before, after = (
        next(item for item in call.input if "output" in item) for call in (first.calls[1], second.calls[0])
    )
    assert before == after == {"call_id": "c1", "type": "function_call_output", "output": "{'flight': 'TP1'}"}


def test_other_input_is_refused_and_other_agents_have_turns_of_their_own() -> None:
    async def main() -> None:
        async with AsyncTenuto("tester", "volatile:") as agent:
            for _ in range(2):
                with pytest.raises(Stop):
                    async with agent.run("trip"):
                        for name in ("a", "b", "a"):
                            model = ScriptedModel([[assistant_message(name)]])
                            await TenutoRunner().run(Agent(name=name, model=model), "Hello")
                        raise Stop
            with pytest.raises(StepMismatch, match="a/1/1"):
                async with agent.run("trip"):
                    await TenutoRunner().run(Agent(name="a", model=ScriptedModel([])), "Bye")

    asyncio.run(main())


def test_streamed_text_reaches_the_watchers_of_the_run() -> None:
    async def main() -> None:
        async with AsyncTenuto("tester", "volatile:") as agent:
            model = ScriptedModel([[assistant_message("Lisbon it is")]])
            for _ in range(2):
                async with agent.run("trip"):
                    result = await TenutoRunner(stream=True).run(Agent(name="poet", model=model), "Where?")
                    assert result.final_output == "Lisbon it is"
            assert [one.value async for one in agent.runs.watch("trip")] == ["Lisbon it is"]

    asyncio.run(main())


def test_a_tool_that_the_sdk_runs_itself_is_refused_and_outside_a_run_the_sdk_is_unchanged() -> None:
    async def main() -> None:
        result = await TenutoRunner().run(Agent(name="a", model=ScriptedModel([[assistant_message("Hi")]])), "Hello")
        assert result.final_output == "Hi"
        local = Agent(name="a", model=ScriptedModel([]), tools=[ShellTool(executor=lambda _: "")])
        async with AsyncTenuto("tester", "volatile:") as agent:
            with pytest.raises(InvalidInput, match="ShellTool, which the SDK runs itself"):
                async with agent.run("trip"):
                    await TenutoRunner().run(local, "Hello")

    asyncio.run(main())
