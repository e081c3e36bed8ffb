"""Pydantic AI on tenuto: `TenutoDurability` makes agents durable, `TenutoHistory` stores messages as a thread.

    assistant = Agent("openai:gpt-5", name="travel", capabilities=[TenutoDurability()])
    async with agent.run("trip-42") as run:
        result = await assistant.run("Plan three days in Lisbon")

`TenutoDurability` is an engine for Pydantic AI's durable execution. Each model request and each tool call of an agent
that runs inside a run of tenuto is a step of that run (`adapters/calls.py`), so a crash repeats nothing that was
recorded. A tool that needs approval asks a question in the inbox; the run pauses until it is answered. Outside a run the
agent works as without it.

`TenutoHistory` owns no keys: it is the thread of the same id (`adapters/conversation.py`), and messages of other
frameworks are read as Pydantic AI's.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, cast

from tenuto import shapes
from tenuto.adapters.calls import Calls, verdict
from tenuto.adapters.conversation import AsyncConversation, Conversation, bridged
from tenuto.adapters.forms import NativeForm, calls_in, results_in, words_in
from tenuto.aio import AsyncTenuto
from tenuto.capabilities.people import AskOptions
from tenuto.capabilities.runs import StepOptions
from tenuto.client import Tenuto
from tenuto.errors import MissingDriver
from tenuto.kernel.durations import Duration
from tenuto.shapes import Call, Message, Part, Result, Said, Text

try:
    from pydantic_ai.agent import EventStreamHandler
    from pydantic_ai.durable_exec import (
        JSON_CODEC,
        BaseDurabilityCapability,
        DurabilityEngineSpec,
        DurableOperationBackend,
        DurableOperationId,
        JournalCallableOperationBackend,
        ModelRequestId,
        RoleBasedOperationConfig,
        ToolsetCallToolId,
        conversation_id_from_run_id,
    )
    from pydantic_ai.messages import (
        AgentStreamEvent,
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelRequest,
        PartDeltaEvent,
        PartStartEvent,
        TextPart,
        TextPartDelta,
    )
    from pydantic_ai.models import Model
    from pydantic_ai.tools import (
        AgentDepsT,
        DeferredToolRequests,
        DeferredToolResults,
        RunContext,
        ToolApproved,
        ToolDenied,
    )
except ImportError as error:
    raise MissingDriver('Pydantic AI is not installed. Run: pip install "tenuto[pydantic-ai]".') from error

__all__ = ["TenutoDurability", "TenutoHistory"]

_CHANGING: Final = frozenset({"timestamp", "run_id", "conversation_id", "instructions", "metadata", "state"})
"""Fields of a request that a replay writes anew."""


class TenutoDurability(BaseDurabilityCapability[AgentDepsT]):
    """Record each model request and tool call of an agent as a step of the run that it runs in.

    `model` and `tools` are options of these steps (those of `run.step`), for one tool its metadata:
    `@assistant.tool(metadata={"tenuto": {"effect": "once", "verify": find_booking}})`; `False` runs it without a step.
    `approval` are options of the questions for tools that need approval (those of `agent.ask`). With `stream=True`, the
    text of responses goes to the watchers of the run while it arrives.
    """

    engine_spec = DurabilityEngineSpec(
        engine_name="tenuto",
        durable_unit_noun="step",
        durable_container_noun="run",
        codec=JSON_CODEC,
        wrapped_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_config_key="tenuto",
    )

    def __init__(
        self,
        *,
        name: str | None = None,
        model: StepOptions | None = None,
        tools: StepOptions | None = None,
        approval: AskOptions | None = None,
        stream: bool = False,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
    ) -> None:
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._model_options: StepOptions = model or {}
        self._tool_options: StepOptions = tools or {}
        self._approval: AskOptions = approval or {}
        self._stream = stream

    @property
    def in_durable_context(self) -> bool:
        """Return whether the agent runs inside a run, and not inside one of its steps."""
        return Calls.here() is not None

    def get_default_run_id(self) -> str | None:
        """Return an id for this turn that is the same on each replay."""
        calls = Calls.here()
        return None if calls is None else f"{calls.id}:{calls.begin(self.name).name}"

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """Return an id for a new conversation that is the same on each replay."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """Return when this turn was begun first, for its timeout."""
        calls = Calls.here()
        return None if calls is None else await calls.started(run_id)

    def get_durable_operation_backend(self) -> DurableOperationBackend[StepOptions]:
        """Return what executes a request or a call as a step."""

        def tool(_operation: DurableOperationId, tool: object | None, tool_name: str) -> StepOptions | Literal[False]:
            config = self._build_resolve_tool_config(self._tool_options)(cast("Any", tool), tool_name)
            return cast("StepOptions | Literal[False]", config)

        config: RoleBasedOperationConfig[StepOptions] = RoleBasedOperationConfig(
            model=self._model_options, event={}, capability={}, tool=self._tool_options, resolve_tool=tool
        )
        return _Steps(agent_name=self.name, default_model_id=self.default_model_id, config=config)

    @property
    def has_wrap_run_event_stream(self) -> bool:
        """Return whether responses are streamed."""
        return self._stream or super().has_wrap_run_event_stream

    def _model_stream_event_handler(self) -> EventStreamHandler[AgentDepsT] | None:
        handler = super()._model_stream_event_handler()
        return _emitting(handler) if self._stream else handler

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask people about the calls that need approval; the run pauses until all are answered."""
        calls = Calls.here()
        if calls is None or not requests.approvals:
            return None
        turn = calls.turn(_turn_of(ctx))
        questions = [
            turn.approval(call.tool_name, call.tool_call_id, call.args_as_dict(), self._approval)
            for call in requests.approvals
        ]
        answers = await calls.ask_all(questions)
        given: dict[str, bool | ToolApproved | ToolDenied] = {
            call.tool_call_id: ToolApproved() if one.approved else ToolDenied(one.said)
            for call, one in zip(requests.approvals, map(verdict, answers), strict=True)
        }
        return DeferredToolResults(approvals=given)


