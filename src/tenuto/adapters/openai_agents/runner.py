"""Durable runs of the OpenAI Agents SDK: `TenutoRunner` in the place of `Runner`.

    runner = TenutoRunner(tools={"book": {"effect": "once", "verify": find_booking}})
    async with agent.run("trip-42") as run:
        result = await runner.run(assistant, "Plan three days in Lisbon")

It owns no keys: each model call and each tool call is a step of the open run (`adapters/calls.py`). After a crash the SDK
runs again from its first line, and recorded calls are not repeated. A tool that needs approval asks a question in the
inbox: the SDK's `RunState` is recorded, and the run pauses until the answer comes.

The agents are copied, with models, tools and handoffs that record; the originals are not changed. A session is read as
it was when the run first read it, and each of its turns is added once.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from pydantic_core import to_jsonable_python

from tenuto.adapters.calls import Calls, Turn, verdict
from tenuto.adapters.openai_agents.recorded import Recorded, RecordedSession
from tenuto.aio import AsyncTenuto
from tenuto.capabilities.people import AskOptions
from tenuto.capabilities.runs import RunRecord, StepOptions
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, MissingDriver

try:
    from agents import (
        Agent,
        ApplyPatchTool,
        ComputerTool,
        FunctionTool,
        Handoff,
        LocalShellTool,
        Model,
        ModelProvider,
        RunConfig,
        Runner,
        RunResult,
        RunState,
        Session,
        ShellTool,
        TResponseInputItem,
    )
except ImportError as error:
    raise MissingDriver('The OpenAI Agents SDK is not installed. Run: pip install "tenuto[openai-agents]".') from error

__all__ = ["TenutoRunner", "run_state"]

_LOCAL: Final = (ApplyPatchTool, ComputerTool, LocalShellTool, ShellTool)
"""Tools that act on this machine in the SDK's own code, so a call of theirs cannot be a step."""
_STATE: Final = "state"


class TenutoRunner:
    """Runs agents of the SDK inside a run of tenuto; outside of one, as `Runner` does.

    `model` are options of the steps of model calls, and `tools` those of tool calls by the tool's name, as for
    `run.step`. `approval` are options of the questions for tools that need approval, as for `agent.ask`. With
    `stream=True`, the text of responses goes to the watchers of the run while it arrives.
    """

    def __init__(
        self,
        *,
        model: StepOptions | None = None,
        tools: Mapping[str, StepOptions] | None = None,
        approval: AskOptions | None = None,
        stream: bool = False,
    ) -> None:
        self._model: StepOptions = model or {}
        self._tools = dict(tools or {})
        self._approval: AskOptions = approval or {}
        self._stream = stream

    async def run(
        self,
        starting_agent: Agent[Any],
        input: str | list[TResponseInputItem],  # noqa: A002 - the SDK's name
        **options: Any,
    ) -> RunResult:
        """Run an agent to its end and return the result; `options` are those of `Runner.run`.

        A tool that waits for approval pauses the run: repeat the call after the answer, or let a worker do it.
        """
        calls = Calls.here()
        if calls is None:
            return await Runner.run(starting_agent, input, **options)
        turn = calls.begin(starting_agent.name)
        copies = _Copies(turn, self._model, self._tools, stream=self._stream)
        agent = copies.of(starting_agent)
        session: Session | None = options.pop("session", None)
        if session is not None:
            options["session"] = RecordedSession(session, turn)
        given = options.pop("run_config", None)
        config = given if isinstance(given, RunConfig) else RunConfig(**given or {})
        options["run_config"] = copies.config(config)
        result = await Runner.run(agent, input, **options)
        for more in ("context", "hooks_context"):
            options.pop(more, None)  # a state has its own
        while result.interruptions:
            state = result.to_state()
            await self._approve(turn, state)
            result = await Runner.run(agent, state, **options)
        return result

    async def _approve(self, turn: Turn, state: RunState[Any, Any]) -> None:
        """Record the state, ask people about its calls, and decide them."""

        async def kept() -> Any:
            return to_jsonable_python(state.to_json(), serialize_unknown=True)

        await turn.other(_STATE, kept)
        waiting = state.get_interruptions()
        questions = [
            turn.approval(item.name or "", item.call_id or "", _arguments(item.arguments), self._approval)
            for item in waiting
        ]
        for item, answer in zip(waiting, await turn.calls.ask_all(questions), strict=True):
            said = verdict(answer)
            if said.approved:
                state.approve(item)
            else:
                state.reject(item, rejection_message=said.said)


def _arguments(given: str | None) -> Any:
    from tenuto.shapes import arguments  # noqa: PLC0415

    return arguments(given or "{}")


