"""What is in the log of a SQLite store and not in its tables yet, kept at hand by each process.

A `Tail` holds the rows behind one transaction, its `floor`, up to another, its `number`. It only grows, and
keeps what it held before, so a reader whose snapshot is older than the newest row reads it as of its
snapshot while others add to it. What it holds may have been folded into the tables meanwhile: then both
say the same.

Whether it is the newest there is, is told by the lock file, in memory that all processes share: its `word`
is that of the last transaction, as long as none is under way. Else the log is asked.
"""

from __future__ import annotations

import itertools
import operator
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import apsw

from tenuto.backends import _sqlite_log as log
from tenuto.backends import _sqlite_rows as rows
from tenuto.backends._lockfile import word_of
from tenuto.backends._sqlite_log import Counter, Decided
from tenuto.backends._sqlite_rows import RECORD, TOMBSTONE
from tenuto.kernel.contract import REQUEST_LIFE, Append, Entry, Put, Record

MOST_ROWS: Final = 128
MOST_COMMITS: Final = 256
MOST_BYTES: Final = 512 * 1024
"""So much of the log makes it time to fold."""


class Row(NamedTuple):
    """A record as a transaction left it, and as it was before in the same tail."""

    number: int
    kind: int
    version: int
    written: float
    expires: float | None
    value: bytes | None
    older: Row | None


_made: Any = tuple.__new__
"""Makes a row without its own constructor, which takes three times as long: this is on every commit's path."""


class Pending:
    """The entries of one stream that are not in the tables yet."""

    def __init__(self, stream: int, first: int) -> None:
        self.stream = stream
        self.first = first
        self.last = first - 1
        self.given: list[tuple[int, bytes, float, tuple[int, ...]]] = []
        """Each with the number of the transaction that made it."""
        self.sealed: list[Entry] = []
        """As far as anybody has asked: each is linked to the one before."""

    def append(self, number: int, version: int, value: bytes, at: float, versions: tuple[int, ...]) -> None:
        """Add an entry, unless it is there already."""
        if version == self.first + len(self.given):
            self.given.append((number, bytes(value), at, versions))
        self.last = version


class Tail:
    """What the transactions behind `floor` up to `number` did."""

    def __init__(self, counter: Counter) -> None:
        self.floor = self.number = counter.number
        self.base = self.counter = counter
        """The last transaction that is in it."""
        self.word = word_of(*counter)
        self.size = 0
        self.commits = 0
        self.full = False
        """Whether it is time to fold."""
        self.highest = 0
        """The largest id of a stream that is in it."""
        self.records: dict[bytes, Row] = {}
        self.streams: dict[bytes, Pending] = {}
        self.requests: dict[bytes, Decided] = {}
        self._order: list[bytes] = []
        self._mutex = threading.RLock()  # a signal's handler may read in the middle of it

    @property
    def overdue(self) -> bool:
        """Tell whether upkeep has lost the race, so that whoever commits next folds."""
        return self.number - self.floor >= 4 * MOST_ROWS or self.size >= 4 * MOST_BYTES

    def extend(self, number: int, chain: bytes, commits: Sequence[Decided], word: bytes = b"") -> None:
        """Add the next transaction; one that is there already adds nothing.

        An interrupt may leave half of it there, which nobody reads: adding it again completes it.
        """
        with self._mutex:
            self._extend(number, chain, commits, word)

    def _extend(self, number: int, chain: bytes, commits: Sequence[Decided], word: bytes) -> None:
        if number != self.number + 1:
            return
        records, streams, size = self.records, self.streams, self.size
        for commit in commits:
            at, request, _, versions, places, own, writes = commit
            size += own
            for write, version, place in zip(writes, versions, places, strict=True):
                if type(write) is Put:
                    key, value, ttl = write
                    expires = None if ttl is None else at + ttl
                    records[key] = _made(Row, (number, RECORD, version, at, expires, bytes(value), records.get(key)))
                elif type(write) is Append:
                    stream, value = write
                    pending = streams.get(stream)
                    if pending is None:
                        pending = Pending(place, version)
                        self.highest = max(self.highest, place)
                    pending.append(number, version, value, at, versions)
                    streams[stream] = pending
                elif place:
                    old = records.get(write[0])
                    records[write[0]] = Row(number, TOMBSTONE, version, at, at + REQUEST_LIFE, None, old)
            if request is not None:
                self.requests[request] = commit
        self.size = size
        self.counter, self.number = _made(Counter, (number, chain)), number
        self.word = word or word_of(number, chain)
        self.commits += len(commits)
        self.full = number - self.floor >= MOST_ROWS or self.commits >= MOST_COMMITS or size >= MOST_BYTES

    # -- as of a transaction ---------------------------------------------------------------------

    def row(self, key: bytes, at: int) -> Row | None:
        """Return what the tail says of a key as of a transaction, or None if it says nothing."""
        row = self.records.get(key)
        while row is not None and row.number > at:
            row = row.older
        return row

    def between(self, low: bytes, high: bytes | None, at: int, *, reverse: bool) -> Iterator[tuple[bytes, Row]]:
        """Yield what the tail says, as of a transaction, of keys with low <= key < high, in order."""
        with self._mutex:
            if len(self._order) != len(self.records):
                self._order = sorted([*self._order, *itertools.islice(self.records, len(self._order), None)])
            order = self._order
        places = range(bisect_left(order, low), len(order) if high is None else bisect_left(order, high))
        for place in reversed(places) if reverse else places:
            row = self.row(order[place], at)
            if row is not None:
                yield order[place], row

    def entries(self, connection: apsw.Connection, stream: bytes, at: int) -> Sequence[Entry]:
        """Return the entries of a stream that the tail has as of a transaction.

        The connection's snapshot holds the tables as of the floor or later: the entry before the first is there.
        """
        pending = self.streams.get(stream)
        if pending is None:
            return ()
        count = bisect_right(pending.given, at, key=_number)
        if len(pending.sealed) < count:
            with self._mutex:
                _seal(connection, stream, pending, count)
        return pending.sealed[:count]


