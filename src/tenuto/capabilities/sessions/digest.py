"""The digest of a progress document: what the next session needs, within a limit of bytes. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from tenuto.capabilities.sessions.markdown import ProgressItem, Reasoned
from tenuto.errors import InvalidInput

if TYPE_CHECKING:
    from tenuto.capabilities.sessions.progress import ProgressInfo

_LEAST: Final = 200
_LIST: Final = 5
"""The entries of a list that are shown if there is room."""


def digest(info: ProgressInfo, questions: Sequence[str], memories: Sequence[str], limit: int) -> str:
    """Return the digest as Markdown of at most `limit` bytes, the most important parts first."""
    must_have_room(limit)
    done = [one for one in info.items if one.done]
    parts: list[tuple[str, list[str | None]]] = [
        ("Goal", [info.goal]),
        ("Blocker", [info.blocker]),
        ("Next action", [info.next_action]),
        (f"Open ({len(info.open)} of {len(info.items)})", [_open(one) for one in info.open]),
        (f"Done ({len(done)} of {len(info.items)}), newest first", [_done(one) for one in reversed(done)]),
        ("Open questions", [*questions]),
        ("Decisions", [_reasoned(one) for one in info.decisions]),
        ("Ruled out", [_reasoned(one) for one in info.ruled_out]),
        ("Context", [f"{key}: {value}" for key, value in info.context.items()]),
        ("Memories", [*memories]),
    ]
    text = _cut(f"# Progress: {info.name}\n", limit)
    for heading, given in parts:
        entries = [one for one in given if one]
        if entries:
            text += _part(heading, entries, limit - _size(text))
    return text


def must_have_room(limit: int) -> None:
    """Raise `InvalidInput` unless a digest may have enough bytes."""
    if type(limit) is not int or limit < _LEAST:
        raise InvalidInput(f"limit must be at least {_LEAST} bytes, not {limit!r:.80}.")


def _part(heading: str, entries: Sequence[str], room: int) -> str:
    """Return a heading with as many entries as there is room for, none without an entry.

    Each entry is one line: a line of a memory must not pass for the next action.
    """
    entries = [" ".join(one.split()) for one in entries]
    alone = not heading.startswith(("Open", "Done", "Decisions", "Ruled", "Context", "Memories"))
    if alone:
        head = f"{heading}: "
        rest = room - _size(head) - 1
        return "" if rest < 20 else head + _cut(entries[0], rest) + "\n"
    text, shown = f"{heading}:\n", 0
    for one in entries[:_LIST]:
        more = len(entries) - shown - 1
        line = f"- {_cut(one, 240)}\n"
        tail = f"- … {more} more\n" if more else ""
        if _size(text) + _size(line) + _size(tail) > room:
            break
        text += line
        shown += 1
    left = len(entries) - shown
    return "" if not shown else text + (f"- … {left} more\n" if left else "")


def _open(one: ProgressItem) -> str:
    return f"{one.number}. {one.text}" + (f" (test: {one.test})" if one.test else "")


def _done(one: ProgressItem) -> str:
    return f"{one.number}. {one.text}" + (f" (evidence: {one.evidence})" if one.evidence else " (no evidence)")


def _reasoned(one: Reasoned) -> str:
    return one.text if one.why is None else f"{one.text} (why: {one.why})"


def _cut(text: str, size: int) -> str:
    """Return a text of at most `size` bytes, cut between characters."""
    raw = text.encode()
    return text if len(raw) <= size else raw[: max(size - 3, 0)].decode(errors="ignore") + "…"


def _size(text: str) -> int:
    return len(text.encode())
