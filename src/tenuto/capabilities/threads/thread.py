"""Threads: conversations, kept as a log that only grows.

Keys, below the tenant: the stream `(id, "thread")` is the log, one line for each call that changed something
(`threadlog`). `(id, "thread", "key", since, key)` remembers an append with a key, `(id, "thread", "fork", since,
child, …)` keeps a part of the log for a thread that has it as its past. `("threads", "index", "every", id)` and
`("threads", "index", "user", user, id)` list threads.

Every change is one commit (`threadwriter`). A plain append is one new line, whatever the length of the thread;
a crash leaves it there or not there. Messages are numbered 1, 2, 3, … as they were appended, and no number ever
changes: a summary and repairs change what is read by default, never what is stored.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple, Protocol

from tenuto.capabilities import journal, timeline
from tenuto.capabilities.context import Context, Fence
from tenuto.capabilities.messages import (
    Edits,
    Message,
    Repair,
    Repairs,
    border,
    is_closing,
    leading_instructions,
    messages_of,
    plain,
    woven,
)
from tenuto.capabilities.threadlog import (
    BEGAN,
    DECISION,
    FIRST_PAGE,
    GONE,
    MESSAGES,
    REPAIR,
    SUMMARY,
    TOOL_CALL,
    Line,
    Log,
    Mended,
    Place,
    Summary,
    View,
)
from tenuto.capabilities.threadwriter import EVERY, OF_USER, Along, Ends, Writer, info_of
from tenuto.capabilities.timeline import Decision, Event, ToolCall
from tenuto.errors import Conflict, InvalidInput, NotStorable, StateConflict
from tenuto.kernel import keys
from tenuto.kernel.bell import Pause
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Entry
from tenuto.kernel.durations import Duration, moment
from tenuto.kernel.durations import ttl as ttl_seconds
from tenuto.kernel.transact import Steps, paced

Summarize = Callable[[list[Message]], str | Message | list[Message]]
Instead = Callable[[Message], list[Message] | None]


class Elsewhere(Protocol):
    """Where a thread may be kept in another form."""

    def __call__(self, thread: str, *, whole: bool) -> list[Message] | None:
        """Return its messages, with all that their writer would miss if they are the `whole`; None where it is not there."""
        ...


_NEWS: Final = 200
"""So many new lines are read by themselves; of a thread that went on further everything is read again."""


class Seen(NamedTuple):
    """Up to where somebody has read a thread: the last line, and what the thread amounted to after it."""

    number: int
    place: Place
    digest: bytes
    """Of the last line and of all before it: a store that was set back and went on otherwise has another one there."""


class News(NamedTuple):
    """What has come to a thread since it was read."""

    seen: Seen | None
    """Up to where it is read now; None where there is no thread."""
    messages: list[Message]
    goes_on: bool
    """Whether the messages come behind those that are known; else they are all there are."""


class ThreadInfo(NamedTuple):
    """A thread as it is listed."""

    id: str
    user: str | None
    created_at: datetime
    expires_at: datetime | None
    forked_from: str | None


class Threads:
    """The conversations of a tenant."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ends = Ends()
        self._scratches: dict[str, dict[str, Any]] = {}
        self.elsewhere: dict[str, Elsewhere] = {}
        """Where to look for a thread that has no log: an adapter notes where its framework keeps conversations."""

    def list(self, user: str | None = None, *, after: str | None = None, limit: int | None = None) -> list[ThreadInfo]:
        """Return the threads that there are, or those of one user, in the order of their ids.

        `limit` returns so many at most; `after` goes on behind the last id seen.
        """
        if limit is not None and limit < 1:
            raise InvalidInput(f"A limit is 1 or more, not {limit}.")
        prefix = EVERY if user is None else OF_USER + keys.named(user, "user")
        seen = None if after is None else prefix + keys.named(after, "thread id")
        found: list[ThreadInfo] = []
        while limit is None or len(found) < limit:
            size = 1_000 if limit is None else min(1_000, limit - len(found))
            page = self._context.kernel.scan(prefix, after=seen, limit=size)
            for record in page:
                info = info_of(record)
                over = None if record.expires_at is None else moment(record.expires_at)
                name = str(keys.unpack(record.key)[-1])
                found.append(ThreadInfo(name, info.user, moment(info.created), over, info.parent))
            if len(page) < size:
                break
            seen = page[-1].key
        return found


