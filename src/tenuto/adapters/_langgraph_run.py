"""What one run of a graph knows of a thread: where it stood when the run looked, and what is still being saved.

LangGraph gives a saver no run to hold on to, but it calls it in a context (`contextvars`) that each run has for
itself: it reads the thread in it, and hands over every checkpoint in a copy of it. So what the reading found is
kept there, and the saving that follows is held against it: if the thread has gone on from where the run stood,
somebody else works on it, and the run gets a `Conflict` instead of a fork that nobody sees. A run that was told
to start from an older checkpoint stood elsewhere, and forks.

By default LangGraph saves in the background while the next node runs already; killed in that node, a run has
lost the one before. It asks whether there is a saver before it makes a task, and calls `get_next_version` before
it hands over a checkpoint. A saver that remembers the second and lets the first wait makes the default as
durable as `durability="sync"`, for the price of one commit. With `durability="exit"` nothing is handed over:
a run that has seen nothing handed over waits only a moment, and only once. In async code nothing can wait there
without holding up the event loop, so there it is LangGraph's `durability` that decides.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import Final

_FIRST: Final = 0.003
"""For so many seconds a run waits for its first checkpoint to be handed over; with `durability="exit"` in vain."""
_LATER: Final = 0.25
"""For so many it waits for any other."""
_KEPT: Final = 64
"""Of so many namespaces a context knows what was seen: those of the graphs that run inside of each other."""


class Look:
    """What a run saw of a namespace, and what it has handed over since."""

    def __init__(self, root: bytes, newest: str | None, number: int, *, waits: bool) -> None:
        self.root = root
        self.newest = newest
        """The id of the checkpoint that was the newest."""
        self.number = number
        """The number of the last one in the lineage, whatever it was."""
        self._waits = waits
        self._changed = threading.Condition()
        self._begun = 0
        self._ended = 0
        self._goal = 0
        """How many will have been handed over by now."""
        self._open = False
        self._first = True
        self._error: BaseException | None = None

    def expect(self) -> None:
        """Note that a checkpoint will be handed over; it is told several times of the same one."""
        if self._waits and not self._open:
            self._open = True
            self._goal = max(self._goal, self._begun) + 1

    def begin(self) -> None:
        """Note that a checkpoint was handed over."""
        with self._changed:
            self._begun += 1
            self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        """Note that it is durable, or why it is not."""
        with self._changed:
            self._ended += 1
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until what is expected is durable; raise what has kept it from being so.

        Not before the first task: what the run was given, its caller still has.
        """
        if not self._waits or not self._open:
            return
        self._open = False
        if self._first:
            self._first = False
            return
        with self._changed:
            patience = _LATER if self._begun else _FIRST
            if not self._changed.wait_for(lambda: self._begun >= self._goal, patience):
                self._goal = 0
                self._waits = self._begun > 0  # nothing at all was handed over: this run saves at its exit
                return
            self._changed.wait_for(lambda: self._ended >= self._goal)
            error, self._error = self._error, None
        if error is not None:
            raise error


_looks: ContextVar[dict[tuple[int, bytes], Look] | None] = ContextVar("tenuto_langgraph_looks", default=None)
_current: ContextVar[tuple[int, Look] | None] = ContextVar("tenuto_langgraph_current", default=None)


def remember(saver: int, look: Look) -> None:
    """Let what was seen be known in this context, and in those copied from it from now on."""
    known = list((_looks.get() or {}).items())[-_KEPT:]  # a program goes through many threads in one context
    _looks.set({**dict(known), (saver, look.root): look})
    _current.set((saver, look))


def seen(saver: int, root: bytes) -> Look | None:
    """Return what this run has seen of a namespace."""
    return (_looks.get() or {}).get((saver, root))


def current(saver: int) -> Look | None:
    """Return what this run has seen last, of whatever namespace."""
    known = _current.get()
    return known[1] if known is not None and known[0] == saver else None
