"""Encode a commit as parameters for the functions in `commit_sql`, and decode their result."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tenuto.backends.postgres import wire
from tenuto.backends.postgres.wire import Parameter, Statement, statement
from tenuto.errors import Conflict
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Append, Check, Commit, Delete, Forget, Put, Write

CHECK_RECORD, CHECK_END, WRITE_RECORD, WRITE_STREAM = 1, 2, 4, 8
"""Uses of a key in a commit: the bits of `p_uses`."""
_MOST: Final = (1 << 63) - 1
"""Above every version, so a check of it always fails."""
_KINDS: Final[dict[type, int]] = {Put: 0, Delete: 1, Append: 2, Forget: 3}
_APPLIED_BEFORE, _REFUSED = 1, 2

_TIME: Final = struct.Struct(">d")
_HEAD: Final = ("text", "double", "bool", "text")
_TAIL: Final = ("bytea", "bytea", "double", "bool", "double")
_MANY: Final = (
    "bytea[]", "integer[]", "integer[]", "integer[]", "bool[]", "bigint[]",
    "integer[]", "integer[]", "double[]", "bytea[]", "bytea[]",
)  # fmt: skip
_FEW: Final = ("bytea", "integer", "bigint", "bytea", "bytea", "bytea", "bytea", "bytea")


def one(
    cut: int, checks: Sequence[AnyCheck], writes: Sequence[Write], digests: Sequence[bytes]
) -> tuple[Parameter, ...] | None:
    """Return the parameters of a commit of one put, one append or both, with a check of one record; else None."""
    record, entry, expected = writes[0] if writes else None, writes[-1] if writes else None, None
    put = record if type(record) is Put and record.ttl is None else None
    append = entry if type(entry) is Append else None
    if (put is not None) + (append is not None) != len(writes) or not writes:
        return None
    key = put.key if put is not None else None
    if checks:
        check = checks[0]
        if len(checks) > 1 or type(check) is not Check or key not in (None, check.key):
            return None
        key, expected = check.key, wire.bigint(min(check.version, _MOST))
    if key is not None and append is not None and append.stream >= key:
        return None  # keys must be locked in order
    first: tuple[Parameter, ...] = (None,) * 5
    if put is None and key is not None:
        first = key[cut:], None, expected, None, None
    elif put is not None:
        scope = wire.integer(len(keys.scope_of(put.key)) - cut)
        sent_once = append is not None and append.value == put.value
        first = put.key[cut:], scope, expected, digests[0], None if sent_once else put.value
    second: tuple[Parameter, ...] = (None,) * 3
    if append is not None:
        keys.scope_of(append.stream)
        second = append.stream[cut:], digests[-1], append.value
    return first + second


def any_commit(
    cut: int, checks: Sequence[AnyCheck], writes: Sequence[Write], digests: Sequence[bytes]
) -> tuple[Parameter, ...]:
    """Return a commit as flat arrays: the distinct keys, sorted, then checks and writes with the index of their key."""
    uses: dict[bytes, int] = {}
    scopes: dict[bytes, int] = {}
    for check in checks:
        uses[check[0]] = uses.get(check[0], 0) | (CHECK_RECORD if type(check) is Check else CHECK_END)
    for write in writes:
        key = write[0]
        uses[key] = uses.get(key, 0) | (WRITE_STREAM if type(write) in (Append, Forget) else WRITE_RECORD)
        if key not in scopes:
            scopes[key] = len(keys.scope_of(key)) - cut
    order = sorted(uses)
    at = {key: n for n, key in enumerate(order, 1)}
    return (
        wire.many_bytes([key[cut:] for key in order]),
        wire.many_integers([uses[key] for key in order]),
        wire.many_integers([scopes.get(key, 0) for key in order]),
        wire.many_integers([at[check[0]] for check in checks]),
        wire.many_bools([type(check) is not Check for check in checks]),
        wire.many_bigints([min(check[1], _MOST) for check in checks]),
        wire.many_integers([at[write[0]] for write in writes]),
        wire.many_integers([_KINDS[type(write)] for write in writes]),
        wire.many_doubles([write.ttl if type(write) is Put else None for write in writes]),
        wire.many_bytes(digests),
        wire.many_bytes([_value(write) for write in writes]),
    )


def _value(write: Write) -> bytes:
    if type(write) is Delete:
        return b""
    return write[0] if type(write) is Forget else write[1]


def nothing(checks: Sequence[AnyCheck], writes: Sequence[Write]) -> tuple[Parameter, ...]:
    """Return an empty commit: without a tenant nothing is stored, so only checks of 0 hold."""
    for write in writes:
        keys.scope_of(write[0])
    different = [check[0] for check in checks if check[1] != 0]
    if different:
        raise _conflict(different)
    return any_commit(0, [], [], [])


def outcome(reply: bytes, checks: Sequence[AnyCheck]) -> tuple[Commit, list[int]]:
    """Return the outcome of a commit and the marks of the streams to notify, or raise `Conflict`."""
    if reply[0] == _REFUSED:
        raise conflict(reply[1:].decode(), checks)
    text, *marks = reply[9:].split(b"|")
    versions = tuple(map(int, text.split(b","))) if text else ()
    return Commit(versions, _TIME.unpack_from(reply, 1)[0], reply[0] == _APPLIED_BEFORE), list(map(int, marks))


def conflict(reply: str, checks: Sequence[AnyCheck]) -> Conflict:
    """Return the error for failed checks; `reply` has their positions, counted from 1."""
    return _conflict([checks[int(n) - 1][0] for n in reply.split(",") if n])


def _conflict(different: Sequence[bytes]) -> Conflict:
    return Conflict(
        "Another commit came first. Nothing was written; read again and retry.", list(dict.fromkeys(different))
    )


def any_statement(schema: str) -> Statement:
    """Return the statement for any commit; `schema` must be quoted."""
    return _call(f"{schema}.commit_v1", (*_HEAD, *_MANY, *_TAIL))


def one_statement(schema: str) -> Statement:
    """Return the statement for one put, one append or both; `schema` must be quoted."""
    return _call(f"{schema}.commit_one_v1", (*_HEAD, *_FEW, *_TAIL))


def _call(function: str, types: tuple[str, ...]) -> Statement:
    places = ", ".join(f"${n}" for n in range(1, len(types) + 1))
    return statement(f"SELECT {function}({places})", *types)
