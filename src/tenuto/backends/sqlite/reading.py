"""Read a SQLite store: the statements, and the proof that a key that is not found is absent.

A read of one key is one statement. Everything that takes several statements runs in one read transaction, so that
all of it is from one snapshot.

Absence is proven by neighbours: a flipped bit in the index can hide a row from its own key, but then a search for
the key ends next to a row that is damaged or out of order. So both neighbours of an absent key are verified.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final

import apsw

from tenuto.backends.sqlite import rows
from tenuto.backends.sqlite.rows import BEYOND, LAST_NUMBER, RECORD, SHIFT, STREAM, End, Gap, Head
from tenuto.errors import Damaged, TenutoError
from tenuto.kernel import keys
from tenuto.kernel.contract import REQUEST_LIFE, Entry, Record

# The value of a record may be stored in an entry of the same commit instead: then `entry` points there.
_ROW: Final = (
    "key, kind, version, written, expires, sum, "
    "CASE WHEN entry IS NULL THEN value ELSE (SELECT e.value FROM entries e WHERE e.id = entry) END"
)
_HEAD: Final = "SELECT id, key, kind, version, written, expires, digest, sum FROM records"
_ENTRY: Final = "SELECT id, written, versions, previous, sum, value, digest FROM entries"
_END: Final = "SELECT id, written, versions, previous, digest, sum FROM entries"
_ONE: Final = f"SELECT {_ROW} FROM records WHERE key = ?"  # noqa: S608 - constants only, here and below
_FROM: Final = f"{_HEAD} WHERE key >= ? ORDER BY key LIMIT 1"
_BELOW: Final = f"{_HEAD} WHERE key < ? ORDER BY key DESC LIMIT 1"
_UP: Final = f"{_ENTRY} WHERE id > ? AND id < ? ORDER BY id LIMIT ?"
_DOWN: Final = f"{_ENTRY} WHERE id > ? AND id < ? ORDER BY id DESC LIMIT ?"
_LAST: Final = f"{_END} WHERE id > ? AND id < ? ORDER BY id DESC LIMIT 1"
_PART: Final = 200


class Moment:
    """A read transaction: everything read within it is from one snapshot."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN")

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        # After any other error the connection's owner closes it, which ends the transaction too.
        if error is None or isinstance(error, TenutoError):
            self._connection.execute("COMMIT")


# -- records -----------------------------------------------------------------------------------------


def find(connection: apsw.Connection, key: bytes) -> Record | None:
    """Return the record at a key, expired or not; None for a tombstone or a key that is proven absent."""
    found: list[Any] = connection.execute(_ONE, (key,)).fetchall()
    if found and found[0][0] == key:
        return rows.verified_record(found[0])
    with Moment(connection):  # another process may write the key between two statements
        if find_head(connection, key) is None:
            return None
        return _verified(connection.execute(_ONE, (key,)).fetchall(), key)  # also if another key's row was found


def _verified(found: list[Any], key: bytes) -> Record | None:
    # SQLite does not compare again at the end of its search: in a damaged index that can be a row of another key.
    if not found or found[0][0] != key:
        raise rows.damaged(key)
    return rows.verified_record(found[0])


def find_many(connection: apsw.Connection, wanted: Sequence[bytes]) -> dict[bytes, Record | None]:
    """Return the records at several keys, all from one snapshot; absence is proven."""
    found: dict[bytes, Record | None] = {}
    with Moment(connection):
        for start in range(0, len(wanted), _PART):
            part = wanted[start : start + _PART]
            marks = ",".join("?" * len(part))
            stored = connection.execute(f"SELECT {_ROW} FROM records WHERE key IN ({marks})", part)  # noqa: S608
            found.update({row[0]: rows.verified_record(row) for row in stored})
        for key in wanted:
            if key not in found and find_head(connection, key) is not None:
                raise rows.damaged(key)
    return found


def find_head(connection: apsw.Connection, key: bytes) -> Head | None:
    """Return the row at a key without its value, whatever its kind; None if the key is proven absent."""
    found = find_head_or_gap(connection, key)
    return found if isinstance(found, Head) else None


