"""Summaries without a model: quote how each older turn began. They invent nothing, and they cost nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from tenuto import shapes
from tenuto.capabilities.threads import Message

Summarize = Callable[[list[Message]], str]
"""Summarises messages; an earlier summary comes first, as a message."""
HEADING: Final = "Summary of earlier messages of this conversation"
_QUOTED: Final = 160
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s")


def quotes(messages: Sequence[Message]) -> list[str]:
    """Return a line for each message with text, and the names of the tools that were called."""
    lines = []
    for message in messages:
        said = shapes.said_in({key: value for key, value in message.items() if key != shapes.KEPT})
        if said is None or said.role == "system":
            continue
        texts = " ".join(part.text for part in said.parts if isinstance(part, shapes.Text)).split()
        tools = [part.name for part in said.parts if isinstance(part, shapes.Call)]
        if texts:
            lines.append(f"- {said.role}: {_beginning(' '.join(texts))}")
        if tools:
            lines.append(f"- called {', '.join(tools)}")
    return lines


def _beginning(text: str) -> str:
    first = _SENTENCE.split(text, maxsplit=1)[0]
    return first if len(first) <= _QUOTED else first[:_QUOTED].rstrip() + "…"


def shortened(lines: Sequence[str], fits: Callable[[str], bool]) -> str:
    """Return lines as a text that fits: the first one, then as many of the newest as there is room for."""
    whole = "\n".join(lines)
    if fits(whole) or not lines:
        return whole
    low, high = 0, len(lines) - 1  # the number of newest lines that fit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(_some(lines, middle)):
            low = middle
        else:
            high = middle - 1
    return _some(lines, low)


def _some(lines: Sequence[str], newest: int) -> str:
    left = len(lines) - 1 - newest
    return "\n".join([lines[0], f"- … {left} more lines left out …", *lines[len(lines) - newest :]])
