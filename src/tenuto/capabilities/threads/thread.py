"""Threads: conversations, stored as append-only logs.

Keys, below the tenant: the stream `(id, "thread")` is the log, one line per change (`log`). `(id, "thread", "key",
since, key)` records an append with an idempotency key. `(id, "thread", "fork", since, child, …)` protects a part of the
log that a fork shares. `("threads", "index", "every", id)` and `("threads", "index", "user", user, id)` list threads.

Every change is one commit (`writer`); a plain append adds one line, however long the thread is. Messages are numbered
1, 2, 3, … and no number ever changes: summaries and repairs change what is read by default, never what is stored.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core import journal
from tenuto.capabilities._core.base import Fence, Timed
from tenuto.capabilities._core.values import plain
from tenuto.capabilities.threads import timeline
from tenuto.capabilities.threads.log import FIRST_PAGE, Kind, Line, Log, Mended, Place, Summary, View
from tenuto.capabilities.threads.messages import Message, messages_of
from tenuto.capabilities.threads.repair import Edits, Repair, Repairs, border, is_closing, leading_instructions, woven
from tenuto.capabilities.threads.threads import Threads
from tenuto.capabilities.threads.timeline import Decision, Event, ToolCall
from tenuto.capabilities.threads.writer import DERIVED, Along, Writer
from tenuto.errors import Conflict, InvalidInput, NotStorable, StateConflict
from tenuto.kernel import keys
from tenuto.kernel.contract import Entry
from tenuto.kernel.durations import Duration
from tenuto.kernel.durations import ttl as ttl_seconds
from tenuto.kernel.work import Item, Stream, Work, on_store, streamed

Summarize = Callable[[list[Message]], str | Message | list[Message]]
Instead = Callable[[Message], list[Message] | None]
_NEWS: Final = 200
"""Up to this many new lines are read incrementally; after more, the whole thread is read."""


class Seen(NamedTuple):
    """A reader's position in a thread: the last line it has read, with its place."""

    number: int
    place: Place
    digest: bytes
    """Of the last line and all before it; differs if the store was restored from a backup and then diverged."""


class News(NamedTuple):
    """What is new in a thread since a known position."""

    seen: Seen | None
    """The new position; None if there is no thread."""
    messages: list[Message]
    goes_on: bool
    """Whether the messages follow the known ones; else they are the whole conversation."""


