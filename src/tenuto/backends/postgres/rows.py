"""The rows of a Postgres store: how keys are split, what digests cover, and their verification.

The client computes a record's digest over its whole key and its value. The server computes an entry's digest
over the digest of stream and value, the number, the time, the versions and the previous digest. The client
verifies each at every read; a row that fails is never returned.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from tenuto.errors import Damaged
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Entry, Put, Record, Write
from tenuto.kernel.contract import content_of as contents

NO_TENANT: Final = b""
END: Final = b"\xff" * 1_025
"""Above every key, since a key has at most 1,024 bytes."""
_ESCAPED: Final = "\x01"
_ENTRY_META: Final = struct.Struct(">qd")
_sha256 = hashlib.sha256


def digest_of(key: bytes, value: bytes) -> bytes:
    """Return the digest of a value at its key."""
    return _sha256(key + value).digest()[:16]


def content_of(write: Write) -> bytes:
    """Return what identifies a write's content: a digest of its key and value, if it has one."""
    return digest_of(write[0], write[1]) if isinstance(write, Put | Append) else contents(write)


def chained(previous: bytes, own: bytes, number: int, written: float, versions: Sequence[int]) -> bytes:
    """Return the digest of an entry, as `commit_v1` computes it."""
    stamps = ",".join(map(str, versions)).encode()
    return _sha256(previous + own + _ENTRY_META.pack(number, written) + stamps).digest()[:16]


@lru_cache(maxsize=4_096)
def tenant_text(prefix: bytes) -> str | None:
    """Return an encoded tenant as the text of its column, or None if it is not a tenant."""
    if keys.tenant_of(prefix + b"\x00") != prefix:
        return None
    raw = prefix[1:-1].replace(b"\x00\xff", b"\x00")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return _ESCAPED + raw.hex()
    # Postgres's text cannot contain NUL.
    return _ESCAPED + raw.hex() if "\x00" in text or text.startswith(_ESCAPED) else text


@lru_cache(maxsize=4_096)
def tenant_column(prefix: bytes) -> bytes | None:
    """Return `tenant_text` as bytes to send."""
    text = tenant_text(prefix)
    return None if text is None else text.encode()


def tenant_of(key: bytes) -> tuple[bytes, bytes | None]:
    """Return the tenant of a key, encoded and as its column; None for a key without a tenant."""
    prefix = keys.tenant_of(key)
    return prefix, tenant_column(prefix)


def tenant_prefix(text: str) -> bytes:
    """Return the encoded tenant for its column; the inverse of `tenant_text`."""
    raw = bytes.fromhex(text[1:]) if text.startswith(_ESCAPED) else text.encode()
    return b"\x02" + raw.replace(b"\x00", b"\x00\xff") + b"\x00"


def verified(key: bytes, row: Sequence[Any]) -> Record:
    """Return a stored row (value, version, written, expires, digest) as a verified record, or raise `Damaged`."""
    value, version, written, expires, own = row
    if _sha256(key + value).digest()[:16] != own:
        raise damaged(key)
    return Record(key, value, version, written, expires)


def verified_entry(stream: bytes, row: Sequence[Any]) -> Entry:
    """Return a stored row (number, value, …, versions, forgotten) as a verified entry, or raise `Damaged`."""
    number, value, written, own, previous, versions, forgotten = row
    if forgotten is None:
        of_value = digest_of(stream, value)
    else:  # the digest of the erased value, and a seal over it
        of_value = forgotten[:16]
        if value or _sha256(b"forgotten" + of_value + own).digest()[:8] != forgotten[16:]:
            raise damaged(stream)
    if chained(previous, of_value, number, written, versions) != own:
        raise damaged(stream)
    return Entry(number, value, written, own, previous, tuple(versions), forgotten is not None)


def consecutive(stream: bytes, found: list[Entry], first: int | None, *, reverse: bool) -> list[Entry]:
    """Return entries if each follows the one before, without a gap, or raise `Damaged`."""
    step = -1 if reverse else 1
    for at, entry in enumerate(found):
        if at == 0:
            if first is not None and entry.number != first:
                raise damaged(stream)
            continue
        before = found[at - 1]
        older, newer = (entry, before) if reverse else (before, entry)
        if entry.number != before.number + step or newer.previous != older.digest:
            raise damaged(stream)
    return found


def shown(key: bytes) -> str:
    """Return a key in readable form."""
    try:
        return repr(keys.unpack(key))
    except ValueError:
        return repr(key)


def damaged(key: bytes) -> Damaged:
    """Return the error for damaged data at a key."""
    return Damaged(f"The data at {shown(key)} is damaged. Restore it from a backup.")