class Thread:
    """One conversation. Everything here is atomic, durable when it returns, and safe to share."""

    def __init__(self, threads: Threads, thread_id: str, *, user: str | None, ttl: Duration | None) -> None:
        self.id = keys.name(thread_id, "thread id")
        self.user = None if user is None else keys.name(user, "user")
        self._threads = threads
        self._context = threads._context
        self._log = Log(self._context, self.id)
        self._writer = Writer(self._context, threads._ends, self._log, self.user, ttl_seconds(ttl))

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._context.clock

    @property
    def scratch(self) -> dict[str, Any]:
        """Return a plain dict in memory, the same one for this thread throughout this client; gone with the process."""
        return self._threads._scratches.setdefault(self.id, {})

    # -- messages ------------------------------------------------------------------------------------------

    @paced
    def append(
        self, *messages: Any, key: str | None = None, expect: int | None = None, fence: Fence | None = None
    ) -> Steps[int]:
        """Add messages at the end, all or none of them, durably; return the number of the last one.

        A dict is stored as it is, an object as the dict it gives. With `key` it is done once, whoever tries
        again and when; the same key with other messages is a `Conflict`. With `expect` the thread must have so
        many messages, else `StateConflict`. With `fence` the lease must still be held, else `StaleLease`.
        """
        return (yield from self.appending(messages, key=key, expect=expect, fence=fence))

    def appending(
        self,
        messages: tuple[Any, ...],
        *,
        key: str | None = None,
        expect: int | None = None,
        fence: Fence | None = None,
        along: Along | None = None,
    ) -> Steps[int]:
        """Append as `append` does; `along` is written in the same commit."""
        if not messages:
            raise InvalidInput("There is nothing to append; give at least one message.")
        if key is not None:
            keys.name(key, "key")
        stored = messages_of(messages)

        def guard(last: Line | None) -> None:
            count = last.place.messages if last is not None else 0
            if expect is not None and count != expect:
                raise StateConflict(
                    f"The thread {self.id!r} has {count} messages, not {expect}; nothing was written. "
                    "Read what is new and decide anew.",
                    [self._log.own],
                )

        add = functools.partial(
            self._writer.add, MESSAGES, count=len(stored), key=key, fence=fence, guard=guard, along=along
        )
        try:
            line = yield from add(stored)
        except NotStorable:  # before anything was written: there are objects inside of the dicts
            line = yield from add(messages_of(messages, deep=True))
        return line.place.messages

    def messages(
        self,
        last: int | None = None,
        after: int | None = None,
        before: int | None = None,
        *,
        original: bool = False,
    ) -> list[Message]:
        """Return the conversation, oldest first: all of it, the `last` so many, those `after` or `before` a number.

        What was summarised is read as its summary, and what was repaired as repaired; a result that was put
        in belongs to the message it follows, and comes beside `last`. With `original` every message is
        returned as it was appended.
        """
        for name, number in (("last", last), ("after", after), ("before", before)):
            if number is not None and (type(number) is not int or number < 0):
                raise InvalidInput(f"{name} is a number of messages, 0 or more, not {number!r}.")
        # Turns are often appended two messages at a time: half of `last` is the better first guess.
        view = self._log.view(FIRST_PAGE if last is None or before is not None else last // 2 + 1)
        if view is None:
            found = self._elsewhere()
            high = len(found) if before is None else min(before - 1, len(found))
            return found[max(after or 0, 0 if last is None else high - last) : max(high, 0)]
        high = view.place.messages if before is None else min(before - 1, view.place.messages)
        low = max(after or 0, 0 if last is None else _low(view, high, last, original=original))
        return view.messages(low, high) if original else _shown(view, low, high)

    def news(self, known: Seen | None) -> News:
        """Return what is new to somebody who has read the thread as it was at `known`, and where it is now.

        Where only messages came since, the lines that brought them are all that is read; else everything, as by
        `messages()`. Where nothing came, nothing is even decoded.
        """
        if known is not None:
            page = self._context.kernel.entries(self._log.own, limit=1, reverse=True)  # mostly there is one, or none
            new = page[0].number - known.number if page else 0
            if 1 < new <= _NEWS:
                page = self._context.kernel.entries(self._log.own, after=known.number, limit=new)
            went_on = self._went_on(known, page) if 0 <= new <= _NEWS else None
            if went_on is not None:
                return went_on
        view = self._log.view()
        if view is None:
            return News(None, self.unbegun(), goes_on=known is None)
        seen = Seen(view.head.number, view.place, view.head.digest)
        return News(seen, _shown(view, 0, seen.place.messages), goes_on=False)

    def _went_on(self, known: Seen, page: list[Entry]) -> News | None:
        """Return what the lines behind a known one bring, or that one again; None where more than messages changed.

        Summaries and repairs name messages that were there before them: while these stay, what is new is read as it is.
        """
        if not page or page[0].forgotten or page[-1].forgotten:
            return None
        if page[0].number == known.number:
            over = known.place.ttl is not None and page[0].written_at + known.place.ttl <= self._context.kernel.now()
            return None if over or page[0].digest != known.digest else News(known, [], goes_on=True)
        lines = [self._log.unpack(entry) for entry in page]
        last = lines[-1]
        if page[0].previous != known.digest or _frame(known.place) != _frame(last.place) or not self._log.is_live(last):
            return None
        found = [message for line in lines if line.kind == MESSAGES for message in line.data]
        return News(Seen(last.number, last.place, last.digest), found, goes_on=True)

    def count(self) -> int:
        """Return how many messages were appended, which is the number of the last one."""
        last = self._log.last()
        return last.place.messages if last is not None and self._log.is_live(last) else len(self._elsewhere())

    def _elsewhere(self, *, whole: bool = False) -> list[Message]:
        """Return the messages of a thread without a log, if a framework keeps it."""
        found = (look(self.id, whole=whole) for look in self._threads.elsewhere.values())
        return next((messages for messages in found if messages is not None), [])

    def unbegun(self) -> list[Message]:
        """Return what a framework keeps of a thread that never had a log: whoever goes on with it takes that over."""
        return self._elsewhere(whole=True) if self._threads.elsewhere and self._log.last() is None else []

    # -- decisions and tool calls --------------------------------------------------------------------------

    @paced
    def decide(self, text: str, why: str | None = None, *, fence: Fence | None = None) -> Steps[int]:
        """Note a decision and its reason, durably; return its number."""
        for name, value in (("text", text), ("why", why)):
            if not isinstance(value, str) and (name, value) != ("why", None):
                raise InvalidInput(f"The {name} of a decision is a str, not {type(value).__name__}.")
        added = self._writer.add(DECISION, {"text": text, "why": why}, fence=fence)
        return (yield from added).place.decisions

    def decisions(self, after: int = 0) -> list[Decision]:
        """Return the decisions, oldest first; `after` leaves out those up to that number."""
        return [timeline.decision(line) for line in self._counted(DECISION, after)]

    @paced
    def tool_call(self, name: str, args: Any, result: Any, *, fence: Fence | None = None) -> Steps[int]:
        """Note that a tool was called, with what and what came of it, durably; return the call's number."""
        data = {
            "name": keys.name(name, "tool's name"),
            "args": plain(args, "args"),
            "result": plain(result, "result"),
        }
        return (yield from self._writer.add(TOOL_CALL, data, fence=fence)).place.calls

    def tool_calls(self, after: int = 0) -> list[ToolCall]:
        """Return the tool calls, oldest first; `after` leaves out those up to that number."""
        return [timeline.tool_call(line) for line in self._counted(TOOL_CALL, after)]

    def _counted(self, kind: int, after: int) -> Iterator[Line]:
        if type(after) is not int or after < 0:
            raise InvalidInput(f"after is a number, 0 or more, not {after!r}.")
        view = self._log.view()
        if view is not None:
            yield from (line for line in view.counted(kind, after, view.place.count(kind)) if line.kind == kind)

    # -- what is read in place of what was appended --------------------------------------------------------

    @paced
    def repair(self) -> Steps[list[Repair]]:
        """Close tool calls that have no result, atomically, so that a provider takes the conversation again.

        A result that is missing is put in behind its call, and says that the outcome is unknown. One that
        stands elsewhere is read behind its call; one without a call is left out. What was appended stays as
        it was. Returns what is new; doing it again changes nothing, unless something was appended since.
        """
        while True:
            view = self._log.view()
            if view is None:
                return []
            before = view.mended()
            taken = [note for note in before.notes if note.what == "taken back"]
            found = Repairs(
                view.messages(0, view.place.messages), {note.number: _kept(before, note.number) for note in taken}
            )
            mended = Mended(found.edits, [*taken, *found.notes])
            if mended.edits == before.edits:
                return []
            if (yield from self._mend(view, mended)):
                return [note for note in mended.notes if note not in before.notes]

    @paced
    def take_back(self, instead: Instead | None = None) -> Steps[Message | None]:
        """Let the last message no longer be read, atomically and durably; return it, None where there is none.

        It stays in the log, as everything does: `messages(original=True)` has it, numbers do not change, and
        deleting the thread is what ends it. `instead` is asked about messages from the last one on backwards:
        what to read in its place, or None to leave it and ask about the one before.
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

    def _mend(self, view: View, mended: Mended) -> Steps[bool]:
        """Put repairs in force, atomically, if the thread is still as it was viewed; tell whether."""

        def guard(last: Line | None) -> None:
            if last is None or last.number != view.head.number:
                raise _Moved("It has gone on meanwhile.")

        try:
            yield from self._writer.add(REPAIR, mended.stored(), guard=guard)
        except _Moved:
            return False
        return True

    @paced
    def compact(self, summarize: Summarize, keep_last: int = 20) -> Steps[int]:
        """Let older messages be read as a summary; return how many more are, 0 where there was nothing to do.

        `summarize` is given the messages as they are read now, an earlier summary first, and returns a text or
        the message (or messages) to read in their place. It may take its time: nothing is held meanwhile, and
        what others append is kept. If somebody else compacted meanwhile it is a `Conflict` and nothing
        changes. No tool call is parted from its result, instructions at the beginning stay, and the
        originals are there with `messages(original=True)`.
        """
        if type(keep_last) is not int or keep_last < 0:
            raise InvalidInput(f"keep_last is a number of messages, 0 or more, not {keep_last!r}.")
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
        told = earlier.messages if earlier is not None else []
        summary = summarize([*told, *woven(rest[skipped : skipped + more], done + skipped + 1, edits)])
        if hasattr(summary, "__await__"):
            getattr(summary, "close", lambda: None)()
            raise TypeError("compact takes a function that returns the summary, not a coroutine.")
        data = Summary(first, through, _as_messages(summary, through - first + 1))._asdict()

        def guard(last: Line | None) -> None:
            if last is None or (last.place.since, last.place.summary) != (view.place.since, view.place.summary):
                raise Conflict(
                    f"The thread {self.id!r} was compacted or ended by somebody else meanwhile; nothing was written. "
                    "Read it again and decide anew."
                )

        yield from self._writer.add(SUMMARY, data, guard=guard)
        return more

    # -- the whole -----------------------------------------------------------------------------------------

    @paced
    def fork(
        self, thread_id: str, at: int | None = None, *, user: str | None = None, ttl: Duration | None = None
    ) -> Steps[Thread]:
        """Begin another thread with this one's past up to message `at` (the end), atomically; return it.

        The past is shared, not copied, and stays whatever becomes of this thread. User and time to live are
        this one's unless given. A thread that is there already is a `Conflict`.
        """
        if at is not None and type(at) is not int:
            raise InvalidInput(f"at is the number of a message, not {at!r}.")
        other = Thread(self._threads, thread_id, user=user, ttl=ttl)
        yield from self._writer.fork(other.id, at, other.user, ttl_seconds(ttl))
        return other

    @paced
    def delete(self) -> Steps[bool]:
        """End the thread, atomically and durably; tell whether it was there. Forks of it keep their past.

        It is empty from then on, and listed no more; writing to it begins a new one, which counts from 1.
        """
        self.scratch.clear()
        return (yield from self._writer.end())

    def timeline(self, after: int = 0) -> list[Event]:
        """Return everything that happened, oldest first, with what a fork shares; `after` leaves out what is known."""
        if type(after) is not int or after < 0:
            raise InvalidInput(f"after is the number of an event, 0 or more, not {after!r}.")
        view = self._log.view()
        return [] if view is None else list(itertools.islice(timeline.events(view), after, None))

    def watch(self, *, after: int | None = None, timeout: Duration | None = None) -> Iterator[Event]:
        """Yield what happens in the thread as it lands, across processes.

        `after` is the number of the last event seen (0: from the beginning); without it, only what comes
        from the first step on. It ends when nothing has come for `timeout`.
        """
        for step in self.watching(after=after, timeout=timeout):
            if isinstance(step, Pause):
                step.sleep(self.clock)
            else:
                yield step

    def watching(
        self, *, after: int | None = None, timeout: Duration | None = None
    ) -> Generator[Event | Pause, None, None]:
        """Yield events, and delays to wait where there is none yet: what both faces drive."""
        if after is not None and (type(after) is not int or after < 0):
            raise InvalidInput(f"after is the number of an event, 0 or more, not {after!r}.")
        return self._watching(after, ttl_seconds(timeout))

    def _watching(self, after: int | None, timeout: float | None) -> Generator[Event | Pause, None, None]:
        last = self._log.last()
        offset, end = 0, last.number if last is not None else 0
        if last is not None and self._log.is_live(last):
            view = View(self._log, [last])
            offset = timeline.number_offset(view.began())
            if after is not None:
                past = list(timeline.events(view))
                # Beyond the last event: those were of a thread that has ended; this one is new to the watcher.
                yield from past[after if after <= len(past) else 0 :]

        def told(entry: Entry) -> list[Event]:
            nonlocal offset
            line = self._log.unpack(entry)
            if line.kind == GONE:
                return []
            if line.kind == BEGAN:
                offset = timeline.number_offset(line)
            return [timeline.event(line, line.number + offset)]

        yield from journal.following(self._context, self._log.own, end, timeout, told)

    def __repr__(self) -> str:
        """Say which thread this is; nothing is read."""
        return f"<thread {self.id!r}>"


class _Moved(Conflict):
    """The thread has gone on since it was read."""


def _shown(view: View, low: int, high: int) -> list[Message]:
    """Return the messages above `low` up to `high` as they are to be read."""
    summary, edits = view.summary(), view.mended().edits
    if summary is None or low >= summary.through or high < summary.first:
        return _repaired(view, low, high, edits)
    return [
        *_repaired(view, low, summary.first - 1, edits),
        *summary.messages,
        *_repaired(view, summary.through, high, edits),
    ]


def _low(view: View, high: int, last: int, *, original: bool) -> int:
    """Return the number below the last so many messages; those that were taken back do not count."""
    taken = {note.number for note in view.mended().notes if note.what == "taken back"} if view.place.repair else set()
    if original or not taken:
        return high - last
    edits, low = view.mended().edits, high
    while low > 0 and last > 0:
        last -= low not in taken or bool(edits.get(low))
        low -= 1
    return low


def _frame(place: Place) -> tuple[int, int, int]:
    """Return by what the messages up to a number are read alike: the beginning, the summary, the repairs."""
    return place.since, place.summary, place.repair


def _kept(mended: Mended, number: int) -> list[Message | None]:
    """Return what is read in place of a message that was taken back, without what repairs had put behind it."""
    return [item for item in mended.edits.get(number, []) if item is None or not is_closing(item)]


def _repaired(view: View, low: int, high: int, edits: Edits) -> list[Message]:
    messages = view.messages(low, high)
    return woven(messages, low + 1, edits) if edits else messages


def _as_messages(summary: Any, count: int) -> list[Message]:
    if isinstance(summary, str):
        return [{"role": "user", "content": f"Summary of {count} earlier messages of this conversation:\n{summary}"}]
    return messages_of(summary if isinstance(summary, list) else [summary], deep=True)
