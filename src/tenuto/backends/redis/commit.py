"""Encode a commit as arguments for the script in `commit_lua`, and decode its reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenuto.backends.redis import rows
from tenuto.errors import Conflict, InvalidInput, NewerFormat, RequestExpired, RequestReused, TenutoError, TooLarge
from tenuto.kernel import keys
from tenuto.kernel.contract import (
    NOT_BOTH,
    AnyCheck,
    Append,
    Check,
    Commit,
    Forget,
    Put,
    Write,
    content_of,
    fingerprint,
)
from tenuto.kernel.transact import request_time


def arguments(  # noqa: PLR0913 - the arguments of the script
    tenant: bytes,
    checks: Sequence[AnyCheck],
    writes: Sequence[Write],
    request: bytes | None,
    *,
    given: bytes | str,
    sent: str,
    sweep: int,
    waits: bool,
) -> list[Any]:
    """Return the script's arguments; `sent` is the sending time by this machine's clock, empty for the first sending."""
    cut = len(tenant)
    digests = [content_of(write) for write in writes]
    out: list[Any] = [given, b"", b"", b"", sweep, b"1" if waits else b"0", sent, len(checks)]
    if request is not None:
        out[1:4] = request, repr(request_time(request)), fingerprint(checks, writes, digests)
    for check in checks:
        out += (b"r" if type(check) is Check else b"s", check[0][cut:], check[1])
    for write, own in zip(writes, digests, strict=True):
        scope = len(keys.scope_of(write[0])) - cut
        if type(write) is Put:
            ttl = b"" if write.ttl is None else repr(float(write.ttl))
            out += (b"p", write.key[cut:], scope, own, ttl, write.value)
        elif type(write) is Append:
            out += (b"a", write.stream[cut:], scope, own, b"", write.value)
        elif type(write) is Forget:
            out += (b"f", write.stream[cut:], scope, write.first, write.last, b"")
        else:
            out += (b"d", write[0][cut:], scope, b"", b"", b"")
    if len(writes) > 1 and type(writes[0]) is Put and type(writes[-1]) is Append and writes[0][1] == writes[-1][1]:
        at = 8 + 3 * len(checks)
        out[at], out[at + 5] = b"P", b""
    return out


def outcome(reply: Any, tenant: bytes) -> Commit:
    """Return the outcome of a commit, or raise the reason for which it was rejected."""
    if type(reply) is not bytes:
        raise refused(reply[0], reply[1:], tenant)
    return Commit(rows.versions_in(reply[9:]), rows.time_in(reply[1:9]), reply[:1] == b"r")


def refused(why: bytes, rest: Sequence[bytes], tenant: bytes) -> TenutoError:
    """Return the error for a script's rejection."""
    if why == b"conflict":
        return Conflict(
            "Another commit came first. Nothing was written; read again and retry.", [tenant + field for field in rest]
        )
    if why == b"reused":
        return RequestReused("This request id was used for another commit. Nothing was written; use a new id.")
    if why == b"old":
        return RequestExpired(
            "This request id is too old for its outcome to be known. Nothing was written; read what is stored first."
        )
    if why == b"both":
        return InvalidInput(NOT_BOTH)
    if why == b"newer":
        return NewerFormat(
            f"Tenant {rows.shown(tenant)} was written by a newer version of tenuto. Nothing was changed; upgrade tenuto."
        )
    if why == b"range":
        return TooLarge("A version has reached 2^53, the maximum of this store. Nothing was written; use another key.")
    return rows.damaged(tenant + (rest[0] if rest else b""))
