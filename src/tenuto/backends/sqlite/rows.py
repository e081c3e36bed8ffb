"""Rows of a SQLite store: what a sum covers, and the statements that read them.

A row's sum covers all that the row says and the digest of its value. To believe a row without its
value, its sum is enough; to believe its value, the value's digest must be in the sum. Nothing that fails
this is ever returned.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import apsw
import ormsgpack

from tenuto.errors import Damaged
from tenuto.kernel import keys
from tenuto.kernel.contract import Entry, Record

RECORD, TOMBSTONE, STREAM, FLOOR = 0, 1, 2, 3

_RECORD_META: Final = struct.Struct(">qB?ddH")
_ENTRY_META: Final = struct.Struct(">qdH")
_RECORD: Final = "key, kind, version, written, expires, seal, value"
_ENTRY: Final = "id, written, versions, previous, sum, value, digest"
_ONE: Final = f"SELECT {_RECORD} FROM records WHERE key = ?"  # noqa: S608 - constants only, here and below
_HEAD: Final = "SELECT key, kind, version, written, expires, digest, seal FROM records"
_BELOW: Final = f"{_HEAD} WHERE key < ? ORDER BY key DESC LIMIT 1"
_FROM: Final = f"{_HEAD} WHERE key >= ? ORDER BY key LIMIT 1"
_UP: Final = f"SELECT {_ENTRY} FROM entries WHERE id > ? AND id < ? ORDER BY id LIMIT ?"  # noqa: S608
_DOWN: Final = f"SELECT {_ENTRY} FROM entries WHERE id > ? AND id < ? ORDER BY id DESC LIMIT ?"  # noqa: S608
_END: Final = "SELECT id, written, versions, previous, digest, sum FROM entries"
_LAST: Final = f"{_END} WHERE id > ? AND id < ? ORDER BY id DESC LIMIT 1"
_EXACTLY: Final = f"{_END} WHERE id = ?"
_SHIFT: Final = 40
_sha256 = hashlib.sha256
packb = ormsgpack.packb


class Head(NamedTuple):
    """A row of `records` without its value, already believed."""

    key: bytes
    kind: int
    version: int
    written: float
    expires: float | None
    digest: bytes
    sum: bytes


class End(NamedTuple):
    """The last entry of a stream without its value, already believed."""

    stream: int
    number: int
    written: float
    sum: bytes


def digest_of(value: bytes | None) -> bytes:
    """Return the digest of a value; a tombstone has none."""
    return _sha256(value or b"").digest()[:16]


def seal_record(key: bytes, kind: int, version: int, written: float, expires: float | None, digest: bytes) -> bytes:
    """Return the sum of a row of `records`."""
    meta = _RECORD_META.pack(version, kind, expires is None, written, expires or 0.0, len(key))
    return _sha256(meta + key + digest).digest()[:16]


def seal_entry(row_id: int, written: float, versions: bytes, previous: bytes, digest: bytes) -> bytes:
    """Return the sum of a row of `entries`, which the next entry carries as `previous`."""
    return _sha256(_ENTRY_META.pack(row_id, written, len(versions)) + versions + previous + digest).digest()[:16]


def forgotten(digest: bytes, total: bytes) -> bytes:
    """Return what stands in the digest's place when an entry's value was taken away: a flipped bit cannot do that."""
    return digest + _sha256(b"forgotten" + digest + total).digest()[:8]


def floor_key(scope: bytes) -> bytes:
    """Return the key of a scope's floor; no part of a key begins with its first byte."""
    return scope + b"\xfffloor"


def entry_id(stream: int, number: int) -> int:
    """Return the row id of an entry; the entries of a stream lie side by side."""
    return stream << _SHIFT | number


SET_RECORD: Final = (
    "INSERT INTO records (key, kind, version, written, expires, digest, seal, value) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET kind = excluded.kind, version = excluded.version, written = excluded.written, "
    "expires = excluded.expires, digest = excluded.digest, seal = excluded.seal, value = excluded.value"
)
ADD_ENTRY: Final = (
    "INSERT INTO entries (id, written, versions, previous, digest, sum, value) VALUES (?, ?, ?, ?, ?, ?, ?)"
)


