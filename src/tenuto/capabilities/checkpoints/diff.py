"""Differences between two states, as a list or as an RFC 6902 patch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple


class Difference(NamedTuple):
    """One difference. Indices in `path` are valid once all earlier differences are applied."""

    path: tuple[str | int, ...]
    kind: Literal["added", "removed", "changed"]
    old: Any
    new: Any


class Changes(list[Difference]):
    """Differences, in an order in which they can be applied."""

    def as_json_patch(self) -> list[dict[str, Any]]:
        """Return the differences as an RFC 6902 patch."""
        words = {"added": "add", "removed": "remove", "changed": "replace"}
        patch: list[dict[str, Any]] = []
        for change in self:
            operation: dict[str, Any] = {"op": words[change.kind], "path": _pointer(change.path)}
            if change.kind != "removed":
                operation["value"] = change.new
            patch.append(operation)
        return patch


def compare(old: Any, new: Any) -> Changes:
    """Return the differences from `old` to `new`; types count, so 1, 1.0 and True differ."""
    return Changes(_compared((), old, new))


def _compared(path: tuple[str | int, ...], old: Any, new: Any) -> Iterator[Difference]:
    if type(old) is dict and type(new) is dict:
        for key in old:
            if key not in new:
                yield Difference((*path, key), "removed", old[key], None)
        for key, value in new.items():
            if key not in old:
                yield Difference((*path, key), "added", None, value)
            else:
                yield from _compared((*path, key), old[key], value)
    elif type(old) is list and type(new) is list:
        yield from _compared_lists(path, old, new)
    elif not same(old, new):
        yield Difference(path, "changed", old, new)


def _compared_lists(path: tuple[str | int, ...], old: list[Any], new: list[Any]) -> Iterator[Difference]:
    start, shorter = 0, min(len(old), len(new))
    while start < shorter and same(old[start], new[start]):
        start += 1
    end = 0
    while end < shorter - start and same(old[-1 - end], new[-1 - end]):
        end += 1
    left, right = old[start : len(old) - end], new[start : len(new) - end]
    both = min(len(left), len(right))
    for at in range(both):
        yield from _compared((*path, start + at), left[at], right[at])
    for at in range(len(left) - 1, both - 1, -1):  # from the end: earlier indices stay valid
        yield Difference((*path, start + at), "removed", left[at], None)
    for at in range(both, len(right)):
        yield Difference((*path, start + at), "added", None, right[at])


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal and of equal types, recursively."""
    if type(a) is not type(b):
        return False
    if type(a) is dict:
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    if type(a) in (list, tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def _pointer(path: tuple[str | int, ...]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)
