"""Edit JSON as people write it, with comments and trailing commas: change one value, keep every other byte.

A library would have to parse and print the whole file; none on PyPI keeps comments, order and spacing of JSON. The
edits here are few: set a member of an object, append to an array, remove either. Each works on the places of the
values in the text. After each edit the text is parsed again and compared with what was meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_ATOM: Final = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_SAME_LINE: Final = re.compile(r"[ \t]*(?://[^\r\n]*|/\*[^\r\n]*?\*/)")
_DEEPEST: Final = 200
Path = Sequence[str]


class NotJson(ValueError):
    """The text is not JSON, also not with comments."""

    def __init__(self, text: str, at: int, wanted: str) -> None:
        line = text.count("\n", 0, at) + 1
        column = at - (text.rfind("\n", 0, at) + 1) + 1
        super().__init__(f"line {line}, column {column}: expected {wanted}")


class Node(NamedTuple):
    """A value and its place in the text."""

    value: Any
    start: int
    end: int
    members: list[tuple[str, int, Node]]
    """Of an object: key, place of the key, and value. Of an array: "", place, and value."""


def parse(text: str) -> Node:
    """Return the value of a text with the places of all its parts; `NotJson` if it has none."""
    at = _blank(text, 1 if text.startswith("\ufeff") else 0)
    if at == len(text):  # an empty file, or one with comments alone: an empty object at its end
        return Node({}, at, at, [])
    node = _value(text, at, 0)
    if (rest := _blank(text, node.end)) != len(text):
        raise NotJson(text, rest, "the end of the file")
    return node


def _blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()


def _value(text: str, at: int, depth: int) -> Node:
    if depth > _DEEPEST:
        raise NotJson(text, at, f"at most {_DEEPEST} levels")
    opens = text[at : at + 1]
    if opens in ("{", "["):
        return _many(text, at, depth, is_object=opens == "{")
    if opens == '"':
        shown, end = _string(text, at)
        return Node(shown, at, end, [])
    found = _ATOM.match(text, at)
    if found is None:
        raise NotJson(text, at, "a value")
    return Node(json.loads(found[0]), at, found.end(), [])


def _string(text: str, at: int) -> tuple[str, int]:
    found = _STRING.match(text, at)
    if found is None:
        raise NotJson(text, at, "a string")
    try:
        return str(json.loads(found[0])), found.end()
    except ValueError:
        raise NotJson(text, at, "a string") from None


def _many(text: str, start: int, depth: int, *, is_object: bool) -> Node:
    """Return an object or an array; a comma after its last part is allowed."""
    closes = "}" if is_object else "]"
    parts: list[tuple[str, int, Node]] = []
    at = _blank(text, start + 1)
    while text[at : at + 1] != closes:
        place, key = at, ""
        if is_object:
            key, at = _string(text, at)
            at = _blank(text, at)
            if text[at : at + 1] != ":":
                raise NotJson(text, at, "a colon")
            at = _blank(text, at + 1)
        node = _value(text, at, depth + 1)
        parts.append((key, place, node))
        at = _blank(text, node.end)
        if text[at : at + 1] == ",":
            at = _blank(text, at + 1)
        elif text[at : at + 1] != closes:
            raise NotJson(text, at, f"a comma or {closes}")
    value: Any = {key: node.value for key, _, node in parts} if is_object else [node.value for _, _, node in parts]
    return Node(value, start, at + 1, parts)


# -- edits -------------------------------------------------------------------------------------------------------------


def put(text: str, path: Path, value: Any) -> str:
    """Return the text with a member set, and the objects around it created; unchanged if it has this value."""
    node, depth = _nearest(parse(text), path)
    if depth == len(path):
        return text if node.value == value else _replaced(text, node, value, depth)
    for key in reversed(path[depth + 1 :]):
        value = {key: value}
    return _inserted(text, node, value, depth, key=path[depth])


def append(text: str, path: Path, value: Any, is_own: Callable[[Any], bool]) -> str:
    """Return the text with a value in the array at a path: in place of an own one, else at its end."""
    node, depth = _nearest(parse(text), path)
    if depth < len(path):
        return put(text, path, [value])
    if not isinstance(node.value, list):
        raise NotJson(text, node.start, f"an array for {'.'.join(path)}")
    own = [one for _, _, one in node.members if is_own(one.value)]
    if not own:
        return _inserted(text, node, value, depth)
    return text if own[0].value == value else _replaced(text, own[0], value, depth + 1)


def remove(text: str, path: Path, is_own: Callable[[Any], bool] | None = None) -> str:
    """Return the text without a member, or without the own values of an array; what is then empty goes too."""
    node, depth = _nearest(parse(text), path)
    if depth < len(path):
        return text
    if is_own is not None:
        own = [one for one in node.members if is_own(one[2].value)]
        if not own:
            return text
        if len(own) < len(node.members):
            return remove(_without(text, node, own[0]), path, is_own)
    around, _ = _nearest(parse(text), path[:-1])
    if len(around.members) == 1 and len(path) > 1:
        return remove(text, path[:-1])
    return _without(text, around, next(one for one in reversed(around.members) if one[0] == path[-1]))


def _nearest(node: Node, path: Path) -> tuple[Node, int]:
    """Return the value at a path, or the last one on the way that is there, and how far it is."""
    for depth, key in enumerate(path):
        if not isinstance(node.value, dict):
            raise ValueError(f"{'.'.join(path[:depth]) or 'the file'} is not an object")  # noqa: TRY004 - of the file
        inner = next((one for name, _, one in reversed(node.members) if name == key), None)
        if inner is None:
            return node, depth
        node = inner
    return node, len(path)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _step(text: str) -> str:
    """Return the indentation of one level."""
    found = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return "  " if found is None else "\t" if found[1][0] == "\t" else found[1]


def _printed(text: str, value: Any, depth: int) -> str:
    return "".join(_lines(value, _newline(text), _step(text), depth))


def _lines(value: Any, newline: str, step: str, depth: int) -> Iterator[str]:
    """Yield a value as JSON with a line for each member; an array of plain values stays in one line."""
    is_object = isinstance(value, dict)
    parts = [(f"{json.dumps(key, ensure_ascii=False)}: ", one) for key, one in value.items()] if is_object else []
    if isinstance(value, list) and any(isinstance(one, dict | list) for one in value):
        parts = [("", one) for one in value]
    if not parts:
        yield json.dumps(value, ensure_ascii=False)
        return
    yield "{" if is_object else "["
    for number, (key, one) in enumerate(parts):
        yield ("," if number else "") + newline + step * (depth + 1) + key
        yield from _lines(one, newline, step, depth + 1)
    yield newline + step * depth + ("}" if is_object else "]")


def _replaced(text: str, node: Node, value: Any, depth: int) -> str:
    return text[: node.start] + _printed(text, value, depth) + text[node.end :]


def _inserted(text: str, node: Node, value: Any, depth: int, key: str | None = None) -> str:
    """Return the text with a value at the end of an object or an array."""
    newline, step = _newline(text), _step(text)
    shown = ("" if key is None else json.dumps(key, ensure_ascii=False) + ": ") + _printed(text, value, depth + 1)
    if node.start == node.end:  # no value yet
        gap = newline if text and not text.endswith("\n") else ""
        return f"{text}{gap}{{{newline}{step}{shown}{newline}}}{newline}"
    indent = newline + step * (depth + 1)
    if not node.members:
        inner = text[node.start + 1 : node.end - 1]
        closing = "" if "\n" in inner else newline + step * depth
        if inner.strip():  # a comment, which may end with the line
            return f"{text[: node.end - 1].rstrip()}{indent}{shown}{newline + step * depth}{text[node.end - 1 :]}"
        return text[: node.start + 1] + indent + shown + closing + inner + text[node.end - 1 :]
    last = node.members[-1][2].end
    after = _blank(text, last)
    trailing = text[after] == ","  # then keep the style
    start = after + 1 if trailing else last
    found = _SAME_LINE.match(text, start)  # a comment in the line of the last part belongs to it
    end = start if found is None else found.end()
    gap = " " if "\n" not in text[node.start : node.end] else indent
    comma = "" if trailing else ","
    return f"{text[:start]}{comma}{text[start:end]}{gap}{shown}{',' if trailing else ''}{text[end:]}"


def _without(text: str, node: Node, one: tuple[str, int, Node]) -> str:
    """Return the text without a part of an object or an array, and without its comma."""
    at = next(index for index, other in enumerate(node.members) if other[1] == one[1])
    end = one[2].end
    after = _blank(text, end)
    comma = after + 1 if text[after : after + 1] == "," else None
    if at > 0:
        before = _blank(text, node.members[at - 1][2].end)
        if comma is None:  # the last part: the comma before it goes
            kept = text[before + 1 : one[1]].rstrip()
            return text[:before] + kept + text[end:]
        return text[: before + 1] + text[before + 1 : one[1]].rstrip() + text[comma:]
    return text[: node.start + 1] + text[node.start + 1 : one[1]].rstrip() + text[end if comma is None else comma :]
