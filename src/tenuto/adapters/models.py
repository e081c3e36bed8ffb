"""Models for `agent.turn`: the clients of OpenAI and Anthropic as functions of messages and tools.

`OpenAIModel` uses chat completions, which many other providers offer too, `OpenAIResponsesModel` the responses API.

Pass the client that you have; nothing is imported from its package. Both the blocking and the async clients work: an
async client needs `AsyncTenuto`. With `stream=True` the pieces of a text go to those who watch the run of the turn while
they arrive, and the whole text when it is complete: `agent.runs.watch("turn:THREAD:KEY")`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tenuto.capabilities.context import NOTES
from tenuto.capabilities.runs import current_run

Message = dict[str, Any]
_UNMARKED = ("thinking", "redacted_thinking")
"""Blocks that Anthropic does not let a request mark."""


class OpenAIModel:
    """Call a model through OpenAI's chat completions, or any API that is compatible with it."""

    shape = "openai"

    def __init__(self, client: Any, model: str, *, stream: bool = False, **options: Any) -> None:
        self._client = client
        self.model = model
        self._stream = stream
        self._options = options

    def __call__(self, messages: Sequence[Message], tools: Sequence[Message]) -> Any:
        """Return the response; its usage is read by `agent.turn`."""
        given: dict[str, Any] = {"tools": list(tools)} if tools else {}
        if self._stream:
            given |= {"stream": True, "stream_options": {"include_usage": True}}
        made = self._client.chat.completions.create(model=self.model, messages=list(messages), **given, **self._options)
        return _collected(made, _Chunks(self.model)) if self._stream else made


class OpenAIResponsesModel:
    """Call a model through OpenAI's responses API. What it reasoned is not kept."""

    shape = "responses"

    def __init__(self, client: Any, model: str, *, stream: bool = False, **options: Any) -> None:
        self._client = client
        self.model = model
        self._stream = stream
        self._options = options

    def __call__(self, messages: Sequence[Message], tools: Sequence[Message]) -> Any:
        """Return the response; its usage is read by `agent.turn`."""
        given: dict[str, Any] = {"tools": list(tools)} if tools else {}
        if self._stream:
            given["stream"] = True
        made = self._client.responses.create(model=self.model, input=list(messages), **given, **self._options)
        return _collected(made, _Items()) if self._stream else made


class AnthropicModel:
    """Call a model through Anthropic's messages API.

    With `cache`, the request marks what the next one repeats: the tools and instructions, the conversation before the notes of
    this turn, and all of it. Anthropic caches nothing that is not marked.
    """

    shape = "anthropic"

    def __init__(
        self,
        client: Any,
        model: str,
        *,
        max_tokens: int = 4_096,
        stream: bool = False,
        cache: bool = True,
        **options: Any,
    ) -> None:
        self._client = client
        self.model = model
        self._stream = stream
        self._cache = cache
        self._options = {"max_tokens": max_tokens, **options}

    def __call__(self, messages: Sequence[Message], tools: Sequence[Message], system: str | None = None) -> Any:
        """Return the response; its usage is read by `agent.turn`."""
        given: dict[str, Any] = {"messages": list(messages)}
        if tools:
            given["tools"] = list(tools)
        if system:
            given["system"] = system
        if self._stream:
            given["stream"] = True
        if self._cache:
            given |= _marked(given)
        made = self._client.messages.create(model=self.model, **given, **self._options)
        return _collected(made, _Events(self.model)) if self._stream else made


def _marked(given: Message) -> Message:
    """Return the instructions, tools and messages of a request with marks where Anthropic is to cache."""
    found: Message = {"messages": list(given["messages"])}
    if "system" in given:
        found["system"] = [_cached({"type": "text", "text": given["system"]})]
    elif "tools" in given:
        found["tools"] = [*given["tools"][:-1], _cached(given["tools"][-1])]
    blocks = [(at, inner) for at, one in enumerate(found["messages"]) for inner in range(len(_content(one)))]
    notes = [(at, inner) for at, inner in blocks if _is_notes(_content(found["messages"][at])[inner])]
    before = blocks[: blocks.index(notes[-1])] if notes else []
    for at, inner in [*before[-1:], *blocks[-1:]]:
        content = _content(found["messages"][at])
        if content[inner].get("type") not in _UNMARKED:
            marked = [*content[:inner], _cached(content[inner]), *content[inner + 1 :]]
            found["messages"][at] = {**found["messages"][at], "content": marked}
    return found


def _cached(block: Message) -> Message:
    return {**block, "cache_control": {"type": "ephemeral"}}


def _content(message: Message) -> list[Message]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _is_notes(block: Message) -> bool:
    return block.get("type") == "text" and str(block.get("text")).startswith(NOTES)


class _Pieces(Protocol):
    """What has arrived of a streamed response."""

    text: str

    def add(self, piece: Any) -> str: ...

    def response(self) -> Message: ...


