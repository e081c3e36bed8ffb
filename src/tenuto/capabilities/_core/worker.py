"""The worker of runs and of tasks: lanes that take a job, execute it, and take the next one.

A worker has as many lanes as it may execute jobs concurrently, and takes no job that it cannot begin at once. Lanes
that find nothing wait. One of them polls the source, often at first and then rarely; when it finds a job it wakes the
next. A commit of this or another client wakes it earlier where the store has notifications. Nothing rests on that:
without them it polls every `poll` seconds, with them once a second.

One more lane does chores: work that no queue holds, such as the timers of questions. A chore that fails is logged and
done again later; it never ends the worker.

`Worker.lane` is written once; `work` performs lanes on threads, `aio.worker.work` as asyncio tasks. A worker stores
nothing but the idle record of `notices`.
"""

from __future__ import annotations

import logging
import signal as signals
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from tenuto.capabilities._core.base import Stop
from tenuto.capabilities._core.notices import Listener
from tenuto.errors import Closed, InvalidInput, StaleLease, StorageUnavailable, TenutoError
from tenuto.kernel.bell import Bell
from tenuto.kernel.clock import Clock, SystemClock
from tenuto.kernel.contract import Backend
from tenuto.kernel.transact import backoff
from tenuto.kernel.work import Sleep, Store, Work, perform

Job = Any
"""What a source returns from `take` and gets in `execute`: a run, a task."""
Ending = Any
"""What `execute` returns and the next `take` writes."""
Chores = Callable[[], Work[int]]
"""Does what is due now apart from jobs; returns how much that was."""
IDLE_CLOCK: Final = SystemClock()
"""Waiting for work takes the machine's time: it must not advance a test's clock."""
_SOON, _RARELY = 0.002, 1.0
_LOOKS: Final = 30
"""The delay between polls stops growing after this many polls without a job."""
_HEED: Final = 0.5
"""Seconds within which a lane notices a stop that did not wake it."""


class Source(Protocol):
    """Where a worker's jobs come from, and how they are executed."""

    what: str
    """For log lines: "runs", or the queue."""
    log: logging.Logger
    stream: bytes
    """Notified when there may be a job."""
    stop: Stop
    """Set by the worker: a long job may end early."""

    @property
    def more(self) -> bool:
        """Return whether the last `take` saw more than one job."""
        ...

    def take(self, ended: Ending | None) -> Work[Job | None]:
        """Take a job durably, or return None; write the end of the lane's last job in the same commit if possible."""
        ...

    def execute(self, job: Job) -> Work[Ending | None]:
        """Execute a job; return what ends it, unless that is written already."""
        ...

    def end(self, ended: Ending) -> Work[None]:
        """Write the end of a job; never raise."""
        ...

    def is_empty(self) -> bool:
        """Return whether no job waits or is executed."""
        ...

    def seconds_left(self) -> float:
        """Return the seconds until the next job known to become due by time."""
        ...

    def abandon(self) -> None:
        """Give up the jobs that still run after the grace period: other workers may take them."""
        ...


