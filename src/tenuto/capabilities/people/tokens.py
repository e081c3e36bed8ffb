"""Approval tokens: a signed text that lets one person answer one question once, until it expires.

Keys, below the tenant: `("inbox", "key")` is the signing key, made once; `("inbox", "used", nonce)` says that a token was used,
written in the commit of the answer. A page shows the question on GET and answers on POST: mail scanners follow links.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context
from tenuto.errors import Conflict, InvalidInput
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Check, Put
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work

SIGNING_KEY: Final = keys.pack("inbox", "key")
"""The key that signs tokens: who reads it can answer as anyone."""
_USED: Final = keys.pack("inbox", "used")


class Approval(NamedTuple):
    """What a valid token allows: one person to answer one question, until it expires."""

    question: str
    by: str
    expires_at: datetime
    nonce: str

    @property
    def used_key(self) -> bytes:
        """Return the key that says that it was used."""
        return _USED + keys.pack(self.nonce)


def new_token(context: Context, question_id: str, by: str, expires: float) -> Work[str]:
    """Return a new token."""
    key = yield from _signing_key(context)
    payload = json.dumps([question_id, by, expires, secrets.token_hex(8)]).encode()
    return f"{_text(payload)}.{_text(_signature(key, payload))}"


def read_token(context: Context, token: str) -> Approval:
    """Return what a token allows; `InvalidInput` if it is forged or expired."""
    record = context.kernel.read([SIGNING_KEY])[0]
    try:
        payload, signature = (_raw(part) for part in token.split("."))
    except (ValueError, TypeError, AttributeError):
        payload, signature = b"", b""
    key = b"" if record is None else codec.decode(record.value)
    if not payload or not key or not hmac.compare_digest(_signature(key, payload), signature):
        raise InvalidInput("This approval link is not valid; nothing was written. Ask for a new one.")
    fields: list[Any] = json.loads(payload)
    if fields[2] <= context.kernel.now():
        raise InvalidInput("This approval link has expired; nothing was written. Ask for a new one.")
    return Approval(fields[0], fields[1], moment(fields[2]), fields[3])


def _signing_key(context: Context) -> Work[bytes]:
    while True:
        record = context.kernel.read([SIGNING_KEY])[0]
        if record is not None:
            return codec.decode(record.value)  # type: ignore[no-any-return]
        try:
            yield from commit_once(
                context.kernel, [Check(SIGNING_KEY, 0)], [Put(SIGNING_KEY, codec.encode(secrets.token_bytes(32)))]
            )
        except Conflict:
            continue  # another process made it


def _signature(key: bytes, payload: bytes) -> bytes:
    return hmac.new(key, b"tenuto approval\0" + payload, hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _raw(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