class _Chunks:
    """The chunks of a chat completion."""

    def __init__(self, model: str) -> None:
        self.text = ""
        self._model = model
        self._calls: dict[int, Message] = {}
        self._usage: Message | None = None
        self._reason: str | None = None

    def add(self, piece: Any) -> str:
        """Take up a chunk; return the text in it."""
        self._model = _get(piece, "model") or self._model
        if _get(piece, "usage") is not None:
            self._usage = _plain(_get(piece, "usage"))
        text = ""
        for choice in _get(piece, "choices") or ():
            delta = _get(choice, "delta")
            self._reason = _get(choice, "finish_reason") or self._reason
            text += _get(delta, "content") or ""
            for part in _get(delta, "tool_calls") or ():
                function = {"name": "", "arguments": ""}
                call = self._calls.setdefault(self._place(part), {"id": "", "type": "function", "function": function})
                call["id"] = _get(part, "id") or call["id"]
                for name in ("name", "arguments"):
                    call["function"][name] += _get(_get(part, "function"), name) or ""
        self.text += text
        return text

    def _place(self, part: Any) -> int:
        """Return which call a part belongs to; some providers send each call whole and without an index."""
        at = _get(part, "index")
        return at if at is not None else len(self._calls) if _get(part, "id") else max(len(self._calls) - 1, 0)

    def response(self) -> Message:
        """Return the whole response, as without streaming."""
        message: Message = {"role": "assistant", "content": self.text or None}
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        usage = {} if self._usage is None else {"usage": self._usage}
        return {"model": self._model, "choices": [{"message": message, "finish_reason": self._reason}], **usage}


class _Events:
    """The events of a message of Anthropic."""

    def __init__(self, model: str) -> None:
        self.text = ""
        self._model = model
        self._blocks: dict[int, Message] = {}
        self._inputs: dict[int, str] = {}
        self._usage: Message = {}
        self._reason: str | None = None

    def add(self, piece: Any) -> str:
        """Take up an event; return the text in it."""
        kind, at = _get(piece, "type"), _get(piece, "index") or 0
        if kind == "message_start":
            message = _get(piece, "message")
            self._model = _get(message, "model") or self._model
            self._usage |= _plain(_get(message, "usage"))
        elif kind == "message_delta":
            self._usage |= {name: value for name, value in _plain(_get(piece, "usage")).items() if value is not None}
            self._reason = _get(_get(piece, "delta"), "stop_reason") or self._reason
        elif kind == "content_block_start":
            self._blocks[at] = _plain(_get(piece, "content_block"))
        elif kind == "content_block_delta":
            return self._added(at, _get(piece, "delta"))
        return ""

    def _added(self, at: int, delta: Any) -> str:
        """Add a delta to its block; return the text in it."""
        kind, block = _get(delta, "type"), self._blocks[at]
        if kind == "input_json_delta":
            self._inputs[at] = self._inputs.get(at, "") + _get(delta, "partial_json")
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), _plain(_get(delta, "citation"))]
        elif kind in ("text_delta", "thinking_delta", "signature_delta"):
            name = kind.removesuffix("_delta")
            block[name] = (block.get(name) or "") + _get(delta, name)
        if kind != "text_delta":
            return ""
        self.text += _get(delta, "text")
        return str(_get(delta, "text"))

    def response(self) -> Message:
        """Return the whole response, as without streaming."""
        for at, text in self._inputs.items():
            try:
                self._blocks[at]["input"] = json.loads(text or "{}")
            except ValueError:  # the reply was cut at its limit of tokens: the turn does not make this call
                self._blocks[at]["input"] = {}
                self._reason = "max_tokens"
        content = [block for _, block in sorted(self._blocks.items())]
        about = {"model": self._model, "usage": self._usage, "stop_reason": self._reason}
        return {"role": "assistant", "content": content, **about}


class _Items:
    """The events of a response of the responses API."""

    def __init__(self) -> None:
        self.text = ""
        self._response: Any = None

    def add(self, piece: Any) -> str:
        """Take up an event; return the text in it."""
        kind = _get(piece, "type")
        if kind in ("response.completed", "response.incomplete"):
            self._response = _get(piece, "response")
        elif kind in ("error", "response.failed"):
            raise ConnectionError(f"The stream of the response failed: {piece!r:.500}")
        if kind != "response.output_text.delta":
            return ""
        self.text += _get(piece, "delta")
        return str(_get(piece, "delta"))

    def response(self) -> Message:
        """Return the whole response, as without streaming."""
        if self._response is None:
            raise ConnectionError("The stream ended before the response was complete.")
        return _plain(self._response)


def _collected(made: Any, pieces: _Pieces) -> Any:
    """Return the whole response of a stream, or a coroutine for that of an async client; emit its text meanwhile."""
    if inspect.isawaitable(made):
        return _awaited(made, pieces)
    run = current_run()
    run = getattr(run, "_sync", run)  # in an async run this is a thread for the user's functions, which may block
    for piece in made:
        if (text := pieces.add(piece)) and run is not None:
            run.emit(text, durable=False)
    if pieces.text and run is not None:
        run.emit(pieces.text)
    return pieces.response()


async def _awaited(made: Any, pieces: _Pieces) -> Message:
    run = current_run()
    run = getattr(run, "_sync", run)
    async for piece in await made:
        if (text := pieces.add(piece)) and run is not None:
            await asyncio.to_thread(run.emit, text, durable=False)  # a commit must not block the event loop
    if pieces.text and run is not None:
        await asyncio.to_thread(run.emit, pieces.text)
    return pieces.response()


def _get(holder: Any, name: str) -> Any:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)


def _plain(value: Any) -> Message:
    if isinstance(value, Mapping):
        return dict(value)
    return dict(value.model_dump()) if hasattr(value, "model_dump") else dict(vars(value)) if value is not None else {}
