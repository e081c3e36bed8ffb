"""A task in hand: claimed under a lease, to be completed, failed, extended or given back.

Each of these is one commit that checks the record which says who holds it. Once the task has passed to somebody else,
or was cancelled, it is `StaleLease` and nothing is written. A worker's tasks are extended in the background until they
end; one that was claimed by hand is extended by hand.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from tenuto import _machine
from tenuto.capabilities import outcomes, taskbook
from tenuto.capabilities.context import Context
from tenuto.capabilities.taskbook import Hold, TaskRecord
from tenuto.errors import Conflict, InvalidInput, StaleLease, StorageUnavailable
from tenuto.kernel import codec
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Write
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.transact import Steps, paced, settle


class Ending(NamedTuple):
    """How a task leaves the hand that has it: what to check and to write, in one commit."""

    task: Task
    checks: Sequence[AnyCheck]
    writes: Sequence[Write]


class Task:
    """A task that was claimed, with what it brings. It is a fence too: `agent.state.set(…, fence=task)`."""

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
        """Its own, or the key that it was enqueued with. It is the same at each attempt: give it to others as a key."""
        self.queue = record.queue
        self.payload = record.payload
        self.priority = record.priority
        self.user = record.user
        self.attempt = hold.attempt
        """Which attempt this is, from 1 on."""
        self.redelivered = hold.redeliveries > 0
        """True where the attempt before came to no end: its holder was lost, and it may have happened."""
        self.correlation_id = record.correlation
        self._context = context
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
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._context.clock

    @property
    def name(self) -> str:
        """Return what it is called where it is used as a fence."""
        return f"task {self.id}"

    @property
    def token(self) -> int:
        """Return the fencing token: it grows each time that the task is taken."""
        return self._token

    @property
    def lost(self) -> bool:
        """Tell whether it is known to have passed to somebody else, or to have been cancelled."""
        return self._lost

    @property
    def over(self) -> bool:
        """Tell whether it is out of this hand: completed, failed, given back, or lost."""
        return self._ended or self._lost

    @property
    def check(self) -> Check:
        """Return the check that a fenced commit makes."""
        if self._lost or self._ended:
            raise self._stale()
        return Check(taskbook.held_key(self.queue, self.id), self._token)

    @paced
    def complete(self, result: Any = None) -> Steps[None]:
        """End it with a result, durably; `StaleLease` if it has passed to somebody else."""
        yield from self.end(self.completing(result))

    @paced
    def fail(
        self, error: str | BaseException = "it failed", *, retry_in: Duration | None = None, retry: bool = True
    ) -> Steps[None]:
        """Say that this attempt failed, durably: it is tried again after its back-off, or after `retry_in`.

        When its attempts are used up, or with `retry=False`, it is dead: `tasks.dead` lists it, `tasks.retry` lets it go on.
        """
        yield from self.end(self.failing(error, retry_in, retry=retry))

    @paced
    def release(self) -> Steps[None]:
        """Give it back as it was, durably, to be taken by another at once; this attempt does not count."""
        yield from self.end(self.releasing())

    @paced
    def extend(self, lease: Duration | None = None) -> Steps[None]:
        """Hold it for so much longer from now on, durably; `StaleLease` if it has passed to somebody else."""
        length = self._lease if lease is None else seconds(lease, "lease")
        checks = [self.check]
        self._extended = True
        try:
            yield from settle(self._context.kernel, checks, [self._beat(length)])
        except Conflict as error:
            self._lost = True
            raise self._stale() from error

    # -- how it ends ---------------------------------------------------------------------------------------------

    def completing(self, result: Any) -> Ending:
        """Return what ends it with a result."""
        now = self._context.kernel.now()
        done = self._record._replace(
            status="completed",
            attempts=self.attempt,
            redeliveries=self._record.redeliveries + self._hold.redeliveries,
            result=outcomes.kept(result)[0],
            finished=now,
            by=self._context.writer,
        )
        return self._ending([taskbook.stored(self.id, done)])

    def failing(self, error: str | BaseException, retry_in: Duration | None = None, *, retry: bool = True) -> Ending:
        """Return what sends it back, or gives it up."""
        told = {"type": "Failed", "message": error} if isinstance(error, str) else outcomes.told(error)
        record, now = self._record, self._context.kernel.now()
        if not retry or record.failures + 1 >= record.rules.attempts:
            return self._ending(taskbook.buried(self.id, record, self._hold, now, told))
        delay = record.rules.delay(record.failures + 1) if retry_in is None else seconds(retry_in, "retry_in")
        return self._ending(taskbook.failed(self.id, record, self._hold, now, told, now + delay))

    def releasing(self, due: float | None = None) -> Ending:
        """Return what gives it back as it was, to be taken at once or at a later time."""
        again = self._record._replace(
            attempts=self.attempt - 1,
            redeliveries=self._record.redeliveries + self._hold.redeliveries,
            due=self._record.due if due is None else due,
            order=self._record.order if due is None else 0,
        )
        now = self._context.kernel.now()
        return self._ending([taskbook.stored(self.id, again), taskbook.placed(self.id, again, now)])

    def _ending(self, writes: Sequence[Write]) -> Ending:
        checks = [self.check, Check(taskbook.task_key(self.id), self._version)]
        gone: list[Write] = [Delete(taskbook.held_key(self.queue, self.id))]
        self.kept_no_more()
        if self._extended:
            gone.append(Delete(taskbook.beat_key(self.queue, self.id)))
        return Ending(self, checks, [*gone, *writes])

    def end(self, ending: Ending) -> Steps[None]:
        """Let it leave this hand; `StaleLease` if it has left before."""
        try:
            yield from settle(self._context.kernel, ending.checks, ending.writes)
        except Conflict as error:
            raise self.ended(error) from error
        self.ended()

    def ended(self, error: Conflict | None = None) -> StaleLease:
        """Know that it is out of hand; return the error to raise where that came before."""
        self._ended = True
        self._lost = error is not None
        return self._stale()

    def _stale(self) -> StaleLease:
        why = "has ended here" if self._ended and not self._lost else "has passed to somebody else, or was cancelled"
        return StaleLease(
            f"The task {self.id!r} {why}; nothing was written. Read what became of it with tasks.get({self.id!r}).",
            [taskbook.held_key(self.queue, self.id)],
        )

    # -- in hand -------------------------------------------------------------------------------------------------

    def taken(self, token: int) -> Task:
        """Know that it is in hand."""
        self._token = token
        return self

    def kept_no_more(self) -> None:
        """End extending it in the background; an extension that has begun comes to its end first."""
        with self._renewing:
            self._ending_begun = True

    def renew(self) -> None:
        """Extend it by its lease, in the background."""
        with self._renewing:
            if self._ending_begun or self._ended or self._lost:
                return
            self._extended = True
            try:
                self._context.kernel.commit([self.check], [self._beat(self._lease)])
            except Conflict:
                self._lost = True
            except StorageUnavailable:
                return  # the next time is early enough

    def _beat(self, length: float) -> Put:
        if length < 0.1:
            raise InvalidInput(f"A task's lease is 0.1 s or more, not {length!r}.")
        return Put(taskbook.beat_key(self.queue, self.id), codec.encode(None), length)

    def __repr__(self) -> str:
        """Say which task this is."""
        again = ", delivered again" if self.redelivered else ""
        return f"<task {self.id!r} of {self.queue!r}, attempt {self.attempt}{again}>"


def owner(writer: str) -> dict[str, Any]:
    """Return who takes tasks here."""
    host, pid, started = _self(os.getpid())
    return {"writer": writer, "host": host, "pid": pid, "started": started}


@functools.lru_cache(1)
def _self(pid: int) -> tuple[str, int, str | None]:
    return _machine.host(), pid, _machine.started(pid)


def is_gone(one: dict[str, Any]) -> bool:
    """Tell whether a holder surely is no more: a process of this machine that has ended."""
    mine = _self(os.getpid())
    return bool(one["host"] == mine[0] and one["pid"] != mine[1] and _machine.is_gone(one["pid"], one["started"]))
