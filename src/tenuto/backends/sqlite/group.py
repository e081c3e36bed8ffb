"""Group commit: whoever gets the turn to write takes along everybody who is waiting for it.

A caller alone commits by itself, in its own thread: no hand-over, no writer thread. Callers that come
while one is writing queue up; when it is done, it wakes the first of them, who writes the whole queue in one
transaction with one fsync, and then wakes the others.

Control-C may come between any two lines. The turn is a lock held by a `with` block, which Python takes and gives
back whatever comes, as long as the block has no loop of its own: where a loop begins anew, Python 3.12 and 3.13 may leave
the block without its end. Everything else may be left undone at any place. Who is not woken by that wakes up by itself.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from tenuto.errors import StorageUnavailable

J = TypeVar("J", bound="Job")
_LOOK_AGAIN: Final = 0.05
"""After so many seconds somebody who was not woken looks by itself."""


class Job:
    """One caller's work: filled in by whoever leads, with an outcome or an error."""

    outcome: Any = None
    error: BaseException | None = None
    direct = False
    """Whether it takes long: then it shares a batch only with such as do too."""
    taken = False
    done = False
    wake: threading.Lock | None = None


class GroupCommit(Generic[J]):
    """Runs jobs one batch at a time, each batch in the order in which they came."""

    def __init__(self, run: Callable[[list[J]], None], *, most: int = 256) -> None:
        self._run = run
        self._most = most
        self._turn = threading.Lock()
        self._queue: deque[J] = deque()

    def submit(self, job: J) -> Any:
        """Run a job, in a batch with others if they are there; return its outcome or raise its error."""
        if self._queue or self._turn.locked():
            self._join(job)
        else:
            try:
                with self._turn:
                    self._run([job])
            finally:
                if self._queue:
                    self._wake([])
        if job.error is not None:
            raise job.error
        if not job.done:
            raise StorageUnavailable(
                "The commit was interrupted; whether it was applied is not known. "
                "Commit again with the same request id.",
                outcome="unknown",
            )
        return job.outcome

    def _join(self, job: J) -> None:
        """Queue up behind those who are here, and see the job done: by one of them, or with all who wait."""
        self._queue.append(job)
        try:
            if self._turn.locked() or not self._is_first(job):
                self._wait(job)
            if not job.done:
                batch: list[J] = []
                try:
                    with self._turn:
                        self._lead_up_to(job, batch)
                finally:
                    if self._queue or len(batch) > 1:
                        self._wake(batch)
        except BaseException:
            with contextlib.suppress(ValueError):  # who is interrupted while waiting takes back what has not begun
                self._queue.remove(job)
            self._wake([])
            raise

    def _wait(self, job: J) -> None:
        """Wait until the job is done, or it may be its turn. Nobody passes by those who came before.

        Whoever has the turn looks for somebody to wake after giving it back; so that is still to come, unless
        the turn is free already.
        """
        wake = threading.Lock()
        wake.acquire()
        job.wake = wake
        if not self._turn.locked() and self._is_first(job):
            return
        while not job.done and not wake.acquire(timeout=_LOOK_AGAIN) and self._turn.locked():
            pass

    def _is_first(self, job: J) -> bool:
        try:
            return self._queue[0] is job
        except IndexError:  # another has taken it along
            return False

    def _lead_up_to(self, job: J, done: list[J]) -> None:
        while not job.taken and self._queue:
            self._lead(done)

    def _lead(self, done: list[J]) -> None:
        """Run those who wait, as many as go together, and note whom to wake."""
        batch: list[J] = []
        queue = self._queue
        with contextlib.suppress(IndexError):  # somebody who was interrupted has taken his job back in between
            while queue and len(batch) < self._most:
                job = queue[0]
                if batch and job.direct is not batch[0].direct:
                    break
                job.taken = True  # before it leaves the queue: interrupted here, it is in doubt, not forgotten
                job = queue.popleft()
                job.taken = True
                batch.append(job)
        done += batch
        self._run(batch)

    def _wake(self, batch: list[J]) -> None:
        """Wake the one who writes next, then those whose work is done."""
        with contextlib.suppress(IndexError, RuntimeError):  # nobody is waiting, or was woken already
            heir = self._queue[0].wake
            if heir is not None:
                heir.release()
        for job in batch:
            if job.wake is not None:
                with contextlib.suppress(RuntimeError):
                    job.wake.release()

    def claim(self, timeout: float = -1) -> bool:
        """Wait until nobody is writing, and keep it so until `resume`; tell whether it is so.

        Whoever waits already is not kept out: what they came with is done first.
        """
        if not self._turn.acquire(timeout=timeout):
            return False
        batch: list[J] = []
        try:
            self._lead_all(batch)
        except BaseException:
            self._turn.release()
            raise
        finally:
            self._wake(batch)
        return True

    def alone(self, work: Callable[[], None]) -> None:
        """Do something while nobody is writing. Whoever waits already is not kept out: what they came with is done first."""
        batch: list[J] = []
        try:
            with self._turn:
                self._lead_all(batch)
                work()
        finally:
            self._wake(batch)

    def _lead_all(self, done: list[J]) -> None:
        waiting = len(self._queue)
        while self._queue and len(done) < waiting:
            self._lead(done)

    def resume(self) -> None:
        """Let the next one write."""
        self._turn.release()
        self._wake([])
