"""Retention: which checkpoints to hide, and when hidden ones are deleted.

A hidden checkpoint may still be needed to restore a visible one, so hiding and deleting are separate. Each commit
deletes up to a hundred checkpoints and checks them, so several processes may prune, create and fork concurrently.
"""

from __future__ import annotations

from tenuto.capabilities._core.blobs import Blobs, changes
from tenuto.capabilities._core.retention import Retention
from tenuto.capabilities.checkpoints.storage import Lineage, Placed
from tenuto.errors import Conflict, InvalidInput
from tenuto.kernel import codec
from tenuto.kernel.contract import Backend, Check, Delete, Put, Write
from tenuto.kernel.durations import seconds
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Sleep, Work

_AT_ONCE = 100


def to_hide(shown: list[tuple[int, float]], rule: Retention, now: float) -> list[int]:
    """Return the numbers that a rule deletes, of `shown`: numbers with times, newest first."""
    if rule == Retention():
        raise InvalidInput("Pass keep_last, older_than, hourly or daily; nothing was deleted.")
    if rule.keep_last is not None and rule.keep_last < 0:
        raise InvalidInput(f"keep_last must be at least 0, not {rule.keep_last}.")
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


def groups_of(line: Lineage) -> list[list[Placed]]:
    """Return each stored keyframe with its deltas, without payloads, in order."""
    groups: dict[int, list[Placed]] = {}
    for placed in line.all():
        groups.setdefault(placed.item.keyframe, []).append(placed.bare())
    return [*groups.values()]


def remove(kernel: Backend, line: Lineage, blobs: Blobs) -> Work[None]:
    """Delete hidden checkpoints that no visible one needs."""
    hidden = line.hidden()
    groups = groups_of(line)
    if not groups:
        return
    *older, newest = groups
    for group in older:
        if all(placed.number in hidden for placed in group):
            yield from _take(kernel, line, blobs, group)
    end = newest[-1]
    if end.item.is_end or not all(placed.number in hidden for placed in newest):
        return
    if any(placed.number not in hidden for group in older for placed in group):
        return
    # All are hidden: the last one becomes an end marker. A concurrent `create` after it gets a conflict.
    if (yield from _end(kernel, line, blobs, end)):
        yield from _take(kernel, line, blobs, newest[:-1])


def _take(kernel: Backend, line: Lineage, blobs: Blobs, group: list[Placed]) -> Work[None]:
    for start in range(0, len(group), _AT_ONCE):
        some = group[start : start + _AT_ONCE]
        for _ in range(3):
            checks, counted = blobs.counted(changes((), (one for placed in some for one in placed.item.references)))
            checks += [Check(line.key(placed.number), placed.version) for placed in some]
            writes: list[Write] = [Delete(line.key(placed.number)) for placed in some]
            writes += [Delete(line.hidden_key(placed.number)) for placed in some]
            try:
                yield from commit_once(kernel, checks, [*writes, *counted])
            except Conflict as error:
                if any(key == line.key(placed.number) for placed in some for key in error.keys):
                    return  # another process deletes the same checkpoints
                yield Sleep(0.002)  # a reference count changed: read it again
            else:
                break


def _end(kernel: Backend, line: Lineage, blobs: Blobs, last: Placed) -> Work[bool]:
    try:
        checks, counted = blobs.counted(changes((), last.item.references))
        item = last.item._replace(
            name="", meta=None, user=None, keyframe=last.number, weight=0, size=0, stored=0, digest=b"", held=[],
            payload=None, blob=None,
        )  # fmt: skip
        yield from commit_once(
            kernel,
            [Check(line.key(last.number), last.version), *checks],
            [Put(line.key(last.number), codec.encode(list(item))), Delete(line.entry), *counted],
        )
    except Conflict:
        return False
    return True
