"""One agent with two tools in each framework that has durable agents: 6 model calls and 6 tool calls, two of them at once.

`act(kind, which)` is told of every call, `"model", "3"` or `"tool", "call-4"`, when it begins and when it has had its effect.
"""

from collections.abc import Awaitable, Callable
from typing import Any

Act = Callable[[str, str, str], None]
TURNS: list[list[tuple[str, str]]] = [
    [("find", "call-1")],
    [("book", "call-2")],
    [("find", "call-3"), ("book", "call-4")],
    [("find", "call-5")],
    [("book", "call-6")],
    [],
]
"""What the model asks for in each of its responses; in the last it answers."""
CALLS = [f"model {at + 1}" for at in range(len(TURNS))] + [f"tool call-{at + 1}" for at in range(6)]
ANSWER = "Booked three times."


def pydantic_ai(act: Act, **durability: Any) -> Callable[[str], Awaitable[str]]:
    from pydantic_ai import Agent, RunContext
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from tenuto.adapters.pydantic_ai import TenutoDurability

    def model(messages: list[ModelMessage], _: Any) -> ModelResponse:
        at = sum(isinstance(message, ModelResponse) for message in messages)
        act("begin", "model", str(at + 1))
        parts = [ToolCallPart(name, {"what": call}, tool_call_id=call) for name, call in TURNS[at]]
        act("end", "model", str(at + 1))
        return ModelResponse(parts=parts or [TextPart(ANSWER)])

    agent = Agent(FunctionModel(model), name="travel", capabilities=[TenutoDurability(**durability)])

    @agent.tool
    def find(context: RunContext[None], what: str) -> list[str]:
        return [worked(context, what)]

    @agent.tool
    async def book(context: RunContext[None], what: str) -> str:
        return worked(context, what)

    def worked(context: RunContext[None], what: str) -> str:
        act("begin", "tool", str(context.tool_call_id))
        act("end", "tool", str(context.tool_call_id))
        return f"{what} is done"

    async def run(prompt: str) -> str:
        return (await agent.run(prompt)).output

    return run


def openai_agents(act: Act, session: Any = None, **options: Any) -> Callable[[str], Awaitable[str]]:
    from agents import Agent, Model, ModelResponse, Usage, function_tool
    from agents.testing import assistant_message, function_call
    from agents.tool_context import ToolContext

    from tenuto.adapters.openai_agents import TenutoRunner

    class Fake(Model):
        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            items = kwargs["input"] if "input" in kwargs else args[1]
            if isinstance(items, str):
                items = [{"role": "user", "content": items}]
            results = {item["call_id"] for item in items if item.get("type") == "function_call_output"}
            at = next(at for at, turn in enumerate(TURNS) if not turn or turn[0][1] not in results)
            act("begin", "model", str(at + 1))
            output = [function_call(name, {"what": call}, call_id=call) for name, call in TURNS[at]]
            act("end", "model", str(at + 1))
            usage = Usage(requests=1, input_tokens=10, output_tokens=5, total_tokens=15)
            return ModelResponse(output=output or [assistant_message(ANSWER)], usage=usage, response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    def worked(context: ToolContext[Any], what: str) -> str:
        act("begin", "tool", context.tool_call_id)
        act("end", "tool", context.tool_call_id)
        return f"{what} is done"

    @function_tool
    def find(context: ToolContext[Any], what: str) -> list[str]:
        return [worked(context, what)]

    @function_tool
    async def book(context: ToolContext[Any], what: str) -> str:
        return worked(context, what)

    agent = Agent(name="travel", model=Fake(), tools=[find, book])

    async def run(prompt: str) -> str:
        return str((await TenutoRunner(**options).run(agent, prompt, session=session)).final_output)

    return run


FRAMEWORKS = {"pydantic-ai": pydantic_ai, "openai-agents": openai_agents}
