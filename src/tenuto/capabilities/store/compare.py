"""Compare two stores row by row, and digest one.

Equal are two stores with the same live records (key, value, version, time, expiry) and the same streams (numbers, values,
times, versions, what is forgotten). The digests of entries are each store's own: `check` verifies them there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tenuto.capabilities.store.rows import Advance, Row, Total, count, every_row
from tenuto.kernel import keys
from tenuto.kernel.contract import Backend


class Summary(NamedTuple):
    """What a tenant holds. Equal stores have equal summaries."""

    records: int
    streams: int
    entries: int
    digest: str


class Difference(NamedTuple):
    """A row that two stores do not share."""

    kind: str
    """"missing" here, "extra" here, or "different"."""
    key: str
    detail: str


def summary(kernel: Backend, advance: Advance | None = None) -> Summary:
    """Return the counts and the digest of all rows."""
    total, most = Total(), count(kernel) if advance is not None else 0
    for row in every_row(kernel):
        total.add(row)
        if advance is not None and total.rows % 1_000 == 0:
            advance(total.rows, max(most, total.rows))
    return Summary(total.records, total.streams, total.entries, total.digest)


def differences(ours: Backend, theirs: Backend, advance: Advance | None = None) -> Iterator[Difference]:
    """Yield each row that is not the same in both stores."""
    left, right = every_row(ours), every_row(theirs)
    one, other = next(left, None), next(right, None)
    done, most = 0, count(ours) if advance is not None else 0
    while one is not None or other is not None:
        done += 1
        if advance is not None and done % 1_000 == 0:
            advance(done, max(most, done))
        if other is None or (one is not None and one.place < other.place):
            assert one is not None
            if not _is_over(one, ours):
                yield Difference("extra", _shown(one), "only this store has it")
            one = next(left, None)
        elif one is None or one.place > other.place:
            if not _is_over(other, theirs):
                yield Difference("missing", _shown(other), "only the other store has it")
            other = next(right, None)
        else:
            if one.content != other.content:
                yield Difference("different", _shown(one), _detail(one, other))
            one, other = next(left, None), next(right, None)


def _is_over(row: Row, kernel: Backend) -> bool:
    """Return whether a record has expired since it was read."""
    expires = None if row.record is None else row.record.expires_at
    return expires is not None and expires <= kernel.now()


def _shown(row: Row) -> str:
    if row.record is not None:
        return repr(keys.unpack(row.record.key))
    assert row.entry is not None
    return f"{keys.unpack(row.stream)!r} entry {row.entry.number}"


def _detail(one: Row, other: Row) -> str:
    mine, its = one.record or one.entry, other.record or other.entry
    assert mine is not None
    assert its is not None
    names = [
        name
        for name in mine._fields
        if name not in ("digest", "previous") and getattr(mine, name) != getattr(its, name)
    ]
    return ", ".join(names) or "type"
