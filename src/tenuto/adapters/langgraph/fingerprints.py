"""Whether a long list of messages is still what it was, without encoding it.

A `Marks` remembers of each message its class and a copy of its fields. What is text, nothing or empty is compared
as it is, which looks at identities first. Anything else, such as numbers and nested data, may be equal and yet not
the same (1, 1.0 and True), or be edited in place and still be the same object: its encoding is remembered as well,
per run of messages, without the texts around it. So an edit is found wherever it is made. 2,000 messages that nobody
has touched take half a millisecond where the processor has them at hand, and two or three where it has not.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

from tenuto.errors import NotStorable
from tenuto.kernel import codec
from tenuto.kernel.tree import RUN

_NO_DICT: Final[dict[str, Any]] = {}
_NO_LIST: Final[list[Any]] = []
"""What stands for every empty one: one object is nearer at hand than thousands."""

_fields_of = operator.attrgetter("__dict__")
_extra_of = operator.attrgetter("__pydantic_extra__")


class Marks:
    """What a list of messages was: it `fits` one that is stored as the same bytes, and no other."""

    __slots__ = ("_deep", "_extra", "_fields", "_types", "count")

    def __init__(self, messages: list[Any], before: Marks | None = None, kept: int = 0) -> None:
        """Remember messages. The first so many are `kept`: they fit what was remembered `before`."""
        if before is None:
            self._fields: list[dict[str, Any]] = []
            self._types: list[type[Any]] = []
            self._deep: dict[int, tuple[list[tuple[int, str]], bytes]] = {}
            self._extra: set[int] = set()
        else:
            whole = kept // RUN
            self._fields = before._fields[:kept]
            self._types = before._types[:kept]
            self._deep = {number: deep for number, deep in before._deep.items() if number < whole}
            self._extra = {number for number in before._extra if number < whole}
        self.count = len(messages)
        self._types += map(type, messages[kept:])
        self._fields += map(_copied, map(_fields_of, messages[kept:]))
        for at in range(kept // RUN * RUN, self.count, RUN):
            self._look_deeper(at // RUN, messages[at : at + RUN])

    def _look_deeper(self, number: int, run: list[Any]) -> None:
        """Remember the encoding of what a run has beyond texts."""
        start = number * RUN
        spots = [
            (at, name)
            for at, fields in enumerate(self._fields[start : start + RUN])
            for name, value in fields.items()
            if not (type(value) is str or value is None or value is _NO_DICT or value is _NO_LIST)
        ]
        if any(map(_extra_of, run)):
            self._extra.add(number)
        if spots or number in self._extra:
            self._deep[number] = spots, self._encoding(number, spots, run)

    def _encoding(self, number: int, spots: list[tuple[int, str]], run: Sequence[Any]) -> bytes:
        values = [run[at].__dict__[name] for at, name in spots]
        return codec.fast_pack([values, list(map(_extra_of, run)) if number in self._extra else None])

    def fitting(self, messages: list[Any]) -> list[bool]:
        """Tell of each run that is remembered whether a list has it, in its place and also within its messages."""
        runs = range(0, self.count, RUN)
        if self.fits(messages if len(messages) == self.count else messages[: self.count]):
            return [True] * len(runs)
        return [self._fit(messages[at : min(at + RUN, self.count)], at) for at in runs]

    def fits(self, messages: list[Any]) -> bool:
        """Tell whether a list is what was remembered, also within its messages."""
        return self._fit(messages, 0, whole=True)

    def _fit(self, part: list[Any], start: int, *, whole: bool = False) -> bool:
        """Tell whether a part of a list, one run of it or all, is what was remembered from a place on."""
        end = self.count if whole else min(start + RUN, self.count)
        types, fields = (self._types, self._fields) if whole else (self._types[start:end], self._fields[start:end])
        if len(part) != end - start or list(map(type, part)) != types:
            return False
        try:
            if list(map(_fields_of, part)) != fields:
                return False
        except Exception:  # noqa: BLE001 - a program's own `==` may raise anything; encoding tells then
            return False
        if not self._extra and any(map(_extra_of, part)):
            return False
        return not (self._deep or self._extra) or self._fit_deep(part, start // RUN, (end + RUN - 1) // RUN)

    def _fit_deep(self, part: list[Any], first: int, last: int) -> bool:
        """Tell whether what the runs of a part have beyond texts is what was remembered."""
        for number in range(first, last):
            run = part[(number - first) * RUN : (number - first + 1) * RUN]
            if number not in self._extra and any(map(_extra_of, run)):
                return False
            if number not in self._deep:
                continue
            spots, packed = self._deep[number]
            try:
                if self._encoding(number, spots, run) != packed:
                    return False
            except NotStorable:
                return False  # what is there now cannot be stored; what was remembered could
        return True


def _copied(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields to compare with: the empty dicts and lists of a message may be filled, so they are not its own."""
    return {
        name: value
        if value or value is None or type(value) is str
        else _NO_DICT
        if type(value) is dict
        else _NO_LIST
        if type(value) is list
        else value
        for name, value in fields.items()
    }
