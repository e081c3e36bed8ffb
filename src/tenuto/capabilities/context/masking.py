"""Mask tool output: replace a long result by one line that says what it was, how large, and how to get it back.

Pure functions on messages in any provider's format. The call and its result stay a pair: only the content changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tenuto import shapes
from tenuto.capabilities.threads import Message

SHORT: Final = 400
"""A result of at most this many characters stays as it is."""
_QUOTED: Final = 80
Replace = Callable[[str, str], str]
"""Makes the new content of a result from the id of its call and its text."""


def results_of(message: Message) -> list[tuple[str, str]]:
    """Return the tool results in a message: the id of the call, and the text."""
    said = shapes.said_in(_body(message))
    if said is None:
        return []
    return [(part.id, shapes.plain_text(part.parts)) for part in said.parts if isinstance(part, shapes.Result)]


def calls_of(message: Message) -> list[shapes.Call]:
    """Return the tool calls in a message."""
    said = shapes.said_in(_body(message))
    return [] if said is None else [part for part in said.parts if isinstance(part, shapes.Call)]


def length_of(message: Message) -> int:
    """Return the characters of the tool results in a message."""
    return sum(len(text) for _, text in results_of(message))


def _body(message: Message) -> Message:
    return {key: value for key, value in message.items() if key != shapes.KEPT} if shapes.KEPT in message else message


def masked(message: Message, number: int, names: Mapping[str, str]) -> Message:
    """Return a message with its long tool results replaced by one line each; `names` are the tools by call id."""
    return replaced(message, lambda call, text: text if len(text) <= SHORT else _line(text, number, names.get(call)))


def _line(text: str, number: int, name: str | None) -> str:
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    quoted = first if len(first) <= _QUOTED else first[:_QUOTED] + "…"
    of = f" of {name}" if name else ""
    return (
        f"[Output{of} left out: {len(text):,} characters, {text.count(chr(10)) + 1:,} lines, beginning with {quoted!r}. "
        f"Message {number} of this conversation has all of it.]"
    )


def cut(message: Message, number: int, most: int) -> Message:
    """Return a message whose tool results are cut to about `most` characters, from their beginning and their end."""

    def shorten(_: str, text: str) -> str:
        if len(text) <= most:
            return text
        head, tail = most * 2 // 3, most // 3
        left = len(text) - head - tail
        return (
            f"{text[:head]}\n[… {left:,} characters left out; message {number} of this conversation has all of it …]\n"
            f"{text[len(text) - tail :]}"
        )

    return replaced(message, shorten)


def replaced(message: Message, new: Replace) -> Message:
    """Return a message with the text of its tool results replaced; itself if nothing changes."""
    if message.get("role") in ("tool", "function"):
        call = str(message.get("tool_call_id") or message.get("name"))
        return _with(message, "content", shapes.plain_text(shapes.words(message.get("content"))), call, new)
    if "output" in message and "call_id" in message:
        text = (
            message["output"]
            if isinstance(message["output"], str)
            else shapes.plain_text(shapes.words(message["output"]))
        )
        return _with(message, "output", text, str(message["call_id"]), new)
    content = message.get("content")
    if not isinstance(content, list):
        return message
    blocks = [_block(block, new) for block in content]
    return message if all(a is b for a, b in zip(blocks, content, strict=True)) else {**message, "content": blocks}


def _block(block: Any, new: Replace) -> Any:
    if not isinstance(block, dict) or block.get("type") != "tool_result":
        return block
    text = shapes.plain_text(shapes.words(block.get("content")))
    return _with(block, "content", text, str(block.get("tool_use_id")), new)


def _with(message: Message, field: str, text: str, call: str, new: Replace) -> Message:
    shown = new(call, text)
    return message if shown == text else {**message, field: shown}
