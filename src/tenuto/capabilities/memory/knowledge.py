"""Knowledge from files: Markdown by heading, any other text by paragraph."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tenuto.capabilities.memory.records import MAX_TEXT
from tenuto.errors import InvalidInput

Files = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One file or pattern, or several."""
_HEADING: Final = re.compile(r"^#{1,6}\s+(.+?)\s*#*$")
_FENCE: Final = re.compile(r"^\s*(?:```|~~~)")
_LONG: Final = 4_000
_MARKDOWN: Final = (".md", ".markdown", ".mdx")


class Piece(NamedTuple):
    """A part of a file."""

    file: str
    heading: str | None
    text: str


class Loaded(NamedTuple):
    """What a `load` changed."""

    files: int
    added: int
    unchanged: int
    removed: int
    """Pieces that changed or vanished, with what replaces them counted as added."""


def files_of(patterns: Files) -> list[str]:
    """Return the files that match; `InvalidInput` for a pattern that matches none."""
    found: dict[str, None] = {}
    given = _each(patterns)
    if not given:
        raise InvalidInput('load needs at least one file or pattern, such as "policies/*.md".')
    for pattern in given:
        hits = sorted(path for path in glob.glob(pattern, recursive=True) if Path(path).is_file())  # noqa: PTH207 - it takes absolute patterns
        if not hits:
            raise InvalidInput(f"No file matches {pattern!r}; nothing was loaded. Check the path.")
        found.update(dict.fromkeys(hits))
    return list(found)


def is_of(file: str, patterns: Files, names: Iterable[str]) -> bool:
    """Return whether a file was loaded by these patterns, now or before it vanished."""
    return file in {Path(name).as_posix() for name in names} or any(
        fnmatch.fnmatch(file, Path(pattern).as_posix()) for pattern in _each(patterns)
    )


def _each(patterns: Files) -> list[str]:
    given: list[object] = [patterns]
    if isinstance(patterns, Iterable) and not isinstance(patterns, str):
        given = list(patterns)
    found = [str(os.fspath(one)) for one in given if isinstance(one, str | os.PathLike)]
    if len(found) < len(given):
        raise InvalidInput(f'load takes files and patterns, such as ["policies/*.md"]; not {patterns!r:.80}.')
    return found


def pieces_of(file: str) -> list[Piece]:
    """Return the parts of a file; `InvalidInput` if it cannot be read as text."""
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read ({error.strerror}); nothing was loaded.") from error
    except UnicodeDecodeError:
        raise InvalidInput(f"{file} is not UTF-8 text; nothing was loaded. Convert it first.") from None
    if "\x00" in text:
        raise InvalidInput(f"{file} holds binary data; nothing was loaded. Leave it out of the pattern.")
    name = path.as_posix()
    if path.suffix.lower() in _MARKDOWN:
        sections = _sections(text)
    else:
        sections = ((None, part) for part in re.split(r"\n\s*\n", text))
    return [Piece(name, heading, piece) for heading, body in sections for piece in _cut(body.strip()) if piece.strip()]


def _sections(text: str) -> Iterator[tuple[str | None, str]]:
    """Yield the headings of a Markdown text, each with what stands below it."""
    heading: str | None = None
    lines: list[str] = []
    fenced = False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        found = None if fenced else _HEADING.match(line)
        if found is None:
            lines.append(line)
            continue
        yield heading, "\n".join(lines)
        heading, lines = found[1], []
    yield heading, "\n".join(lines)


def _cut(text: str) -> Iterator[str]:
    """Yield a long text in parts, cut at paragraphs where there are any."""
    rest = text
    while len(rest) > _LONG:
        at = rest.rfind("\n\n", 0, _LONG)
        at = at if at > 0 else rest.rfind(" ", 0, _LONG)
        at = at if at > 0 else min(_LONG, MAX_TEXT)
        yield rest[:at].strip()
        rest = rest[at:].strip()
    yield rest
