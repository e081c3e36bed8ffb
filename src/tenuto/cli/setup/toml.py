"""Edit TOML by appending or cutting out one table. Every other byte stays.

The result is parsed by `tomllib` and compared with what was meant, so that no file is written that another program would
read differently.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, Final

_HEADER: Final = re.compile(r"[ \t]*\[")


def parse(text: str) -> dict[str, Any]:
    """Return the data of a text; `ValueError` if it is not TOML."""
    return tomllib.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))


def put(text: str, path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return the text with a table at its end; unchanged if it has it."""
    wanted = parse(text)
    known = _at(wanted, path)
    if known is not None and {**known, **table} == known:
        return text
    if known is not None:  # a table of an earlier version: its own settings stay
        table = {**known, **table}
        text = remove(text, path)
    newline = "\r\n" if "\r\n" in text else "\n"
    lines = [
        f"[{'.'.join(path)}]",
        *(f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()),
    ]
    gap = "" if not text.strip() else newline if text.endswith("\n") else newline * 2
    changed = text + gap + newline.join(lines) + newline
    inner: Any = wanted
    for key in path[:-1]:
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{key} is not a table")  # noqa: TRY004 - of the file
    inner[path[-1]] = dict(table)
    return _checked(changed, wanted, path)


def remove(text: str, path: Sequence[str]) -> str:
    """Return the text without a table and the tables inside it."""
    wanted = parse(text)
    if _at(wanted, path) is None:
        return text
    lines = text.splitlines(keepends=True)
    own = re.compile(
        r"[ \t]*\[+[ \t]*" + r"[ \t]*\.[ \t]*".join(f'"?{re.escape(one)}"?' for one in path) + r"[ \t]*[\].]"
    )
    kept: list[str] = []
    between: list[str] = []  # blank lines and comments at the end of the table: they belong to the next one
    inside = False
    for line in lines:
        if _HEADER.match(line):
            was, inside = inside, own.match(line) is not None
            if was and not inside:
                kept += between
            if inside and not was and kept and not kept[-1].strip():  # the blank line before it
                kept.pop()
        if not inside:
            kept.append(line)
        between = [*between, line] if not line.strip() or line.lstrip().startswith("#") else []
    inner: Any = wanted
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    if not inner and len(path) > 1:
        wanted.pop(path[0], None)
    return _checked("".join(kept), wanted, path)


def _at(data: Any, path: Sequence[str]) -> dict[str, Any] | None:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else None


def _checked(text: str, wanted: dict[str, Any], path: Sequence[str]) -> str:
    try:
        found = parse(text)
    except ValueError:
        found = None
    if found is None or {**found, path[0]: found.get(path[0], {})} != {**wanted, path[0]: wanted.get(path[0], {})}:
        raise ValueError(f"{path[0]} is written in a form that cannot be edited safely, such as an inline table")
    return text