class Thread(Timed):
    """One conversation. Every method is atomic, durable when it returns, and thread-safe."""

    def __init__(self, threads: Threads, thread_id: str, *, user: str | None, ttl: Duration | None) -> None:
        self.id = keys.name(thread_id, "thread id")
        self.user = None if user is None else keys.name(user, "user")
        self._threads = threads
        self._context = threads._context
        self._log = Log(self._context, self.id)
        self._writer = Writer(self._context, threads._ends, self._log, self.user, ttl_seconds(ttl))

    @property
    def scratch(self) -> dict[str, Any]:
        """Return a dict in memory, shared by all handles of this thread in this client; never stored."""
        return self._threads._scratches.setdefault(self.id, {})

    @on_store
    def append(
        self, *messages: Any, key: str | None = None, expect: int | None = None, fence: Fence | None = None
    ) -> Work[int]:
        """Append messages atomically and durably; return the number of the last one.

        Objects are stored as dicts. `key` is an idempotency key: a repeat appends nothing, and the same key with other
        messages raises `Conflict`. Raise `StateConflict` unless the thread has `expect` messages, and `StaleLease`
        unless the lease `fence` is held.
        """
        return (yield from self._appending(messages, key=key, expect=expect, fence=fence))

    def _appending(
        self,
        messages: tuple[Any, ...],
        *,
        key: str | None = None,
        expect: int | None = None,
        fence: Fence | None = None,
        along: Along | None = None,
    ) -> Work[int]:
        """Append as `append` does; `along` is written in the same commit."""
        if not messages:
            raise InvalidInput("append needs at least one message.")
        if key is not None:
            keys.name(key, "key")
        stored = messages_of(messages)

        def guard(last: Line | None) -> None:
            count = last.place.messages if last is not None else 0
            if expect is not None and count != expect:
                raise StateConflict(
                    f"The thread {self.id!r} has {count} messages, not {expect}; nothing was written. "
                    "Read the new messages and retry.",
                    [self._log.own],
                )

        add = functools.partial(
            self._writer.add, Kind.MESSAGES, count=len(stored), key=key, fence=fence, guard=guard, along=along
        )
        try:
            line = yield from add(stored)
        except NotStorable:  # nothing was written yet: convert objects inside the dicts too
            line = yield from add(messages_of(messages, deep=True))
        return line.place.messages

    def messages(
        self, last: int | None = None, after: int | None = None, before: int | None = None, *, original: bool = False
    ) -> list[Message]:
        """Return messages, oldest first: all, the `last` n, those `after` or `before` a number.

        Summaries and repairs are applied; an inserted tool result belongs to the message before it and does not count
        for `last`. With `original`, messages are returned in the form in which they were appended.
        """
        _must_count(optional=True, last=last, after=after, before=before)
        # Turns are often appended two messages at a time: half of `last` is the better first guess.
        view = self._log.view(FIRST_PAGE if last is None or before is not None else last // 2 + 1)
        if view is None:
            found = self._elsewhere()
            high = len(found) if before is None else min(before - 1, len(found))
            return found[max(after or 0, 0 if last is None else high - last) : max(high, 0)]
        high = view.place.messages if before is None else min(before - 1, view.place.messages)
        low = max(after or 0, 0 if last is None else _low(view, high, last, original=original))
        return view.messages(low, high) if original else _shown(view, low, high)

    def _news(self, known: Seen | None) -> News:
        """Return what is new since the position `known`, and the new position.

        If only messages were appended, only their lines are read; else all messages. Without news nothing is decoded.
        """
        if known is not None:
            page = self._context.kernel.entries(self._log.own, limit=1, reverse=True)  # usually one is new, or none
            new = page[0].number - known.number if page else 0
            if 1 < new <= _NEWS:
                page = self._context.kernel.entries(self._log.own, after=known.number, limit=new)
            went_on = self._went_on(known, page) if 0 <= new <= _NEWS else None
            if went_on is not None:
                return went_on
        view = self._log.view()
        if view is None:
            return News(None, self._unbegun(), goes_on=known is None)
        seen = Seen(view.head.number, view.place, view.head.digest)
        return News(seen, _shown(view, 0, seen.place.messages), goes_on=False)

    def _went_on(self, known: Seen, page: list[Entry]) -> News | None:
        """Return the messages of the lines after a known one; None if a summary, repair or new beginning came too."""
        if not page or page[0].forgotten or page[-1].forgotten:
            return None
        if page[0].number == known.number:
            over = known.place.ttl is not None and page[0].written_at + known.place.ttl <= self._context.kernel.now()
            return None if over or page[0].digest != known.digest else News(known, [], goes_on=True)
        lines = [self._log.unpack(entry) for entry in page]
        last = lines[-1]
        if page[0].previous != known.digest or _frame(known.place) != _frame(last.place) or not self._log.is_live(last):
            return None
        found = [message for line in lines if line.kind == Kind.MESSAGES for message in line.data]
        return News(Seen(last.number, last.place, last.digest), found, goes_on=True)

    def _numbered(self, after: int = 0) -> tuple[tuple[int, int, int], list[tuple[int, Message]]]:
        """Return messages after a number as they are read, each with its number, and what changes how they are read.

        A summary has the number of its last message, a repair that of the message before it.
        """
        view = self._log.view()
        if view is None:
            return (0, 0, 0), list(enumerate(self._elsewhere(), 1))[after:]
        summary, edits, high = view.summary(), view.mended().edits, view.place.messages
        found: list[tuple[int, Message]] = []
        low = after
        if summary is not None and after < summary.through:
            found += _with_numbers(view, after, summary.first - 1, edits)
            found += [(summary.through, message) for message in summary.messages]
            low = summary.through
        return _frame(view.place), found + _with_numbers(view, low, high, edits)

    def _derived_key(self, name: str) -> bytes | None:
        """Return a key for data derived from this thread, deleted with it; None if it has no log."""
        last = self._log.last()
        if last is None or not self._log.is_live(last):
            return None
        return self._log.own + DERIVED + keys.pack(last.place.since, name)

    def count(self) -> int:
        """Return the number of messages appended, which is the number of the last one."""
        last = self._log.last()
        return last.place.messages if last is not None and self._log.is_live(last) else len(self._elsewhere())

    def _elsewhere(self, *, whole: bool = False) -> list[Message]:
        """Return the messages of a thread without a log, if a framework stores it."""
        found = (look(self.id, whole=whole) for look in self._threads._elsewhere.values())
        return next((messages for messages in found if messages is not None), [])

    def _unbegun(self) -> list[Message]:
        """Return a framework's messages of a thread that never had a log, for a writer that takes them over."""
        return self._elsewhere(whole=True) if self._threads._elsewhere and self._log.last() is None else []

    @on_store
    def decide(self, text: str, why: str | None = None, *, fence: Fence | None = None) -> Work[int]:
        """Record a decision and its reason durably; return its number."""
        for name, value in (("text", text), ("why", why)):
            if not isinstance(value, str) and (name, value) != ("why", None):
                raise InvalidInput(f"The {name} of a decision must be a str, not {type(value).__name__}.")
        added = self._writer.add(Kind.DECISION, {"text": text, "why": why}, fence=fence)
        return (yield from added).place.decisions

    def decisions(self, after: int = 0) -> list[Decision]:
        """Return the decisions after a number, oldest first."""
        return [timeline.decision(line) for line in self._counted(Kind.DECISION, after)]

    def _newest_decisions(self, count: int) -> list[Decision]:
        """Return the last decisions, oldest first, without reading the others."""
        last = self._log.last()
        return (
            self.decisions(max(0, last.place.decisions - count)) if last is not None and self._log.is_live(last) else []
        )

    @on_store
    def tool_call(self, name: str, args: Any, result: Any, *, fence: Fence | None = None) -> Work[int]:
        """Record a tool call with its arguments and result durably; return its number."""
        data = {"name": keys.name(name, "tool's name"), "args": plain(args, "args"), "result": plain(result, "result")}
        return (yield from self._writer.add(Kind.TOOL_CALL, data, fence=fence)).place.calls

    def tool_calls(self, after: int = 0) -> list[ToolCall]:
        """Return the tool calls after a number, oldest first."""
        return [timeline.tool_call(line) for line in self._counted(Kind.TOOL_CALL, after)]

    def _counted(self, kind: int, after: int) -> Iterator[Line]:
        _must_count(after=after)
        view = self._log.view()
        if view is not None:
            yield from (line for line in view.counted(kind, after, view.place.count(kind)) if line.kind == kind)

    @on_store
    def repair(self) -> Work[list[Repair]]:
        """Close tool calls without a result, atomically, so that a provider accepts the conversation; return the repairs.

        A missing result is inserted after its call and says that the outcome is unknown. A misplaced result is read
        after its call; a result without a call is left out. The stored messages do not change. Idempotent.
        """
        while True:
            view = self._log.view()
            if view is None:
                return []
            before = view.mended()
            taken = [note for note in before.notes if note.what == "taken back"]
            found = Repairs(
                view.messages(0, view.place.messages), {note.number: _shown_for(before, note.number) for note in taken}
            )
            mended = Mended(found.edits, [*taken, *found.notes])
            if mended.edits == before.edits:
                return []
            if (yield from self._mend(view, mended)):
                return [note for note in mended.notes if note not in before.notes]

    @on_store
    def take_back(self, instead: Instead | None = None) -> Work[Message | None]:
        """Hide the last message, atomically and durably; return it, or None if there is none.

        It stays in the log: `messages(original=True)` returns it, numbers do not change, and only deleting the thread
        removes it. `instead(message)`, called from the last message backwards, returns the messages to read in its
        place, or None to skip it.
        """
        while True:
            view = self._log.view()
            if view is None:
                return None
            mended, summary = view.mended(), view.summary()
            first = summary.through if summary is not None else 0
            for number in range(view.place.messages, first, -1):
                shown = _repaired(view, number - 1, number, mended.edits)
                wanted = instead(shown[-1]) if shown and instead is not None else []
                if shown and wanted is not None:
                    break
            else:
                return None
            edits: Edits = {**mended.edits, number: [*shown[:-1], *messages_of(wanted)]}
            notes = [note for note in mended.notes if (note.what, note.number) != ("taken back", number)]
            more = Mended(dict(sorted(edits.items())), [*notes, Repair("taken back", number, "", "")])
            if (yield from self._mend(view, more)):
                return shown[-1]

    def _mend(self, view: View, mended: Mended) -> Work[bool]:
        """Write repairs, atomically, if the thread has not changed since `view`; return whether it had not."""

        def guard(last: Line | None) -> None:
            if last is None or last.number != view.head.number:
                raise _Moved("The thread has changed.")

        try:
            yield from self._writer.add(Kind.REPAIR, mended.stored(), guard=guard)
        except _Moved:
            return False
        return True

    @on_store
    def compact(self, summarize: Summarize, keep_last: int = 20) -> Work[int]:
        """Replace older messages by a summary when reading, atomically; return how many more it covers.

        `summarize` gets the messages as they are read now, an earlier summary first, and returns a text, a message or
        a list of messages. No lock is held while it runs: concurrent appends stay, a concurrent `compact` raises
        `Conflict`. Tool calls stay with their results, and leading instructions stay. `messages(original=True)`
        returns the originals.
        """
        _must_count(keep_last=keep_last)
        view = self._log.view()
        if view is None:
            return 0
        earlier, edits = view.summary(), view.mended().edits
        done = earlier.through if earlier is not None else 0
        rest = view.messages(done, view.place.messages)
        first = earlier.first if earlier is not None else leading_instructions(rest) + 1
        skipped = max(0, first - 1 - done)
        more = border(rest[skipped:], len(rest) - skipped - keep_last)
        if more <= 0:
            return 0
        through = done + skipped + more
        old = earlier.messages if earlier is not None else []
        summary = summarize([*old, *woven(rest[skipped : skipped + more], done + skipped + 1, edits)])
        if hasattr(summary, "__await__"):
            getattr(summary, "close", lambda: None)()
            raise TypeError("compact needs a function that returns the summary, not a coroutine function.")
        data = Summary(first, through, _as_messages(summary, through - first + 1))._asdict()

        def guard(last: Line | None) -> None:
            if last is None or (last.place.since, last.place.summary) != (view.place.since, view.place.summary):
                raise Conflict(
                    f"Another writer compacted or deleted the thread {self.id!r}; nothing was written. "
                    "Read it again and retry."
                )

        yield from self._writer.add(Kind.SUMMARY, data, guard=guard)
        return more

    @on_store
    def fork(
        self, thread_id: str, at: int | None = None, *, user: str | None = None, ttl: Duration | None = None
    ) -> Work[Thread]:
        """Create a thread with this one's messages up to number `at` (default: all), atomically; return it.

        Messages are shared, not copied, and survive the deletion of this thread. User and ttl are inherited unless
        given. Raise `Conflict` if the thread exists.
        """
        if at is not None and type(at) is not int:
            raise InvalidInput(f"at must be the number of a message, not {at!r}.")
        other = Thread(self._threads, thread_id, user=user, ttl=ttl)
        yield from self._writer.fork(other.id, at, other.user, ttl_seconds(ttl))
        return other

    @on_store
    def delete(self) -> Work[bool]:
        """Delete the thread atomically and durably; return whether it existed. Its forks keep their messages.

        A later append begins a new thread, numbered from 1.
        """
        self.scratch.clear()
        return (yield from self._writer.end())

    def timeline(self, after: int = 0) -> list[Event]:
        """Return the events after a number, oldest first, with those that a fork shares."""
        _must_count(after=after)
        view = self._log.view()
        return [] if view is None else list(itertools.islice(timeline.events(view), min(after, sys.maxsize), None))

    @streamed
    def watch(self, *, after: int | None = None, timeout: Duration | None = None) -> Stream[Event]:
        """Yield the events of the thread as they are committed by any process; end after `timeout` without one.

        `after` is the number of the last event seen (0: from the beginning; None: only new events).
        """
        _must_count(optional=True, after=after)
        return self._watching(after, ttl_seconds(timeout))

    def _watching(self, after: int | None, timeout: float | None) -> Stream[Event]:
        last = self._log.last()
        offset, end = 0, last.number if last is not None else 0
        if last is not None and self._log.is_live(last):
            view = View(self._log, [last])
            offset = timeline.number_offset(view.began())
            if after is not None:
                past = list(timeline.events(view))
                # A number beyond the last event is of a thread that has ended: this one is all new.
                for event in past[after if after <= len(past) else 0 :]:
                    yield Item(event)

        def parse(entry: Entry) -> list[Event]:
            nonlocal offset
            line = self._log.unpack(entry)
            if line.kind == Kind.GONE:
                return []
            if line.kind == Kind.BEGAN:
                offset = timeline.number_offset(line)
            return [timeline.event(line, line.number + offset)]

        yield from journal.following(self._context, self._log.own, end, timeout, parse)

    def __repr__(self) -> str:
        """Name the thread, without reading the store."""
        return f"<thread {self.id!r}>"


def _must_count(*, optional: bool = False, **numbers: int | None) -> None:
    for name, number in numbers.items():
        if not (optional and number is None) and (type(number) is not int or number < 0):
            raise InvalidInput(f"{name} must be an int, 0 or more, not {number!r}.")


class _Moved(Conflict):
    """The thread has changed since it was read."""


def _shown(view: View, low: int, high: int) -> list[Message]:
    """Return the messages above `low` up to `high` with summary and repairs applied."""
    summary, edits = view.summary(), view.mended().edits
    if summary is None or low >= summary.through or high < summary.first:
        return _repaired(view, low, high, edits)
    return [
        *_repaired(view, low, summary.first - 1, edits),
        *summary.messages,
        *_repaired(view, summary.through, high, edits),
    ]


def _low(view: View, high: int, last: int, *, original: bool) -> int:
    """Return the number before the last `last` messages, not counting those taken back."""
    taken = {note.number for note in view.mended().notes if note.what == "taken back"} if view.place.repair else set()
    if original or not taken:
        return high - last
    edits, low = view.mended().edits, high
    while low > 0 and last > 0:
        last -= low not in taken or bool(edits.get(low))
        low -= 1
    return low


def _frame(place: Place) -> tuple[int, int, int]:
    """Return the parts of a place that change how earlier messages are read."""
    return place.since, place.summary, place.repair


def _shown_for(mended: Mended, number: int) -> list[Message | None]:
    """Return the replacement of a message that was taken back, without results that repairs inserted after it."""
    return [item for item in mended.edits.get(number, []) if item is None or not is_closing(item)]


def _repaired(view: View, low: int, high: int, edits: Edits) -> list[Message]:
    messages = view.messages(low, high)
    return woven(messages, low + 1, edits) if edits else messages


def _with_numbers(view: View, low: int, high: int, edits: Edits) -> list[tuple[int, Message]]:
    messages = view.messages(low, high) if high > low else []
    return [
        (number, message) for number, one in enumerate(messages, low + 1) for message in woven([one], number, edits)
    ]


def _as_messages(summary: Any, count: int) -> list[Message]:
    if isinstance(summary, str):
        return [{"role": "user", "content": f"Summary of {count} earlier messages of this conversation:\n{summary}"}]
    return messages_of(summary if isinstance(summary, list) else [summary], deep=True)
