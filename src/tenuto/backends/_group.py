"""Group commit: whoever finds nobody writing writes, and takes along those who came meanwhile.

A caller alone commits by itself, in its own thread: no hand-over, no writer thread. Callers that come
while one is writing queue up; when it is done, the first of them becomes the leader and writes the
whole queue in one transaction with one fsync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from tenuto.errors import StorageUnavailable

J = TypeVar("J", bound="Job")


class Job:
    """One caller's work: filled in by whoever leads, with an outcome or an error."""

    outcome: Any = None
    error: BaseException | None = None
    done = False
    leads = False
    wake: threading.Lock | None = None


class _Claim(Job):
    """Somebody who wants the leader's place, not a commit."""


class GroupCommit(Generic[J]):
    """Runs jobs one batch at a time, in the order in which they came."""

    def __init__(self, run: Callable[[list[J]], None], *, most: int = 256) -> None:
        self._run = run
        self._most = most
        self._mutex = threading.Lock()
        self._queue: list[Any] = []
        self._busy = False

    def submit(self, job: J) -> Any:
        """Run a job, in a batch with others if they are there; return its outcome or raise its error."""
        alone = False
        try:
            with self._mutex:
                alone = not self._busy  # nobody is writing, so nobody is queueing either
                self._busy = True
            if alone:
                self._run([job])
        finally:
            if alone:
                with self._mutex:
                    self._hand_over()
        if not alone:
            self._enter(job)
            if job.leads:
                self._lead()
        if job.error is not None:
            raise job.error
        return job.outcome

    def claim(self, timeout: float = -1) -> bool:
        """Wait until nobody is writing, behind everybody who came before, and keep it so until `resume`."""
        claim = _Claim()
        self._enter(claim, timeout)
        with self._mutex:
            self._queue.remove(claim)
            return claim.leads

    def resume(self) -> None:
        """Let the next one write."""
        with self._mutex:
            self._hand_over()

    def _enter(self, job: Any, timeout: float = -1) -> None:
        """Queue up, and return when the job is done or leads, or the time is over."""
        with self._mutex:
            if self._busy:
                job.wake = threading.Lock()
                job.wake.acquire()
            else:
                self._busy = True
                job.leads = True
            self._queue.append(job)
        if job.wake is None:
            return
        try:
            job.wake.acquire(timeout=timeout)
        except BaseException:  # KeyboardInterrupt while waiting: leave without stranding the others
            with self._mutex:
                if job in self._queue:
                    self._queue.remove(job)
                    if job.leads:
                        self._hand_over()
            raise

    def _lead(self) -> None:
        with self._mutex:
            count = 1  # the leader's own, and those behind it up to one that wants the place for itself
            while count < len(self._queue) and count < self._most and type(self._queue[count]) is not _Claim:
                count += 1
            batch, self._queue = self._queue[:count], self._queue[count:]
        try:
            self._run(batch)
        finally:
            with self._mutex:
                self._hand_over()
            for job in batch:
                if not job.done:
                    # Only an interrupt in the middle of the batch leads here.
                    job.done = True
                    job.error = job.error or StorageUnavailable(
                        "The commit was interrupted; whether it was applied is not known. "
                        "Commit again with the same request id.",
                        outcome="unknown",
                    )
                if job.wake is not None and not job.leads:
                    job.wake.release()

    def _hand_over(self) -> None:
        if self._queue:
            heir = self._queue[0]
            heir.leads = True
            if heir.wake is not None:
                heir.wake.release()
        else:
            self._busy = False
