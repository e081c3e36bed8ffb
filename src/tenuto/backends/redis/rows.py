"""The binary layout of a Redis store: names of keys, heads, entries, and their verification.

A head's seal covers its content and its field, and it contains the digest of the value. An entry's digest covers
its number, time, versions, value and the previous digest. Anything that fails verification is `Damaged` and
never returned.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from tenuto.errors import Damaged
from tenuto.kernel import keys
from tenuto.kernel.codec import digest
from tenuto.kernel.contract import Entry, Record

RECORD, TOMBSTONE, STREAM = 0, 1, 2
PARTS: Final = (b"heads", b"values", b"order", b"entries", b"floors", b"requests", b"due")

_HEAD: Final = struct.Struct(">BdddH")
_ENTRY: Final = struct.Struct(">ddH")
_TIME: Final = struct.Struct(">d")
_SEAL: Final = 16
_sha1 = hashlib.sha1


class Head(NamedTuple):
    """The verified metadata of a key, without its value."""

    kind: int
    version: int
    written: float
    expires: float
    digest: bytes


def names(prefix: bytes, tenant: bytes) -> list[bytes]:
    """Return the Redis keys of a tenant. The tenant is the hash tag, encoded so that no name can end it early."""
    tag = quote_from_bytes(tenant[1:-1], safe="").encode() or b"%"
    return [b"%s:{%s}:%s" % (prefix, tag, part) for part in PARTS]


def tenant_of(key: bytes) -> bytes | None:
    """Return the encoded tenant of a key, or None if it has none."""
    tenant = keys.tenant_of(key)
    return tenant if tenant[:1] == b"\x02" and tenant[-1:] == b"\x00" and len(tenant) > 1 else None


def tenant_in(name: bytes) -> bytes:
    """Return the encoded tenant of a Redis key."""
    tag = name[name.index(b"{") + 1 : name.index(b"}")]
    return b"\x02" + (b"" if tag == b"%" else unquote_to_bytes(tag)) + b"\x00"


def time_in(raw: bytes) -> float:
    """Decode a time sent by a script."""
    seconds: float = _TIME.unpack(raw)[0]
    return seconds


def head(field: bytes, raw: bytes, tenant: bytes) -> Head:
    """Return a verified head, or raise `Damaged`."""
    body, seal = raw[:-_SEAL], raw[-_SEAL:]
    if len(body) <= _HEAD.size or _sha1(body + field).hexdigest()[:_SEAL].encode() != seal:
        raise damaged(tenant + field)
    kind, version, written, expires, _scope = _HEAD.unpack_from(body)
    return Head(kind, int(version), written, expires, body[_HEAD.size :])


def record(field: bytes, raw: bytes | None, value: bytes | None, now: float, tenant: bytes) -> Record | None:
    """Return the live record of a head and a value, None if there is none, or raise `Damaged`."""
    if raw is None:
        if value is not None:
            raise damaged(tenant + field)
        return None
    found = head(field, raw, tenant)
    if found.kind != RECORD:
        return None
    if value is None or digest(value) != found.digest:
        raise damaged(tenant + field)
    if found.expires and found.expires <= now:
        return None
    return Record(tenant + field, value, found.version, found.written, found.expires or None)


def entry(field: bytes, number: int, raw: bytes | None, tenant: bytes) -> Entry:
    """Return the verified entry of this number, or raise `Damaged`."""
    try:
        if raw is None:
            raise damaged(tenant + field)
        stored, written, size = _ENTRY.unpack_from(raw)
        end = _ENTRY.size + size
        value = raw[end + 80 :]
        own = raw[end + 48 : end + 80]
        whole = raw[end + 32 : end + 48] == digest(value)
        # An erased value is replaced by a seal over the rest of the entry.
        gone = not whole and value == _sha1(b"forgotten" + raw[: end + 80] + field).hexdigest()[:32].encode()
        if stored == number and (whole or gone) and _sha1(raw[: end + 48] + field).hexdigest()[:32].encode() == own:
            previous = b"" if number == 1 else bytes.fromhex(raw[end : end + 32].decode())
            versions = versions_in(raw[_ENTRY.size : end])
            return Entry(number, b"" if gone else value, written, bytes.fromhex(own.decode()), previous, versions, gone)
    except (ValueError, struct.error):
        pass
    raise damaged(tenant + field)


def versions_in(raw: bytes) -> tuple[int, ...]:
    """Decode versions written by a script."""
    return tuple(map(int, raw.split(b","))) if raw else ()


def floor_holds(scope: bytes, raw: bytes) -> bool:
    """Return whether the floor of a scope passes verification."""
    return _sha1(raw[_SEAL:] + scope).hexdigest()[:_SEAL].encode() == raw[:_SEAL]


def request_holds(raw: bytes) -> bool:
    """Return whether the outcome of a request passes verification."""
    return _sha1(raw[32:] + raw[:16]).hexdigest()[:_SEAL].encode() == raw[16:32]


def in_order(fields: Sequence[bytes], *, reverse: bool) -> bool:
    """Return whether fields are in order."""
    return all((a > b) is reverse and a != b for a, b in pairwise(fields))


def damaged(key: bytes) -> Damaged:
    """Return the error for damaged data at a key."""
    return Damaged(f"The data at {shown(key)} is damaged. Restore it from a backup.")


def shown(key: bytes) -> str:
    """Return a key in readable form."""
    try:
        return repr(keys.unpack(key))
    except ValueError:
        return repr(key)
