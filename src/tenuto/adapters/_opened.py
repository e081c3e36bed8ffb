"""Clients that an adapter opens by itself, from a URL or a path: one for each store and process, shared by who asks.

So sessions that each name the file `conversations.db` are one client: they have its connections and what it has read
in common, and none waits for another as two programs would. The last one that is given back closes it. An agent that
is handed over is its owner's: it is never shared through here, and never closed.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Final

from tenuto.client import Tenuto

_APART: Final = ("volatile:",)
"""A store in memory is its client's own: another one of the same name would be another store."""


class Opened:
    """A client, and how many have it."""

    def __init__(self, client: Tenuto) -> None:
        self.client = client
        self.users = 0
        self.ready = False


shared: dict[str, Opened] = {}
_gate = threading.Lock()


def place(url: str | os.PathLike[str]) -> str:
    """Return what tells one store from another: a path from the root and without links, a URL as it is."""
    text = os.fspath(url)
    scheme, colon, _ = text.partition(":")
    if isinstance(url, os.PathLike) or not colon or len(scheme) < 2 or not scheme.replace("+", "").isalnum():
        return str(Path(text).expanduser().resolve())
    return f"{text} in {Path.cwd()}" if scheme == "sqlite" else text  # its path may be one from this folder


def take(name: str, url: str | os.PathLike[str]) -> Opened:
    """Return the client of a store, opened: an error in its place or its rights is told here. `give_back` ends it."""
    where = place(url)
    with _gate:
        found = shared.get(where)
        if found is None:
            found = Opened(Tenuto(name, url))
            if not where.startswith(_APART):
                shared[where] = found
        found.users += 1
    if not found.ready:  # outside of the gate: a store that takes its time holds up nobody else's
        try:
            found.client.open()
        except BaseException:
            give_back(found)
            raise
        found.ready = True
    return found


def give_back(taken: Opened) -> None:
    """Give a client back; the last one closes it."""
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
    global _gate  # noqa: PLW0603 - the parent's may have been held by a thread that is not here
    _gate = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
