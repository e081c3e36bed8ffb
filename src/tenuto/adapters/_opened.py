"""Clients that adapters open from a URL or a path: one per store and process, counted by references.

Sessions that name the same file share one client with its connections and its cache, instead of competing for the
write lock as two programs would. The last `give_back` closes the client. A client that the caller passes in is never
shared through this module and never closed by it.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from tenuto.client import Tenuto

_APART: Final = ("volatile:",)
"""A volatile store belongs to one client, so it is not shared."""


class Opened:
    """A shared client and its reference count."""

    def __init__(self, client: Tenuto) -> None:
        self.client = client
        self.users = 0
        self.ready = False


shared: dict[str, Opened] = {}
_gate = threading.Lock()


def place(url: str | os.PathLike[str]) -> str:
    """Return a key that identifies a store: a resolved path, or the URL."""
    text = os.fspath(url)
    scheme, colon, _ = text.partition(":")
    if isinstance(url, os.PathLike) or not colon or len(scheme) < 2 or not scheme.replace("+", "").isalnum():
        return str(Path(text).expanduser().resolve())
    return f"{text} in {Path.cwd()}" if scheme == "sqlite" else text  # its path may be relative


def take(name: str, url: str | os.PathLike[str]) -> Opened:
    """Return the open client of a store, and count a reference; `give_back` releases it. Raise if it cannot be opened."""
    where = place(url)
    with _gate:
        found = shared.get(where)
        if found is None:
            found = Opened(Tenuto(name, url))
            if not where.startswith(_APART):
                shared[where] = found
        found.users += 1
    if not found.ready:  # outside the lock: a slow store must not block the others
        try:
            found.client.open()
        except BaseException:
            give_back(found)
            raise
        found.ready = True
    return found


def give_back(taken: Opened) -> None:
    """Release a reference; the last one closes the client."""
    with _gate:
        taken.users -= 1
        if taken.users:
            return
        _forget(taken)
    taken.client.close()


def _forget(gone: Opened) -> None:
    for where in [where for where, opened in shared.items() if opened is gone]:
        del shared[where]


def _after_fork() -> None:
    global _gate  # noqa: PLW0603 - a thread that the child does not have may hold it
    _gate = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