class _Copies:
    """Copies of agents that record their calls in one turn."""

    def __init__(self, turn: Turn, model: StepOptions, tools: dict[str, StepOptions], *, stream: bool) -> None:
        self._turn, self._model, self._tools, self._stream = turn, model, tools, stream
        self._made: dict[int, Agent[Any]] = {}
        self._kept: list[Agent[Any]] = []
        """The originals, so that no other object gets the id of one."""

    def config(self, given: RunConfig) -> RunConfig:
        """Return a configuration whose models record."""
        model = self.model(given.model) if isinstance(given.model, Model) else given.model
        provider = _Provider(given.model_provider, self.model)
        return dataclasses.replace(given, model=model, model_provider=provider)

    def model(self, model: Model) -> Model:
        """Return a model that records its calls."""
        return Recorded(model, self._turn, cast("dict[str, Any]", self._model), stream=self._stream)

    def of(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the copy of an agent; one copy each, since handoffs may lead back."""
        known = self._made.get(id(agent))
        if known is not None:
            return known
        made = copy.copy(agent)
        self._made[id(agent)] = self._made[id(made)] = made
        self._kept.append(agent)
        if isinstance(made.model, Model):
            made.model = self.model(made.model)
        made.tools = [self._tool(tool, agent) for tool in agent.tools]
        made.handoffs = [self._handoff(one) if isinstance(one, Handoff) else self.of(one) for one in agent.handoffs]
        found = agent.get_mcp_tools

        async def get_mcp_tools(run_context: Any) -> list[Any]:
            return [self._tool(tool, agent) for tool in await found(run_context)]

        if agent.mcp_servers:
            made.get_mcp_tools = get_mcp_tools  # type: ignore[method-assign]
        return made

    def _tool(self, tool: Any, agent: Agent[Any]) -> Any:
        if isinstance(tool, _LOCAL) or (not isinstance(tool, FunctionTool) and hasattr(tool, "on_invoke_tool")):
            raise InvalidInput(
                f"The tool {tool.name!r} of the agent {agent.name!r} is a {type(tool).__name__}, which the SDK runs itself, so "
                "its calls cannot be recorded; nothing was run. Give the agent a function_tool that does the same."
            )
        if not isinstance(tool, FunctionTool):
            return tool  # hosted: it runs in the model's call
        made = copy.copy(tool)
        made.on_invoke_tool = self._recorded(tool.name, made.on_invoke_tool)
        return made

    def _recorded(
        self, name: str, invoke: Callable[[Any, str], Awaitable[Any]]
    ) -> Callable[[Any, str], Awaitable[Any]]:
        async def invoked(context: Any, arguments: str) -> Any:
            async def call() -> Any:
                return _plain(await invoke(context, arguments))

            if Calls.here() is None:
                return await invoke(context, arguments)
            return await self._turn.tool(name, context.tool_call_id, call, **self._tools.get(name, {}))

        return invoked

    def _handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        made = copy.copy(handoff)
        invoke = handoff.on_invoke_handoff

        async def invoked(context: Any, arguments: str) -> Any:
            return self.of(await invoke(context, arguments))

        made.on_invoke_handoff = invoked
        return made


class _Provider(ModelProvider):
    """A provider whose models record their calls."""

    def __init__(self, inner: ModelProvider, recorded: Callable[[Model], Model]) -> None:
        self._inner, self._recorded = inner, recorded

    def get_model(self, model_name: str | None) -> Model:
        """Return the provider's model, recording."""
        return self._recorded(self._inner.get_model(model_name))


def _plain(output: Any) -> Any:
    """Return a tool's output as data of which the SDK makes the same text for the model."""
    if output is None or isinstance(output, str | int | float | bool):
        return output
    if isinstance(output, list):
        return [_plain(one) for one in output]
    if isinstance(output, dict):
        return to_jsonable_python(output, fallback=str)
    if hasattr(output, "model_dump") and getattr(output, "type", None) in ("text", "image", "file"):
        return output.model_dump(mode="json", exclude_none=True)
    return str(output)  # what the SDK does with it


async def run_state(agent: Tenuto | AsyncTenuto, run_id: str) -> dict[str, Any] | None:
    """Return the newest `RunState` that a run recorded, as `RunState.from_json` reads it; None if there is none."""
    found = agent.runs.get(run_id)
    record: RunRecord = await found if isinstance(found, Awaitable) else found
    states = [step.result for step in record.steps if step.name == _STATE and step.status == "completed"]
    return cast("dict[str, Any]", states[-1]) if states else None
