"""The journal of a scope: every change in order, with its writer and correlation id.

Each commit that changes a scope appends one entry to the scope's stream; `history`, `at` and `watch` read it. The
store numbers the entries, chains their digests, and adds the versions that the commit assigned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from tenuto.capabilities._core.base import Context
from tenuto.errors import NotFound
from tenuto.kernel import codec, correlation, keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import Entry
from tenuto.kernel.durations import moment
from tenuto.kernel.work import Item, Sleep, Stream

_PAGE = 200
T = TypeVar("T")
_SOON, _OFTEN, _RARELY = 0.002, 0.05, 1.0
"""Seconds between two polls of a stream: at first, without notifications, and with live ones."""


class Change(NamedTuple):
    """One changed value in the journal."""

    number: int
    """The number of the journal entry; changes of one commit share it."""
    key: str
    value: Any
    """None if the value was deleted."""
    version: int
    deleted: bool
    at: datetime
    expires_at: datetime | None
    writer: str
    correlation_id: str | None


Noted = tuple[str, bytes | None, float | None]
"""A write in the journal: its key, the encoded value (None for a deletion), and its ttl."""


def line(context: Context, noted: Sequence[Noted]) -> bytes:
    """Return the journal line of a commit, whose first writes must be these, in this order."""
    return codec.encode_plain((context.writer, correlation.current(), noted))


def changes(entry: Entry) -> Iterator[Change]:
    """Yield the changes of one entry, in order."""
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
    """Yield every change, newest first."""
    after: int | None = None
    while page := context.kernel.entries(stream, after=after, limit=_PAGE, reverse=True):
        for entry in page:
            yield from reversed(list(changes(entry)))
        after = page[-1].number


def last_number(context: Context, stream: bytes) -> int:
    """Return the number of the newest entry, 0 if there is none."""
    newest = context.kernel.entries(stream, limit=1, reverse=True)
    return newest[0].number if newest else 0


def before_history(context: Context, stream: bytes, key: str, time: datetime | None, default: Any) -> Any:
    """Return the value at a time before the first change of a key that the journal has; `NotFound` if it was pruned."""
    first = context.kernel.entries(stream, limit=1)
    if not first or first[0].number == 1 or time is None:
        return default
    versions = [change.version for change in backwards(context, stream) if change.key == key]
    if 1 in versions:
        return default
    record = context.kernel.read([stream + keys.pack(key)])[0]
    if not versions and record is not None and moment(record.written_at) <= time:
        # Unchanged since before the journal begins. The record holds its journal line.
        return next(codec.decode(value) for name, value, _ in codec.decode(record.value)[2] if name == key)
    raise NotFound(
        f"The history of {keys.unpack(stream)[0]!r} was pruned up to {moment(first[0].written_at).isoformat(timespec='seconds')}. "
        f"The value of {key!r} before its first change since then is not known."
    )


def following(  # noqa: C901 - one loop
    context: Context,
    stream: bytes,
    after: int | None,
    timeout: float | None,
    parse: Callable[[Entry], Iterable[T]],
    live: Callable[[int], Sequence[T] | None] | None = None,
) -> Stream[T]:
    """Yield the items of each entry as it is committed; end after `timeout` seconds without one.

    The stream is polled, rarely while the store's notifications are live. A short wait does not subscribe. `live(number)`
    returns items outside the stream that come after the entry `number`; while it does not return None it is polled often.
    """
    number = last_number(context, stream) if after is None else after
    delay, left = _SOON, timeout  # counts the time slept: a clock set back would never end the wait
    bell: Bell | None = None
    try:
        while True:
            if bell is not None:
                bell.hush()
            page = context.kernel.entries(stream, after=number, limit=_PAGE)
            for entry in page:
                for item in parse(entry):
                    yield Item(item)
            if page:
                number, delay, left = page[-1].number, _SOON, timeout
                continue
            items = None if live is None else live(number)
            for item in items or ():
                yield Item(item)
            if items:
                left = timeout
            if left is not None and left <= 0:
                return
            if bell is None and delay >= _OFTEN:
                bell = context.kernel.bell(stream)
            most = _RARELY if bell is not None and bell.live and items is None else delay
            pause = Sleep(most if left is None else min(most, left), bell)
            begun = time.monotonic()
            yield pause
            if left is not None:
                early = bell is not None and bell.rung
                left -= min(pause.seconds, time.monotonic() - begun) if early else pause.seconds
            delay = min(delay * 1.5, _OFTEN)
    finally:
        if bell is not None:
            bell.close()
