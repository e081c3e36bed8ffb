"""Import what agents noted elsewhere: the graph of the reference memory server, and progress files of coding agents.

The sources are only read. A memory that is known already is not stored twice and a progress file is merged by lines, so an
interrupted import is repeated safely.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from tenuto.capabilities.memory import TRUST, new
from tenuto.capabilities.sessions import ProgressInfo
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, NotFound, NotStorable
from tenuto.kernel.work import perform

NOTES: Final = ("claude-progress.txt", "claude-progress.md")
FEATURES: Final = "feature_list.json"
_NEXT: Final = re.compile(
    r"^[ \t#*-]*next(?: steps?| actions?| session| up)?[ \t*]*[:-][ \t*]*(?P<rest>.*)$", re.IGNORECASE | re.MULTILINE
)
_BULLET: Final = re.compile(r"^[ \t]*(?:[-*+]|\d+[.)])[ \t]+(?:\[[ ]\][ \t]+)?(.+)$")


class Skipped(NamedTuple):
    """A line that is no part of a graph."""

    line: int
    why: str


class Graph(NamedTuple):
    """The result of importing a graph."""

    file: str
    memories: int
    """Statements in the source; all of them are in the store."""
    new: int
    """How many of them were not known."""
    skipped: list[Skipped]


def memory_graph(agent: Tenuto, path: Path, *, user: str | None = None) -> Graph:
    """Store the observations and relations of a memory server's file as memories, with the trust of a model.

    A line that cannot be read, and a statement that cannot be stored, is skipped and reported; the others are imported.
    """
    skipped: list[Skipped] = []
    known: set[tuple[str, str]] = set()
    fresh = 0
    for number, about, text in _statements(_text(path), skipped):
        if (about, text) in known:
            continue
        try:
            given = new(text, trust=TRUST["model"], user=user, about=about)
            memory = perform(agent.memory._remembering(given), agent.clock)
        except (InvalidInput, NotStorable) as error:
            skipped.append(Skipped(number, str(error)[:200]))
        else:
            known.add((about, text))
            fresh += not memory.duplicate
    return Graph(str(path), len(known), fresh, sorted(skipped))


def _statements(text: str, skipped: list[Skipped]) -> Iterator[tuple[int, str, str]]:
    """Yield what a graph says: the number of the line, the subject and a statement about it."""
    for number, line in enumerate(text.split("\n"), start=1):  # a text may have other line separators
        if not line.strip():
            continue
        try:
            about, said = _of_line(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            skipped.append(Skipped(number, f"{type(error).__name__}: {error}"[:200]))
            continue
        for one in said:
            try:
                yield number, about, _word(one)
            except ValueError as error:
                skipped.append(Skipped(number, f"{type(error).__name__}: {error}"[:200]))


def _of_line(one: Any) -> tuple[str, list[Any]]:
    if one["type"] == "entity":
        name = _word(one["name"])
        kind = one.get("entityType")
        return name, [*([f"{name} is of the type {_word(kind)}"] if kind else []), *(one.get("observations") or [])]
    if one["type"] == "relation":
        start, end, relation = _word(one["from"]), _word(one["to"]), _word(one["relationType"])
        return start, [f"{start} {relation.replace('_', ' ')} {end}"]
    raise ValueError(f"the type {one['type']!r} is neither entity nor relation")


def _word(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, not {value!r:.60}")
    return value.strip()


def claude_progress(agent: Tenuto, place: Path, name: str | None = None) -> ProgressInfo:
    """Store a folder's `claude-progress.txt` and `feature_list.json`, or one of them, as a progress document; return it.

    The text stays as a whole, features become items, and what the notes name as next becomes the next action.
    """
    folder = place if place.is_dir() else place.parent
    found = [folder / one for one in (*NOTES, FEATURES)] if place.is_dir() else [place]
    files = [one for one in found if one.is_file()]
    if not files:
        raise NotFound(f"{place} has neither {NOTES[0]} nor {FEATURES}. Nothing was imported; check the path.")
    name = name or folder.resolve().name
    document = agent.progress(name)
    for one in files:
        agent.read_progress(one, name)
        if one.suffix != ".json" and document.get().next_action is None and (action := _next(_text(one))):
            document.next(action)
    return document.get()


def _next(text: str) -> str | None:
    """Return what notes name last as the next thing to do: in the line itself, or in the first item below it."""
    last: str | None = None
    for found in _NEXT.finditer(text):
        rest = found["rest"].strip().strip("*").strip()
        if not rest:
            below = next((line for line in text[found.end() :].splitlines() if line.strip()), "")
            item = _BULLET.match(below)
            rest = item[1].strip() if item else ""
        last = rest or last
    return last


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise NotFound(f"There is no file {str(path)!r}. Nothing was imported.") from None
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a folder. Name the file; nothing was imported.") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path} is not UTF-8 text: {error}. Nothing was imported; convert it first.") from error
