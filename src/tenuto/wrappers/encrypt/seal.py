"""Sealed values: AES-256-GCM, bound to the place of a value and to a write id that the client makes.

    format (1 byte) · id of the data key (8) · write id (24) · ciphertext · tag (16)

The authenticated text names the format, record or stream, and the whole key with tenant and scope: bytes that were moved
elsewhere do not open. The write id of a record is random; with a
request id it is derived from request, place and value by a keyed hash, so that a retry of a commit has the same bytes and
the store recognises it. That of an entry is always derived from stream and value: an entry that was trimmed comes back with
the bytes that its successors' digests cover. So two equal entries of one stream look equal. The first half of the write id
derives the key of this one value and the second half is its nonce: with 192 bits no number of writes wears a data key out.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Final

from tenuto.errors import Damaged, MissingDriver

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError as missing:  # pragma: no cover - the extra is installed where tests run
    raise MissingDriver('Encryption needs cryptography. Install it with: pip install "tenuto[crypto]"') from missing

OF_TENANT: Final = b"\xe1"
"""The format of a value under a data key of the tenant."""
OF_USER: Final = b"\xe2"
"""The format of a value under the key of a user."""
RECORD: Final = b"r"
STREAM: Final = b"s"
OBJECT: Final = b"o"
"""What is kept outside of the store."""
ID: Final = 8
_WRITE: Final = 24
_NO_REQUEST: Final = bytes(16)
_HEAD: Final = 1 + ID + _WRITE
OVERHEAD: Final = _HEAD + 16
"""Bytes that sealing adds to a value."""


def derive(secret: bytes, purpose: bytes) -> bytes:
    """Return the key for one purpose that follows from a secret."""
    return hashlib.blake2b(purpose, key=secret, digest_size=32, person=b"tenuto derive").digest()


def new_id() -> bytes:
    """Return a random id of a data key."""
    return os.urandom(ID)


class DataKey:
    """A key that values are sealed with."""

    def __init__(self, name: bytes, secret: bytes, form: bytes = OF_TENANT) -> None:
        self.id = name
        self.secret = secret
        self._form = form
        self._begin = form + name
        self._writes = derive(secret, b"write ids")

    def seal(self, kind: bytes, place: bytes, value: bytes, request: bytes | None = None, number: int = 0) -> bytes:
        """Return a value sealed for its place; of an entry, and with a request, the bytes depend on the arguments alone."""
        if kind == STREAM:
            request, number = _NO_REQUEST, 0
        if request is None:
            write = os.urandom(_WRITE)
        else:
            hashed = hashlib.blake2b(key=self._writes, digest_size=_WRITE)
            hashed.update(b"%b%d %d %b%b" % (request, number, len(place), kind, place))
            hashed.update(value)
            write = hashed.digest()
        body: bytes = self._cipher(write).encrypt(write[12:], value, self._form + kind + place)
        return self._begin + write + body

    def open(self, kind: bytes, place: bytes, data: bytes) -> bytes:
        """Return the value, or raise `Damaged` if the bytes were changed or belong elsewhere."""
        write = data[1 + ID : _HEAD]
        try:
            value: bytes = self._cipher(write).decrypt(write[12:], data[_HEAD:], self._form + kind + place)
        except (InvalidTag, ValueError):
            raise damaged("Its bytes were changed, or moved here from another key, stream or tenant") from None
        return value

    def _cipher(self, write: bytes) -> Any:
        return AESGCM(hashlib.blake2b(write[:12], key=self.secret, digest_size=32).digest())


def key_id(data: bytes) -> bytes:
    """Return the id of the data key of a sealed value, or raise `Damaged` if it is not sealed."""
    if len(data) < OVERHEAD or data[:1] not in (OF_TENANT, OF_USER):
        raise damaged("It is not encrypted, although the store is")
    return data[1 : 1 + ID]


def damaged(reason: str) -> Damaged:
    """Return the error of a value that does not open."""
    return Damaged(f"An encrypted value does not open. {reason}. Nothing of it is returned; restore it from a backup.")


# -- a master key wraps data keys -----------------------------------------------------------------


def master_id(master: bytes) -> bytes:
    """Return the id that names a master key without telling anything about it."""
    return derive(master, b"id")[:ID]


def wrap(master: bytes, secret: bytes, bound: bytes) -> bytes:
    """Return a data key encrypted with a master key and bound to a text."""
    nonce = os.urandom(12)
    return master_id(master) + nonce + AESGCM(derive(master, b"wrap")).encrypt(nonce, secret, bound)


def unwrap(master: bytes, wrapped: bytes, bound: bytes) -> bytes:
    """Return the data key, or raise `Damaged`."""
    try:
        return AESGCM(derive(master, b"wrap")).decrypt(wrapped[ID : ID + 12], wrapped[ID + 12 :], bound)
    except (InvalidTag, ValueError):
        raise damaged("The record of the data keys was changed or moved") from None
