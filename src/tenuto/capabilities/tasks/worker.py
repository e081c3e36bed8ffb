"""Workers: lanes that take a task, call the user's code, and end the task in the commit that takes the next one.

A worker has as many lanes as it may do tasks at once, and takes no task that it cannot begin at once. Lanes that find
nothing wait. One of them looks again, soon at first and then rarely; the others are woken by it. An enqueue of the same
client wakes it, and so does a commit of any other where the store has bells. Nothing rests on that: without a bell it
looks every `poll` seconds, with one that is live once a second.

What is written, and what a crash leaves, is told in `taskbook`: the lanes keep nothing else.
"""

from __future__ import annotations

import logging
import signal as signals
import threading
import time
from collections import deque
from collections.abc import Callable
from contextvars import Token
from typing import Any, Final, Protocol, Self

from tenuto.capabilities import taskbook
from tenuto.capabilities.claiming import Shelf
from tenuto.capabilities.context import Context
from tenuto.capabilities.task import Ending, Task
from tenuto.errors import (
    Closed,
    InvalidInput,
    NotStorable,
    Paused,
    StaleLease,
    StorageUnavailable,
    TenutoError,
    Waiting,
)
from tenuto.kernel import codec, correlation
from tenuto.kernel.bell import Bell, Pause
from tenuto.kernel.contract import Put
from tenuto.kernel.transact import Steps, backoff, settle
from tenuto.kernel.work import Call, Work, perform

log: Final = logging.getLogger("tenuto.tasks")
_SOON, _RARELY = 0.002, 1.0
_LOOKS: Final = 30
"""After so many looks in vain the pause between them grows no more."""
_HEED: Final = 0.5
"""How long nobody notices that he is to stop, at the most."""
_IDLE: Final = 60.0
_PAUSED: Final = 60.0


class Stop(Protocol):
    """What says that a worker is to stop: a `threading.Event`, or one of asyncio."""

    def is_set(self) -> bool:
        """Tell whether it is to."""
        ...

    def set(self) -> None:
        """Say so."""
        ...


class Crew:
    """What the lanes of one worker share."""

    def __init__(  # noqa: PLR0913 - the words of `work`
        self,
        context: Context,
        shelf: Shelf,
        handler: Callable[[Any], Any],
        *,
        lease: float,
        timeout: float | None,
        poll: float,
        until_empty: bool,
        stop: Stop | None,
        face: Callable[[Task], Any] | None,
    ) -> None:
        self._context = context
        self._kernel = context.kernel
        self._shelf = shelf
        self._handler = handler
        self._lease = lease
        self._timeout = timeout
        self._poll = poll
        self._until_empty = until_empty
        self._face = face
        self._lock = threading.Lock()
        self._idle: deque[Bell] = deque()
        self._scout: Bell | None = None
        self._heard: Bell | None = None
        self._said = self._says = 0.0
        self.stop: Stop = stop if stop is not None else threading.Event()
        self.queue = shelf.queue
        self.in_hand: dict[Task, float] = {}
        """The tasks, and since when by a clock that never jumps."""
        self.done = 0
        self._over = False

    # -- extending ---------------------------------------------------------------------------------------------------

    @property
    def interval(self) -> float:
        """Return how often what is in hand is extended, in seconds: four times in its lease."""
        return self._lease / 4

    def renew(self) -> bool:
        """Extend what is in hand for longer than a moment; the client's keeper asks for it."""
        early = time.monotonic() - self.interval / 2
        for task, since in list(self.in_hand.items()):
            if since < early:
                task.renew()
        return True

    # -- stopping and waking -----------------------------------------------------------------------------------------

    def halt(self) -> None:
        """Say that this worker is to stop, and wake those who wait."""
        self._over = True
        for bell in list(self._idle):
            bell.ring()

    @property
    def stopping(self) -> bool:
        """Tell whether it is to stop."""
        return self._over or self.stop.is_set()

    def wake(self) -> None:
        """Wake one who waits, if anybody does: there is something to do."""
        with self._lock:
            bell = self._scout if self._scout is not None else self._idle[0] if self._idle else None
        if bell is not None:
            bell.ring()

    def _wake_another(self) -> None:
        with self._lock:
            other = next((bell for bell in self._idle if bell is not self._scout), None)
        if other is not None:
            other.ring()

    def left(self) -> None:
        """Let go of what is in hand still: it is extended no more, and passes to others when its time is over."""
        for task in list(self.in_hand):
            task.kept_no_more()
            log.warning("The task %r did not come to its end in time; it is left to others.", task.id)
        self.quiet()

    def quiet(self) -> None:
        """Listen no more."""
        heard, self._heard = self._heard, None
        if heard is not None:
            heard.close()

    # -- a lane ------------------------------------------------------------------------------------------------------

    def lane(self) -> Work[None]:
        """Do one task after the other, until told to stop."""
        bell = Bell()
        ending: Ending | None = None
        troubles = backoff(None, first=0.05, most=5.0)
        looks = 0
        while True:
            bell.hush()
            if self.stopping:
                if ending is not None:
                    yield _quietly(ending.task.end(ending), ending.task)
                return
            try:
                task = yield self._shelf.take(self._lease, ending, eager=False)
            except StaleLease as error:
                log.warning("%s", error)
                ending = None
                continue
            except Closed:
                return
            except StorageUnavailable as error:
                log.warning("Tasks of %r cannot be taken now: %s", self._shelf.queue, error)
                yield Pause(next(troubles))
                continue
            ending = None
            if task is None:
                if self._until_empty and self._is_empty():
                    self.halt()
                    continue
                looks += 1
                yield from self._wait(bell, looks)
                continue
            looks = 0
            if self._scout is bell or self._shelf.more:
                self._no_scout(bell)
                self._wake_another()
            ending = yield from self._do(task)

    def _do(self, task: Task) -> Work[Ending | None]:
        """Call the user's code; return how the task ends, unless that was done there."""
        given = task if self._face is None else self._face(task)
        self.in_hand[task] = time.monotonic()
        around = _Around(task)
        try:
            value = yield Call(self._handler, (given,), lambda: around, f"The task {task.id!r}", self._timeout)
            with self._lock:
                self.done += 1
            return None if task.over else task.completing(value)
        except NotStorable as error:
            log.warning("The task %r has a result that cannot be stored, and is given up: %s", task.id, error)
            return None if task.over else task.failing(error, retry=False)
        except Paused as pause:
            later = pause.until if isinstance(pause, Waiting) and pause.until is not None else None
            log.info("The task %r waits: %s", task.id, pause)
            return None if task.over else task.releasing(later or self._kernel.now() + _PAUSED)
        except StaleLease as error:
            log.warning("%s", error)
            return None
        except Exception as error:  # noqa: BLE001 - it is on the task's record
            log.warning("The task %r failed at attempt %d: %s: %s", task.id, task.attempt, type(error).__name__, error)
            return None if task.over else task.failing(error)
        except BaseException:
            if not task.over:
                yield _quietly(task.end(task.releasing()), task)
            raise
        finally:
            del self.in_hand[task]

    # -- waiting -----------------------------------------------------------------------------------------------------

    def _wait(self, bell: Bell, looks: int) -> Work[None]:
        """Wait for something to do: as the one who looks for all, or for him."""
        with self._lock:
            if self._scout is None:
                self._scout = bell
            self._idle.append(bell)
        try:
            if self._scout is not bell:
                yield Pause(_HEED, bell)
                return
            delay = min(_SOON * 1.5 ** min(looks, _LOOKS), self._poll)
            if delay >= self._poll:
                yield from self._listen(bell)
                if self._heard is not None and self._heard.live and time.monotonic() - self._said > _RARELY:
                    delay = _RARELY
            yield Pause(min(delay, _HEED) if delay < _RARELY else delay, bell)
        finally:
            with self._lock:
                self._idle.remove(bell)

    def _listen(self, bell: Bell) -> Work[None]:
        """Be told of what comes, where the store can: say from time to time that somebody waits."""
        if self._heard is None:
            self._heard = self._kernel.bell(taskbook.bell_stream(self._shelf.queue))
        self._heard.tell(bell.ring)
        self._heard.hush()
        now = time.monotonic()
        if self._heard.live and now - self._says > _IDLE / 3:
            if now - self._says > _IDLE:
                self._said = now  # those who enqueue know it a moment later
            self._says = now
            yield _unless_away(
                settle(self._kernel, [], [Put(taskbook.idle_key(self._shelf.queue), codec.encode(None), _IDLE)])
            )

    def _no_scout(self, bell: Bell) -> None:
        with self._lock:
            if self._scout is bell:
                self._scout = None

    def _is_empty(self) -> bool:
        # One look at all places: a task that moves between two looks would be seen in neither.
        queue = self._shelf.queue
        behind = taskbook.dead_prefix(queue) + b"\xff"
        found = self._kernel.scan(taskbook.bell_stream(queue), after=behind, limit=2)
        return not any(taskbook.is_place(queue, one) for one in found)