def record_row(
    key: bytes, kind: int, version: int, written: float, expires: float | None, value: bytes | None
) -> tuple[Any, ...]:
    """Return a row of `records`, with its sums, for `SET_RECORD`."""
    own = digest_of(value)
    return (key, kind, version, written, expires, own, seal_record(key, kind, version, written, expires, own), value)


# -- records -------------------------------------------------------------------------------------


def believed(row: Sequence[Any]) -> Record | None:
    """Return a stored row as a record, None if it is of another kind, or raise `Damaged`."""
    key, kind, version, written, expires, own, value = row
    try:
        # `seal_record`, written out: this is on every read's path.
        meta = _RECORD_META.pack(version, kind, expires is None, written, expires or 0.0, len(key))
        if _sha256(meta + key + _sha256(value or b"").digest()[:16]).digest()[:16] == own:
            return Record(key, value, version, written, expires) if kind == RECORD else None
    except (TypeError, struct.error):
        pass  # a flipped bit can change a column's type too
    raise _damaged(key)


def find(connection: apsw.Connection, key: bytes) -> Record | None:
    """Return the record at a key, tombstones and absence as None, or raise `Damaged`."""
    found: list[Any] = connection.execute(_ONE, (key,)).fetchall()
    if found:
        return believed(found[0])
    prove_absent(connection, key)
    return None


def prove_absent(connection: apsw.Connection, key: bytes) -> None:
    """Believe that a key is absent only if both of its neighbours are whole and on their sides.

    A flipped bit in the index hides a row from its own key, but then the search ends beside it.
    """
    if head(connection, key) is not None:
        raise _damaged(key)


def find_many(connection: apsw.Connection, wanted: Sequence[bytes]) -> dict[bytes, Record | None]:
    """Return the records at several keys; the caller keeps the snapshot."""
    found: dict[bytes, Record | None] = {}
    for start in range(0, len(wanted), 200):
        part = wanted[start : start + 200]
        marks = ",".join("?" * len(part))
        stored = connection.execute(f"SELECT {_RECORD} FROM records WHERE key IN ({marks})", part)  # noqa: S608
        part_found: list[Any] = stored.fetchall()
        found.update({row[0]: believed(row) for row in part_found})
    for key in wanted:
        if key not in found:
            prove_absent(connection, key)
    return found


def page(
    connection: apsw.Connection, low: bytes, high: bytes | None, limit: int, *, reverse: bool, live: bool = False
) -> list[tuple[Any, ...]]:
    """Return up to `limit` stored rows with low <= key < high, in order; with `live`, records that have not ended only."""
    below = "" if high is None else "AND key < ?"
    order = "DESC" if reverse else "ASC"
    only = "INDEXED BY live WHERE kind = 0 AND" if live else "WHERE"
    stored = connection.execute(
        f"SELECT {_RECORD} FROM records {only} key >= ? {below} ORDER BY key {order} LIMIT ?",  # noqa: S608
        (low, limit) if high is None else (low, high, limit),
    ).fetchall()
    last: bytes | None = None
    for row in stored:
        key = row[0]
        if (
            not isinstance(key, bytes)
            or key < low
            or (high is not None and key >= high)
            or (last is not None and (key >= last if reverse else key <= last))
        ):
            raise _damaged(key)
        last = key
    return stored


def head(connection: apsw.Connection, key: bytes) -> Head | None:
    """Return the row at a key without its value, whatever its kind, or None if there is none: `prove_absent` says how sure."""
    above: list[Any] = connection.execute(_FROM, (key,)).fetchall()
    if above and above[0][0] == key:
        row = Head._make(above[0])
        if not _is_whole(row):
            raise _damaged(key)
        return row
    below: list[Any] = connection.execute(_BELOW, (key,)).fetchall()
    for found, is_above in ((above, True), (below, False)):
        for neighbour in found:
            row = Head._make(neighbour)
            if not _is_whole(row):  # perhaps only the digest of its value is not, which matters to nobody else
                stored: list[Any] = connection.execute(_ONE, (row.key,)).fetchall()
                if not stored:
                    raise _damaged(row.key)
                believed(stored[0])
            if (row.key > key) is not is_above:
                raise _damaged(key)
    return None


