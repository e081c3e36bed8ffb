"""The log of a thread: how a line of it is stored, and how parts of it are found without reading the rest.

A thread is one stream, and each entry of it is one line: who wrote it, for which request, its kind, its place
and its data. The place is what the thread amounts to after that line: how many messages, tool calls and
decisions there are, where the newest summary and the newest repair stand, and since which line the thread
counts. So the last line alone says whether the thread is there and how long it is, and any message is found
by bisection over line numbers. Lines never change, so what was found below a given last line stays true.

A thread that ended (deleted, or past its time to live) may begin again: another line of the kind `BEGAN`,
from which everything is counted anew, and behind which no reader looks. A thread that was forked from another
begins with the names of the parts of other threads that are its past; they are read where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from tenuto.capabilities.blobs import Blobs
from tenuto.capabilities.context import Context, stamp
from tenuto.capabilities.messages import Edits, Message, Repair
from tenuto.errors import Damaged, NotFound, NotStorable
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Append, Entry

BEGAN, MESSAGES, TOOL_CALL, DECISION, SUMMARY, REPAIR, FORKED, ENDED = range(8)
GONE: Final = -1
"""The kinds of lines. Messages, tool calls and decisions are counted: a `Place` has their counts in this order."""
KINDS: Final = ("began", "messages", "tool call", "decision", "summary", "repair", "forked", "ended")
FIRST_PAGE: Final = 32
_PAGE: Final = 1_000
_NEAR: Final = 64
"""Reading backwards from the end beats bisection if it reads no more than this in vain."""
_THREAD: Final = keys.pack("thread")
_new = tuple.__new__


class Place(NamedTuple):
    """What a thread amounts to after a line."""

    since: int = 0
    """The number of the line with which it began."""
    messages: int = 0
    calls: int = 0
    decisions: int = 0
    summary: int = 0
    """The number of the line that holds the summary in force; 0: none."""
    repair: int = 0
    """The number of the line that holds the repairs in force; 0: none."""
    ttl: float | None = None

    def count(self, kind: int) -> int:
        """Return how many there are of a kind that is counted."""
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
    """As the store has it: of this line and of all before it. Nobody has it who only wrote the line."""


class Part(NamedTuple):
    """A part of another thread that is this one's past: its lines from `since` to `upto`, its messages to `at`."""

    thread: str
    since: int
    upto: int
    at: int


class Summary(NamedTuple):
    """What is read in place of the messages from `first` to `through`."""

    first: int
    through: int
    messages: list[Message]


class Mended(NamedTuple):
    """The repairs in force: what is read in place of which message, and what was done to get there."""

    edits: Edits
    notes: list[Repair]

    def stored(self) -> dict[str, Any]:
        """Return them as they are stored."""
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
        """What every key of the thread begins with; by itself it is the stream."""

    # -- lines and their stored form -------------------------------------------------------------------------

    def pack(self, kind: int, place: Place, data: Any) -> Append:
        """Return the write that adds a line; `NotStorable` names the part of the data that has no stored form."""
        try:
            return Append(self.own, codec.encode([*stamp(self.context), kind, list(place), data]))
        except NotStorable:
            codec.encode({KINDS[kind]: data} if kind == MESSAGES else data)  # once more, for the path as users see it
            raise

    def unpack(self, entry: Entry) -> Line:
        """Return an entry of the stream as the line it is; of one that was taken away only the number is left."""
        if entry.forgotten:
            return Line(entry.number, entry.written_at, "", None, GONE, Place(), None)
        # A thread of thousands of lines is read through here: no call of Python's own for a line or its place.
        writer, correlation_id, kind, place, data, *_ = codec.decode(entry[1], self.blobs.find)
        return _new(Line, (entry[0], entry[2], writer, correlation_id, kind, _new(Place, place[:7]), data, entry[3]))

    # -- reading -------------------------------------------------------------------------------------------

    def last(self) -> Line | None:
        """Return the last line of all, whether the thread is there or has ended."""
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
        found = [unpack(e) for e in self.context.kernel.entries(self.own, after=after, limit=limit, reverse=True)]
        return found if after is None else self._all_there(found)

    def _forwards(self, first: int, limit: int) -> list[Line]:
        unpack = self.unpack
        return self._all_there([unpack(e) for e in self.context.kernel.entries(self.own, after=first - 1, limit=limit)])

    def _all_there(self, lines: list[Line]) -> list[Line]:
        if any(line.kind == GONE for line in lines):
            raise NotFound(f"The thread {self.thread!r} was deleted while it was read. Read it again.")
        return lines

    def is_live(self, last: Line | None) -> bool:
        """Tell whether the thread is there, by its last line."""
        if last is None or last.kind == ENDED:
            return False
        return last.place.ttl is None or last.at + last.place.ttl > self.context.kernel.now()

    def view(self, page: int = FIRST_PAGE) -> View | None:
        """Return the thread as it is now, or None if it is not there; the last `page` lines are read at once."""
        found = self.backwards(None, min(page, _PAGE))
        return View(self, found) if found and self.is_live(found[0]) else None

    def first_above(self, low: int, high: int, kind: int, count: int) -> int:
        """Return a line at or shortly before the first one, of `low` to `high`, whose place is above a count."""
        while high - low > FIRST_PAGE:
            middle = (low + high) // 2
            if self.line(middle).place.count(kind) > count:
                high = middle
            else:
                low = middle + 1
        return low


