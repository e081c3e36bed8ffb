"""What all adapters share that store messages: a framework's message as a line of a thread, and back.

    form = NativeForm("strands", said, written)
    conversation = Conversation(agent, "trip-42", form)        # read, add, pop, clear

An adapter says two things about its framework's messages, as plain data: `said` returns what a message says (roles,
texts, images, tool calls, results), and `written` the messages that say the same. It owns no keys and does no I/O.

A line is a message in the form of a provider, so that every other adapter and `thread.messages()` read it, with the
framework's own message under `kept`. Of that only what differs from `written` is stored: a text is stored once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from tenuto import shapes
from tenuto.kernel import codec
from tenuto.shapes import KEPT, Call, Message, Result, Said


class NativeForm:
    """The messages of one framework, as a `Form` of `adapters/conversation.py`."""

    def __init__(
        self, name: str, said: Callable[[Message], Said | None], written: Callable[[Said], Iterable[Message]]
    ) -> None:
        self.name = name
        self._said = said
        self._written = written

    def shown(self, message: Message) -> list[Message]:
        """Return a stored message as the framework's messages."""
        kept = shapes.kept_of(message)
        body = {key: value for key, value in message.items() if key != KEPT}
        if kept is not None and kept["by"] == self.name:
            return [applied(self._base(body), kept["data"])]
        found = shapes.said_in(body)
        return list(self._written(found)) if found is not None else []

    def stored(self, message: Message) -> Message:
        """Return the line of a framework's message."""
        found = self._said(message)
        body = _body(found) if found is not None and found.parts else {}
        return {**body, KEPT: {"by": self.name, "data": difference(self._base(body), message)}}

    def _base(self, body: Message) -> Message:
        """Return the framework's message that follows from a line alone; empty if it is not exactly one."""
        found = shapes.said_in(body) if body else None
        base = list(self._written(found)) if found is not None else []
        return base[0] if len(base) == 1 else {}


def _body(said: Said) -> Message:
    """Return one provider message: a chat message if that can say it, else one of Anthropic's content blocks."""
    for shape in ("chat", "anthropic"):
        found = shapes.written(shape, said)
        if len(found) == 1:
            return found[0]
    return {}


def difference(base: Any, value: Any) -> Any:
    """Return what `applied` needs to make `value` from `base`: `[]` if they are equal, `[value]` as a whole, or by key."""
    if codec.pack(base) == codec.pack(value):
        return []
    if type(base) is dict and type(value) is dict:
        changed = {key: difference(base[key], one) if key in base else [one] for key, one in value.items()}
        parts: dict[str, Any] = {"set": {key: one for key, one in changed.items() if one != []}}
        gone = [key for key in base if key not in value]
        if gone:
            parts["gone"] = gone
        return parts if gone or parts["set"] else []  # only the order of keys differs
    if type(base) is list and type(value) is list and len(base) == len(value):
        changed_at = {str(at): difference(base[at], value[at]) for at in range(len(value))}
        differing = {at: one for at, one in changed_at.items() if one != []}
        return {"at": differing} if differing else []
    return [value]


def applied(base: Any, change: Any) -> Any:
    """Return the value that `difference` described."""
    if type(change) is list:
        return change[0] if change else base
    if "at" in change:
        return [applied(one, change["at"].get(str(at), [])) for at, one in enumerate(base)]
    found = {key: one for key, one in base.items() if key not in change.get("gone", ())}
    return {**found, **{key: applied(base.get(key), one) for key, one in change["set"].items()}}


def calls_in(said: Said) -> list[Call]:
    """Return the tool calls of a message."""
    return [part for part in said.parts if isinstance(part, Call)]


def results_in(said: Said) -> list[Result]:
    """Return the tool results of a message."""
    return [part for part in said.parts if isinstance(part, Result)]


def words_in(said: Said) -> list[shapes.Text | shapes.Image]:
    """Return the texts and images of a message."""
    return [part for part in said.parts if isinstance(part, shapes.Text | shapes.Image)]
