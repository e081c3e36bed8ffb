"""Statements for Postgres and their parameters, in the server's binary form.

A commit sends a dozen arrays. Encoding them here takes a tenth of the time of the driver's text conversion,
which would be most of a commit's time.

A prepared statement is named by a digest of its text. Through an undetected pooler, another client's statement
of the same name may run instead: it is then the same statement.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from psycopg import pq

BINARY: Final = pq.Format.BINARY
Parameter = bytes | None

_TYPES: Final = {
    "bool": 16, "bytea": 17, "bigint": 20, "integer": 23, "text": 25, "double": 701,
    "bool[]": 1000, "bytea[]": 1001, "integer[]": 1007, "bigint[]": 1016, "double[]": 1022,
}  # fmt: skip
_ARRAY: Final = struct.Struct(">iiiii")
_EMPTY: Final = struct.Struct(">iii")
_NULL: Final = b"\xff\xff\xff\xff"
TRUE, FALSE = b"\x01", b"\x00"
double: Final = struct.Struct(">d").pack
integer: Final = struct.Struct(">i").pack
bigint: Final = struct.Struct(">q").pack


class Statement(NamedTuple):
    """One statement with the types of its parameters, `$1` and up."""

    name: bytes
    sql: bytes
    types: tuple[int, ...]
    formats: tuple[pq.Format, ...]


def statement(sql: str, *types: str) -> Statement:
    """Return a statement, named by a digest of its text."""
    oids = tuple(_TYPES[name] for name in types)
    name = "tenuto_" + hashlib.sha256(f"{sql} {oids}".encode()).hexdigest()[:24]
    return Statement(name.encode(), sql.encode(), oids, (BINARY,) * len(types))


def many_bytes(items: Sequence[bytes]) -> bytes:
    """Encode an array of bytea."""
    if not items:
        return _EMPTY.pack(0, 0, 17)
    parts = [_ARRAY.pack(1, 0, 17, len(items), 1)]
    for item in items:
        parts += (integer(len(item)), item)
    return b"".join(parts)


def many_integers(items: Sequence[int]) -> bytes:
    """Encode an array of integer."""
    return _fixed(23, "i", 4, items)


def many_bigints(items: Sequence[int]) -> bytes:
    """Encode an array of bigint."""
    return _fixed(20, "q", 8, items)


def many_bools(items: Sequence[bool]) -> bytes:
    """Encode an array of boolean."""
    return _fixed(16, "?", 1, items)


def many_doubles(items: Sequence[float | None]) -> bytes:
    """Encode an array of double precision; None is NULL."""
    parts = [_ARRAY.pack(1, 1, 701, len(items), 1) if items else _EMPTY.pack(0, 0, 701)]
    parts += [_NULL if item is None else b"\x00\x00\x00\x08" + double(item) for item in items]
    return b"".join(parts)


def _fixed(oid: int, code: str, size: int, items: Sequence[int]) -> bytes:
    count = len(items)
    if not count:
        return _EMPTY.pack(0, 0, oid)
    flat = [size] * (2 * count)
    flat[1::2] = items
    return _layout(code, count).pack(1, 0, oid, count, 1, *flat)


@functools.lru_cache(maxsize=1_000)
def _layout(code: str, count: int) -> struct.Struct:
    return struct.Struct(">iiiii" + ("i" + code) * count)
