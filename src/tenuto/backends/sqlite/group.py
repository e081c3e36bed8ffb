"""Group commit: the thread whose turn it is to write also writes for all threads that wait.

A caller alone commits by itself, in its own thread: no hand-over, no writer thread. Callers that arrive while one
is writing queue up. When it is done, it wakes the first of them, which writes the whole queue in one
transaction with one fsync, and then wakes the others.

Control-C may come between any two lines. The turn is a lock held by a `with` block, which Python always releases,
as long as the block has no loop of its own: at the start of a loop's next iteration Python 3.12 and 3.13 may leave
the block without its exit. Everything else may be interrupted at any point: a thread that is not woken wakes by itself.
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
"""Seconds after which a thread that was not woken checks by itself."""


class Job:
    """One caller's work. The leader fills in an outcome or an error, and sets `done`."""

    outcome: Any = None
    error: BaseException | None = None
    started = False
    done = False
    wake: threading.Lock | None = None


class GroupCommit(Generic[J]):
    """Runs jobs one batch at a time, in the order in which they arrived."""

    def __init__(self, run: Callable[[list[J]], None], *, most: int = 256) -> None:
        self._run = run
        self._most = most
        self._turn = threading.Lock()
        self._queue: deque[J] = deque()

    def submit(self, job: J) -> Any:
        """Run a job, in a batch with others if some wait; return its outcome or raise its error."""
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
                "The commit was interrupted. Whether it was applied is not known; "
                "commit again with the same request id.",
                outcome="unknown",
            )
        return job.outcome

    def _join(self, job: J) -> None:
        """Queue the job and wait until it is done, by another leader or by leading the queue."""
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
            with contextlib.suppress(ValueError):  # interrupted while waiting: withdraw a job that has not started
                self._queue.remove(job)
            self._wake([])
            raise

    def _wait(self, job: J) -> None:
        """Wait until the job is done or may lead. Jobs are served in order.

        The leader chooses a thread to wake after releasing the turn; so the wake-up is still to come, unless
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
        except IndexError:  # another leader has run it
            return False

    def _lead_up_to(self, job: J, done: list[J]) -> None:
        while not job.started and self._queue:
            self._lead(done)

    def _lead(self, done: list[J]) -> None:
        """Run the waiting jobs as one batch, and record which threads to wake."""
        batch: list[J] = []
        queue = self._queue
        with contextlib.suppress(IndexError):  # an interrupted thread has withdrawn its job
            while queue and len(batch) < self._most:
                queue[0].started = True  # before it leaves the queue: an interrupt here means unknown, not lost
                job = queue.popleft()
                job.started = True
                batch.append(job)
        done += batch
        self._run(batch)

    def _wake(self, batch: list[J]) -> None:
        """Wake the next leader, then the threads whose jobs are done."""
        with contextlib.suppress(IndexError, RuntimeError):  # no thread waits, or it was woken already
            heir = self._queue[0].wake
            if heir is not None:
                heir.release()
        for job in batch:
            if job.wake is not None:
                with contextlib.suppress(RuntimeError):
                    job.wake.release()

    def alone(self, work: Callable[[], None]) -> None:
        """Run `work` while no thread writes, after the jobs that already wait."""
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