class Worker:
    """The shared state of one worker's lanes. It is also the stop flag of its jobs."""

    def __init__(
        self,
        kernel: Backend,
        source: Source,
        *,
        poll: float,
        until_empty: bool,
        stop: Stop | None,
        chores: Chores | None = None,
    ) -> None:
        self._source = source
        self._chores = None if until_empty else chores
        self._poll = poll
        self._until_empty = until_empty
        self._stop = stop
        self._listener = Listener(kernel, source.stream)
        self._lock = threading.Lock()
        self._idle: deque[Bell] = deque()
        self._poller: Bell | None = None
        self._resting = Bell()
        self._over = False
        self._empty = False
        self._away = False
        source.stop = self

    def is_set(self) -> bool:
        """Return whether the worker should stop."""
        return self._over or (self._stop is not None and self._stop.is_set())

    def set(self) -> None:
        """Stop the worker, and wake its idle lanes."""
        self._over = True
        self._wake_all()

    def _ends(self) -> bool:
        """Return whether a lane without a job ends. A lane may still find a job after another found none: it does it."""
        return self._empty or self.is_set()

    def _wake_all(self) -> None:
        for bell in (self._resting, *self._idle):
            bell.ring()

    def wake(self) -> None:
        """Let an idle lane look for a job, if there is one."""
        with self._lock:
            bell = self._poller if self._poller is not None else self._idle[0] if self._idle else None
        if bell is not None:
            bell.ring()

    def finish(self) -> None:
        """Give up the jobs that still run, and unsubscribe."""
        self._source.abandon()
        self._listener.close()

    def lane(self) -> Work[None]:
        """Execute one job after the other until the worker stops."""
        bell = Bell()
        ended: Ending | None = None
        troubles = backoff(first=0.05, most=5.0)
        looks, quiet = 0, False
        while True:
            bell.hush()
            if self._ends():
                if ended is not None:
                    yield Store(self._source.end(ended))
                return
            try:
                job = yield Store(self._source.take(ended))
            except StaleLease as error:
                self._source.log.warning("%s", error)
                ended = None
                continue
            except Closed:
                return
            except StorageUnavailable as error:
                self._lost(error)
                yield from self._pause(bell, next(troubles))
                continue
            self._found()
            troubles = backoff(first=0.05, most=5.0)
            ended = None
            if job is None:
                quiet = yield from self._found_none(bell, looks, quiet=quiet)
                looks += 1
                continue
            looks, quiet = 0, False
            if self._poller is bell or self._source.more:
                self._wake_next(bell)
            ended = yield from self._source.execute(job)

    def _found_none(self, bell: Bell, looks: int, *, quiet: bool) -> Work[bool]:
        """Wait for a job, unless the source is empty; return whether it is.

        If it was empty before the look too (`quiet`), the worker ends. A job that ends in another lane may make the next
        one due, so being empty once says little.
        """
        if self._until_empty and (yield Store(self._source.is_empty)):
            if quiet:
                self._empty = True
                self._wake_all()
            return True
        yield from self._wait(bell, looks + 1)
        return False

    def chores(self) -> Work[None]:
        """Do chores until the worker stops, at least once a second."""
        failures = 0
        while self._chores is not None and not self.is_set():
            done = 0
            try:
                done = yield from self._chores()
                failures = 0
            except Closed:
                return
            except TenutoError as error:
                failures += 1
                # One warning for an outage, however long. By the second failure the lanes have logged it, if they have it too.
                if failures == 2 and not self._away:
                    self._source.log.warning("Looking for timers that are due failed and will be retried: %s", error)
            if not done:
                yield Sleep(_RARELY, self._resting)

    def _wait(self, bell: Bell, looks: int) -> Work[None]:
        """Wait for a job: as the lane that polls, or until that one finds a job."""
        with self._lock:
            if self._poller is None:
                self._poller = bell
        if self._poller is not bell:
            yield from self._pause(bell, _HEED)
            while self._poller not in (None, bell) and not bell.rung and not self._ends():
                yield from self._pause(bell, _HEED)
            return
        delay = min(_SOON * 1.5 ** min(looks, _LOOKS), self._poll)
        if delay >= self._poll:
            yield Store(self._listener.subscribe(bell))
            if self._listener.reliable:
                delay = max(_RARELY, self._poll)
        yield from self._pause(bell, max(min(delay, self._source.seconds_left()), _SOON))

    def _pause(self, bell: Bell, seconds: float) -> Work[None]:
        """Sleep, until a notification or the worker stops."""
        with self._lock:
            self._idle.append(bell)
        try:
            if not self._ends():
                yield Sleep(seconds, bell)
        finally:
            with self._lock:
                self._idle.remove(bell)

    def _wake_next(self, bell: Bell) -> None:
        """Let another idle lane poll."""
        with self._lock:
            if self._poller is bell:
                self._poller = None
            other = next((one for one in self._idle if one is not self._poller), None)
        if other is not None:
            other.ring()

    def _lost(self, error: StorageUnavailable) -> None:
        """Log once that the store is unavailable."""
        with self._lock:
            first, self._away = not self._away, True
        if first:
            self._source.log.warning("The worker cannot take %s now and keeps trying: %s", self._source.what, error)

    def _found(self) -> None:
        """Log once that the store is available again."""
        if self._away:
            with self._lock:
                first, self._away = self._away, False
            if first:
                self._source.log.warning("The worker can take %s again.", self._source.what)


class _Lanes:
    """The threads of a worker."""

    def __init__(self, worker: Worker, clock: Clock, concurrency: int) -> None:
        self._worker = worker
        self.problems: list[BaseException] = []
        # No pool: at exit Python would wait for its threads, however long a job takes.
        works = [(worker.lane, clock)] * concurrency + [(worker.chores, IDLE_CLOCK)]
        self._threads = [
            threading.Thread(target=self._run, args=one, name="tenuto-worker", daemon=True) for one in works
        ]

    def _run(self, lane: Callable[[], Work[None]], clock: Clock) -> None:
        try:
            perform(lane(), clock)
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits for the lanes
            self.problems.append(error)
            self._worker.set()

    def run(self) -> None:
        """Start the threads, and wait until the worker should stop."""
        for thread in self._threads:
            thread.start()
        while any(thread.is_alive() for thread in self._threads) and not self._worker.is_set():
            self._threads[0].join(_HEED) if self._threads[0].is_alive() else time.sleep(0.02)

    def end(self, grace: float) -> None:
        """Stop the threads; wait `grace` seconds for their jobs."""
        self._worker.set()
        until = time.monotonic() + grace
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        self._worker.finish()


def work(worker: Worker, clock: Clock, *, concurrency: int, grace: float, on_signal: bool) -> None:
    """Execute jobs on `concurrency` threads until the worker stops; raise what ended a lane."""
    lanes = _Lanes(worker, clock, must_be_some(concurrency))
    numbers = (signals.SIGTERM, signals.SIGINT) if on_signal else ()
    before = {number: signals.signal(number, lambda *_: worker.set()) for number in numbers}
    try:
        # A call, not a loop: where a loop starts its next round, Python 3.12 and 3.13 may raise the KeyboardInterrupt of
        # Control-C outside of the `try` around it. The lanes would continue, and nothing would stop them.
        lanes.run()
    finally:
        lanes.end(grace)
        _restore(before)
    if lanes.problems:
        raise lanes.problems[0]


def _restore(handlers: dict[signals.Signals, Any]) -> None:
    for number, handler in handlers.items():
        signals.signal(number, handler)


def must_be_some(concurrency: int) -> int:
    """Return `concurrency`; raise `InvalidInput` unless it is at least 1."""
    if concurrency < 1:
        raise InvalidInput(f"concurrency must be at least 1, not {concurrency}. Nothing was taken.")
    return concurrency
