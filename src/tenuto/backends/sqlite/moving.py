"""Load exported rows into a SQLite store exactly unchanged, and trim streams.

Both are jobs of the writer and share its transactions with commits. The row of a trimmed stream carries the number of
its first entry, so that a lost entry differs from a removed one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import apsw
import ormsgpack

from tenuto.backends.sqlite import reading, rows
from tenuto.backends.sqlite.commit import Writer
from tenuto.backends.sqlite.rows import RECORD, SHIFT, STREAM, TOMBSTONE, End
from tenuto.errors import Conflict, Damaged, InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.contract import MAX_WRITES, NOT_BOTH, Entry, Record
from tenuto.kernel.loading import NOT_LINKED, OTHER_CONTENT, Place, is_same_entry, is_same_record, place_of

_NO_VERSIONS: Final = b"\x90"
_ADD: Final = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"
_SET_FIRST: Final = "UPDATE records SET digest = ?, sum = ?, value = ? WHERE id = ?"


class Loading:
    """One call of `load`."""

    def __init__(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> None:
        self._records = records
        self._entries = entries

    def __call__(self, writer: Writer) -> int:
        """Decide everything, then store what is new; return how many rows that is."""
        now = writer._now()
        new = [(record, version) for record in self._records if (version := _version(writer, record, now))]
        begun: dict[bytes, End] = {}
        placed = [(stream, *_placed(writer, stream, given, begun)) for stream, given in self._entries.items()]
        count = len(new) + sum(len(before) + len(after) for _, before, after in placed)
        if not count:
            return 0
        writer._writing = True
        for record, version in new:
            writer._set(
                record.key,
                writer._cache.head(record.key),
                RECORD,
                version,
                record.written_at,
                record.expires_at,
                digest=rows.digest_of(record.value),
                value=record.value,
            )
        for stream, before, after in placed:
            if before:
                writer.connection.executemany(_ADD, before)
                set_first(writer.connection, stream, before[0][0] & rows.LAST_NUMBER)
            if after:
                _extend(writer, stream, after)
        writer._add_commit(now, None, None, _NO_VERSIONS)
        return count


def _version(writer: Writer, record: Record, now: float) -> int:
    """Return the version to store a record with; 0 if it is there already or has expired."""
    known = writer._cache.record(record.key)
    if known is not None and known.is_live(now):
        stored = reading.find(writer.connection, record.key)
        if stored is None or not is_same_record(stored, record):
            raise Conflict(OTHER_CONTENT, [record.key])
        return 0
    if record.expires_at is not None and record.expires_at <= now:
        return 0
    base = known.version if known is not None else writer._cache.floor(record.key)
    return max(record.version, base + 1)


def _placed(
    writer: Writer, stream: bytes, given: Sequence[Entry], begun: dict[bytes, End]
) -> tuple[list[Any], list[Any]]:
    """Return the rows to store before the first entry of a stream and after its last one; `begun` are new streams."""
    end = writer._cache.end(stream)
    if end is None:
        place, first = place_of(given, 0, 0), 0
        end = begun[stream] = End(writer._cache.new_stream(stream, begun), 0, 0.0, given[0].previous)
    else:
        first = reading.first_number(writer.connection, stream)
        place = place_of(given, first, end.number)
    if place.there:
        after, limit = place.there[0].number - 1, len(place.there)
        stored = reading.entries_now(writer.connection, stream, after, limit, reverse=False)
        if not all(map(is_same_entry, stored, place.there)):
            raise Conflict(OTHER_CONTENT, [stream])
    return _before(writer, stream, end, first, place), _rows(end.stream, place.after, end.sum)


def _before(writer: Writer, stream: bytes, end: End, first: int, place: Place) -> list[Any]:
    if not place.before:
        return []
    made = _rows(end.stream, place.before, place.before[0].previous)
    found: list[Any] = writer.connection.execute(
        "SELECT previous FROM entries WHERE id = ?", (end.stream << SHIFT | first,)
    ).fetchall()
    if not found or found[0][0] != made[-1][5]:
        raise Damaged(f"{rows.shown(stream)}: {NOT_LINKED}")
    return made


def _rows(stream_id: int, given: Sequence[Entry], previous: bytes) -> list[Any]:
    made: list[Any] = []
    for entry in given:
        row_id = stream_id << SHIFT | entry.number
        versions = ormsgpack.packb(list(entry.versions))
        digest = rows.digest_of(entry.value)
        total = rows.entry_sum(row_id, entry.written_at, versions, previous, digest)
        value: bytes | None = entry.value
        if entry.forgotten:
            digest, value = rows.forgotten_digest(digest, total), None
        made.append((row_id, entry.written_at, versions, previous, digest, total, value))
        previous = total
    return made


def _extend(writer: Writer, stream: bytes, made: list[Any]) -> None:
    row_id, written, _, _, _, total, _ = made[-1]
    stream_id, cache = row_id >> SHIFT, writer._cache
    if cache.head(stream) is None:
        first = made[0][0] & rows.LAST_NUMBER
        writer._set(stream, None, STREAM, stream_id, made[0][1], None)
        cache.last_stream = max(cache.last_stream, stream_id)
        if first > 1:
            set_first(writer.connection, stream, first)
    writer.connection.executemany(_ADD, made)
    cache.ends[stream] = End(stream_id, row_id & rows.LAST_NUMBER, written, total)


def set_first(connection: apsw.Connection, stream: bytes, first: int) -> None:
    """Record the number of a stream's first entry in the stream's row."""
    head = reading.find_head(connection, stream)
    if head is None:
        raise rows.damaged(stream)
    value = None if first == 1 else first.to_bytes(8, "big")
    digest = rows.digest_of(value or b"")
    total = rows.record_sum(stream, STREAM, head.version, head.written, head.expires, digest)
    connection.execute(_SET_FIRST, (digest, total, value, head.id))


class Trimming:
    """One call of `trim`."""

    def __init__(self, stream: bytes, first: int) -> None:
        self._stream = stream
        self._first = first

    def __call__(self, writer: Writer) -> int:
        """Remove up to 1,000 of the oldest entries; a record that shares the value of one gets a copy first."""
        stream, connection = self._stream, writer.connection
        head = writer._cache.head(stream)
        if head is not None and head.kind in (RECORD, TOMBSTONE):
            raise InvalidInput(NOT_BOTH)
        end = writer._cache.end(stream)
        if end is None:
            return 0
        begin = reading.first_number(connection, stream)
        first = min(self._first, end.number, begin + MAX_WRITES)
        if first <= begin:
            return 0
        low, high = end.stream << SHIFT | begin, end.stream << SHIFT | (first - 1)
        writer._writing = True
        connection.execute(
            "UPDATE records SET value = (SELECT e.value FROM entries e WHERE e.id = records.entry), entry = NULL "
            "WHERE key >= ? AND key < ? AND entry BETWEEN ? AND ?",
            (stream, keys.after_prefix(stream), low, high),
        )
        connection.execute("DELETE FROM entries WHERE id BETWEEN ? AND ?", (low, high))
        set_first(connection, stream, first)
        writer._add_commit(writer._now(), None, None, _NO_VERSIONS)
        return first - begin
