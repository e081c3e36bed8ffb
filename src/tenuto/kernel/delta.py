"""Compute the difference between two trees as plain data, and apply it.

The delta of a dict lists the removed keys and the changes of the others. The delta of a list is a sequence of
steps that copy runs of old elements and add new ones. So an append, an edit in place, an insertion or a trim
at the front costs only what is new.
"""

from __future__ import annotations

from typing import Any, Final

import ormsgpack

from tenuto.errors import Damaged
from tenuto.kernel import codec
from tenuto.kernel.tree import RUN, WIDE, Elements, Fields, Node, Piece, Run, array_head, count_of, without_head

_SET: Final = 0
_DICT: Final = 1
_LIST: Final = 2


def change(old: Node, new: Node) -> list[Any] | None:
    """Return the delta from `old` to `new` as plain data, or None if they are equal."""
    if old is new or old.digest == new.digest:
        return None
    if type(old) is Fields and type(new) is Fields:
        return _change_fields(old, new)
    if type(old) is Elements and type(new) is Elements:
        return [_LIST, _program(old, new)]
    return [_SET, b"".join(new.pieces())]


def _change_fields(old: Fields, new: Fields) -> list[Any]:
    gone = [name for name in old.of if name not in new.of]
    changed = []
    for name, node in new.of.items():
        before = old.of.get(name)
        if before is None:
            changed.append([name, [_SET, b"".join(node.pieces())]])
        elif before is not node and (how := change(before, node)) is not None:
            changed.append([name, how])
    left = [name for name in old.of if name in new.of] + [name for name in new.of if name not in old.of]
    order = list(new.of)
    return [_DICT, gone, changed, order if order != left else None]


def _program(old: Elements, new: Elements) -> list[Any]:
    """Return a list's delta as steps: [from, count] copies, bytes add, [from, [change]] copies and changes."""
    same, longer = _matched(old, new)
    steps: list[Any] = []
    other = _Search(old, same | longer.keys())
    for number, run in enumerate(new.runs):
        start = number * RUN
        if number in same:
            _copy(steps, start, min(RUN, new.count - start))
            other.expected = start + RUN
        elif number in longer:
            _copy(steps, start, min(RUN, old.count - start))
            steps.append(longer[number])
        else:
            _find(steps, other, run, start)
    return [_joined_step(step) for step in steps]


def _matched(old: Elements, new: Elements) -> tuple[set[int], dict[int, bytes]]:
    """Return the runs that are equal, and those that only gained elements at their end, with the added elements."""
    same: set[int] = set()
    longer: dict[int, bytes] = {}
    for number, (before, run) in enumerate(zip(old.runs, new.runs, strict=False)):
        if _equal(before, run):
            same.add(number)
        elif (added := _added(before, run)) is not None:
            longer[number] = added
    return same, longer


class _Search:
    """An index of the old elements outside of the runs that matched as a whole."""

    def __init__(self, old: Elements, matched: set[int]) -> None:
        self.old = old
        self.where: dict[bytes, int] = {}
        self.keys: dict[int, bytes] = {}
        self.copied: set[int] = set()
        self.expected = 0
        """The position after the last copied element: the likeliest next match."""
        for number, run in enumerate(old.runs):
            if number not in matched:
                for at, (key, _) in enumerate(_elements(run), number * RUN):
                    self.where.setdefault(key, at)
                    self.keys[at] = key

    def find(self, key: bytes) -> int | None:
        """Return the old position of an element, or None."""
        found = self.expected if self.keys.get(self.expected) == key else self.where.get(key)
        if found is not None:
            self.copied.add(found)
            self.expected = found + 1
        return found


def _find(steps: list[Any], other: _Search, run: Piece | Run, start: int) -> None:
    """Add the steps for a run: each element is copied, changed from the old one at its position, or new."""
    for at, (key, node) in enumerate(_elements(run), start):
        found = other.find(key)
        if found is not None:
            _copy(steps, found, 1)
            continue
        edit = None if at in other.copied else _edit(other, at, node)
        if edit is not None:
            steps.append([at, edit])
            other.expected = at + 1
        elif steps and type(steps[-1]) is list and type(steps[-1][0]) is bytes:
            steps[-1].append(_data(node, key))
        else:
            steps.append([_data(node, key)])