def _is_whole(row: Head) -> bool:
    try:
        return seal_record(*row[:6]) == row.sum
    except (TypeError, struct.error):
        return False


def anything_due(connection: apsw.Connection, now: float) -> bool:
    """Tell whether a record has expired."""
    return bool(connection.execute("SELECT 1 FROM records WHERE expires <= ? LIMIT 1", (now,)).fetchall())


# -- entries -------------------------------------------------------------------------------------


def find_entries(
    connection: apsw.Connection, stream: bytes, after: int | None, limit: int, *, reverse: bool
) -> list[Entry]:
    """Return entries of a stream by number; one that is missing in between is `Damaged`."""
    row = head(connection, stream)
    if row is None or row.kind != STREAM:
        return []
    low, high = row.version << _SHIFT, (row.version + 1) << _SHIFT
    if after is not None:
        after = min(max(after, 0), (1 << _SHIFT) - 1)
        low, high = (low, low | after) if reverse else (low | after, high)
    stored = connection.execute(_DOWN if reverse else _UP, (low, high, limit)).fetchall()
    found = _believed_entries(stored, stream)
    expected = [entry.number for entry in found]
    first = expected[0] if expected else 0
    if not reverse and expected != list(range((after or 0) + 1, (after or 0) + 1 + len(expected))):
        raise Damaged(f"Entries of {shown(stream)} are missing. Stop writing to it, keep a copy, and restore a backup.")
    if reverse and expected != list(range(first, first - len(expected), -1)):
        raise Damaged(f"Entries of {shown(stream)} are missing. Stop writing to it, keep a copy, and restore a backup.")
    return found


def _believed_entries(stored: Sequence[Sequence[Any]], stream: bytes) -> list[Entry]:
    """Return stored rows as entries: `believed_entry`, written out, for a run or a conversation is read whole."""
    sha, meta, versions_of, mask, found = _sha256, _ENTRY_META.pack, ormsgpack.unpackb, (1 << _SHIFT) - 1, []
    made: Any = tuple.__new__  # an entry's own constructor takes three times as long
    for row in stored:
        row_id, written, versions, previous, own, value, _ = row
        try:
            seal = meta(row_id, written, len(versions)) + versions + previous + sha(value).digest()[:16]
            if sha(seal).digest()[:16] == own:
                gave = tuple(versions_of(versions))
                found.append(made(Entry, (row_id & mask, value, written, own, previous, gave, False)))
                continue
        except (TypeError, ValueError, struct.error):
            pass  # it was forgotten, or a flipped bit changed the type of a column
        found.append(believed_entry(row, stream))
    return found


def believed_entry(row: Sequence[Any], stream: bytes) -> Entry:
    """Return a stored row as an entry, or raise `Damaged`."""
    row_id, written, versions, previous, own, value, digest = row
    try:
        if value is None and digest == forgotten(digest[:16], own):
            if seal_entry(row_id, written, versions, previous, digest[:16]) == own:
                return _entry(row_id, b"", written, own, previous, versions, gone=True)
        elif seal_entry(row_id, written, versions, previous, digest_of(value)) == own:
            return _entry(row_id, value, written, own, previous, versions)
    except (TypeError, ValueError, struct.error):
        pass
    raise _damaged(stream)


def _entry(
    row_id: int, value: bytes, written: float, own: bytes, previous: bytes, versions: bytes, *, gone: bool = False
) -> Entry:
    number = row_id & (1 << _SHIFT) - 1
    return Entry(number, value, written, own, previous, tuple(ormsgpack.unpackb(versions)), gone)


