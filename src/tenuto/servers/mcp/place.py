"""Where an MCP server stores: one store for each project, else one for the user.

Coding agents start the server in the project's folder, often in one below its root. The store is therefore looked for
as every command does it, and created at the root of the git repository. Outside of a repository it is the user's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal, NamedTuple

from tenuto.backends import DEFAULT, default_path

_FILE = "tenuto.db"


class Place(NamedTuple):
    """Where a server stores."""

    url: str
    kind: Literal["project", "user", "given"]
    task: str
    """The name of the progress document by default: that of the project's folder."""


def place_of(url: str | None = None, folder: str | os.PathLike[str] | None = None, *, user: bool = False) -> Place:
    """Return where a server that is started in a folder stores. Nothing is created."""
    here = Path(folder or os.environ.get("CLAUDE_PROJECT_DIR") or Path.cwd()).absolute()
    root = root_of(here)
    task = (root or here).name or "main"
    given = url or os.environ.get("TENUTO_URL")
    if given and not user:
        return Place(given, "given", task)
    if user:
        return Place(str(user_path()), "user", task)
    if Path.cwd() == here and (found := default_path()).exists():
        return Place(str(found.absolute()), "project", task)
    if (here / DEFAULT).exists():
        return Place(str(here / DEFAULT), "project", task)
    if root is not None:
        return Place(str(root / DEFAULT), "project", task)
    return Place(str(user_path()), "user", task)


def user_path() -> Path:
    """Return the path of the user's own store."""
    if sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return folder / "tenuto" / _FILE


def root_of(folder: Path) -> Path | None:
    """Return the root of the git repository of a folder, if there is one below the home folder."""
    home = Path.home()
    for one in (folder, *folder.parents):
        if one == home:
            return None
        if (one / ".git").exists():
            return one
    return None
