"""Turns of agents of Pydantic AI, bare and in a run of tenuto: outputs, messages and usage must be the same."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent, ModelRetry, RunContext, UnexpectedModelBehavior
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel
from pydantic_ai.models.test import TestModel

from tenuto.adapters.pydantic_ai import TenutoDurability
from tenuto.aio import AsyncTenuto

NAMES = [
    "text", "tool", "tools_at_once", "retry", "too_many_retries", "tool_raises", "structured", "validator", "history",
    "stream", "instructions", "iter", "two_turns", "deps", "test_model",
]  # fmt: skip


class City(BaseModel):
    name: str
    people: int


class Turns:
    """Runs turns by name: `bare`, `durable` in a run, or `replayed` by a second pass over a recorded run."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._count = itertools.count()

    async def run(self, name: str) -> Any:
        made = getattr(self, f"_{name}")
        capabilities = [] if self.kind == "bare" else [TenutoDurability(name="agent")]
        if self.kind == "bare":
            return await made(capabilities)
        async with AsyncTenuto("reference", "volatile:") as store:
            found: Any = None
            for _ in range(1 if self.kind == "durable" else 2):
                run = store.run(f"{name}-{0 if self.kind == 'durable' else 1}")
                async with run:
                    found = await made(capabilities)
            return found

    async def _text(self, capabilities: Any) -> Any:
        return told(await agent(capabilities, lambda messages, info: "Lisbon").run("Where?"))

    async def _tool(self, capabilities: Any) -> Any:
        one = agent(capabilities, calling(("find", {"to": "LIS"})))
        one.tool_plain(name="find")(lambda to: f"TP 201 to {to}")
        return told(await one.run("Find"))

    async def _tools_at_once(self, capabilities: Any) -> Any:
        one = agent(capabilities, calling(("find", {"to": "LIS"}), ("find", {"to": "OPO"}), ("count", {})))
        one.tool_plain(name="find")(lambda to: {"to": to, "price": 190.5})
        one.tool_plain(name="count")(lambda: 3)
        return told(await one.run("Find"))

    async def _retry(self, capabilities: Any) -> Any:
        def find(to: str) -> str:
            if to == "LIS":
                raise ModelRetry("No flights there; try OPO.")
            return "TP 202"

        def model(messages: list[ModelMessage], info: AgentInfo) -> Any:
            at = sum(isinstance(message, ModelResponse) for message in messages)
            return "Found" if at == 2 else [("find", {"to": ("LIS", "OPO")[at]})]

        one = agent(capabilities, model)
        one.tool_plain(name="find", retries=2)(find)
        return told(await one.run("Find"))

    async def _too_many_retries(self, capabilities: Any) -> Any:
        def find() -> str:
            raise ModelRetry("Again.")

        one = agent(capabilities, lambda messages, info: [("find", {})])
        one.tool_plain(name="find", retries=1)(find)
        try:
            return told(await one.run("Find"))
        except UnexpectedModelBehavior as error:
            return str(error)

    async def _tool_raises(self, capabilities: Any) -> Any:
        def find() -> str:
            raise KeyError("the tool failed")

        one = agent(capabilities, calling(("find", {})))
        one.tool_plain(name="find")(find)
        try:
            return told(await one.run("Find"))
        except Exception as error:
            cause = error if isinstance(error, KeyError) else error.__cause__
            return f"{type(cause).__name__}: {cause}"

    async def _structured(self, capabilities: Any) -> Any:
        def model(messages: list[ModelMessage], info: AgentInfo) -> Any:
            return [(info.output_tools[0].name, {"name": "Lisbon", "people": 545_000})]

        return told(await agent(capabilities, model, output_type=City).run("Which city?"))

    async def _validator(self, capabilities: Any) -> Any:
        def model(messages: list[ModelMessage], info: AgentInfo) -> Any:
            return "Porto" if len(messages) > 1 else "porto"

        one = agent(capabilities, model)

        @one.output_validator
        def check(output: str) -> str:
            if output.islower():
                raise ModelRetry("Begin with a capital letter.")
            return output

        return told(await one.run("Which city?"))

    async def _history(self, capabilities: Any) -> Any:
        bare = agent([], lambda messages, info: "Lisbon")
        before = (await bare.run("Where?")).all_messages()
        return told(
            await agent(capabilities, lambda messages, info: str(len(messages))).run("And?", message_history=before)
        )

    async def _stream(self, capabilities: Any) -> Any:
        async def stream(
            messages: list[ModelMessage], info: AgentInfo
        ) -> AsyncIterator[str | dict[int, DeltaToolCall]]:
            if len(messages) == 1:
                yield {0: DeltaToolCall(name="find", json_args='{"to": "LIS"}', tool_call_id="c1")}
            else:
                for piece in ("TP", " 2", "01"):
                    yield piece

        one: Agent[None, str] = Agent(FunctionModel(stream_function=stream), name="agent", capabilities=capabilities)
        one.tool_plain(name="find")(lambda to: f"TP 201 to {to}")
        async with one.run_stream("Find") as result:
            return [await result.get_output(), parts(result.all_messages())]

    async def _instructions(self, capabilities: Any) -> Any:
        one = agent(capabilities, lambda messages, info: str(info.instructions), instructions="Be brief.")
        return told(await one.run("Where?"))

    async def _iter(self, capabilities: Any) -> Any:
        one = agent(capabilities, calling(("find", {"to": "LIS"})))
        one.tool_plain(name="find")(lambda to: f"TP 201 to {to}")
        async with one.iter("Find") as turn:
            nodes = [type(node).__name__ async for node in turn]
        assert turn.result is not None
        return [nodes, told(turn.result)]

    async def _two_turns(self, capabilities: Any) -> Any:
        one = agent(capabilities, lambda messages, info: f"{len(messages)} messages")
        first = await one.run("One")
        return [told(first), told(await one.run("Two", message_history=first.all_messages()))]

    async def _deps(self, capabilities: Any) -> Any:
        one: Any = Agent(function(calling(("who", {}))), name="agent", deps_type=str, capabilities=capabilities)

        @one.tool
        def who(context: RunContext[str]) -> str:
            return context.deps.upper()

        return told(await one.run("Who?", deps="ann"))

    async def _test_model(self, capabilities: Any) -> Any:
        one: Agent[None, str] = Agent(TestModel(), name="agent", capabilities=capabilities)
        one.tool_plain(name="find")(lambda to="LIS", most=3: [to] * most)
        return told(await one.run("Find"))


