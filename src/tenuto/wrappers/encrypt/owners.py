"""Whose data a key holds, as far as the key or the commit says. Pure functions on the parts of a key below the tenant.

Preferences, memories and entries of a user's index name the user. Threads, runs, workflows and tasks do not: the commit
that creates one for a user also writes it into the user's index or queue, and says there who owns it.
"""

from __future__ import annotations

from typing import Final

from tenuto.kernel.keys import Part

Owned = tuple[str, str]
"""What a user owns: "threads", "runs", "workflows" or "tasks", and its id."""

_KINDS: Final = {
    "thread": "threads", "checkpoint": "threads", "claude": "threads", "langgraph": "threads", "run": "runs",
    "workflow": "workflows",
}  # fmt: skip
_LISTED: Final = ("threads", "runs", "workflows")
_FILES: Final = "memories:"


def user_of(parts: tuple[Part, ...]) -> str | None:
    """Return the user that a key names, or None."""
    match parts:
        case (str(user), "user" | "memory", *_):
            return user
        case (str(scope), "state", *_) if scope.startswith(_FILES):
            return scope.removeprefix(_FILES)
        case (str(listed), "index", "user", str(user), *_) if listed in _LISTED:
            return user
        case (str(), "tasks", "ready", _, str(user), *_) if user:
            return user
    return None


def owned_by(parts: tuple[Part, ...]) -> Owned | None:
    """Return the thread, run, workflow or task that a key belongs to, or None."""
    match parts:
        case (str(listed), "index", "every", str(name), *_) if listed in _LISTED:
            return listed, name
        case ("tasks", "task", str(name)):
            return "tasks", name
        case (str(name), str(kind), *_) if kind in _KINDS:
            return _KINDS[kind], name
    return None


def learned(parts: tuple[Part, ...]) -> Owned | None:
    """Return what the writing of this key gives to the user that it names, or None."""
    match parts:
        case (str(listed), "index", "user", str(), str(name)) if listed in _LISTED:
            return listed, name
        case (str(), "tasks", "ready", _, str(user), _, str(name)) if user:
            return "tasks", name
    return None
