"""Reading a SQLite store: what the log says of a key comes before what the tables say.

Each of these takes one snapshot: of the tables through its connection, and of the log through a `Tail` read as of
the same transaction.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import apsw

from tenuto.backends import _sqlite_rows as rows
from tenuto.backends._sqlite_log import Moment
from tenuto.backends._sqlite_rows import RECORD
from tenuto.backends._sqlite_tail import Memory, read_tail, record_of
from tenuto.errors import Damaged
from tenuto.kernel import keys
from tenuto.kernel.contract import Entry, Record


def find(connection: apsw.Connection, key: bytes) -> Record | None:
    """Return what the tables hold at a key, tombstones and absence as None, or raise `Damaged`."""
    try:
        return rows.find(connection, key)
    except Damaged:
        # That a key is absent takes several statements to prove: somebody may have written it in between.
        with Moment(connection):
            return rows.find(connection, key)


def read(connection: apsw.Connection, memory: Memory, wanted: Sequence[bytes], now: float) -> list[Record | None]:
    """Return the live record at each key, all from one moment."""
    with Moment(connection):
        tail, at = memory.view(connection)
        found: dict[bytes, Record | None] = {}
        for key in wanted:
            row = tail.row(key, at)
            if row is not None:
                found[key] = record_of(key, row, now)
        missing = [key for key in wanted if key not in found]
        if missing:
            found.update(rows.find_many(connection, missing))
    return [record if (record := found.get(key)) and lives(record, now) else None for key in wanted]


def scan(
    connection: apsw.Connection,
    memory: Memory,
    prefix: bytes,
    after: bytes | None,
    limit: int,
    now: float,
    *,
    reverse: bool,
) -> list[Record]:
    """Return up to `limit` live records below `prefix` in key order, all from one moment."""
    low, high = prefix, keys.after_prefix(prefix)
    if after is not None and reverse:
        high = after if high is None else min(high, after)
    elif after is not None:
        low = max(low, after + b"\x00")
    with Moment(connection):
        tail, at = memory.view(connection)
        stored = _stored(connection, low, high, limit, reverse=reverse)
        kept = (record for record in stored if lives(record, now) and tail.row(record.key, at) is None)
        said = tail.between(low, high, at, reverse=reverse)
        told = (record for key, row in said if (record := record_of(key, row, now)) is not None)
        return list(itertools.islice(heapq.merge(kept, told, key=_key, reverse=reverse), limit))


def _key(record: Record) -> bytes:
    return record.key


def _stored(
    connection: apsw.Connection, low: bytes, high: bytes | None, limit: int, *, reverse: bool
) -> Iterator[Record]:
    """Yield the records of the tables, a page at a time; the caller keeps the snapshot."""
    while True:
        page = rows.page(connection, low, high, limit, reverse=reverse, live=True)
        for row in page:
            record = rows.believed(row)
            if record is not None:
                yield record
        if len(page) < limit:
            return
        if reverse:
            high = page[-1][0]
        else:
            low = page[-1][0] + b"\x00"


def entries(
    connection: apsw.Connection, memory: Memory, stream: bytes, after: int | None, limit: int, *, reverse: bool
) -> list[Entry]:
    """Return up to `limit` entries of a stream by number, all from one moment."""
    with Moment(connection):
        tail, at = memory.view(connection)
        pending = tail.entries(connection, stream, at)
        if not pending:
            return rows.find_entries(connection, stream, after, limit, reverse=reverse)
        first, last = pending[0].number, pending[-1].number
        if reverse:
            top = last if after is None else min(last, max(after, 0) - 1)
            found = [pending[number - first] for number in range(top, max(first, top - limit + 1) - 1, -1)]
            below = found[-1].number if found else after
            if len(found) < limit and (below is None or below > 1):
                found += rows.find_entries(connection, stream, below, limit - len(found), reverse=True)
            return found
        behind = max(after or 0, 0)
        found = []
        if behind + 1 < first:
            found = rows.find_entries(connection, stream, behind, limit, reverse=False)
            behind = found[-1].number if found else behind
            if len(found) < limit and behind + 1 < first:
                raise Damaged(
                    f"Entries of {rows.shown(stream)} are missing. Stop writing to it, keep a copy, and restore a backup."
                )
        return found + list(pending[max(0, behind + 1 - first) :][: limit - len(found)])


def sizes(connection: apsw.Connection) -> tuple[int, int, int]:
    """Return how many records and entries there are, and how many commits were made."""
    with Moment(connection):
        tail = read_tail(connection)
        count: Any = connection.execute(
            "SELECT (SELECT count(*) FROM records WHERE kind = 0), (SELECT count(*) FROM entries)"
        ).fetchall()[0]
        stored = rows.find_many(connection, list(tail.records))
        hidden = sum(record is not None for record in stored.values())
        told = sum(row.kind == RECORD for row in tail.records.values())
        pending = sum(len(pending.given) for pending in tail.streams.values())
    return count[0] - hidden + told, count[1] + pending, tail.number


def lives(record: Record, now: float) -> bool:
    """Tell whether a record has not expired."""
    return record.expires_at is None or record.expires_at > now
