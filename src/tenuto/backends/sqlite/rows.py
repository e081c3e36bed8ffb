"""Rows of a SQLite store: what each checksum covers, and how a row is verified.

A row of `records`, `entries` or `requests` carries `sum`, a checksum over everything the row says. Where a row has
a value, the sum covers the value's digest, so a row can be verified without reading its value. Entries are chained: each
carries the sum of the one before it. So are commits: the row of the last one carries a digest of all of them.
A row that fails verification raises `Damaged`; nothing of it is returned.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import ormsgpack

from tenuto.errors import Damaged
from tenuto.kernel import keys
from tenuto.kernel.contract import Entry, Record

RECORD, TOMBSTONE, STREAM, FLOOR = 0, 1, 2, 3
SHIFT: Final = 40
"""The id of an entry is its stream's id, shifted left by this many bits, plus its number."""
LAST_NUMBER: Final = (1 << SHIFT) - 1
LAST: Final = b"\xff" * 16
"""The id of the row of `requests` that holds the last commit."""
BEYOND: Final = b"\xff"
"""Follows every key: a key begins with the tenant, a text."""

REQUEST_DAMAGED: Final = "The record of a request id is damaged. Stop writing to this store and restore a backup."

_RECORD: Final = struct.Struct(">qB?ddH").pack
_ENTRY: Final = struct.Struct(">qdH").pack
_REQUEST: Final = struct.Struct(">dH").pack
_blake2b = hashlib.blake2b


class Head(NamedTuple):
    """A verified row of `records` without its value."""

    id: int
    key: bytes
    kind: int
    version: int
    written: float
    expires: float | None
    digest: bytes
    sum: bytes


class Gap(NamedTuple):
    """The keys of two neighbouring rows of `records`: no key between them has a row."""

    below: bytes
    above: bytes


class End(NamedTuple):
    """The verified last entry of a stream, without its value."""

    stream: int
    number: int
    written: float
    sum: bytes


class Last(NamedTuple):
    """The last commit of a store: its number, and a digest chained over all commits."""

    number: int
    sum: bytes

    def next(self, at: float, request: bytes | None, content: bytes | None, versions: bytes) -> Last:
        """Return the commit after this one."""
        meta = _REQUEST(at, len(versions))
        chain = (
            self.sum + meta + versions if request is None else self.sum + meta + versions + request + (content or b"")
        )
        return Last(self.number + 1, _blake2b(chain).digest()[:16])


FIRST: Final = Last(0, bytes(16))
"""The last commit of a new store."""


def digest_of(value: bytes) -> bytes:
    """Return the digest of a value."""
    return _blake2b(value).digest()[:16]


NO_VALUE: Final = digest_of(b"")
"""The digest of a row that has no value: a tombstone, a stream, a floor."""


def record_sum(key: bytes, kind: int, version: int, written: float, expires: float | None, digest: bytes) -> bytes:
    """Return the checksum of a row of `records`."""
    meta = _RECORD(version, kind, expires is None, written, expires or 0.0, len(key))
    return _blake2b(meta + key + digest).digest()[:16]


def entry_sum(row_id: int, written: float, versions: bytes, previous: bytes, digest: bytes) -> bytes:
    """Return the checksum of a row of `entries`, which the next entry carries as `previous`."""
    return _blake2b(_ENTRY(row_id, written, len(versions)) + versions + previous + digest).digest()[:16]


def request_row(request: bytes, at: float, content: bytes, versions: bytes) -> tuple[Any, ...]:
    """Return a row of `requests`."""
    return (request, at, content, versions, _request_sum(request, at, content, versions))


def last_row(last: Last) -> tuple[Any, ...]:
    """Return the row of `requests` that holds the last commit."""
    return request_row(LAST, 0.0, last.sum, last.number.to_bytes(8, "big"))


def _request_sum(request: bytes, at: float, content: bytes, versions: bytes) -> bytes:
    return _blake2b(_REQUEST(at, len(versions)) + request + content + versions).digest()[:8]


def forgotten_digest(digest: bytes, total: bytes) -> bytes:
    """Return what replaces the digest of a forgotten entry; a flipped bit cannot produce it."""
    return digest + _blake2b(b"forgotten" + digest + total).digest()[:8]


