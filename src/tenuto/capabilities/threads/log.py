"""The log of a thread: the stored form of its lines, and how to find one without reading the rest.

A thread is one stream; each entry is one line with writer, correlation id, kind, place and data. The place is the
thread's summary after that line: the numbers of messages, tool calls and decisions, the lines of the newest summary
and repair, and the line with which the thread began. So the last line alone tells whether the thread exists and how
long it is, and bisection over line numbers finds any message. Lines never change.

A thread that ended (deleted, or past its ttl) may begin again with another line of the kind `BEGAN`; counts restart
there, and no reader looks before it. The first line of a fork names the parts of other threads that are its past;
they are shared, not copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, stamp
from tenuto.capabilities._core.blobs import Blobs
from tenuto.capabilities.threads.messages import Message
from tenuto.capabilities.threads.repair import Edits, Repair
from tenuto.errors import Damaged, NotFound, NotStorable
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Append, Entry

KINDS: Final = ("began", "messages", "tool call", "decision", "summary", "repair", "forked", "ended")
FIRST_PAGE: Final = 32
_PAGE: Final = 1_000
_NEAR: Final = 64
"""Reading backwards from the end beats bisection if it reads at most this many lines too many."""
_THREAD: Final = keys.pack("thread")
_new = tuple.__new__


class Kind:
    """The kinds of lines. A `Place` has the counts of messages, tool calls and decisions in this order."""

    BEGAN, MESSAGES, TOOL_CALL, DECISION, SUMMARY, REPAIR, FORKED, ENDED = range(8)
    GONE = -1
    """Of a deleted thread."""


class Place(NamedTuple):
    """The counts and positions of a thread after a line."""

    since: int = 0
    """The number of its first line."""
    messages: int = 0
    calls: int = 0
    decisions: int = 0
    summary: int = 0
    """The line of the current summary; 0: none."""
    repair: int = 0
    """The line of the current repairs; 0: none."""
    ttl: float | None = None

    def count(self, kind: int) -> int:
        """Return the count of messages, tool calls or decisions."""
        return self[kind]  # type: ignore[return-value]


class Line(NamedTuple):
    """One line of the log."""

    number: int
    at: float
    writer: str
    correlation_id: str | None
    kind: int
    place: Place
    data: Any
    digest: bytes = b""
    """The store's digest of this line and all before it; unknown to the line's writer."""


class Part(NamedTuple):
    """A part of another thread that a fork shares: its lines from `since` to `upto`, its messages to `at`."""

    thread: str
    since: int
    upto: int
    at: int


class Summary(NamedTuple):
    """The messages to read in place of those from `first` to `through`."""

    first: int
    through: int
    messages: list[Message]


class Mended(NamedTuple):
    """The current repairs: replaced messages by number, and a note of each repair."""

    edits: Edits
    notes: list[Repair]

    def stored(self) -> dict[str, Any]:
        """Return the stored form."""
        return {
            "edits": [[number, list(shown)] for number, shown in self.edits.items()],
            "notes": [list(note) for note in self.notes],
        }


class Log:
    """The stream of one thread."""

    def __init__(self, context: Context, thread: str) -> None:
        self.context = context
        self.thread = thread
        self.blobs = Blobs(context)
        self.own = keys.named(thread, "thread id") + _THREAD
        """The key prefix of the thread, and the key of its stream."""

    def pack(self, kind: int, place: Place, data: Any) -> Append:
        """Return the write that adds a line; `NotStorable` names the path of the part that cannot be stored."""
        try:
            return Append(self.own, codec.encode([*stamp(self.context), kind, list(place), data]))
        except NotStorable:
            codec.encode({KINDS[kind]: data} if kind == Kind.MESSAGES else data)  # again, for the path that users know
            raise

    def unpack(self, entry: Entry) -> Line:
        """Return an entry of the stream as a line; one of a deleted thread has only its number."""
        if entry.forgotten:
            return Line(entry.number, entry.written_at, "", None, Kind.GONE, Place(), None)
        # The hot path of reading a thread: build the tuples without a Python-level call.
        writer, correlation_id, kind, place, data, *_ = codec.decode(entry[1], self.blobs.find)
        return _new(Line, (entry[0], entry[2], writer, correlation_id, kind, _new(Place, place[:7]), data, entry[3]))

    def last(self) -> Line | None:
        """Return the last line, also if the thread has ended."""
        found = self.backwards(None, 1)
        return found[0] if found else None

    def line(self, number: int) -> Line:
        """Return one line."""
        found = self._forwards(number, 1)
        if not found:
            raise Damaged(f"Line {number} of the thread {self.thread!r} is missing. Restore it from a backup.")
        return found[0]

    def lines(self, first: int, last: int, page: int = _PAGE) -> Iterator[Line]:
        """Yield the lines from one number to another, both included."""
        while first <= last:
            found = self._forwards(first, min(page, last - first + 1))
            if not found:
                raise Damaged(f"Lines of the thread {self.thread!r} are missing. Restore it from a backup.")
            yield from found
            first, page = found[-1].number + 1, _PAGE

    def backwards(self, after: int | None, limit: int) -> list[Line]:
        """Return up to `limit` lines from the end, or from before `after`, newest first."""
        unpack = self.unpack
        entries = self.context.kernel.entries(self.own, after=after, limit=limit, reverse=True)
        while after is not None and after > 1 and not entries and self._brought_back(after - 1):
            entries = self.context.kernel.entries(self.own, after=after, limit=limit, reverse=True)
        found = [unpack(entry) for entry in entries]
        return found if after is None else self._all_there(found)

    def _forwards(self, first: int, limit: int) -> list[Line]:
        unpack = self.unpack
        entries = self.context.kernel.entries(self.own, after=first - 1, limit=limit)
        while entries and entries[0].number != first:  # again, if it is archived again meanwhile
            if not self._brought_back(first):
                raise Damaged(f"Line {first} of the thread {self.thread!r} is missing. Restore it from a backup.")
            entries = self.context.kernel.entries(self.own, after=first - 1, limit=limit)
        return self._all_there([unpack(entry) for entry in entries])

    def _brought_back(self, number: int) -> bool:
        """Bring back lines that were archived, from `number` on; return whether they are there."""
        return self.context.archive.bring_back("thread", self.thread, number)

    def _all_there(self, lines: list[Line]) -> list[Line]:
        if any(line.kind == Kind.GONE for line in lines):
            raise NotFound(f"The thread {self.thread!r} was deleted during the read. Read it again.")
        return lines

    def is_live(self, last: Line | None) -> bool:
        """Return whether the thread exists, by its last line."""
        if last is None or last.kind == Kind.ENDED:
            return False
        return last.place.ttl is None or last.at + last.place.ttl > self.context.kernel.now()

    def view(self, page: int = FIRST_PAGE) -> View | None:
        """Return a snapshot of the thread, or None if there is none; reads its last `page` lines."""
        found = self.backwards(None, min(page, _PAGE))
        return View(self, found) if found and self.is_live(found[0]) else None

    def first_above(self, low: int, high: int, kind: int, count: int) -> int:
        """Return a line at or shortly before the first of `low` to `high` whose count exceeds `count`."""
        while high - low > FIRST_PAGE:
            middle = (low + high) // 2
            if self.line(middle).place.count(kind) > count:
                high = middle
            else:
                low = middle + 1
        return low


class View:
    """A snapshot of a thread: later writes do not change it."""

    def __init__(self, log: Log, tail: list[Line]) -> None:
        self.log = log
        self.head = tail[0]
        self.place = tail[0].place
        self._tail = [line for line in tail if line.number >= self.place.since]

    def messages(self, low: int, high: int) -> list[Message]:
        """Return the original messages above number `low` up to `high`."""
        found: list[Message] = []
        if low >= high:
            return found
        for line in self.counted(Kind.MESSAGES, low, high):
            if line.kind == Kind.MESSAGES:
                end = line.place.messages
                begin = end - len(line.data)
                whole = begin >= low and end <= high
                found += line.data if whole else line.data[max(0, low - begin) : high - begin]
        return found

    def counted(self, kind: int, low: int, high: int) -> Iterator[Line]:
        """Yield, in order, the lines that raise the count of a kind above `low` up to `high`, and any in between."""
        if low >= high:
            return
        start = self._start(kind, low, high)
        oldest = self._tail[-1].number
        before = self.log.lines(start, oldest - 1, min(_PAGE, high - low + FIRST_PAGE))
        for lines in (before, reversed(self._tail)):
            for line in lines:
                count = line.place.count(kind)
                if line.kind == Kind.BEGAN and count > low:
                    yield from self._inherited(line, kind, low, high)
                elif line.number >= start and count > low:
                    yield line
                if count >= high:
                    return

    def _start(self, kind: int, low: int, high: int) -> int:
        """Return the number of a line at or before the first line above the count `low`."""
        since = self.place.since
        while low > 0:
            oldest = self._tail[-1]
            missing = oldest.place.count(kind) - low
            if missing <= 0 or oldest.number <= since:
                return oldest.number
            if missing > high - low + _NEAR or len(self._tail) >= _PAGE:
                return self.log.first_above(since, oldest.number, kind, low)
            page = min(max(missing // 2 + 1, len(self._tail)), _PAGE, oldest.number - since)
            older = self.log.backwards(oldest.number, page)
            if not older:
                raise Damaged(f"Lines of the thread {self.log.thread!r} are missing. Restore it from a backup.")
            self._tail += older
        return since

    def _inherited(self, began: Line, kind: int, low: int, high: int) -> Iterator[Line]:
        for part in parts_of(began):
            log = Log(self.log.context, part.thread)
            start = log.first_above(part.since, part.upto, kind, low) if low else part.since
            for stored in log.lines(start, part.upto, min(_PAGE, high - low + FIRST_PAGE)):
                line = _cut(stored, part.at)
                if line.kind != Kind.BEGAN and line.place.count(kind) > low:
                    yield line
                if line.place.count(kind) >= high:
                    return

    def began(self) -> Line:
        """Return the first line of the thread."""
        return self._at(self.place.since)

    def _at(self, number: int) -> Line:
        back = self.head.number - number
        return self._tail[back] if back < len(self._tail) else self.log.line(number)

    def everything(self) -> Iterator[Line]:
        """Yield every line in order, those shared with other threads first."""
        began = self.began()
        for part in parts_of(began):
            for line in Log(self.log.context, part.thread).lines(part.since, part.upto):
                yield _cut(line, part.at)
        yield began
        yield from self.log.lines(self.place.since + 1, self.head.number)

    def summary(self) -> Summary | None:
        """Return the current summary."""
        return summary_of(self._at(self.place.summary)) if self.place.summary else None

    def mended(self) -> Mended:
        """Return the current repairs."""
        return mended_of(self._at(self.place.repair)) if self.place.repair else Mended({}, [])

    def cut(self, at: int) -> tuple[list[Part], Place, Summary | None, Mended]:
        """Return this thread up to message `at`, as the past of a fork."""
        began = self.began()
        parts = [*parts_of(began), Part(self.log.thread, self.place.since, self.head.number, self.place.messages)]
        while len(parts) > 1 and parts[-2].at > at:
            parts.pop()
        part = parts.pop()
        log = Log(self.log.context, part.thread)
        upto = part.upto
        if at < part.at:
            for line in log.lines(log.first_above(part.since, part.upto, Kind.MESSAGES, at), part.upto, FIRST_PAGE):
                if line.place.messages > at:
                    whole = line.place.messages - len(line.data) >= at
                    upto = line.number - 1 if whole else line.number
                    break
        place = log.line(upto).place
        summary = summary_of(log.line(place.summary)) if place.summary else None
        mended = mended_of(log.line(place.repair)) if place.repair else Mended({}, [])
        return [*parts, Part(part.thread, part.since, upto, at)], place._replace(messages=at), summary, mended


def _cut(line: Line, at: int) -> Line:
    """Return a line without the messages beyond number `at`."""
    beyond = line.place.messages - at
    if beyond <= 0:
        return line
    data = line.data[:-beyond] if line.kind == Kind.MESSAGES else line.data
    return line._replace(place=line.place._replace(messages=at), data=data)


def parts_of(began: Line) -> list[Part]:
    """Return the parts of other threads that a fork shares."""
    return [Part(*part) for part in began.data["parts"]]


def summary_of(line: Line) -> Summary | None:
    """Return the summary in a line, its own or inherited by a fork."""
    held = line.data["summary"] if line.kind == Kind.BEGAN else line.data
    return None if held is None else Summary(held["first"], held["through"], held["messages"])


def mended_of(line: Line) -> Mended:
    """Return the repairs in a line, its own or inherited by a fork."""
    held = line.data["repair"] if line.kind == Kind.BEGAN else line.data
    return Mended(dict(held["edits"]), [Repair(*note) for note in held["notes"]])


def began_with(
    user: str | None, parts: Sequence[Part] = (), summary: Summary | None = None, mended: Mended | None = None
) -> dict[str, Any]:
    """Return the data of a thread's first line."""
    return {
        "user": user,
        "parts": [list(part) for part in parts],
        "summary": None if summary is None else summary._asdict(),
        "repair": None if mended is None or not mended.edits else mended.stored(),
    }