def _added(old: Piece | Run, new: Piece | Run) -> bytes | None:
    """Return what a run gained at its end if nothing else changed, which is the most common change."""
    if type(old) is not Piece or type(new) is not Piece:
        return None
    before, after = without_head(old.data), without_head(new.data)
    if not after.startswith(before):
        return None
    return array_head(count_of(new.data) - count_of(old.data)) + after[len(before) :]


def _equal(old: Piece | Run, new: Piece | Run) -> bool:
    return old is new or (type(old) is type(new) and old.digest == new.digest and old.size == new.size)


def _elements(run: Piece | Run) -> list[tuple[bytes, Node | None]]:
    """Return the identity of each element, and its tree if it has one."""
    if type(run) is Run:
        # By its bytes if it may have been part of one piece before; no encoding begins with 0xc1.
        return [(b"".join(node.pieces()) if node.size <= WIDE else b"\xc1" + node.digest, node) for node in run.of]
    return [(ormsgpack.packb(element), None) for element in codec.unpack_plain(run.data)]  # type: ignore[union-attr]


def _edit(other: _Search, at: int, node: Node | None) -> list[Any] | None:
    """Return the delta of a large element from the old one at its position, if that one is not copied elsewhere."""
    if node is None or at >= other.old.count:
        return None
    run = other.old.runs[at // RUN]
    if type(run) is not Run:
        return None
    before = run.of[at % RUN]
    if type(before) is Piece or type(before) is not type(node) or at not in other.keys:
        return None
    other.where.pop(other.keys.pop(at), None)
    return change(before, node)


def _copy(steps: list[Any], start: int, count: int) -> None:
    last = steps[-1] if steps else None
    if type(last) is list and type(last[0]) is int and type(last[1]) is int and last[0] + last[1] == start:
        last[1] += count
    else:
        steps.append([start, count])


def _data(node: Node | None, key: bytes) -> bytes:
    return key if node is None else b"".join(node.pieces())


def _joined_step(step: Any) -> Any:
    if type(step) is bytes:
        return step
    return array_head(len(step)) + b"".join(step) if type(step[0]) is bytes else step


# -- applying a delta ------------------------------------------------------------------------------


def apply(plain: Any, how: list[Any]) -> Any:
    """Apply a delta to a state of plain data and return the result. The state may be changed in place."""
    try:
        return _apply(plain, how)
    except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
        raise Damaged(f"A stored delta does not fit its base ({error!r}). Restore it from a backup.") from error


def _apply(plain: Any, how: list[Any]) -> Any:
    kind = how[0]
    if kind == _SET:
        return codec.unpack_plain(how[1])
    if kind == _LIST:
        return _follow(plain, how[1])
    if kind != _DICT:
        raise ValueError(f"unknown delta kind {kind}")
    _, gone, changed, order = how
    for name in gone:
        del plain[name]
    for name, inner in changed:
        plain[name] = _apply(plain.get(name), inner)
    return plain if order is None else {name: plain[name] for name in order}


def _follow(plain: list[Any], program: list[Any]) -> list[Any]:
    out: list[Any] = []
    mark = 0  # no element from here on was copied yet
    for step in program:
        if type(step) is bytes:
            out += codec.unpack_plain(step)
            continue
        start, what = step
        if type(what) is list:
            out.append(_apply(plain[start], what))
            continue
        end = start + what
        if not 0 <= start <= end <= len(plain):
            raise IndexError("elements out of range")
        # An element that is copied a second time is cloned, because a later change may edit one of the two.
        out += plain[start:end] if start >= mark else [_again(element) for element in plain[start:end]]
        mark = max(mark, end)
    return out


def _again(plain: Any) -> Any:
    return codec.unpack_plain(ormsgpack.packb(plain)) if type(plain) in (dict, list) else plain
