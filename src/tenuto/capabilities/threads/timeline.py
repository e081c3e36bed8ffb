"""What happened in a thread, told line by line: events, decisions, tool calls. Pure: it reads what it is given."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from tenuto.capabilities.threadlog import BEGAN, KINDS, MESSAGES, REPAIR, Line, View, mended_of, parts_of
from tenuto.kernel.durations import moment


class Decision(NamedTuple):
    """Something that was decided, and why."""

    number: int
    text: str
    why: str | None
    after: int
    """The number of the message after which it was made."""
    at: datetime
    writer: str
    correlation_id: str | None


class ToolCall(NamedTuple):
    """A tool that was called, with what, and what came of it."""

    number: int
    name: str
    args: Any
    result: Any
    after: int
    """The number of the message after which it was noted."""
    at: datetime
    writer: str
    correlation_id: str | None


class Event(NamedTuple):
    """One thing that happened in a thread."""

    number: int
    kind: str
    """"began", "messages", "tool call", "decision", "summary", "repair", "forked" or "ended"."""
    what: Any
    after: int
    """The number of the message after which it happened; messages themselves are numbered from the next one on."""
    at: datetime
    writer: str
    correlation_id: str | None


def events(view: View) -> Iterator[Event]:
    """Yield everything that happened in a thread, in order, numbered from 1."""
    for number, line in enumerate(view.everything(), 1):
        yield event(line, number)


def event(line: Line, number: int) -> Event:
    """Return a line as the event it is."""
    what, after = line.data, line.place.messages
    if line.kind == MESSAGES:
        after -= len(what)
    elif line.kind == BEGAN:
        parts = parts_of(line)
        what = {"user": what["user"], "forked_from": parts[-1].thread if parts else None, "at": after}
    elif line.kind == REPAIR:
        what = mended_of(line).notes
    kind = KINDS[line.kind] if line.kind < len(KINDS) else f"kind {line.kind}"  # what a newer version wrote
    return Event(number, kind, what, after, *_signed(line))


def number_offset(began: Line) -> int:
    """Return what to add to the number of a line to have that of the event, in the thread that began with this one."""
    return sum(part.upto - part.since + 1 for part in parts_of(began)) + 1 - began.number


def decision(line: Line) -> Decision:
    """Return a line as the decision it holds."""
    place, data = line.place, line.data
    return Decision(place.decisions, data["text"], data["why"], place.messages, *_signed(line))


def tool_call(line: Line) -> ToolCall:
    """Return a line as the tool call it holds."""
    place, data = line.place, line.data
    return ToolCall(place.calls, data["name"], data["args"], data["result"], place.messages, *_signed(line))


def _signed(line: Line) -> tuple[datetime, str, str | None]:
    return moment(line.at), line.writer, line.correlation_id
