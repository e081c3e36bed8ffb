"""Where encryption keys come from: bytes, text, a file, an environment variable or a callable, or a list of these.

A key is 32 random bytes; as text it is 64 hexadecimal digits or 44 characters of base64. Of several keys the first one
protects what is written from now on, and all of them open what is there. A key never appears in an error or a log.
"""

from __future__ import annotations

import base64
import binascii
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from tenuto.errors import InvalidInput

VARIABLE: Final = "TENUTO_ENCRYPTION_KEY"
SIZE: Final = 32

KeySource: TypeAlias = "bytes | str | os.PathLike[str] | Callable[[], Any] | Sequence[Any]"
"""Bytes or text of a key, `env:NAME`, `file:PATH`, a path, a callable that returns any of them, or a list of them."""


@dataclass(frozen=True, slots=True)
class Encryption:
    """A key with the options of encryption, for `Tenuto(encryption_key=…)`.

    The options are chosen when a tenant's first value is written, recorded with it, and fixed from then on; None takes
    what is recorded. `hash_names` replaces the names in keys by keyed hashes. `user_keys` encrypts what belongs to a user
    with a key of its own, so that destroying that key forgets the user.
    """

    key: Any
    hash_names: bool | None = None
    user_keys: bool | None = None

    def __repr__(self) -> str:
        """Show the options, never the key."""
        return f"Encryption(hash_names={self.hash_names}, user_keys={self.user_keys})"


def new_key() -> str:
    """Return a new random key as text."""
    return base64.b64encode(secrets.token_bytes(SIZE)).decode()


def resolve(source: Any) -> list[bytes]:
    """Return the keys that a source names, the one to write with first; raise `InvalidInput` if one is not a key."""
    found = list(dict.fromkeys(_resolved(source, depth=0)))
    if not found:
        raise InvalidInput("The encryption key names no key. Make one with: tenuto encryption new")
    return found


def _resolved(source: Any, depth: int) -> list[bytes]:
    if depth > 8:
        raise InvalidInput("The encryption key refers to itself. Name the key, its file or its variable directly.")
    if isinstance(source, bytes | bytearray):
        return [_checked(bytes(source))]
    if isinstance(source, str):
        return _of_text(source.strip(), depth)
    if isinstance(source, os.PathLike):
        return _of_file(Path(source), depth)
    if callable(source):
        return _resolved(source(), depth + 1)
    if isinstance(source, Sequence):
        return [key for one in source for key in _resolved(one, depth + 1)]
    raise InvalidInput(
        f"An encryption key must be bytes, text, a path, a callable or a list of them, not {type(source).__name__}."
    )


def _of_text(text: str, depth: int) -> list[bytes]:
    kind, colon, rest = text.partition(":")
    if colon and kind == "env":
        value = os.environ.get(rest)
        if not value:
            raise InvalidInput(f"The environment variable {rest} of the encryption key is not set. Nothing was opened.")
        return [key for one in value.replace(",", " ").split() for key in _resolved(one, depth + 1)]
    if colon and kind == "file":
        return _of_file(Path(rest).expanduser(), depth)
    try:
        raw = bytes.fromhex(text) if len(text) == 2 * SIZE else base64.b64decode(text, validate=True, altchars=b"-_")
    except (ValueError, binascii.Error):
        try:
            raw = base64.b64decode(text, validate=True)
        except (ValueError, binascii.Error):
            raw = b""
    return [_checked(raw)]


def _of_file(path: Path, depth: int) -> list[bytes]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"The file {path} of the encryption key cannot be read: {error.strerror}.") from None
    if len(content) == SIZE:
        return [content]
    try:
        lines = content.decode("ascii").split()
    except UnicodeDecodeError:
        lines = []
    if not lines:
        raise InvalidInput(f"The file {path} holds no encryption key. Make one with: tenuto encryption new")
    return [key for line in lines for key in _resolved(line, depth + 1)]


def _checked(raw: bytes) -> bytes:
    if len(raw) != SIZE:
        raise InvalidInput(
            "An encryption key has 32 random bytes, as text 64 hexadecimal digits or 44 characters of base64. A password "
            "is none. Make one with: tenuto encryption new"
        )
    return raw