_number = operator.itemgetter(0)


def _seal(connection: apsw.Connection, stream: bytes, pending: Pending, count: int) -> None:
    sealed = pending.sealed
    if sealed:
        last = rows.End(pending.stream, sealed[-1].number, sealed[-1].written_at, sealed[-1].digest)
    elif count and pending.first > 1:
        last = rows.end_at(connection, stream, pending.stream, pending.first - 1)
    else:
        last = rows.End(pending.stream, 0, 0.0, b"")
    for _, value, at, versions in pending.given[len(sealed) : count]:
        last, row = rows.following(last, at, versions, value)
        sealed.append(Entry(last.number, value, row[1], last.sum, row[3], versions))


def record_of(key: bytes, row: Row, now: float) -> Record | None:
    """Return a row as a record, or None if there is none to the reader at that time."""
    if row.kind != RECORD or (row.expires is not None and row.expires <= now):
        return None
    return Record(key, row.value, row.version, row.written, row.expires)  # type: ignore[arg-type]


def read_tail(connection: apsw.Connection) -> Tail:
    """Return what is in the log and not in the tables, as the connection's snapshot has them."""
    tail = Tail(log.folded(connection))
    for logged in log.since(connection, tail.counter):
        tail.extend(*logged)
    return tail


class Memory:
    """The newest tail that this process has."""

    def __init__(self) -> None:
        self.tail = Tail(Counter(-1, b""))
        self._mutex = threading.RLock()

    def renew(self, tail: Tail) -> None:
        """Keep a tail that begins anew, if it is not behind the one that is here."""
        with self._mutex:
            if tail.number >= self.tail.number:
                self.tail = tail

    def view(self, connection: apsw.Connection) -> tuple[Tail, int]:
        """Return a tail and the number as of which to read it, to go with a connection's snapshot of the tables.

        The snapshot is taken here if it was not before.
        """
        span = log.span(connection)
        tail = self.tail
        known = tail.counter
        if span is None:
            counter = log.folded(connection)
            if counter != known:
                tail = Tail(counter)
                self.renew(tail)
            return tail, counter.number
        first, last = span
        follows = tail.floor < first <= known.number + 1 and (known.number != last.number or known == last)
        if follows and (known.number >= last.number or tail.floor == first - 1 or not tail.full):
            if known.number < last.number:
                for logged in log.since(connection, known):
                    tail.extend(*logged)
            return tail, last.number
        # It has missed what was folded meanwhile, or is newer than the snapshot, or holds much that was folded.
        tail = read_tail(connection)
        self.renew(tail)
        return tail, last.number