class _Steps(JournalCallableOperationBackend[StepOptions]):
    """Executes Pydantic AI's durable operations as steps."""

    async def execute(
        self,
        *,
        operation_id: DurableOperationId,
        name: str,
        body: Callable[[], Awaitable[object]],
        cache_key: tuple[object, ...],
        config: StepOptions,
    ) -> object:
        calls = Calls.here()
        if calls is None:
            return await body()
        ctx = next((one for one in reversed(cache_key) if isinstance(one, RunContext)), None)
        turn = calls.turn(name if ctx is None else _turn_of(ctx))
        options = cast("dict[str, Any]", config or {})
        if isinstance(operation_id, ModelRequestId):
            messages = cast("list[ModelMessage]", cache_key[1])
            agent = name.partition("__")[0]
            return await turn.model(_asked(messages), _counted(body), name=f"{agent}.model", **options)
        if isinstance(operation_id, ToolsetCallToolId):
            assert ctx is not None
            return await turn.tool(str(cache_key[0]), str(ctx.tool_call_id), body, **options)
        return await turn.other(name, body)  # discovery and validation: nothing that harms if it is repeated


def _turn_of(ctx: RunContext[Any]) -> str:
    """Return the name of a turn: the id that `get_default_run_id` or the caller gave it."""
    return str(ctx.run_id)


def _asked(messages: list[ModelMessage]) -> list[Any]:
    """Return what identifies a request: what is new since the last response, without times and generated ids."""
    last = next((at for at in range(len(messages) - 1, -1, -1) if not isinstance(messages[at], ModelRequest)), -1)
    news = cast("list[dict[str, Any]]", ModelMessagesTypeAdapter.dump_python(messages[last + 1 :], mode="json"))
    parts = [
        {key: value for key, value in part.items() if key not in _CHANGING}
        for message in news
        for part in message["parts"]
        if part["part_kind"] != "system-prompt"
    ]
    return [len(messages), parts]