def floor_key(scope: bytes) -> bytes:
    """Return the key of a scope's floor. No part of an ordinary key begins with its first byte."""
    return scope + b"\xfffloor"


# -- verification ----------------------------------------------------------------------------------


def verified_record(row: Sequence[Any]) -> Record | None:
    """Return (key, kind, version, written, expires, sum, value) as a record, or None if it is of another kind."""
    key, kind, version, written, expires, total, value = row
    try:
        # `record_sum` inlined: every read runs this.
        meta = _RECORD(version, kind, expires is None, written, expires or 0.0, len(key))
        if _blake2b(meta + key + _blake2b(value or b"").digest()[:16]).digest()[:16] == total:
            return Record(key, value, version, written, expires) if kind == RECORD else None
    except (TypeError, struct.error):
        pass  # a flipped bit can also change the type of a column
    raise damaged(key)


def is_whole(head: Head) -> bool:
    """Return whether a row of `records` matches its sum, apart from its value."""
    try:
        return record_sum(head.key, head.kind, head.version, head.written, head.expires, head.digest) == head.sum
    except (TypeError, struct.error):
        return False


def verified_entries(rows: Sequence[Sequence[Any]], stream: bytes) -> list[Entry]:
    """Return rows (id, written, versions, previous, sum, value, digest) as entries."""
    hashed, meta, unpack, found = _blake2b, _ENTRY, ormsgpack.unpackb, []
    made: Any = tuple.__new__  # three times as fast as the constructor of a NamedTuple
    for row in rows:
        row_id, written, versions, previous, total, value, _ = row
        try:
            # `entry_sum` inlined: a run or a conversation is read as a whole.
            if (
                hashed(
                    meta(row_id, written, len(versions)) + versions + previous + hashed(value).digest()[:16]
                ).digest()[:16]
                == total
            ):
                given = tuple(unpack(versions))
                found.append(made(Entry, (row_id & LAST_NUMBER, value, written, total, previous, given, False)))
                continue
        except (TypeError, ValueError, struct.error):
            pass  # it was forgotten, or a flipped bit changed the type of a column
        found.append(_forgotten_entry(row, stream))
    return found


def _forgotten_entry(row: Sequence[Any], stream: bytes) -> Entry:
    row_id, written, versions, previous, total, value, digest = row
    try:
        if (
            value is None
            and digest == forgotten_digest(digest[:16], total)
            and entry_sum(row_id, written, versions, previous, digest[:16]) == total
        ):
            given = tuple(ormsgpack.unpackb(versions))
            return Entry(row_id & LAST_NUMBER, b"", written, total, previous, given, forgotten=True)
    except (TypeError, ValueError, struct.error):
        pass
    raise damaged(stream)


def verified_end(row: Sequence[Any], stream: bytes) -> End:
    """Return (id, written, versions, previous, digest, sum) as the end of a stream, without its value."""
    row_id, written, versions, previous, digest, total = row
    try:
        if entry_sum(row_id, written, versions, previous, digest[:16]) == total:
            return End(row_id >> SHIFT, row_id & LAST_NUMBER, written, total)
    except (TypeError, struct.error):
        pass
    raise damaged(stream)


def verified_request(row: Sequence[Any]) -> Sequence[Any]:
    """Return (id, at, content, versions, sum) unchanged if it is valid."""
    request, at, content, versions, total = row
    try:
        if _request_sum(request, at, content, versions) == total:
            return row
    except (TypeError, struct.error):
        pass
    raise Damaged(REQUEST_DAMAGED)


def verified_last(row: Sequence[Any]) -> Last:
    """Return the last commit from its row."""
    _, _, content, versions, _ = verified_request(row)
    return Last(int.from_bytes(versions, "big"), content)


def shown(key: object) -> str:
    """Return a key in readable form."""
    try:
        return repr(keys.unpack(key)) if isinstance(key, bytes) else repr(key)
    except ValueError:
        return repr(key)


def damaged(key: object) -> Damaged:
    """Return the error for a row that does not match its checksum."""
    return Damaged(f"The data at {shown(key)} is damaged: its checksum does not match. Restore it from a backup.")
