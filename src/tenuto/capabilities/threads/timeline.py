"""The events, decisions and tool calls of a thread, made from its log lines. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from tenuto.capabilities.threads.log import KINDS, Kind, Line, View, mended_of, parts_of
from tenuto.kernel.durations import moment


class Decision(NamedTuple):
    """A decision and its reason."""

    number: int
    text: str
    why: str | None
    after: int
    """The number of the last message before it."""
    at: datetime
    writer: str
    correlation_id: str | None


class ToolCall(NamedTuple):
    """A tool call with its arguments and result."""

    number: int
    name: str
    args: Any
    result: Any
    after: int
    """The number of the last message before it."""
    at: datetime
    writer: str
    correlation_id: str | None


class Event(NamedTuple):
    """One event of a thread."""

    number: int
    kind: str
    """"began", "messages", "tool call", "decision", "summary", "repair", "forked" or "ended"."""
    what: Any
    after: int
    """The number of the last message before it; appended messages have the numbers after that."""
    at: datetime
    writer: str
    correlation_id: str | None


def events(view: View) -> Iterator[Event]:
    """Yield all events of a thread, in order, numbered from 1."""
    for number, line in enumerate(view.everything(), 1):
        yield event(line, number)


def event(line: Line, number: int) -> Event:
    """Return a line as an event."""
    what, after = line.data, line.place.messages
    if line.kind == Kind.MESSAGES:
        after -= len(what)
    elif line.kind == Kind.BEGAN:
        parts = parts_of(line)
        what = {"user": what["user"], "forked_from": parts[-1].thread if parts else None, "at": after}
    elif line.kind == Kind.REPAIR:
        what = mended_of(line).notes
    kind = KINDS[line.kind] if line.kind < len(KINDS) else f"kind {line.kind}"  # written by a newer version
    return Event(number, kind, what, after, *_signed(line))


def number_offset(began: Line) -> int:
    """Return the difference between event numbers and line numbers in a thread that began with this line."""
    return sum(part.upto - part.since + 1 for part in parts_of(began)) + 1 - began.number


def decision(line: Line) -> Decision:
    """Return a line as a decision."""
    place, data = line.place, line.data
    return Decision(place.decisions, data["text"], data["why"], place.messages, *_signed(line))


def tool_call(line: Line) -> ToolCall:
    """Return a line as a tool call."""
    place, data = line.place, line.data
    return ToolCall(place.calls, data["name"], data["args"], data["result"], place.messages, *_signed(line))


def _signed(line: Line) -> tuple[datetime, str, str | None]:
    return moment(line.at), line.writer, line.correlation_id
