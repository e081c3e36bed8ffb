"""What one run of a graph knows of a thread: where it stood when the run looked, and what is still being saved.

LangGraph gives a saver no run to hold on to, but it calls it in a context (`contextvars`) that each run has for
itself: it reads the thread in it, and hands over every checkpoint in a copy of it. So what the reading found is
kept there, and the saving that follows is held against it: if the thread has gone on from where the run stood,
somebody else works on it, and the run gets a `Conflict` instead of a fork that nobody sees. A run that was told
to start from an older checkpoint stood elsewhere, and forks.

By default LangGraph saves in the background while the next node runs already; killed in that node, a run has
lost the one before. It asks whether there is a saver before it makes a task, and calls `get_next_version` before
it hands over a checkpoint. A saver that remembers the second and lets the first wait makes the default as
durable as `durability="sync"`, for the price of one commit. While the run waits there, it does the saving
itself, for the thread that LangGraph has given it to: a long conversation that two processors look at in turn is
fetched from one to the other each time, which takes longer than looking at it. With `durability="exit"` nothing is handed over:
a run that has seen nothing handed over waits only a moment, and only once.

In async code nothing has been handed over yet when LangGraph asks: it has made a task of it, which runs when the
event loop comes to it. But a node is made a task too, behind that one. So `aput` keeps the event loop until the
checkpoint is durable, for a moment at most, and the node begins after that; the writes that go with it were put in
its way before. What goes wrong is told when LangGraph asks the next time.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from tenuto.adapters._langgraph_writes import PATIENCE, Waiting, Writes

R = TypeVar("R")

_FIRST: Final = 0.003
"""For so many seconds a run waits for its first checkpoint to be handed over; with `durability="exit"` in vain."""
_LATER: Final = 0.25
"""For so many it waits for any other."""
_OFFERED: Final = 0.001
"""For so many a thread waits for the run to take a saving from it; a run that has taken none by then never does."""
_KEPT: Final = 64
"""Of so many namespaces a context knows what was seen: those of the graphs that run inside of each other."""


class _Offer:
    """A saving that its thread offers to the run."""

    __slots__ = ("_context", "_error", "_result", "_work", "done", "taken")

    def __init__(self, work: Callable[[], Any]) -> None:
        self._context = contextvars.copy_context()
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None
        self.taken = False
        self.done = False

    def run(self) -> BaseException | None:
        """Do it; return what it raised."""
        try:
            self._result = self._context.run(self._work)
        except BaseException as error:  # noqa: BLE001 - it is raised in both threads
            self._error = error
        return self._error

    def outcome(self) -> Any:
        """Return what it returned, or raise what it raised."""
        if self._error is not None:
            raise self._error
        return self._result


class Look:
    """What a run saw of a namespace, and what it has handed over since."""

    def __init__(self, root: bytes, newest: str | None, number: int, *, waits: bool) -> None:
        self.root = root
        self.newest = newest
        """The id of the checkpoint that was the newest."""
        self.number = number
        """The number of the last one in the lineage, whatever it was."""
        self._waits = waits
        self._thread = threading.get_ident()
        self._changed = threading.Condition()
        self._begun = 0
        self._ended = 0
        self._goal = 0
        """How many will have been handed over by now."""
        self._open = False
        self._first = True
        self._error: BaseException | None = None
        self._tasks = 0
        self._writers: dict[int, int] = {}
        """How many tasks have led to a checkpoint, by its place among those handed over."""
        self._offer: _Offer | None = None
        self._comes: bool | None = None
        """Whether the run comes to wait, once that is known: with `durability="sync"` it waits for something else."""

    def task(self) -> None:
        """Note that a task is being made."""
        self._tasks += 1

    def expect(self) -> None:
        """Note that a checkpoint will be handed over; it is told several times of the same one."""
        if self._waits and not self._open:
            self._open = True
            self._goal = max(self._goal, self._begun) + 1
            self._writers[self._goal], self._tasks = self._tasks, 0

    def save(self, work: Callable[[int | None], R], *, leads_on: bool) -> R:
        """Save a checkpoint: in the run's own thread if that comes to wait for it, else in this one.

        It comes, as a rule, if the checkpoint `leads_on` to another task. `work` is told how many tasks' writes are
        on their way to go with it.
        """
        self.begin()
        own = threading.get_ident() == self._thread  # nobody else is at it: an update from outside
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
        """Offer a saving; tell whether the run has taken it, when it is done."""
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
                self._waits = self._begun > 0  # nothing at all was handed over: this run saves at its exit
                return
            self._see_through()
        self._complain()

    def _see_through(self) -> None:
        while self._ended < self._goal:
            self._changed.wait_for(lambda: self._ended >= self._goal or self._offer is not None)
            self._take()

    def _complain(self) -> None:
        """Raise, once, what has kept something from being saved."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _take(self) -> None:
        """Do what is offered, if something is, without the lock."""
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
    """Wait a moment, holding no thread, for a commit to go with; tell whether one came and kept the record."""
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
        await heard.wait()  # the commit has begun
    except asyncio.CancelledError:
        writes.withdraw(record)
        raise
    return record.state == "kept"


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