def find_head_or_gap(connection: apsw.Connection, key: bytes) -> Head | Gap:
    """Return the row at a key without its value, whatever its kind; if it is proven absent, the gap that it falls into."""
    above: list[Any] = connection.execute(_FROM, (key,)).fetchall()
    if above and above[0][1] == key:
        head = Head._make(above[0])
        if not rows.is_whole(head):
            raise rows.damaged(key)
        return head
    below: list[Any] = connection.execute(_BELOW, (key,)).fetchall()
    for found, is_above in ((above, True), (below, False)):
        if not found:
            continue
        head = Head._make(found[0])
        if not rows.is_whole(head):  # perhaps only the digest of its value is damaged: a proof all the same
            _verified(connection.execute(_ONE, (head.key,)).fetchall(), head.key)
        if (head.key > key) is not is_above:
            raise rows.damaged(key)
    return Gap(below[0][1] if below else b"", above[0][1] if above else BEYOND)


def scan(
    connection: apsw.Connection, prefix: bytes, after: bytes | None, limit: int, now: float, *, reverse: bool
) -> list[Record]:
    """Return up to `limit` live records with `prefix` in key order, all from one snapshot."""
    low, high = prefix, keys.after_prefix(prefix)
    if after is not None and reverse:
        high = after if high is None else min(high, after)
    elif after is not None:
        low = max(low, after + b"\x00")
    page = next(_pages(connection, low, high, limit, reverse=reverse, live=True))
    found = list(_live(page, now))
    if len(found) == limit or len(page) < limit:
        return found  # one statement is one snapshot
    with Moment(connection):
        pages = _pages(connection, low, high, limit, reverse=reverse, live=True)
        return list(itertools.islice((record for page in pages for record in _live(page, now)), limit))


def _live(page: list[Any], now: float) -> Iterator[Record]:
    # Expiry is decided here, not by SQL: a damaged `expires` must be detected, not hide the record.
    for row in page:
        record = rows.verified_record(row)
        if record is not None and is_live(record, now):
            yield record


def every_record(connection: apsw.Connection) -> Iterator[list[Any]]:
    """Yield every row of `records` in key order, a page at a time."""
    return _pages(connection, b"", None, 500, reverse=False, live=False)


def _pages(
    connection: apsw.Connection, low: bytes, high: bytes | None, limit: int, *, reverse: bool, live: bool
) -> Iterator[list[Any]]:
    only = "INDEXED BY live WHERE kind = 0 AND" if live else "WHERE"
    below = "" if high is None else "AND key < ?"
    order = "DESC" if reverse else "ASC"
    while True:
        bounds = (low, limit) if high is None else (low, high, limit)
        page: list[Any] = connection.execute(
            f"SELECT {_ROW} FROM records {only} key >= ? {below} ORDER BY key {order} LIMIT ?",  # noqa: S608
            bounds,
        ).fetchall()
        _verify_order(page, low, high, reverse=reverse)
        yield page
        if len(page) < limit:
            return
        if reverse:
            high, below = page[-1][0], "AND key < ?"
        else:
            low = page[-1][0] + b"\x00"


def _verify_order(page: list[Any], low: bytes, high: bytes | None, *, reverse: bool) -> None:
    last: bytes | None = None
    for key, *_ in page:
        if (
            not isinstance(key, bytes)
            or key < low
            or (high is not None and key >= high)
            or (last is not None and (key >= last if reverse else key <= last))
        ):
            raise rows.damaged(key)
        last = key


def is_live(record: Record, now: float) -> bool:
    """Return whether a record has not expired."""
    return record.expires_at is None or record.expires_at > now


# -- entries -----------------------------------------------------------------------------------------


def find_entries(
    connection: apsw.Connection, stream: bytes, after: int | None, limit: int, *, reverse: bool
) -> list[Entry]:
    """Return entries of a stream in number order, all from one snapshot; a gap in the numbers is `Damaged`."""
    with Moment(connection):
        return entries_now(connection, stream, after, limit, reverse=reverse)


