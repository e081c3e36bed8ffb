"""Keyed hashes in place of the names in keys, so that a reader of the store does not see them.

Each text and each bytes part below the tenant is replaced by a hash of the key up to its end; numbers and the tenant stay,
so that indexes by time keep their order. Equal keys have equal hashes and a prefix of whole parts stays a prefix, so every
verb works; names are listed in the order of their hashes. The whole key is sealed with the value and returned.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final

from tenuto.errors import TooLarge
from tenuto.kernel.contract import MAX_KEY, validate_key
from tenuto.wrappers.encrypt.seal import damaged

_part: Final = re.compile(rb"([\x01\x02])[^\x00]*(?:\x00\xff[^\x00]*)*\x00(?!\xff)|[\x0c-\x1c]")
_ZERO: Final = 0x14
_LENGTH: Final = 2


def hashed(key: bytes, begin: int, secret: bytes) -> bytes:
    """Return a key, or the prefix of one, with each name after `begin` hashed; what is no whole part stays."""
    if len(key) == begin:
        return key
    validate_key(key)
    out, at = key[:begin], begin
    running = hashlib.blake2b(key=secret, digest_size=15)
    while (part := _part.match(key, at)) is not None:
        end = part.end()
        if part[1] is None:
            end += abs(key[at] - _ZERO)
            if end > len(key):
                break
        running.update(key[at:end])
        out += key[at:end] if part[1] is None else part[1] + base64.b32encode(running.digest()) + b"\x00"
        at = end
    if len(out) + len(key) - at > MAX_KEY:
        raise TooLarge(
            f"A key takes up to {MAX_KEY:,} bytes; with its {len(key):,} hashed this one has more. Shorten it."
        )
    return out + key[at:]


def with_key(key: bytes, value: bytes) -> bytes:
    """Return the value with its key in front."""
    return len(key).to_bytes(_LENGTH, "big") + key + value


def apart(content: bytes) -> tuple[bytes, bytes]:
    """Return the key and the value of what `with_key` made."""
    end = _LENGTH + int.from_bytes(content[:_LENGTH], "big")
    if len(content) < end:
        raise damaged("It does not hold its key")
    return content[_LENGTH:end], content[end:]
