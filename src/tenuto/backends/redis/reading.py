"""Read a Redis store: one script for each verb, so that each result is from one snapshot. Every reply is verified.

Expired records are absent, by the server's clock unless the client supplies the time.
`run` runs a script for a tenant; `given` is the time to use, empty for the server's. A reply begins with the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from tenuto.backends.redis import rows, scripts
from tenuto.kernel import keys
from tenuto.kernel.contract import Entry, Record

Run = Callable[[scripts.Script, bytes, Sequence[Any]], tuple[float, list[Any]]]


def read(run: Run, given: bytes | str, wanted: Sequence[bytes]) -> list[Record | None]:
    """Return the live record at each key."""
    tenant = rows.tenant_of(wanted[0]) if wanted else None
    if tenant is None:
        return [None] * len(wanted)  # keys without a tenant are never written
    cut, count = len(tenant), len(wanted)
    fields = [key[cut:] if key[cut : cut + 1] == b"\x02" else b"" for key in wanted]  # other keys are never written
    now, found = run(scripts.READ, tenant, (given, *fields))
    return [
        rows.record(field, found[at], found[count + at], now, tenant) if found[at] or found[count + at] else None
        for at, field in enumerate(fields)
    ]


def scan(
    run: Run, given: bytes | str, prefix: bytes, *, after: bytes | None, limit: int, reverse: bool
) -> list[Record]:
    """Return live records with a prefix in key order."""
    tenant = rows.tenant_of(prefix)
    assert tenant is not None
    bounds = _bounds(tenant, prefix, after, reverse=reverse)
    if bounds is None:
        return []
    now, flat = run(scripts.SCAN, tenant, (given, *bounds, limit, b"down" if reverse else b"up"))
    fields = flat[::3]
    inside = prefix[len(tenant) :]
    if not rows.in_order(fields, reverse=reverse) or not all(field.startswith(inside) for field in fields):
        raise rows.damaged(prefix)
    found = []
    for field, head, value in zip(fields, flat[1::3], flat[2::3], strict=True):
        record = rows.record(field, head, value, now, tenant) if head else None
        if record is None:  # the index names it, so it must exist
            raise rows.damaged(tenant + field)
        found.append(record)
    return found


def _bounds(tenant: bytes, prefix: bytes, after: bytes | None, *, reverse: bool) -> tuple[bytes, bytes] | None:
    """Return the bounds of a scan within its tenant, None if it must be empty."""
    cut = len(tenant)
    high = keys.after_prefix(prefix) if len(prefix) > cut else None
    begin = b"[" + prefix[cut:] if len(prefix) > cut else b"-"
    end = b"(" + high[cut:] if high is not None and high.startswith(tenant) else b"+"
    if after is not None and not after.startswith(tenant):
        if (after > tenant) is not reverse:
            return None
    elif after is not None and not reverse and after >= prefix:
        begin = b"(" + after[cut:]
    elif after is not None and reverse and (high is None or after < high):
        end = b"(" + after[cut:]
    return begin, end


def entries(
    run: Callable[[scripts.Script, bytes, Sequence[Any]], list[Any]],
    stream: bytes,
    *,
    after: int | None,
    limit: int,
    reverse: bool,
) -> list[Entry]:
    """Return entries of a stream in number order, with verified links. The reply begins with the stream's head."""
    tenant = rows.tenant_of(stream)
    field = stream[len(tenant or b"") :]
    if tenant is None or field[:1] != b"\x02":
        return []
    after = None if after is None else max(after, 0)
    start = b"" if after is None else after
    head, *stored = run(scripts.ENTRIES, tenant, (field, start, limit, b"down" if reverse else b"up"))
    if not head:
        return []
    known = rows.head(field, head, tenant)
    if known.kind != rows.STREAM:
        return []
    trimmed = int(known.expires)
    first = max(after or 0, trimmed) + 1 if not reverse else min(known.version, (after or known.version + 1) - 1)
    step = -1 if reverse else 1
    found = [rows.entry(field, first + step * at, raw, tenant) for at, raw in enumerate(stored)]
    for one, other in pairwise(found):
        newer, older = (one, other) if reverse else (other, one)
        if newer.previous != older.digest:
            raise rows.damaged(stream)
    return found
