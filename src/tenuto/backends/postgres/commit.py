"""A commit as the parameters of the functions in `_postgres_commit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tenuto.backends import _postgres_wire as wire
from tenuto.backends._postgres_commit import CHECK_END, CHECK_RECORD, WRITE_RECORD, WRITE_STREAM
from tenuto.backends._postgres_wire import Parameter
from tenuto.errors import Conflict
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Append, Check, Delete, Forget, Put, Write


def one(
    cut: int, checks: Sequence[AnyCheck], writes: Sequence[Write], digests: Sequence[bytes]
) -> tuple[Parameter, ...] | None:
    """Return a commit that puts one record, appends one entry, or both; None if it is another."""
    record, entry, expected = writes[0] if writes else None, writes[-1] if writes else None, None
    put = record if type(record) is Put and record.ttl is None else None
    append = entry if type(entry) is Append else None
    if (put is not None) + (append is not None) != len(writes) or not writes:
        return None
    if put is not None and append is not None and append.stream >= put.key:
        return None  # keys are locked in their order
    if checks:
        check = checks[0]
        if len(checks) > 1 or put is None or check[0] != put.key or type(check) is not Check:
            return None
        expected = wire.bigint(min(check.version, _MOST))
    first: tuple[Parameter, ...] = (None,) * 5
    if put is not None:
        scope = wire.integer(len(keys.scope_of(put.key)) - cut)
        first = put.key[cut:], scope, expected, digests[0], put.value
    second: tuple[Parameter, ...] = (None,) * 3
    if append is not None:
        keys.scope_of(append.stream)
        second = append.stream[cut:], digests[-1], append.value
    return first + second


def any_commit(
    cut: int, checks: Sequence[AnyCheck], writes: Sequence[Write], digests: Sequence[bytes]
) -> tuple[Parameter, ...]:
    """Return a commit as flat arrays: every key once, sorted, then checks and writes by the place of their key."""
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


_MOST: Final = (1 << 63) - 1
"""No version is as high as that, nor higher: a check of it fails."""
_KINDS: Final[dict[type, int]] = {Put: 0, Delete: 1, Append: 2, Forget: 3}


def _value(write: Write) -> bytes:
    if type(write) is Delete:
        return b""
    return write[0] if type(write) is Forget else write[1]


def nothing(checks: Sequence[AnyCheck], writes: Sequence[Write]) -> tuple[Parameter, ...]:
    """Return an empty commit: where there is no tenant nothing is stored, so every check of 0 holds."""
    for write in writes:
        keys.scope_of(write[0])
    different = [check[0] for check in checks if check[1] != 0]
    if different:
        raise Conflict("Something else was written first; read again and decide anew.", different)
    return any_commit(0, [], [], [])
