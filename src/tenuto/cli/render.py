"""Render results for a terminal: tables, records, conversations, differences."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from tenuto.kernel import codec
from tenuto.kernel.unregistered import Unregistered
from tenuto.operations.jsonable import jsonable

_STATUS: Final = {
    "completed": "green",
    "passed": "green",
    "answered": "green",
    "running": "cyan",
    "queued": "cyan",
    "waiting": "yellow",
    "pending": "yellow",
    "interrupted": "magenta",
    "in_doubt": "magenta",
    "failed": "red",
    "blocked": "yellow",
    "dead": "red",
    "in_progress": "cyan",
    "skipped": "blue",
    "cancelled": "red",
    "expired": "red",
}
_ROLES: Final = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}


def text(value: Any) -> str:
    """Return a value as one line of text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.replace("\n", "⏎")
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, bool | int | float):
        return str(value)
    return _compact(value)


def _compact(value: Any) -> str:
    """Return a value as JSON in which application types have their names: `Invoice {"number": 3}`."""
    if isinstance(value, Unregistered):
        return f"{value.name} {_compact(value.data)}"
    if codec.is_registered(type(value)):
        return f"{type(value).__name__} {json.dumps(jsonable(value), ensure_ascii=False)}"
    if isinstance(value, Mapping):
        pairs = ((key if isinstance(key, str) else repr(key), inner) for key, inner in value.items())
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=False)}: {_compact(v)}" for k, v in pairs) + "}"
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return "[" + ", ".join(map(_compact, value)) + "]"
    return json.dumps(jsonable(value), ensure_ascii=False)


def width() -> int:
    """Return the width of the terminal."""
    return shutil.get_terminal_size((120, 24)).columns


def styled(name: str, value: str, padded: str) -> str:
    """Return a cell, coloured if it is a status."""
    colour = _STATUS.get(value) if name == "status" else None
    return click.style(padded, fg=colour) if colour else padded


def table(rows: Sequence[Any], columns: Sequence[str]) -> list[str]:
    """Return rows as lines under a header; the widest columns shrink to fit the terminal."""
    cells = [[text(_part(row, name)) for name in columns] for row in rows]
    if not cells:
        return []
    wide = [max(len(name), *(len(line[at]) for line in cells)) for at, name in enumerate(columns)]
    room = width() - 2 * (len(columns) - 1)
    whole = {at for at, name in enumerate(columns) if name == "id"}  # for the next command: never cut
    while sum(wide) > room and (most := max(w for at, w in enumerate(wide) if at not in whole)) > 12:
        wide[next(at for at, w in enumerate(wide) if w == most and at not in whole)] -= 1
    head = "  ".join(name.replace("_", " ").upper().ljust(wide[at]) for at, name in enumerate(columns))
    lines = [click.style(head.rstrip(), bold=True)]
    for line in cells:
        parts = [styled(columns[at], cell, _cut(cell, wide[at])) for at, cell in enumerate(line)]
        lines.append("  ".join(parts).rstrip())
    return lines


def one(value: Any) -> list[str]:
    """Return a record as lines of name and value; the keys of a user's dict are printed unchanged."""
    if isinstance(value, Mapping):
        fields = {str(key): inner for key, inner in value.items()}
    else:
        fields = {name.replace("_", " "): getattr(value, name) for name in _names(value)}
    if not fields:
        return []
    wide = max(map(len, fields))
    lines = []
    for name, inner in fields.items():
        first, *rest = inner.splitlines() or [""] if name == "traceback" and inner else [text(inner)]
        lines.append(f"{click.style(name.ljust(wide), dim=True)}  {styled(name, first, first)}")
        lines += [f"{'':{wide}}  {line}" for line in rest]
    return lines


def procedure(found: Any) -> list[str]:
    """Return a workflow as lines: its progress and its steps."""
    head = f"{click.style(found.name, bold=True)}  {styled('status', found.status, found.status)}  {found.progress:.0%}"
    said = [{**step, "note": step["error"] or step["reason"] or step["result"]} for step in found.steps]
    return [head, *table(said, ("step", "action", "status", "attempts", "note"))]


def audit(found: Any) -> list[str]:
    """Return the summary of an audit as lines."""
    said = ", ".join(f"{count} {name}" for name, count in found.counts.items() if count)
    head = f"{click.style(found.target, bold=True)}  {text(found.at)}  {said}"
    return [head, *table(found.findings, ("code", "severity", "status", "title", "evidence"))]


def messages(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return messages as lines: role and content."""
    lines = []
    for row in rows:
        role = str(row.get("role", "?"))
        content = row.get("content")
        shown = content if isinstance(content, str) else text({k: v for k, v in row.items() if k != "role"})
        head, *rest = shown.split("\n")
        lines.append(f"{click.style(role.rjust(9), fg=_ROLES.get(role), bold=True)}  {head}")
        lines += [f"{'':9}  {line}" for line in rest]
    return lines


def differences(rows: Sequence[Any]) -> list[str]:
    """Return differences as coloured lines."""
    lines = []
    for row in rows:
        path = ".".join(str(step) for step in row.path) or "(all)"
        if row.kind != "added":
            lines.append(click.style(f"- {path}: {text(row.old)}", fg="red"))
        if row.kind != "removed":
            lines.append(click.style(f"+ {path}: {text(row.new)}", fg="green"))
    return lines


def _part(row: Any, name: str) -> Any:
    value = row.get(name) if isinstance(row, Mapping) else getattr(row, name)
    # A run that waits although its answer has come: no worker has taken it yet.
    due = getattr(row, "due", None) if name == "status" else None
    return f"{value} ({due}, due)" if isinstance(due, str) else value


def _names(value: Any) -> Sequence[str]:
    return tuple(getattr(value, "_fields", None) or value.__dataclass_fields__)


def _cut(cell: str, size: int) -> str:
    return cell.ljust(size) if len(cell) <= size else cell[: size - 1] + "…"
