"""Models for `agent.turn`: the clients of OpenAI and Anthropic as functions of messages and tools.

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

from tenuto.capabilities.runs import current_run

Message = dict[str, Any]


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


class AnthropicModel:
    """Call a model through Anthropic's messages API."""

    shape = "anthropic"

    def __init__(
        self, client: Any, model: str, *, max_tokens: int = 4_096, stream: bool = False, **options: Any
    ) -> None:
        self._client = client
        self.model = model
        self._stream = stream
        self._options = {"max_tokens": max_tokens, **options}

    def __call__(self, messages: Sequence[Message], tools: Sequence[Message], system: str | None = None) -> Any:
        """Return the response; its usage is read by `agent.turn`."""
        given: dict[str, Any] = {"tools": list(tools)} if tools else {}
        if system:
            given["system"] = system
        if self._stream:
            given["stream"] = True
        made = self._client.messages.create(model=self.model, messages=list(messages), **given, **self._options)
        return _collected(made, _Events(self.model)) if self._stream else made


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

    def add(self, piece: Any) -> str:
        """Take up a chunk; return the text in it."""
        self._model = _get(piece, "model") or self._model
        if _get(piece, "usage") is not None:
            self._usage = _plain(_get(piece, "usage"))
        text = ""
        for choice in _get(piece, "choices") or ():
            delta = _get(choice, "delta")
            text += _get(delta, "content") or ""
            for part in _get(delta, "tool_calls") or ():
                function = {"name": "", "arguments": ""}
                call = self._calls.setdefault(
                    _get(part, "index") or 0, {"id": "", "type": "function", "function": function}
                )
                call["id"] = _get(part, "id") or call["id"]
                for name in ("name", "arguments"):
                    call["function"][name] += _get(_get(part, "function"), name) or ""
        self.text += text
        return text

    def response(self) -> Message:
        """Return the whole response, as without streaming."""
        message: Message = {"role": "assistant", "content": self.text or None}
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        usage = {} if self._usage is None else {"usage": self._usage}
        return {"model": self._model, "choices": [{"message": message}], **usage}


class _Events:
    """The events of a message of Anthropic."""

    def __init__(self, model: str) -> None:
        self.text = ""
        self._model = model
        self._blocks: dict[int, Message] = {}
        self._inputs: dict[int, str] = {}
        self._usage: Message = {}

    def add(self, piece: Any) -> str:
        """Take up an event; return the text in it."""
        kind, at = _get(piece, "type"), _get(piece, "index") or 0
        if kind == "message_start":
            message = _get(piece, "message")
            self._model = _get(message, "model") or self._model
            self._usage |= _plain(_get(message, "usage"))
        elif kind == "message_delta":
            self._usage |= {name: value for name, value in _plain(_get(piece, "usage")).items() if value is not None}
        elif kind == "content_block_start":
            self._blocks[at] = _plain(_get(piece, "content_block"))
        elif kind == "content_block_delta":
            delta = _get(piece, "delta")
            if _get(delta, "type") == "text_delta":
                self._blocks[at]["text"] += _get(delta, "text")
                self.text += _get(delta, "text")
                return str(_get(delta, "text"))
            if _get(delta, "type") == "input_json_delta":
                self._inputs[at] = self._inputs.get(at, "") + _get(delta, "partial_json")
        return ""

    def response(self) -> Message:
        """Return the whole response, as without streaming."""
        for at, text in self._inputs.items():
            self._blocks[at]["input"] = json.loads(text or "{}")
        content = [block for _, block in sorted(self._blocks.items())]
        return {"role": "assistant", "content": content, "model": self._model, "usage": self._usage}


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