def function(answers: Any) -> FunctionModel:
    """Return a model whose function returns a text or tool calls."""

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        said = answers(messages, info)
        if isinstance(said, str):
            return ModelResponse(parts=[TextPart(said)])
        return ModelResponse(parts=[ToolCallPart(name, given, f"c{at}") for at, (name, given) in enumerate(said)])

    return FunctionModel(model)


def agent(capabilities: Any, answers: Any, **options: Any) -> Any:
    return Agent(function(answers), name="agent", capabilities=capabilities, **options)


def calling(*calls: tuple[str, dict[str, Any]]) -> Any:
    """Return answers of a model that makes calls once, and then says what they returned."""

    def answers(messages: list[ModelMessage], info: AgentInfo) -> Any:
        if len(messages) == 1:
            return list(calls)
        return "; ".join(f"{part.tool_name}: {part.content}" for part in messages[-1].parts)  # type: ignore[union-attr]

    return answers


def told(result: Any) -> Any:
    usage = result.usage
    return [result.output, parts(result.all_messages()), [usage.requests, usage.tool_calls, usage.output_tokens]]


def parts(messages: list[ModelMessage]) -> Any:
    found = [
        (message.kind, getattr(message, "instructions", None), part) for message in messages for part in message.parts
    ]
    return [[kind, instructions, part.part_kind, part] for kind, instructions, part in found]
