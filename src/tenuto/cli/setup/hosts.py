"""What each coding agent reads: its files, the entry of an MCP server, and the hooks of a session.

Each host has its own names for the same three moments: a session starts, its context is about to be compacted, it
stops. Sources: the hosts' own documentation, as of November 2026.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

Moment = Literal["session-start", "pre-compact", "stop"]
NAME: Final = "tenuto"
_TIMEOUT: Final = 5
"""Seconds after which the host gives up; the hook itself ends within two."""
_FOLDER: Final = ("--folder", "${workspaceFolder}")
_OWN: Final = re.compile(r"\btenuto(?:\.exe)?['\"]? hook \w")


class Host(NamedTuple):
    """A coding agent."""

    title: str
    servers: tuple[str, ...]
    """Where the entries of MCP servers are in its file."""
    entry: Mapping[str, str]
    """What an entry has besides command and arguments."""
    moments: Mapping[Moment, str]
    """The host's names of the moments."""
    hook: Callable[[str], dict[str, Any]]
    """Return the entry of a command."""
    files: Callable[[Path | None], tuple[Path, Path]]
    """Return the file of the servers and that of the hooks: of a project, or of the user (None)."""
    arguments: tuple[str, ...] = ()
    """More arguments of the server, in the file of a project."""
    around: Mapping[str, Any] = {}
    """What a new file of hooks needs besides."""
    then: str = ""
    """What a person does next."""


def _nested(command: str) -> dict[str, Any]:
    return {"hooks": [{"type": "command", "command": command, "timeout": _TIMEOUT}]}


def _gemini(command: str) -> dict[str, Any]:
    return {"hooks": [{"name": NAME, "type": "command", "command": command, "timeout": _TIMEOUT * 1_000}]}


def _home(variable: str, folder: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / folder)


def _claude_files(project: Path | None) -> tuple[Path, Path]:
    if project is not None:
        return project / ".mcp.json", project / ".claude" / "settings.json"
    given = os.environ.get("CLAUDE_CONFIG_DIR")
    servers = Path(given) / ".claude.json" if given else Path.home() / ".claude.json"
    return servers, _home("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"


def _codex_files(project: Path | None) -> tuple[Path, Path]:
    folder = _home("CODEX_HOME", ".codex") if project is None else project / ".codex"
    return folder / "config.toml", folder / "hooks.json"


def _cursor_files(project: Path | None) -> tuple[Path, Path]:
    folder = (project or Path.home()) / ".cursor"
    return folder / "mcp.json", folder / "hooks.json"


def _vscode_files(project: Path | None) -> tuple[Path, Path]:
    if project is not None:
        return project / ".vscode" / "mcp.json", project / ".github" / "hooks" / f"{NAME}.json"
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = _home("APPDATA", "AppData/Roaming")
    else:
        folder = _home("XDG_CONFIG_HOME", ".config")
    return folder / "Code" / "User" / "mcp.json", Path.home() / ".copilot" / "hooks" / f"{NAME}.json"


def _gemini_files(project: Path | None) -> tuple[Path, Path]:
    file = (project or Path.home()) / ".gemini" / "settings.json"
    return file, file


_PASCAL: Final[Mapping[Moment, str]] = {"session-start": "SessionStart", "pre-compact": "PreCompact", "stop": "Stop"}
HOSTS: Final[Mapping[str, Host]] = {
    "claude": Host(
        "Claude Code",
        ("mcpServers",),
        {},
        _PASCAL,
        _nested,
        _claude_files,
        then="Start a new session of Claude Code; /mcp shows the server and /hooks the hooks.",
    ),
    "codex": Host(
        "Codex",
        ("mcp_servers",),
        {},
        _PASCAL,
        _nested,
        _codex_files,
        then="Start a new session of Codex; it asks once whether to trust the project's files and the hooks.",
    ),
    "cursor": Host(
        "Cursor",
        ("mcpServers",),
        {},
        {"session-start": "sessionStart", "pre-compact": "preCompact", "stop": "stop"},
        lambda command: {"command": command, "timeout": _TIMEOUT},
        _cursor_files,
        _FOLDER,
        {"version": 1},
        "Restart Cursor, and allow the server in Settings, MCP.",
    ),
    "vscode": Host(
        "VS Code",
        ("servers",),
        {"type": "stdio"},
        _PASCAL,
        lambda command: {"type": "command", "command": command, "timeout": _TIMEOUT},
        _vscode_files,
        _FOLDER,
        then="In VS Code run the command MCP: List Servers and start tenuto.",
    ),
    "gemini": Host(
        "Gemini CLI",
        ("mcpServers",),
        {},
        {"session-start": "SessionStart", "pre-compact": "PreCompress", "stop": "SessionEnd"},
        _gemini,
        _gemini_files,
        then="Start a new session of Gemini CLI; /mcp shows the server.",
    ),
}


def program(*, shared: bool) -> list[str]:
    """Return how a host starts tenuto: by name in a file that others share, else by its path."""
    found = shutil.which(NAME)
    if shared and found:
        return [NAME]
    beside = Path(sys.executable).with_name("tenuto.exe" if sys.platform == "win32" else NAME)
    if beside.exists():
        return [str(beside)]
    return [found] if found else [sys.executable, "-m", NAME]


def server(name: str, *, shared: bool) -> dict[str, Any]:
    """Return the entry of the MCP server."""
    host = HOSTS[name]
    first, *rest = program(shared=shared)
    more = host.arguments if shared else ()
    return {**host.entry, "command": first, "args": [*rest, "mcp", "--name", name, *more]}


def hook(name: str, moment: Moment, *, shared: bool) -> dict[str, Any]:
    """Return the entry of a hook."""
    return HOSTS[name].hook(shlex.join([*program(shared=shared), "hook", moment, "--host", name]))


def is_own(entry: Any) -> bool:
    """Return whether the entry of a hook is one of tenuto's."""
    if not isinstance(entry, dict):
        return False
    commands = [
        entry.get("command"),
        *(one.get("command") for one in entry.get("hooks") or [] if isinstance(one, dict)),
    ]
    return any(isinstance(one, str) and _OWN.search(one) for one in commands)