class _Around:
    """The surroundings of a handler: the correlation id of whoever enqueued the task is in force."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._token: Token[str | None] | None = None

    def __enter__(self) -> Self:
        if self._task.correlation_id is not None:
            self._token = correlation.variable.set(self._task.correlation_id)
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            correlation.variable.reset(self._token)


def _quietly(steps: Steps[None], task: Task) -> Steps[None]:
    """Do something whose failure is told and changes nothing more: the task passes to others."""
    try:
        yield from steps
    except TenutoError as error:
        log.warning("The end of the task %r was not written: %s", task.id, error)


def _unless_away(steps: Steps[Any]) -> Steps[None]:
    try:
        yield from steps
    except StorageUnavailable:
        return


def work(crew: Crew, *, concurrency: int, grace: float, on_signal: bool) -> int:
    """Be a worker with so many lanes, each on a thread, until it is told to stop; return how many tasks were done."""
    must_be_some(concurrency)
    before: dict[signals.Signals, Any] = {}
    if on_signal:
        for number in (signals.SIGTERM, signals.SIGINT):
            before[number] = signals.signal(number, lambda *_: crew.halt())
    problems: list[BaseException] = []

    def run(lane: Work[None]) -> None:
        try:
            perform(lane, crew._context.clock)
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            problems.append(error)
            crew.halt()

    lanes = [
        threading.Thread(target=run, args=(crew.lane(),), name="tenuto-task", daemon=True) for _ in range(concurrency)
    ]
    try:
        for lane in lanes:
            lane.start()
        while any(lane.is_alive() for lane in lanes) and not crew.stopping:
            lanes[0].join(_HEED) if lanes[0].is_alive() else time.sleep(0.02)
    finally:
        crew.halt()
        until = time.monotonic() + grace
        for lane in lanes:
            lane.join(max(0.0, until - time.monotonic()))
        crew.left()
        for number, handler in before.items():
            signals.signal(number, handler)
    if problems:
        raise problems[0]
    return crew.done


def must_be_some(concurrency: int) -> None:
    """Refuse a worker without lanes."""
    if concurrency < 1:
        raise InvalidInput(f"A worker does at least one task at a time, not {concurrency}.")
