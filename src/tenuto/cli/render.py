"""How results look in a terminal: tables, records, conversations, differences."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from tenuto.servers.jsonable import jsonable

_STATUS: Final = {
    "completed": "green",
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
    """Return a value in one line."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value.replace("\n", "⏎")
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, bool | int | float):
        return str(value)
    return json.dumps(jsonable(value), ensure_ascii=False)


def width() -> int:
    """Return how wide the terminal is."""
    return shutil.get_terminal_size((120, 24)).columns


def styled(name: str, value: str, padded: str) -> str:
    """Return a cell in its colour."""
    colour = _STATUS.get(value) if name == "status" else None
    return click.style(padded, fg=colour) if colour else padded


def table(rows: Sequence[Any], columns: Sequence[str]) -> list[str]:
    """Return rows as lines: a head, and each column as wide as it needs to be while there is room."""
    cells = [[text(_part(row, name)) for name in columns] for row in rows]
    if not cells:
        return []
    wide = [max(len(name), *(len(line[at]) for line in cells)) for at, name in enumerate(columns)]
    room = width() - 2 * (len(columns) - 1)
    while sum(wide) > room and max(wide) > 12:
        wide[wide.index(max(wide))] -= 1
    head = "  ".join(name.replace("_", " ").upper().ljust(wide[at]) for at, name in enumerate(columns))
    lines = [click.style(head.rstrip(), bold=True)]
    for line in cells:
        parts = [styled(columns[at], cell, _cut(cell, wide[at])) for at, cell in enumerate(line)]
        lines.append("  ".join(parts).rstrip())
    return lines


def one(value: Any) -> list[str]:
    """Return one thing as lines of a name and a value each."""
    fields = value if isinstance(value, Mapping) else {name: getattr(value, name) for name in _names(value)}
    if not fields:
        return []
    wide = max(len(str(name)) for name in fields)
    return [
        f"{click.style(str(name).replace('_', ' ').ljust(wide), dim=True)}  {styled(str(name), text(inner), text(inner))}"
        for name, inner in fields.items()
    ]


def procedure(found: Any) -> list[str]:
    """Return a workflow as lines: how far it is, and its steps."""
    head = f"{click.style(found.name, bold=True)}  {styled('status', found.status, found.status)}  {found.progress:.0%}"
    said = [{**step, "note": step["error"] or step["reason"] or step["result"]} for step in found.steps]
    return [head, *table(said, ("step", "action", "status", "attempts", "note"))]


def messages(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a conversation as it reads."""
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
    """Return what changed, in colour."""
    lines = []
    for row in rows:
        path = ".".join(str(step) for step in row.path) or "the whole"
        if row.kind != "added":
            lines.append(click.style(f"- {path}: {text(row.old)}", fg="red"))
        if row.kind != "removed":
            lines.append(click.style(f"+ {path}: {text(row.new)}", fg="green"))
    return lines


def _part(row: Any, name: str) -> Any:
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name)


def _names(value: Any) -> Sequence[str]:
    return tuple(getattr(value, "_fields", None) or value.__dataclass_fields__)


def _cut(cell: str, size: int) -> str:
    return cell.ljust(size) if len(cell) <= size else cell[: size - 1] + "…"
