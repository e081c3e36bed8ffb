"""Keys: tuples of names and numbers, encoded so that the bytes sort like the tuples.

The encoding is FoundationDB's tuple layer for `str`, `bytes` and `int`: a tag, the content, and for
text a terminator, with NUL escaped. So the key of ("a",) is a prefix of the key of ("a", "b") but not
of ("ab",), and no name can imitate several parts. Every key begins with the tenant and the scope.
"""

from __future__ import annotations

import re
from typing import Final

from tenuto.errors import InvalidInput

_BYTES: Final = 0x01
_TEXT: Final = 0x02
_ZERO: Final = 0x14
_PART = rb"\x02[^\x00]*(?:\x00\xff[^\x00]*)*\x00"
_tenant = re.compile(_PART).match
_scope = re.compile(rb"(?:" + _PART + rb"){2}").match

Part = str | bytes | int


def pack(*parts: Part) -> bytes:
    """Encode parts into a key."""
    out = b""
    for part in parts:
        if isinstance(part, str):
            out += b"\x02" + _text(part) + b"\x00"
        elif isinstance(part, bytes):
            out += b"\x01" + part.replace(b"\x00", b"\x00\xff") + b"\x00"
        elif isinstance(part, int) and not isinstance(part, bool):
            out += _integer(part)
        else:
            raise InvalidInput(f"A key must consist of str, bytes and int, not {type(part).__name__}.")
    return out


def _text(part: str) -> bytes:
    try:
        raw = part.encode()
    except UnicodeEncodeError:
        raise InvalidInput("A name contains a lone surrogate, which is not text. Encode it first.") from None
    return raw if b"\x00" not in raw else raw.replace(b"\x00", b"\x00\xff")


def _integer(number: int) -> bytes:
    size = (abs(number).bit_length() + 7) // 8
    if size > 8:
        raise InvalidInput("A number in a key must fit in 64 bits.")
    if number >= 0:
        return bytes([_ZERO + size]) + number.to_bytes(size, "big")
    return bytes([_ZERO - size]) + (number + (1 << 8 * size) - 1).to_bytes(size, "big")


ENCRYPTION: Final = pack("tenuto", "encryption")
"""Below a tenant: what belongs to the encryption of the tenant (`wrappers/encrypt`); its first record is the marker."""


def unpack(key: bytes) -> tuple[Part, ...]:
    """Decode a key into its parts; the inverse of `pack`."""
    parts: list[Part] = []
    at = 0
    while at < len(key):
        tag = key[at]
        at += 1
        if tag in (_TEXT, _BYTES):
            end = key.find(b"\x00", at)
            while end >= 0 and key[end + 1 : end + 2] == b"\xff":
                end = key.find(b"\x00", end + 2)
            if end < 0:
                raise InvalidInput("Invalid key: a part has no terminator.")
            raw = key[at:end].replace(b"\x00\xff", b"\x00")
            parts.append(_decoded(raw) if tag == _TEXT else raw)
            at = end + 1
        elif _ZERO - 8 <= tag <= _ZERO + 8:
            size = abs(tag - _ZERO)
            if at + size > len(key):
                raise InvalidInput("Invalid key: a number is cut off.")
            number = int.from_bytes(key[at : at + size], "big")
            parts.append(number if tag >= _ZERO else number - (1 << 8 * size) + 1)
            at += size
        else:
            raise InvalidInput(f"Invalid key: unknown tag {tag:#04x}.")
    return tuple(parts)


def _decoded(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidInput("Invalid key: a part is not UTF-8.") from None


def tenant_of(key: bytes) -> bytes:
    """Return the encoded tenant of a key; the whole key if it does not begin with one."""
    found = _tenant(key)
    return found[0] if found is not None else key


def has_tenant(key: bytes) -> bool:
    """Return whether a key, or a prefix of keys, begins with a whole tenant."""
    return _tenant(key) is not None


def scope_of(key: bytes) -> bytes:
    """Return the encoded tenant and scope of a key."""
    found = _scope(key)
    if found is None:
        raise InvalidInput("A key must begin with a tenant and a scope, both text. Build it with keys.pack.")
    return found[0]


def after_prefix(prefix: bytes) -> bytes | None:
    """Return the first key after all keys with `prefix`, or None if there is no such key."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def named(value: str, what: str) -> bytes:
    """Encode a name as a part of a key, or raise `InvalidInput` with the reason."""
    if type(value) is str and 0 < len(value) <= 512 and "\x00" not in value:
        raw = value.encode() if value.isascii() else _text(value)
        return b"\x02%b\x00" % raw
    return pack(name(value, what))


def name(value: str, what: str) -> str:
    """Return `value` if it is a valid name, else raise `InvalidInput` with the reason."""
    if type(value) is not str:
        raise InvalidInput(f"A {what} must be a str, not {type(value).__name__}.")
    if not value:
        raise InvalidInput(f"A {what} must not be empty.")
    if len(value) > 512:
        raise InvalidInput(f"A {what} may have up to 512 characters; this one has {len(value):,}. Use a digest of it.")
    if "\x00" in value:
        raise InvalidInput(f"A {what} must not contain a NUL character.")
    if not value.isascii():
        _text(value)  # rejects lone surrogates
    return value
