"""Growth: the size of the store over time, and when it will hurt.

Key, below the tenant: `("alert", "growth", hour)`, one record per hour in which a worker or `tenuto growth` looked, for a
year. A sample is one commit; two replicas in one hour write the same key.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, NamedTuple

from tenuto.capabilities._core.base import Context, scan_all
from tenuto.errors import InvalidInput
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Put
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work

_SAMPLE: Final = keys.pack("alert", "growth")
_YEAR: Final = 365 * 86_400.0
_HOUR, _DAY = 3_600, 86_400.0
_WEEK: Final = 7 * 24


class Sample(NamedTuple):
    """The size of the store at a time."""

    at: datetime
    bytes: int
    records: int


class Growth(NamedTuple):
    """How the store grows, by the samples."""

    samples: list[Sample]
    bytes_per_day: float | None
    """None with samples of less than an hour."""
    limit: int
    full_at: datetime | None
    """When the limit is reached at this rate; None if the store does not grow."""


def sampled(context: Context) -> Work[bool]:
    """Record the size of the store, once an hour; return whether it was recorded."""
    now = context.kernel.now()
    key = _SAMPLE + keys.pack(int(now // _HOUR))
    if context.kernel.read([key])[0] is not None:
        return False
    stats = context.kernel.stats()
    if "bytes" not in stats:
        return False
    size = int(
        stats.get("page_bytes", stats["bytes"])
    )  # the length of a write-ahead log says when it was last folded in
    value = codec.encode([now, size, int(stats.get("records", 0) or 0)])
    yield from commit_once(context.kernel, [], [Put(key, value, _YEAR)])
    return True


def growth_of(context: Context, limit: int) -> Growth:
    """Return the samples, and the line through them."""
    if limit < 1:
        raise InvalidInput(f"limit must be at least 1 byte, not {limit}.")
    found = [codec.decode(record.value) for record in scan_all(context.kernel, _SAMPLE)]
    samples = [Sample(moment(at), size, records) for at, size, records in found]
    rate = _slope([(at, size) for at, size, _ in found])
    full = None
    if rate is not None and rate > 0:
        left = max(limit - samples[-1].bytes, 0) / rate
        full = moment(found[-1][0] + left) if left < 100 * _YEAR else None
    return Growth(samples, None if rate is None else rate * _DAY, limit, full)


def growth_per_day(context: Context) -> float | None:
    """Return by how many bytes the store grew per day in the last week, or None without samples. Reads a page."""
    found = [codec.decode(record.value) for record in context.kernel.scan(_SAMPLE, limit=_WEEK, reverse=True)]
    rate = _slope([(at, size) for at, size, _ in reversed(found)])
    return None if rate is None else rate * _DAY


def _slope(points: list[tuple[float, int]]) -> float | None:
    """Return bytes per second by least squares, or None if the points are too close."""
    if len(points) < 2 or points[-1][0] - points[0][0] < _HOUR / 2:
        return None
    middle = sum(at for at, _ in points) / len(points)
    mean = sum(size for _, size in points) / len(points)
    spread = sum((at - middle) ** 2 for at, _ in points)
    return sum((at - middle) * (size - mean) for at, size in points) / spread