def forgettable(connection: apsw.Connection, stream: bytes, stream_id: int, first: int, last: int) -> list[Any]:
    """Return the rows of a stream's entries from `first` to `last` that still have their values, all of them believed."""
    low, high = entry_id(stream_id, first), entry_id(stream_id, last)
    found: list[Any] = connection.execute(
        f"SELECT {_ENTRY} FROM entries WHERE id BETWEEN ? AND ? AND value IS NOT NULL",  # noqa: S608
        (low, high),
    ).fetchall()
    for row in found:
        believed_entry(row, stream)
    return found


def last_entry(connection: apsw.Connection, stream: bytes, stream_id: int) -> End:
    """Return the last entry of a stream that exists."""
    # A stream comes into being with its first entry: one without any has lost them.
    return _end(connection.execute(_LAST, (stream_id << _SHIFT, (stream_id + 1) << _SHIFT)).fetchall(), stream)


def end_at(connection: apsw.Connection, stream: bytes, stream_id: int, number: int) -> End:
    """Return an entry that is there, as the one that another follows."""
    return _end(connection.execute(_EXACTLY, (entry_id(stream_id, number),)).fetchall(), stream)


def linked_to(connection: apsw.Connection, stream_id: int, number: int) -> End:
    """Return an entry as it is stored, believed or not: one that is damaged must not stop what follows it."""
    found: list[Any] = connection.execute(_EXACTLY, (entry_id(stream_id, number),)).fetchall()
    written, total = (found[0][1], found[0][5]) if found else (0.0, b"")
    return End(stream_id, number, written if type(written) is float else 0.0, total if type(total) is bytes else b"")


def _end(found: list[Any], stream: bytes) -> End:
    if found:
        row_id, written, versions, previous, digest, own = found[0]
        try:
            if seal_entry(row_id, written, versions, previous, digest[:16]) == own:
                return End(row_id >> _SHIFT, row_id & (1 << _SHIFT) - 1, written, own)
        except (TypeError, struct.error):
            pass
    raise _damaged(stream)


def following(last: End, at: float, versions: Sequence[int], value: bytes) -> tuple[End, tuple[Any, ...]]:
    """Return the entry that comes next, as an end and as a row; its time is never before that of the one before."""
    number = last.number + 1
    row_id, written, stamps, own = (
        entry_id(last.stream, number),
        max(at, last.written),
        packb(versions),
        digest_of(value),
    )
    total = seal_entry(row_id, written, stamps, last.sum, own)
    return End(last.stream, number, written, total), (row_id, written, stamps, last.sum, own, total, value)


# -- everything ----------------------------------------------------------------------------------


def every_record(connection: apsw.Connection) -> Iterator[tuple[Any, ...]]:
    """Yield every stored row in key order, a page at a time, so that no transaction stays open."""
    low = b""
    while stored := page(connection, low, None, 500, reverse=False):
        yield from stored
        low = stored[-1][0] + b"\x00"


def every_entry(connection: apsw.Connection) -> Iterator[tuple[Any, ...]]:
    """Yield every stored entry, stream by stream, a page at a time."""
    low = -1
    while True:
        stored: list[Any] = connection.execute(_UP, (low, (1 << 63) - 1, 500)).fetchall()
        if not stored:
            return
        yield from stored
        low = stored[-1][0]


def has_stream(connection: apsw.Connection, number: int) -> bool:
    """Tell whether there is a stream of that id; all records are gone through."""
    found = connection.execute("SELECT 1 FROM records WHERE kind = ? AND version = ? LIMIT 1", (STREAM, number))
    return bool(found.fetchall())


def stream_of(row_id: int) -> int:
    """Return the id of the stream to which an entry's row belongs."""
    return row_id >> _SHIFT


def shown(key: object) -> str:
    """Return a key as people read it."""
    try:
        return repr(keys.unpack(key)) if isinstance(key, bytes) else repr(key)
    except ValueError:
        return repr(key)


def _damaged(key: object) -> Damaged:
    return Damaged(f"What is stored at {shown(key)} is not what was written. Restore it from a backup.")
