"""Three-way merge of lines: the changes of two sides, each made to the same base. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple


class Overlap(Exception):
    """Both sides changed the same lines, differently."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__(f"both sides changed lines {first} to {last}")
        self.first, self.last = first, last


class _Edit(NamedTuple):
    start: int
    end: int
    lines: list[str]


def merge(base: Sequence[str], ours: Sequence[str], theirs: Sequence[str]) -> list[str]:
    """Return the base with the changes of both sides; raise `Overlap` if they contradict each other.

    Lines that both sides insert at one place are all kept, ours first.
    """
    left, right = _edits(base, ours), _edits(base, theirs)
    merged: list[str] = []
    at = 0
    while left or right:
        edit = _next(left, right)
        merged += base[at : edit.start]
        merged += edit.lines
        at = edit.end
    return [*merged, *base[at:]]


def _next(left: list[_Edit], right: list[_Edit]) -> _Edit:
    """Take the next edit of either side; equal edits of both sides are one."""
    if not left or not right:
        return (left or right).pop(0)
    mine, other = left[0], right[0]
    if mine == other:
        right.pop(0)
        return left.pop(0)
    if mine.end <= other.start and (mine.start, mine.end) <= (other.start, other.end):
        return left.pop(0)
    if other.end <= mine.start:
        return right.pop(0)
    raise Overlap(min(mine.start, other.start) + 1, max(mine.end, other.end))


def _edits(base: Sequence[str], side: Sequence[str]) -> list[_Edit]:
    codes = SequenceMatcher(None, base, side, autojunk=False).get_opcodes()
    return [_Edit(i1, i2, list(side[j1:j2])) for tag, i1, i2, j1, j2 in codes if tag != "equal"]