def _counted(body: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
    """Return a model request that records its usage, too."""

    async def counted() -> object:
        response = cast("dict[str, Any]", await body())
        found = response.get("response", response)
        usage = found.get("usage") or {}
        calls = Calls.outside()
        if found.get("model_name") and calls is not None:
            await calls.usage(
                found["model_name"],
                usage.get("input_tokens", 0),
                usage.get("output_tokens", 0),
                usage.get("cache_read_tokens", 0),
            )
        return response

    return counted


def _emitting(handler: EventStreamHandler[AgentDepsT] | None) -> EventStreamHandler[AgentDepsT]:
    """Return a handler that sends the text of a response to the watchers of the run, before another handler."""

    async def handle(ctx: RunContext[AgentDepsT], events: AsyncIterable[AgentStreamEvent]) -> None:
        calls = Calls.outside()

        async def seen() -> AsyncIterable[AgentStreamEvent]:
            text = ""
            async for event in events:
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    piece = event.part.content
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    piece = event.delta.content_delta
                else:
                    piece = ""
                text += piece
                if piece and calls is not None:
                    await calls.emit(piece)
                yield event
            if text and calls is not None:
                await calls.emit(text, durable=True)

        if handler is not None:
            await handler(ctx, seen())
        else:
            async for _ in seen():
                pass

    return handle


# -- messages ----------------------------------------------------------------------------------------------------


def _said(message: Message) -> Said | None:
    """Return what a message says; system prompts count only in a message of their own."""
    if message["kind"] == "response":
        return Said("assistant", tuple(part for one in message["parts"] for part in _response_part(one)))
    parts = tuple(part for one in message["parts"] for part in _request_part(one))
    if parts:
        return Said("user", parts)
    return Said(
        "system", tuple(Text(one["content"]) for one in message["parts"] if one["part_kind"] == "system-prompt")
    )


def _response_part(part: Message) -> list[Part]:
    if part["part_kind"] == "text":
        return [Text(part["content"])] if part["content"] else []
    if part["part_kind"] == "tool-call":
        given = part.get("args") or {}
        return [
            Call(part["tool_call_id"], part["tool_name"], given if isinstance(given, str) else shapes.as_json(given))
        ]
    return []


def _request_part(part: Message) -> list[Part]:
    kind, content = part["part_kind"], part.get("content")
    if kind == "user-prompt":
        return list(_words(content))
    if kind in ("tool-return", "retry-prompt") and part.get("tool_name"):
        said = content if isinstance(content, str) else shapes.as_json(content)
        failed = kind == "retry-prompt" or part.get("outcome", "success") != "success"
        return [Result(part["tool_call_id"], (Text(said),), failed)]
    if kind in ("retry-prompt", "retry-feedback"):
        return [Text(content if isinstance(content, str) else shapes.as_json(content))]
    return []


def _words(content: Any) -> tuple[Part, ...]:
    found: list[Part] = []
    for one in [content] if isinstance(content, str) else content or ():
        if isinstance(one, str):
            found.append(Text(one))
        elif one.get("kind") == "image-url":
            found.append(shapes.Image(one["url"]))
        elif one.get("kind") == "binary" and str(one.get("media_type")).startswith("image/"):
            found.append(shapes.Image(f"data:{one['media_type']};base64,{one['data']}"))
        elif one.get("kind") == "text":
            found.append(Text(str(one.get("content"))))
    return tuple(found)


def _written(said: Said) -> list[Message]:
    """Return the message that says the same."""
    if said.role == "system":
        parts = [{"part_kind": "system-prompt", "content": one.text} for one in words_in(said) if isinstance(one, Text)]
        return [{"kind": "request", "parts": parts}] if parts else []
    if said.role == "assistant":
        texts = [{"part_kind": "text", "content": one.text} for one in words_in(said) if isinstance(one, Text)]
        calls = [
            {
                "part_kind": "tool-call",
                "tool_name": one.name,
                "args": shapes.arguments(one.arguments),
                "tool_call_id": one.id,
            }
            for one in calls_in(said)
        ]
        return [{"kind": "response", "parts": [*texts, *calls]}] if texts or calls else []
    results: list[Message] = [
        {
            "part_kind": "tool-return",
            "tool_name": "",
            "content": shapes.plain_text(one.parts),
            "tool_call_id": one.id,
            **({"outcome": "failed"} if one.failed else {}),
        }
        for one in results_in(said)
    ]
    words = words_in(said)
    if len(words) == 1 and isinstance(words[0], Text):
        results.append({"part_kind": "user-prompt", "content": words[0].text})
    elif words:
        content = [one.text if isinstance(one, Text) else _image(one.url) for one in words]
        results.append({"part_kind": "user-prompt", "content": content})
    return [{"kind": "request", "parts": results}]


def _image(url: str) -> Message:
    head, comma, data = url.partition(";base64,")
    if comma and head.startswith("data:"):
        return {"kind": "binary", "media_type": head.removeprefix("data:"), "data": data}
    return {"kind": "image-url", "url": url}


def _named(messages: list[Message]) -> list[Message]:
    """Return messages whose tool results have the names of their calls: other frameworks' results have only ids."""
    names: dict[str, str] = {}
    for message in messages:
        for part in message["parts"]:
            if part["part_kind"] == "tool-call":
                names[part["tool_call_id"]] = part["tool_name"]
            elif part["part_kind"] == "tool-return" and not part["tool_name"]:
                part["tool_name"] = names.get(part["tool_call_id"], "")
    return messages


class TenutoHistory:
    """The messages of one conversation, stored as the thread `conversation_id` of an agent; sync and async.

    Pass `history.messages` as `message_history=` and add `result.new_messages()`. `user` owns the conversation. With
    `ttl` it expires that long after its last message.
    """

    def __init__(
        self,
        conversation_id: str,
        agent: Tenuto | AsyncTenuto,
        *,
        user: str | None = None,
        ttl: Duration | None = None,
    ) -> None:
        self.conversation_id = conversation_id
        sync, pool = bridged(agent)
        self._sync = Conversation(sync, conversation_id, NativeForm("pydantic-ai", _said, _written), user=user, ttl=ttl)
        self._async = AsyncConversation(self._sync, pool)

    @property
    def messages(self) -> list[ModelMessage]:
        """Return the messages, oldest first."""
        return ModelMessagesTypeAdapter.validate_python(_named(self._sync.read()))

    def add(self, messages: Sequence[ModelMessage]) -> None:
        """Append messages atomically and durably."""
        self._sync.add(_dumped(messages))

    def clear(self) -> None:
        """Delete the conversation and its messages from the store."""
        self._sync.clear()

    async def aget(self) -> list[ModelMessage]:
        """Return the messages, oldest first."""
        return ModelMessagesTypeAdapter.validate_python(_named(await self._async.read()))

    async def aadd(self, messages: Sequence[ModelMessage]) -> None:
        """Append messages atomically and durably, even if cancelled meanwhile."""
        await self._async.add(_dumped(messages))

    async def aclear(self) -> None:
        """Delete the conversation and its messages from the store."""
        await self._async.clear()


def _dumped(messages: Sequence[ModelMessage]) -> list[Message]:
    """Return messages as plain data, without fields that are empty."""
    found = cast("list[Message]", ModelMessagesTypeAdapter.dump_python(list(messages), mode="json"))
    return [{**_filled(message), "parts": [_filled(part) for part in message["parts"]]} for message in found]


def _filled(given: Message) -> Message:
    return {key: value for key, value in given.items() if value is not None}
