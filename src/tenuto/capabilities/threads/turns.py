"""The messages of a thread with their numbers and times, as search indexes them."""

from __future__ import annotations

from typing import NamedTuple

from tenuto.capabilities.threads.log import Kind
from tenuto.capabilities.threads.messages import Message
from tenuto.capabilities.threads.thread import Thread


class Turn(NamedTuple):
    """A message with its number and the time when it was appended, in seconds since 1970."""

    number: int
    at: float | None
    message: Message


class Turns(NamedTuple):
    """The turns after a number."""

    frame: tuple[int, int] | None
    """Identifies the thread and its repairs; earlier turns stay valid while it is the same. None: there is no log."""
    turns: list[Turn]


def turns_of(thread: Thread, after: int = 0) -> Turns:
    """Return the original messages after a number, without those taken back; summaries do not hide any."""
    view = thread._log.view()
    if view is None:
        found = thread._elsewhere()
        return Turns(None, [Turn(number, None, one) for number, one in enumerate(found, 1)])
    edits = view.mended().edits if view.place.repair else {}
    turns: list[Turn] = []
    for line in view.counted(Kind.MESSAGES, after, view.place.messages):
        if line.kind == Kind.MESSAGES:
            first = line.place.messages - len(line.data) + 1
            turns += [
                Turn(number, line.at, message)
                for number, message in enumerate(line.data, first)
                if number > after and (number not in edits or None in edits[number])
            ]
    return Turns((view.place.since, view.place.repair), turns)
