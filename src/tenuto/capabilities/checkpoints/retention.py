"""Which checkpoints to keep, and taking away those that nothing stands on any more.

Hiding and taking away are apart: a hidden checkpoint may still be what a kept one stands on. What is taken
away goes a hundred at a time, each commit checking what it takes, so that several processes may prune, create
and fork at once: the second to take something away finds that it is gone, and leaves it.
"""

from __future__ import annotations

from typing import NamedTuple

from tenuto.capabilities.blobs import Blobs
from tenuto.capabilities.lineage import Lineage, Placed
from tenuto.errors import Conflict, InvalidInput
from tenuto.kernel import codec
from tenuto.kernel.contract import Backend, Check, Delete, Put, Write
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.transact import Steps, settle

_AT_ONCE = 100


class Retention(NamedTuple):
    """How long checkpoints are kept.

    The newest `keep_last` stay. Of the others, those as young as `hourly` are thinned to the newest of each hour,
    those as young as `daily` to the newest of each day, and the rest go once they are `older_than`, or at once
    if that is not given.
    """

    keep_last: int | None = None
    older_than: Duration | None = None
    hourly: Duration | None = None
    daily: Duration | None = None


def to_hide(shown: list[tuple[int, float]], rule: Retention, now: float) -> list[int]:
    """Return the numbers that a rule lets go, of those given newest first with their times."""
    if rule == Retention():
        raise InvalidInput("Say what to keep: keep_last, older_than, hourly or daily.")
    if rule.keep_last is not None and rule.keep_last < 0:
        raise InvalidInput(f"keep_last is 0 or more, not {rule.keep_last}.")
    old = None if rule.older_than is None else seconds(rule.older_than, "older_than")
    spans = [
        (seconds(span, what), length)
        for span, what, length in ((rule.hourly, "hourly", 3_600.0), (rule.daily, "daily", 86_400.0))
        if span is not None
    ]
    gone: list[int] = []
    filled: set[tuple[float, int]] = set()
    for place, (number, at) in enumerate(shown):
        if place < (rule.keep_last or 0):
            continue
        age = now - at
        period = next(((length, int(at // length)) for span, length in spans if age <= span), None)
        if period is not None:
            if period in filled:
                gone.append(number)
            filled.add(period)
        elif old is None or age > old:
            gone.append(number)
    return gone


def remove(kernel: Backend, line: Lineage, blobs: Blobs) -> Steps[None]:
    """Take away what is hidden and not stood upon."""
    hidden = line.hidden()
    groups: dict[int, list[Placed]] = {}
    for placed in line.all():
        bare = placed._replace(item=placed.item._replace(payload=None if placed.item.payload is None else b""))
        groups.setdefault(placed.item.keyframe, []).append(bare)
    if not groups:
        return
    *older, newest = groups.values()
    for group in older:
        if all(placed.number in hidden for placed in group):
            yield from _take(kernel, line, blobs, group)
    end = newest[-1]
    if end.item.is_end or not all(placed.number in hidden for placed in newest):
        return
    if any(placed.number not in hidden for group in older for placed in group):
        return
    # Everything is hidden: the last one becomes an end. Whoever was about to follow it finds it changed.
    if (yield from _end(kernel, line, blobs, end)):
        yield from _take(kernel, line, blobs, newest[:-1])


def _take(kernel: Backend, line: Lineage, blobs: Blobs, group: list[Placed]) -> Steps[None]:
    for start in range(0, len(group), _AT_ONCE):
        some = group[start : start + _AT_ONCE]
        for _ in range(3):
            by: dict[bytes, int] = {}
            for placed in some:
                for digest in placed.item.references:
                    by[digest] = by.get(digest, 0) - 1
            checks, counted = blobs.counted(by)
            checks += [Check(line.key(placed.number), placed.version) for placed in some]
            writes: list[Write] = [Delete(line.key(placed.number)) for placed in some]
            writes += [Delete(line.hidden_key(placed.number)) for placed in some]
            try:
                yield from settle(kernel, checks, [*writes, *counted])
            except Conflict as error:
                if any(key == line.key(placed.number) for placed in some for key in error.keys):
                    return  # another process is at it
                yield 0.002  # somebody else counted a reference: count again
            else:
                break


def _end(kernel: Backend, line: Lineage, blobs: Blobs, last: Placed) -> Steps[bool]:
    by = dict.fromkeys(last.item.references, -1)
    try:
        checks, counted = blobs.counted(by)
        item = last.item._replace(
            name="", meta=None, user=None, keyframe=last.number, weight=0, size=0, stored=0, digest=b"", held=[]
        )
        item = item._replace(payload=None, blob=None)
        yield from settle(
            kernel,
            [Check(line.key(last.number), last.version), *checks],
            [Put(line.key(last.number), codec.encode(list(item))), Delete(line.entry), *counted],
        )
    except Conflict:
        return False
    return True
