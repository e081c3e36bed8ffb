"""A run's view of a thread: the newest checkpoint when the run read it, and the checkpoints that are being saved.

LangGraph passes no run to a saver, but calls it in a context (`contextvars`) that belongs to the run: it reads the
thread in that context and saves every checkpoint in a copy of it. The view is stored there and compared at each save.
If another process has written to the thread since, the run gets a `Conflict` instead of a silent fork. A run that
started from an older checkpoint on purpose forks.

By default LangGraph saves in the background while the next node runs; a run killed in that node loses the step before.
But LangGraph tests the saver's truth value before it creates a task, and calls `get_next_version` before it saves a
checkpoint. The second call announces a save, and the first waits until it is durable. This makes the default as
durable as `durability="sync"`, at the price of one commit. While the run waits it does the save itself, instead of
LangGraph's thread: moving a long conversation between the caches of two processors takes longer than reading it. With
`durability="exit"` nothing is saved in between: such a run waits only briefly, and only once.

In async code the save is only scheduled as a task when LangGraph tests the saver, and the node is a task after it. So
`aput` blocks the event loop until the checkpoint is durable, for a moment at most, and the node starts after that. The
writes for that commit were offered before. Errors are raised at LangGraph's next test.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from tenuto.adapters.langgraph.writes import PATIENCE, Waiting, Writes

R = TypeVar("R")

_FIRST: Final = 0.003
"""Seconds that a run waits for its first save to start; with `durability="exit"` none does."""
_LATER: Final = 0.25
"""Seconds that it waits for any later save to start."""
_OFFERED: Final = 0.001
"""Seconds that a thread waits for the run to take over its save; a run that has not by then never does."""
_KEPT: Final = 64
"""Maximum number of views in a context: one for each nested graph."""


class _Offer:
    """A save that LangGraph's thread offers to the run."""

    __slots__ = ("_context", "_error", "_result", "_work", "done", "taken")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._context = contextvars.copy_context()
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self.taken = False
        self.done = False

    def run(self) -> BaseException | None:
        """Do the save; return its error, if any."""
        try:
            self._result = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 - it is raised in both threads
            self._error = error
        return self._error

    def outcome(self) -> Any:
        """Return the result of the save, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._result


class RunView:
    """A run's view of a namespace, and its saves since."""

    def __init__(self, root: bytes, newest: str | None, number: int, *, waits: bool) -> None:
        self.root = root
        self.newest = newest
        """The id of the newest checkpoint when the run read the thread."""
        self.number = number
        """The number of the last entry in the lineage, hidden ones included."""
        self._waits = waits
        self._thread = threading.get_ident()
        self._changed = threading.Condition()
        self._begun = 0
        self._ended = 0
        self._goal = 0
        """The expected number of started saves."""
        self._open = False
        self._first = True
        self._error: BaseException | None = None
        self._tasks = 0
        self._writers: dict[int, int] = {}
        """The number of tasks before a checkpoint, by the position of its save."""
        self._offer: _Offer | None = None
        self._comes: bool | None = None
        """Whether the run waits for saves, once known: with `durability="sync"` LangGraph itself does."""

    def task(self) -> None:
        """Count a task that is being created."""
        self._tasks += 1

    def expect(self) -> None:
        """Expect a save; called several times for the same one."""
        if self._waits and not self._open:
            self._open = True
            self._goal = max(self._goal, self._begun) + 1
            self._writers[self._goal], self._tasks = self._tasks, 0

    def save(self, work: Callable[[int | None], R], *, leads_on: bool) -> R:
        """Save a checkpoint: in the run's thread if that waits for it, else in this one.

        It usually waits if the checkpoint `leads_on` to another task. `work` gets the number of tasks whose writes
        are expected in the same commit.
        """
        self.begin()
        own = threading.get_ident() == self._thread  # no background save: an update from outside the run
        writers = None if own else self._writers.pop(self._begun, 0)
        if self._waits and self._comes is not False and leads_on and not own:
            offer = _Offer(lambda: work(writers))
            if self._taken(offer):
                return offer.outcome()  # type: ignore[no-any-return]
        try:
            done = work(writers)
        except BaseException as error:
            self.end(error)
            raise
        self.end()
        return done

    def _taken(self, offer: _Offer) -> bool:
        """Offer a save to the run; return whether the run has done it."""
        with self._changed:
            self._offer = offer
            self._changed.notify_all()
            self._changed.wait_for(lambda: offer.done, _OFFERED)
            if not offer.taken:
                self._offer = None
                self._comes = self._comes or False
                return False
            self._comes = True
            self._changed.wait_for(lambda: offer.done)
        return True

    def begin(self) -> None:
        """Count a started save."""
        with self._changed:
            self._begun += 1
            self._changed.notify_all()

    def end(self, error: BaseException | None = None) -> None:
        """Count a finished save and record its error, if any."""
        with self._changed:
            self._ended += 1
            self._error = self._error or error
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until the expected saves are durable; raise the error of a failed one.

        Before the first task it does not wait: the caller still has the input of the run.
        """
        if not self._waits:
            self._complain()
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
                self._waits = self._begun > 0  # no save at all: this run saves at its exit
                return
            self._see_through()
        self._complain()

    def _see_through(self) -> None:
        while self._ended < self._goal:
            self._changed.wait_for(lambda: self._ended >= self._goal or self._offer is not None)
            self._take()

    def _complain(self) -> None:
        """Raise the error of a failed save, once."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _take(self) -> None:
        """Do the offered save, if any, without holding the lock."""
        offer, self._offer = self._offer, None
        if offer is None:
            return
        offer.taken = True
        self._changed.release()
        try:
            error = offer.run()
        finally:
            self._changed.acquire()
            offer.done = True
            self._ended += 1
            self._error = self._error or error
            self._changed.notify_all()


async def went(writes: Writes, record: Waiting) -> bool:
    """Wait briefly, without a thread, for the next checkpoint's commit; return whether it stored the record."""
    loop, heard = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(heard.set)

    record.tell(tell)
    try:
        async with asyncio.timeout(PATIENCE):
            await heard.wait()
    except TimeoutError:
        if writes.withdraw(record):
            return False
        await heard.wait()  # the commit has started
    except asyncio.CancelledError:
        writes.withdraw(record)
        raise
    return record.state == "kept"


_looks: ContextVar[dict[tuple[int, bytes], RunView] | None] = ContextVar("tenuto_langgraph_looks", default=None)
_current: ContextVar[tuple[int, RunView] | None] = ContextVar("tenuto_langgraph_current", default=None)


def remember(saver: int, look: RunView) -> None:
    """Store a view in this context and in its later copies."""
    known = list((_looks.get() or {}).items())[-_KEPT:]  # a program may use many threads in one context
    _looks.set({**dict(known), (saver, look.root): look})
    _current.set((saver, look))


def seen(saver: int, root: bytes) -> RunView | None:
    """Return this run's view of a namespace."""
    return (_looks.get() or {}).get((saver, root))


def current(saver: int) -> RunView | None:
    """Return this run's latest view, of any namespace."""
    known = _current.get()
    return known[1] if known is not None and known[0] == saver else None