def entries_now(
    connection: apsw.Connection, stream: bytes, after: int | None, limit: int, *, reverse: bool
) -> list[Entry]:
    """Return entries of a stream within a transaction."""
    head = find_head(connection, stream)
    if head is None or head.kind != STREAM:
        return []
    low, high = head.version << SHIFT, (head.version + 1) << SHIFT
    start = min(max(after or 0, 0), LAST_NUMBER)
    if after is not None:
        low, high = (low, low | start) if reverse else (low | start, high)
    stored: list[Any] = connection.execute(_DOWN if reverse else _UP, (low, high, limit)).fetchall()
    found = rows.verified_entries(stored, stream)
    if found:
        first, step = (found[0].number, -1) if reverse else (start + 1, 1)
        if first != found[0].number:  # it was trimmed
            first = max(first, first_number(connection, stream))
        if [entry.number for entry in found] != list(range(first, first + step * len(found), step)):
            raise Damaged(f"Entries of {rows.shown(stream)} are missing. Stop writing to it and restore a backup.")
    return found


def first_number(connection: apsw.Connection, stream: bytes) -> int:
    """Return the number of the first entry of a stream: 1 unless it was trimmed."""
    head = find_head(connection, stream)
    if head is None:
        raise rows.damaged(stream)
    found: list[Any] = connection.execute("SELECT value FROM records WHERE id = ?", (head.id,)).fetchall()
    value = found[0][0] if found else None
    if rows.digest_of(value or b"") != head.digest or len(value or b"12345678") != 8:
        raise rows.damaged(stream)
    return int.from_bytes(value, "big") if value else 1


def streams(connection: apsw.Connection, prefix: bytes, after: bytes | None, limit: int) -> list[bytes]:
    """Return keys of streams with a prefix, in key order; each row is verified."""
    low, high = max(prefix, b"" if after is None else after + b"\x00"), keys.after_prefix(prefix)
    found: list[Any] = connection.execute(
        f"{_HEAD} WHERE kind = ?1 AND key >= ?2 AND (?3 IS NULL OR key < ?3) ORDER BY key LIMIT ?4",
        (STREAM, low, high, limit),
    ).fetchall()
    for row in found:
        if not rows.is_whole(Head._make(row)):
            raise rows.damaged(row[1])
    return [row[1] for row in found]


def find_end(connection: apsw.Connection, stream: bytes, stream_id: int) -> End:
    """Return the last entry of a stream. A stream is created with its first entry, so an empty one is damaged."""
    found: list[Any] = connection.execute(_LAST, (stream_id << SHIFT, (stream_id + 1) << SHIFT)).fetchall()
    if not found:
        raise rows.damaged(stream)
    return rows.verified_end(found[0], stream)


def find_range(connection: apsw.Connection, stream_id: int, first: int, last: int) -> list[Any]:
    """Return the rows of a stream's entries `first` to `last` that still have a value, without the value."""
    low, high = stream_id << SHIFT | min(first, LAST_NUMBER), stream_id << SHIFT | min(last, LAST_NUMBER)
    return connection.execute(f"{_END} WHERE id BETWEEN ? AND ? AND value IS NOT NULL", (low, high)).fetchall()


def every_entry(connection: apsw.Connection) -> Iterator[list[Any]]:
    """Yield every row of `entries`, stream by stream, a page at a time."""
    last: Any = -1
    while page := connection.execute(_UP, (last, (1 << 63) - 1, 500)).fetchall():
        before, last = last, page[-1][0]
        if last <= before:  # a damaged page that leads back to an earlier one: this would never end
            raise Damaged("The entries are out of order. Stop writing to the store and restore a backup.")
        yield page


def sizes(connection: apsw.Connection) -> tuple[int, int]:
    """Return the number of stored records and entries."""
    found: Any = connection.execute(
        "SELECT (SELECT count(*) FROM records WHERE kind = ?), (SELECT count(*) FROM entries)", (RECORD,)
    ).fetchall()
    return found[0]  # type: ignore[no-any-return]


def page_bytes(connection: apsw.Connection) -> tuple[int, int]:
    """Return the bytes of all pages, as the file will be once its log is folded in, and of those that hold nothing.

    New data goes into the empty ones before the file grows.
    """
    size = int(connection.pragma("page_size"))
    return int(connection.pragma("page_count")) * size, int(connection.pragma("freelist_count")) * size


def anything_due(connection: apsw.Connection, now: float) -> bool:
    """Return whether a record has expired or a request is old enough to be removed."""
    oldest = int(max(0, now - REQUEST_LIFE - 60) * 1000).to_bytes(6, "big")
    found: list[Any] = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM records WHERE expires <= ?) OR EXISTS (SELECT 1 FROM requests WHERE id < ?)",
        (now, oldest),
    ).fetchall()
    return bool(found[0][0])
