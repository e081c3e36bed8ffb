"""Models and sessions of the OpenAI Agents SDK whose calls are steps of a run (`adapters/calls.py`).

A session is a second place where a run writes, so both its reads and its writes are steps. A read records how many items
there were, and a replay gets that many. An added turn that was not recorded before a crash is looked for, so it is added
once, as long as no other run writes to the session meanwhile.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from tenuto.adapters.calls import Calls, Turn
from tenuto.errors import MissingDriver
from tenuto.kernel import codec

try:
    from agents import Model, ModelResponse, Session, TResponseInputItem
    from agents.items import TResponseOutputItem
    from agents.memory.session_settings import resolve_session_limit
    from agents.usage import Usage, deserialize_usage, serialize_usage
    from openai.types.responses import Response, ResponseCompletedEvent, ResponseTextDeltaEvent
except ImportError as error:
    raise MissingDriver('The OpenAI Agents SDK is not installed. Run: pip install "tenuto[openai-agents]".') from error

_OUTPUT: TypeAdapter[list[TResponseOutputItem]] = TypeAdapter(list[TResponseOutputItem])


class Recorded(Model):
    """A model whose calls are steps of a turn."""

    def __init__(self, inner: Model, turn: Turn, options: dict[str, Any], *, stream: bool) -> None:
        self._inner, self._turn, self._options, self._stream = inner, turn, options, stream

    def __getattr__(self, name: str) -> Any:
        """Return what else the model has."""
        return getattr(self._inner, name)

    async def get_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002 - the SDK's name
        *args: Any,
        **kwargs: Any,
    ) -> ModelResponse:
        """Return the response of the model, or the recorded one."""

        async def call() -> dict[str, Any]:
            get = self._streamed if self._stream else self._inner.get_response
            return await self._dumped(await get(system_instructions, input, *args, **kwargs))

        if Calls.here() is None:
            return await self._inner.get_response(system_instructions, input, *args, **kwargs)
        name = f"{self._turn.name.rpartition('/')[0]}.model"
        asked = to_jsonable_python(input, serialize_unknown=True)
        return _loaded(await self._turn.model(asked, call, name=name, **self._options))

    async def _streamed(self, *args: Any, **kwargs: Any) -> ModelResponse:
        """Return the response of a stream, whose text is sent to the watchers of the run while it arrives."""
        calls, text, done = Calls.outside(), "", None
        async for event in self._inner.stream_response(*args, **kwargs):
            if isinstance(event, ResponseTextDeltaEvent) and calls is not None:
                text += event.delta
                await calls.emit(event.delta)
            elif isinstance(event, ResponseCompletedEvent):
                done = event.response
        if text and calls is not None:
            await calls.emit(text, durable=True)
        if done is None:
            raise ConnectionError("The stream of the model ended before its response was complete; call it again.")
        return ModelResponse(output=done.output, usage=_usage(done), response_id=done.id)

    async def stream_response(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """Stream without recording: `TenutoRunner` never streams to its caller."""
        async for event in self._inner.stream_response(*args, **kwargs):
            yield event

    async def _dumped(self, response: ModelResponse) -> dict[str, Any]:
        calls, used = Calls.outside(), response.usage
        if calls is not None and used.total_tokens:
            model = str(getattr(self._inner, "model", type(self._inner).__name__))
            await calls.usage(model, used.input_tokens, used.output_tokens, used.input_tokens_details.cached_tokens)
        return {
            "output": _OUTPUT.dump_python(response.output, mode="json", exclude_unset=True),
            "usage": serialize_usage(used),
            "response_id": response.response_id,
            "request_id": response.request_id,
        }


def _loaded(stored: dict[str, Any]) -> ModelResponse:
    return ModelResponse(
        output=_OUTPUT.validate_python(stored["output"]),
        usage=deserialize_usage(stored["usage"]),
        response_id=stored["response_id"],
        request_id=stored["request_id"],
    )


def _usage(response: Response) -> Usage:
    used = response.usage
    if used is None:
        return Usage()
    return Usage(
        requests=1,
        input_tokens=used.input_tokens,
        output_tokens=used.output_tokens,
        total_tokens=used.total_tokens,
        input_tokens_details=used.input_tokens_details,
        output_tokens_details=used.output_tokens_details,
    )


class RecordedSession:
    """A session as one turn sees it: its reads repeat what they returned first, its writes happen once."""

    def __init__(self, inner: Session, turn: Turn) -> None:
        self._inner, self._turn = inner, turn
        self.session_id = inner.session_id
        self.session_settings = inner.session_settings
        self._wrapped = "wrapper" in inspect.signature(inner.get_items).parameters

    async def get_items(self, limit: int | None = None, *, wrapper: Any = None) -> list[TResponseInputItem]:
        """Return the items that there were when the run first asked."""
        items: list[TResponseInputItem] = await self._all(wrapper)

        async def count() -> int:
            return len(items)

        items = items[: await self._turn.other("session.get_items", count)]
        most = resolve_session_limit(limit, self.session_settings)
        return items if most is None or most < 0 else items[max(0, len(items) - most) :]

    async def add_items(self, items: list[TResponseInputItem], *, wrapper: Any = None) -> None:
        """Add items once."""

        async def before() -> int:
            return len(await self._all(wrapper))

        first = await self._turn.other("session.count", before)

        async def add() -> None:
            now = await self._all(wrapper)
            if [codec.pack(one) for one in now[first : first + len(items)]] != [codec.pack(one) for one in items]:
                await self._inner.add_items(items, **self._with(wrapper))

        await self._turn.other("session.add_items", add)

    async def pop_item(self, *, wrapper: Any = None) -> TResponseInputItem | None:
        """Remove the last item once; return it."""

        async def pop() -> Any:
            return await self._inner.pop_item(**self._with(wrapper))

        return await self._turn.other("session.pop_item", pop)

    async def clear_session(self, *, wrapper: Any = None) -> None:
        """Clear the session."""
        await self._inner.clear_session(**self._with(wrapper))

    async def _all(self, wrapper: Any) -> list[TResponseInputItem]:
        return await self._inner.get_items(-1 if self._wrapped else 10**9, **self._with(wrapper))

    def _with(self, wrapper: Any) -> dict[str, Any]:
        return {"wrapper": wrapper} if self._wrapped and wrapper is not None else {}
