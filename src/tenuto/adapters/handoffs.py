"""Handoffs in the shapes of others: messages of the A2A protocol, and handoffs of the OpenAI Agents SDK.

It owns no keys: an incoming message or handoff is sent through `agent.handoff`, with the message's id as its key, so a
message that is delivered twice is one handoff. The context id of A2A is the correlation id. What A2A has no field for
is under `tenuto` in the metadata. Written is A2A 1.0; 0.3 is read, too. Parts that are files stay with the message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tenuto.capabilities.sessions import HandoffInfo
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput
from tenuto.operations.jsonable import jsonable

__all__ = ["from_a2a", "on_handoff", "to_a2a"]

_MORE: Final = ("decisions", "open_questions", "ruled_out", "thread")


def to_a2a(handoff: HandoffInfo) -> dict[str, Any]:
    """Return a handoff as a message of the A2A protocol."""
    parts: list[dict[str, Any]] = [] if handoff.summary is None else [{"text": handoff.summary}]
    names = ("sender", "to", *_MORE, "previous")
    more = {name: jsonable(getattr(handoff, name)) for name in names if getattr(handoff, name)}
    return {
        "messageId": handoff.id,
        "contextId": handoff.correlation_id,
        "role": "ROLE_AGENT",
        "parts": [*parts, {"data": jsonable(handoff.data)}],
        "metadata": {"tenuto": more},
    }


def from_a2a(agent: Tenuto, to: str, message: Mapping[str, Any], *, schema: Any = None) -> HandoffInfo:
    """Send a message of the A2A protocol as a handoff, once for its id; return the handoff.

    Its data is the message's data part, or the list of them; of a message without one, the text. Raise `InvalidInput`,
    with the field named, if it does not fit the schema.
    """
    parts, key = message.get("parts"), message.get("messageId")
    if not isinstance(parts, list) or not isinstance(key, str) or not key:
        raise InvalidInput(
            "An A2A message must have a messageId and a list of parts; nothing was sent. Correct the message."
        )
    texts = [one["text"] for one in parts if isinstance(one, Mapping) and isinstance(one.get("text"), str)]
    data = [one["data"] for one in parts if isinstance(one, Mapping) and "data" in one]
    more = (message.get("metadata") or {}).get("tenuto") or {}
    text = "\n".join(texts) or None
    given = {name: more[name] for name in _MORE if name in more}
    content = text if not data else data[0] if len(data) == 1 else data
    with agent.correlation(str(message.get("contextId") or key)):
        return agent.handoff.send(to, content, schema=schema, summary=text, key=key, **given)


def on_handoff(
    agent: Tenuto, to: str, *, schema: Any = None, summary: str | None = None, thread: str | None = None
) -> Callable[[Any, Any], None]:
    """Return the function for `agents.handoff(…, on_handoff=…, input_type=…)` that sends the handoff durably.

    The input that the model wrote becomes the data, validated by `schema`; `thread` is the session's id.
    """

    def send(_context: Any, data: Any) -> None:
        agent.handoff.send(to, data, schema=schema, summary=summary, thread=thread)

    return send
