"""The journal of a scope: what changed, in order, by whom and for which request.

Each commit where history matters appends one entry to its scope's stream. `history`, `at` and `watch`
read it; nothing else keeps a history of its own. The store numbers the entries, links each to the one
before, and notes the versions that the commit gave, which the writer cannot know beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from tenuto.capabilities.context import Context
from tenuto.kernel import codec, correlation
from tenuto.kernel.bell import Bell, Pause
from tenuto.kernel.contract import Entry
from tenuto.kernel.durations import moment

_PAGE = 200
T = TypeVar("T")
_SOON, _OFTEN, _RARELY = 0.002, 0.05, 1.0
"""Seconds between two looks at a stream: at first, without a bell, and with one that is live."""


class Change(NamedTuple):
    """One value that changed, as the journal tells it."""

    number: int
    """Of the journal entry; changes made in one commit share it."""
    key: str
    value: Any
    """None where the value was ended."""
    version: int
    deleted: bool
    at: datetime
    expires_at: datetime | None
    writer: str
    correlation_id: str | None


Noted = tuple[str, bytes | None, float | None]
"""What goes into the journal for one write: its key, the encoded value or None where it was ended, and its ttl."""


def line(context: Context, noted: Sequence[Noted]) -> bytes:
    """Return the journal's line of a commit. The writes noted must come first in it, in this order."""
    return codec.encode_plain((context.writer, correlation.current(), noted))


def changes(entry: Entry) -> Iterator[Change]:
    """Yield what one entry tells, in order."""
    writer, correlation_id, noted = codec.decode(entry.value)
    at = moment(entry.written_at)
    for (key, value, ttl), version in zip(noted, entry.versions, strict=False):
        yield Change(
            entry.number,
            key,
            None if value is None else codec.decode(value),
            version,
            value is None,
            at,
            None if ttl is None else moment(entry.written_at + ttl),
            writer,
            correlation_id,
        )


def backwards(context: Context, stream: bytes) -> Iterator[Change]:
    """Yield every change, newest first, a page at a time."""
    after: int | None = None
    while page := context.kernel.entries(stream, after=after, limit=_PAGE, reverse=True):
        for entry in page:
            yield from reversed(list(changes(entry)))
        after = page[-1].number


def last_number(context: Context, stream: bytes) -> int:
    """Return the number of the newest entry, 0 if there is none."""
    newest = context.kernel.entries(stream, limit=1, reverse=True)
    return newest[0].number if newest else 0


def following(
    context: Context, stream: bytes, after: int | None, timeout: float | None, told: Callable[[Entry], Iterable[T]]
) -> Generator[T | Pause, None, None]:
    """Yield what each entry tells as it lands; a pause means that there is none now.

    It ends when nothing has come for `timeout` seconds. The store is asked again and again, rarely while it
    has a bell that is live; a wait so short that it ends before that takes none.
    """
    number = last_number(context, stream) if after is None else after
    delay, left = _SOON, timeout  # counted by what was slept: a clock set back would never end it
    bell: Bell | None = None
    try:
        while True:
            if bell is not None:
                bell.hush()
            page = context.kernel.entries(stream, after=number, limit=_PAGE)
            for entry in page:
                yield from told(entry)
            if page:
                number, delay, left = page[-1].number, _SOON, timeout
                continue
            if left is not None and left <= 0:
                return
            if bell is None and delay >= _OFTEN:
                bell = context.kernel.bell(stream)
            most = _RARELY if bell is not None and bell.live else delay
            pause = Pause(most if left is None else min(most, left), bell)
            begun = time.monotonic()
            yield pause
            if left is not None:
                early = bell is not None and bell.rung
                left -= min(pause.seconds, time.monotonic() - begun) if early else pause.seconds
            delay = min(delay * 1.5, _OFTEN)
    finally:
        if bell is not None:
            bell.close()