class View:
    """A thread as it was when its last line was read: whatever is written later, this stays the same."""

    def __init__(self, log: Log, tail: list[Line]) -> None:
        self.log = log
        self.head = tail[0]
        self.place = tail[0].place
        self._tail = [line for line in tail if line.number >= self.place.since]

    def messages(self, low: int, high: int) -> list[Message]:
        """Return the messages above number `low` up to `high`, as they were appended."""
        found: list[Message] = []
        if low >= high:
            return found
        for line in self.counted(MESSAGES, low, high):
            if line.kind == MESSAGES:
                end = line.place.messages
                begin = end - len(line.data)
                whole = begin >= low and end <= high
                found += line.data if whole else line.data[max(0, low - begin) : high - begin]
        return found

    def counted(self, kind: int, low: int, high: int) -> Iterator[Line]:
        """Yield, in order, the lines that take the count of a kind above `low` up to `high`, and others in between."""
        if low >= high:
            return
        start = self._start(kind, low, high)
        oldest = self._tail[-1].number
        before = self.log.lines(start, oldest - 1, min(_PAGE, high - low + FIRST_PAGE))
        for lines in (before, reversed(self._tail)):
            for line in lines:
                if line.kind == BEGAN and line.place.count(kind) > low:
                    yield from self._inherited(line, kind, low, high)
                elif line.number >= start and line.place.count(kind) > low:
                    yield line
                if line.place.count(kind) >= high:
                    return

    def _start(self, kind: int, low: int, high: int) -> int:
        """Return the number of a line from which on every line above a count is found."""
        since = self.place.since
        while low > 0:
            oldest = self._tail[-1]
            missing = oldest.place.count(kind) - low
            if missing <= 0 or oldest.number <= since:
                return oldest.number
            if missing > high - low + _NEAR or len(self._tail) >= _PAGE:
                return self.log.first_above(since, oldest.number, kind, low)
            page = min(max(missing // 2 + 1, len(self._tail)), _PAGE, oldest.number - since)
            self._tail += self.log.backwards(oldest.number, page)
        return since

    def _inherited(self, began: Line, kind: int, low: int, high: int) -> Iterator[Line]:
        for part in parts_of(began):
            log = Log(self.log.context, part.thread)
            start = log.first_above(part.since, part.upto, kind, low) if low else part.since
            for stored in log.lines(start, part.upto, min(_PAGE, high - low + FIRST_PAGE)):
                line = _cut(stored, part.at)
                if line.kind != BEGAN and line.place.count(kind) > low:
                    yield line
                if line.place.count(kind) >= high:
                    return

    def began(self) -> Line:
        """Return the line with which the thread began."""
        return self._at(self.place.since)

    def _at(self, number: int) -> Line:
        kept = self.head.number - number
        return self._tail[kept] if kept < len(self._tail) else self.log.line(number)

    def everything(self) -> Iterator[Line]:
        """Yield every line, in order, the past that is shared with other threads first."""
        began = self.began()
        for part in parts_of(began):
            for line in Log(self.log.context, part.thread).lines(part.since, part.upto):
                yield _cut(line, part.at)
        yield began
        yield from self.log.lines(self.place.since + 1, self.head.number)

    def summary(self) -> Summary | None:
        """Return the summary in force."""
        return summary_of(self._at(self.place.summary)) if self.place.summary else None

    def mended(self) -> Mended:
        """Return the repairs in force."""
        return mended_of(self._at(self.place.repair)) if self.place.repair else Mended({}, [])

    def cut(self, at: int) -> tuple[list[Part], Place, Summary | None, Mended]:
        """Return this thread up to message `at` as the past of another one."""
        began = self.began()
        parts = [*parts_of(began), Part(self.log.thread, self.place.since, self.head.number, self.place.messages)]
        while len(parts) > 1 and parts[-2].at > at:
            parts.pop()
        part = parts.pop()
        log = Log(self.log.context, part.thread)
        upto = part.upto
        if at < part.at:
            for line in log.lines(log.first_above(part.since, part.upto, MESSAGES, at), part.upto, FIRST_PAGE):
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
    data = line.data[:-beyond] if line.kind == MESSAGES else line.data
    return line._replace(place=line.place._replace(messages=at), data=data)


def parts_of(began: Line) -> list[Part]:
    """Return the parts of other threads with which a thread begins."""
    return [Part(*part) for part in began.data["parts"]]


def summary_of(line: Line) -> Summary | None:
    """Return the summary that a line holds: one of its own, or what a fork took over."""
    held = line.data["summary"] if line.kind == BEGAN else line.data
    return None if held is None else Summary(held["first"], held["through"], held["messages"])


def mended_of(line: Line) -> Mended:
    """Return the repairs that a line holds: its own, or what a fork took over."""
    held = line.data["repair"] if line.kind == BEGAN else line.data
    return Mended(dict(held["edits"]), [Repair(*note) for note in held["notes"]])


def began_with(
    user: str | None, parts: Sequence[Part] = (), summary: Summary | None = None, mended: Mended | None = None
) -> dict[str, Any]:
    """Return the data of the line with which a thread begins."""
    return {
        "user": user,
        "parts": [list(part) for part in parts],
        "summary": None if summary is None else summary._asdict(),
        "repair": None if mended is None or not mended.edits else mended.stored(),
    }
