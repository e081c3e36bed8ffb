"""A claimed task: complete, fail, extend or release it.

Each is one commit that checks the held record. If another worker claimed the task, or it was cancelled, it raises
`StaleLease` and writes nothing. A worker's tasks are extended in the background; call `extend` after `claim`.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from tenuto import _machine
from tenuto.capabilities._core.base import Context, Timed
from tenuto.capabilities.runs import error_data, to_stored
from tenuto.capabilities.tasks import records
from tenuto.capabilities.tasks.records import Hold, TaskRecord
from tenuto.errors import Conflict, InvalidInput, StaleLease, StorageUnavailable
from tenuto.kernel import codec
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Write
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work, on_store


class Ending(NamedTuple):
    """The checks and writes that end a claim."""

    task: Task
    checks: Sequence[AnyCheck]
    writes: Sequence[Write]


class Task(Timed):
    """A claimed task. It is also a fence: `agent.state.set(…, fence=task)`."""

    def __init__(
        self,
        context: Context,
        task_id: str,
        record: TaskRecord,
        version: int,
        hold: Hold,
        lease: float,
    ) -> None:
        assert record.queue is not None
        self.id = task_id
        """Generated, or the key of `enqueue`. It is the same at each attempt, so it serves as an idempotency key."""
        self.queue = record.queue
        self.payload = record.payload
        self.priority = record.priority
        self.user = record.user
        self.attempt = hold.attempt
        """The number of this attempt, from 1."""
        self.redelivered = hold.redeliveries > 0
        """True if the previous holder was lost: the task may have been done."""
        self.correlation_id = record.correlation
        self._context = context
        self._held = records.held_key(self.queue, task_id)
        self._record = record
        self._version = version
        self._hold = hold
        self._lease = lease
        self._token = 0
        self._extended = False
        self._ended = False
        self._lost = False
        self._ending_begun = False
        self._renewing = threading.Lock()

    @property
    def name(self) -> str:
        """Return its name as a fence."""
        return f"task {self.id}"

    @property
    def token(self) -> int:
        """Return the fencing token, which grows with each claim."""
        return self._token

    @property
    def lost(self) -> bool:
        """Return whether the claim is known to be lost: claimed by another worker, or cancelled."""
        return self._lost

    @property
    def over(self) -> bool:
        """Return whether this claim has ended: completed, failed, released, or lost."""
        return self._ended or self._lost

    @property
    def check(self) -> Check:
        """Return the check that a fenced commit makes."""
        if self._lost or self._ended:
            raise self._stale()
        return Check(self._held, self._token)

    @on_store
    def complete(self, result: Any = None) -> Work[None]:
        """Complete the task durably with a result; raise `StaleLease` if the claim was lost."""
        yield from self._end(self._completing(result))

    @on_store
    def fail(
        self, error: str | BaseException = "it failed", *, retry_in: Duration | None = None, retry: bool = True
    ) -> Work[None]:
        """Fail this attempt durably: the task is retried after its back-off, or after `retry_in`.

        After the last attempt, or with `retry=False`, it is dead: `tasks.dead` lists it, `tasks.retry` runs it again.
        """
        yield from self._end(self._failing(error, retry_in, retry=retry))

    @on_store
    def release(self) -> Work[None]:
        """Release the task durably for others to claim at once; this attempt does not count."""
        yield from self._end(self._releasing())

    @on_store
    def extend(self, lease: Duration | None = None) -> Work[None]:
        """Extend the claim durably from now; raise `StaleLease` if it was lost."""
        length = self._lease if lease is None else seconds(lease, "lease")
        checks = [self.check]
        self._extended = True
        try:
            yield from commit_once(self._context.kernel, checks, [self._beat(length)])
        except Conflict as error:
            self._lost = True
            raise self._stale() from error

    def _completing(self, result: Any) -> Ending:
        now = self._context.kernel.now()
        done = self._record._replace(
            status="completed",
            attempts=self.attempt,
            redeliveries=self._record.redeliveries + self._hold.redeliveries,
            result=to_stored(result)[0],
            finished=now,
            by=self._context.writer,
        )
        return self._ending([records.stored(self.id, done)])

    def _failing(self, error: str | BaseException, retry_in: Duration | None = None, *, retry: bool = True) -> Ending:
        data = {"type": "Failed", "message": error} if isinstance(error, str) else error_data(error)
        record, now = self._record, self._context.kernel.now()
        if not retry or record.failures + 1 >= record.rules.attempts:
            return self._ending(records.buried(self.id, record, self._hold, now, data))
        delay = record.rules.delay(record.failures + 1) if retry_in is None else seconds(retry_in, "retry_in")
        return self._ending(records.failed(self.id, record, self._hold, now, data, now + delay))

    def _releasing(self, due: float | None = None) -> Ending:
        """Return the end of the claim that releases the task at once, or at a later time."""
        again = self._record._replace(
            attempts=self.attempt - 1,
            redeliveries=self._record.redeliveries + self._hold.redeliveries,
            due=self._record.due if due is None else due,
            order=self._record.order if due is None else 0,
        )
        now = self._context.kernel.now()
        return self._ending([records.stored(self.id, again), records.placed(self.id, again, now)])

    def _ending(self, writes: Sequence[Write]) -> Ending:
        checks = [self.check, Check(records.task_key(self.id), self._version)]
        gone: list[Write] = [Delete(self._held)]
        self._stop_extending()
        if self._extended:
            gone.append(Delete(records.beat_key(self.queue, self.id)))
        return Ending(self, checks, [*gone, *writes])

    def _end(self, ending: Ending) -> Work[None]:
        """Commit the end of the claim; raise `StaleLease` if it was lost."""
        try:
            yield from commit_once(self._context.kernel, ending.checks, ending.writes)
        except Conflict as error:
            raise self._mark_lost() from error
        self._ended = True

    def _mark_lost(self) -> StaleLease:
        """Mark the claim as lost; return the error to raise."""
        self._ended = self._lost = True
        return self._stale()

    def _stale(self) -> StaleLease:
        why = "has ended here" if self._ended and not self._lost else "was claimed by another worker or cancelled"
        return StaleLease(
            f"The task {self.id!r} {why}; nothing was written. Read its status with tasks.get({self.id!r}).",
            [self._held],
        )

    def _taken(self, token: int) -> Task:
        self._token = token
        return self

    def _stop_extending(self) -> None:
        """Stop extending, after any extension in progress."""
        with self._renewing:
            self._ending_begun = True

    def _renew(self) -> None:
        """Extend the claim by its lease, in the background."""
        with self._renewing:
            if self._ending_begun or self._ended or self._lost:
                return
            self._extended = True
            try:
                self._context.kernel.commit([self.check], [self._beat(self._lease)])
            except Conflict:
                self._lost = True
            except StorageUnavailable:
                return  # the next renewal retries it

    def _beat(self, length: float) -> Put:
        if length < 0.1:
            raise InvalidInput(f"The lease of a task must be at least 0.1 s, not {length!r}.")
        return Put(records.beat_key(self.queue, self.id), codec.encode(None), length)

    def __repr__(self) -> str:
        """Name the task."""
        again = ", delivered again" if self.redelivered else ""
        return f"<task {self.id!r} of {self.queue!r}, attempt {self.attempt}{again}>"


def owner(writer: str) -> dict[str, Any]:
    """Return the identity of this process as a holder."""
    host, pid, started = _self(os.getpid())
    return {"writer": writer, "host": host, "pid": pid, "started": started}


@functools.lru_cache(1)
def _self(pid: int) -> tuple[str, int, str | None]:
    return _machine.host(), pid, _machine.started(pid)


def is_gone(one: dict[str, Any]) -> bool:
    """Return whether a holder was a process of this machine that has ended."""
    mine = _self(os.getpid())
    return bool(one["host"] == mine[0] and one["pid"] != mine[1] and _machine.is_gone(one["pid"], one["started"]))
