"""An open run: its lease acquired, its log read and appended to.

Opening a run is one commit that acquires the lease, adds `STARTED` or `RESUMED` and sets the head to running; it checks
that head and log have not changed since they were read. Leaving it is one commit that adds how it ended or paused,
updates the head and releases the lease. A crash in between leaves a `running` run whose lease expires: it is
interrupted, and the next process resumes it from its log. A completed run is only replayed, without a lease.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

from tenuto.capabilities._core.base import Stop, commit
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.runs.delete import clear
from tenuto.capabilities.runs.engine import Engine, Given, Stopped, begun, current, current_step, failing, must_fit
from tenuto.capabilities.runs.live import LiveValues
from tenuto.capabilities.runs.log import (
    COMPLETED,
    FAILED,
    LOWERED,
    OVER,
    PLAIN,
    QUEUED,
    RESUMED,
    Head,
    History,
    Identity,
    Op,
    RunLog,
    resume_line,
    user_key,
)
from tenuto.capabilities.runs.open_steps import OpenSteps, here, quietly
from tenuto.capabilities.runs.replay import Replay
from tenuto.capabilities.runs.reports import leaving, opening
from tenuto.capabilities.runs.results import causes_of, error_data, to_stored
from tenuto.errors import (
    Cancelled,
    Conflict,
    InDoubt,
    InvalidInput,
    NotStorable,
    Paused,
    RunBusy,
    StaleLease,
    StateConflict,
    StepMismatch,
    StorageUnavailable,
    TimedOut,
)
from tenuto.kernel import codec
from tenuto.kernel.contract import AnyCheck, Check, CheckEnd, Commit, Delete, Put, Write
from tenuto.kernel.transact import backoff, commit_once, own_request
from tenuto.kernel.work import Sleep, Store, Work, work_of

R = TypeVar("R")
Weighed = Work[tuple[list[AnyCheck], list[Write]]]
log: Final = logging.getLogger("tenuto.runs")
TTL: Final = 10.0
_A_WHILE: Final = 5.0
_BUSY: Final = 1.0
PATIENCE: Final = 60.0
"""Seconds for which storing a result is retried while the store is unavailable."""


class OpenRun(OpenSteps):
    """A run that this process executes."""

    def __init__(
        self,
        engine: Engine,
        run_id: str,
        *,
        user: str | None = None,
        wait: float = 0.0,
        block: bool = False,
        deadline: float | None = None,
        given: Given | None = None,
    ) -> None:
        self.log = RunLog(engine.context, run_id)
        super().__init__(self.log.id)
        self.engine = engine
        self.context = engine.context
        self.user = user
        self.block = block
        self.lease = Lease(engine.context, engine.renewer, run_id, kind="run", ttl=TTL, wait=None)
        self.given = given
        self.live = LiveValues(self.log)
        self.history = History()
        self.past = Replay(run_id, self.history)
        self.resumed = False
        self.over = False
        """True if the run was already completed: nothing is written."""
        self.stopping: Stop | None = None
        self.handle: Any = None  # a `Run` or an `AsyncRun`, which the body has
        self.instead: int | None = None  # the number of the step that gets a fork's arguments
        self.waits: list[tuple[str, str, float | None]] = []
        self._wait = wait
        self._deadline = deadline
        self._head: Head | None = None
        self._lost: BaseException | None = None
        """Why this process may not continue: it lost the run, or the store is unavailable and a record is missing."""
        self._mismatch: StepMismatch | None = None
        """The first mismatch with the record: nothing more runs."""
        self._raised: list[tuple[BaseException, int]] = []
        self.leaving = False

    def take(self) -> Work[None]:
        """Open the run durably and read its log; raise `RunBusy` if another process holds it longer than `wait`."""
        if self._open:
            raise InvalidInput(f"This handle has already opened the run {self.id!r}. Use the open one.")
        above = current.get()
        if above is not None and above.id == self.id and above.engine is self.engine:
            raise RunBusy(f"The run {self.id!r} is already open in this process. Give the nested run another id.")
        if above is not None and self.stopping is None:
            self.stopping = above.stopping  # a stopping worker does not wait for nested runs
        left, hurried = self._wait, 0  # counts the time slept: a clock set back would never end the wait
        delays = backoff(first=0.01, most=0.25)
        while True:
            head, version = self.log.head()
            if head is not None and head.status == "deleting":
                yield from clear(self.log, head, version)
                continue
            holder = None if head is not None and head.status == "completed" else self.lease._holder()
            if holder is None:
                if (yield from self._taken(head, version)):
                    return
                hurried += 1
                if hurried < 100:
                    yield Sleep(min(next(delays), 0.02))  # a conflict with another process or a signal: try again
                    continue
                holder = "another process, which acquired it first"
            if left <= 0:
                self._holds_up(above, self.context.kernel.now() + _BUSY)  # its holder does not know of this wait: poll
                raise RunBusy(
                    f"The run {self.id!r} is executed by {holder}. Wait longer with wait=, or read it with "
                    f"agent.runs.get({self.id!r})."
                )
            pause = min(next(delays), left)
            left -= pause
            yield Sleep(pause)

    def _taken(self, head: Head | None, version: int) -> Work[bool]:
        history = self.log.read(head.first) if head is not None else History()
        if head is not None and head.status == "cancelled":
            raise Cancelled(
                f"The run {self.id!r} was cancelled. To resume it, call agent.runs.retry({self.id!r}).", self.id
            )
        if head is not None:
            must_fit(self, head, history)
        if head is not None and head.status == "completed":
            self.over = True
        else:
            last = history.last if head is not None else self.log.last()
            head, writes = self._beginning(head, history, last)
            checks: list[AnyCheck] = [Check(self.log.head_key, version), CheckEnd(self.log.own, last)]
            if (yield from self.lease._attempt(checks, writes)) is None:
                return False
            self.lease._start_renewing()
        self._head, self.history, self.past = head, history, Replay(self.id, history)
        self.waits, self.instead, self._lost, self._mismatch, self.leaving = [], None, None, None, False
        self._equals, self._maps, self._raised = {}, {}, []
        self.user = head.user
        self.next = history.next
        self._open, self._home, self._pid = True, here(), os.getpid()
        yield from opening(self)
        return True

    def _beginning(self, head: Head | None, history: History, last: int) -> tuple[Head, list[Write]]:
        now, before = self.context.kernel.now(), head
        if head is None:
            head, history.started, line = begun(self, self.log, self.given, now, last)
            history.at = now
            writes: list[Write] = [line]
            if head.user is not None:
                writes.append(Put(user_key(head.user, self.id), codec.encode(None)))
            if head.parent is not None:
                writes.append(Put(RunLog(self.context, head.parent).child_key(self.id), codec.encode(None)))
        else:
            self.resumed = head.status != "queued" or bool(history.ops)
            idle = head.status == "running" and history.got_on <= head.upto
            head = head._replace(takeovers=head.takeovers + 1 if idle else 0)
            # Live values of the process before are gone: nothing would remove them later.
            writes = [self.log.line(RESUMED, 0, None), Delete(self.log.live_key)] if self.resumed else []
        head = head._replace(status="running", changed=now, wake=None, waits=(), upto=last + len(writes[:1]))
        if self._deadline is not None:  # from the start of the run: repeating the call does not postpone it
            head = head._replace(deadline=head.created + self._deadline)
        return head, [*writes, *self.log.placed(head, before)]

    def recall(self, identity: Identity) -> Work[Op | None]:
        """Return the recorded operation of this identity, or None if it is new and may run; else `StepMismatch`.

        After a mismatch nothing more runs: a body that caught it would continue from a result that it never got.
        """
        try:
            return (yield from self._recall(identity))
        except StepMismatch as error:
            self._mismatch = self._mismatch or error
            raise

    def _recall(self, identity: Identity) -> Work[Op | None]:
        with self._lock:
            op = self.past.take(identity)
            hindrance = self.past.hindrance(identity) if op is None else None
        for _ in range(20):
            if hindrance is None:
                break
            yield Sleep(0.002)  # a concurrent step may be about to ask for it
            with self._lock:
                op = self.past.take(identity)
                hindrance = self.past.hindrance(identity) if op is None else None
        if hindrance is not None:
            raise self.past.refuse(identity, hindrance)
        if op is None and self.over:
            raise StepMismatch(
                f"The run {self.id!r} is completed and has no record of {identity.name!r}; nothing was run. "
                f"Use another id for more work, or continue in a fork: agent.runs.fork({self.id!r}, NEW_ID).",
                identity.name,
            )
        return op

    def recall_next(self, name: str, digest: bytes) -> Op | None:
        """Return the next recorded step if it is this one and done: a fast path of `recall` for long logs."""
        if not self._open or self._lost is not None or self._mismatch is not None or current_step.get() is not None:
            return None
        with self._lock:
            op = self.past.take_next(name, digest)
            if op is not None:
                which = ("step", name, digest)
                self._equals[which] = self._equals.get(which, 0) + 1
        return op

    def value_of(self, op: Op) -> Work[Any]:
        """Return the recorded result of an operation, with its blobs."""
        return (yield Store(lambda: self.log.value(op))) if op.apart else op.value

    @contextmanager
    def awaiting(self, kind: str, ref: str, until: float | None) -> Iterator[None]:
        """Register what the run waits for; it stays registered if the waiting task is cancelled."""
        one = (kind, ref, until)
        self.waits.append(one)
        try:
            yield
        except Exception:
            self.waits.remove(one)
            raise
        self.waits.remove(one)

    def must_go_on(self, what: str) -> None:
        """Raise unless this run is open, held, matches its record, and is not inside one of its steps."""
        self._must_be_open(what)
        if self._lost is not None:
            raise self._lost
        if self._mismatch is not None:
            raise self._mismatch
        inside = current_step.get()
        if inside is not None and inside.run is self:
            raise InvalidInput(
                f"{what[:1].upper()}{what[1:]} was called inside a step, whose function is not called on a replay. "
                "Call it in the run's body, or start another run in the step."
            )

    def may_begin(self, what: str) -> None:
        """Raise if no new operation may begin: the worker stops, or the deadline has passed."""
        if self.stopping is not None and self.stopping.is_set():
            raise Stopped(f"The run {self.id!r} stops before {what}; another worker resumes it.", self.id)
        self.in_time(what)

    def in_time(self, what: str) -> None:
        """Raise `TimedOut` if the run's deadline has passed."""
        deadline = self._head.deadline if self._head is not None else None
        if deadline is not None and self.context.kernel.now() > deadline:
            raise TimedOut(
                f"The run {self.id!r} has passed its deadline; {what} was not done. Repeat the call with a later "
                "deadline=, counted from the start of the run."
            )

    def write(
        self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, saving: bool = False, gate: str | None = None
    ) -> Work[Commit]:
        """Commit atomically under the run's lease, exactly once; with `saving`, retry while the store is unavailable.

        With `gate`, raise `Blocked` if a question blocks that resource. If the store stays unavailable the run ends in
        this process: later steps would build on a missing record.
        """
        request = own_request(self.context.kernel.now())

        def attempt() -> Work[Commit]:
            try:
                what = f"The run {self.id!r}"
                return (yield from commit(self.context, checks, writes, self.lease, what, request, gate))
            except StaleLease as error:
                raise (yield from self.fenced_out(error, checks, writes if saving else ())) from error

        return (yield from self._retried(attempt, saving=saving))

    def record(
        self, kind: int, n: int, data: list[Any], at: int, *, saving: bool = False, more: Sequence[Write] = ()
    ) -> Work[None]:
        """Add a line whose value `data[at]` may be large, with `more` writes; retry when a blob's reference count changes."""

        def attempt() -> Work[None]:
            checks, writes = yield from self.log.weighed(kind, n, data, at)
            yield from self.write(checks, [*writes, *more], saving=saving)

        yield from self._retried(attempt, saving=saving, on=StateConflict)

    def _retried(self, attempt: Callable[[], Work[R]], *, saving: bool, on: type[Conflict] | tuple[()] = ()) -> Work[R]:
        """Retry after a conflict of the kind `on`, and with `saving` for a while when the store is unavailable."""
        delays, waited = backoff(first=0.05, most=2.0), 0.0
        doubt: StorageUnavailable | None = None  # an unknown outcome stays unknown after a later failure
        while True:
            delay = next(delays)
            try:
                return (yield from attempt())
            except on:
                delay /= 50
            except StorageUnavailable as error:
                waited += delay
                doubt = error if error.outcome == "unknown" else doubt
                if self._lost is not None or not saving or waited > PATIENCE:
                    self._lost = doubt or error
                    raise self._lost from error.__cause__
            yield Sleep(delay)

    def guarded(self, work: Work[R]) -> Work[R]:
        """Perform work that commits under the run's lease."""
        try:
            return (yield from work)
        except StaleLease as error:
            raise (yield from self.fenced_out(error, (), ())) from error
        except StorageUnavailable as error:
            self._lost = error
            raise

    def fenced_out(
        self, error: StaleLease, checks: Sequence[AnyCheck], writes: Sequence[Write]
    ) -> Work[Cancelled | StaleLease]:
        """Return why this process may no longer write; if the run was cancelled, record a finished result first."""
        head, _ = self.log.head()
        lost: Cancelled | StaleLease
        if head is not None and head.status == "cancelled":
            token = Check(self.lease._token_key, self.lease.token + 1)
            if writes:
                with suppress(Conflict):  # the run was retried meanwhile
                    yield from commit_once(self.context.kernel, [token, *checks], writes)
            self._lost = lost = Cancelled(
                f"The run {self.id!r} was cancelled; its finished steps are recorded. Stop this work.",
                self.id,
            )
        else:
            self._lost = lost = StaleLease(
                f"Another process took over the run {self.id!r}; nothing was written. Stop this work.",
                error.keys,
            )
        return lost

    def _holds_up(self, above: OpenRun | None, wake: float | None) -> None:
        """Let the parent run wait for this one, until `wake` at most."""
        if above is not None and above.engine is self.engine:
            above.waits.append(("run", self.id, wake))
        elif above is not None:  # of another client, which cannot see this run: it polls
            above.waits.append(("", "", above.context.kernel.now() + _A_WHILE))

    def let_go(self) -> Work[None]:
        """Release a run that was opened but whose body did not start; it is then interrupted."""
        self._open = False
        yield from quietly(work_of(self.lease.release)())

    def raises(self, error: Exception, op_number: int, identity: Identity) -> Exception:
        """Return an error to raise, and remember its step: the error may make the run fail."""
        if identity.together:
            self._raised.append((error, op_number))
        return error

    def leave(self, error: BaseException | None, result: Any = None) -> Work[None]:  # noqa: C901, PLR0912 - one way out after the other
        """Leave the run durably: completed, failed, paused, or interrupted."""
        orderly = error is None or isinstance(error, Exception | Paused)
        self.leaving, was_open = orderly, False
        while True:
            with self._lock:
                if not orderly or not (self._flying or self._busy):
                    was_open, self._open = self._open, False
                    break
            yield Sleep(0.005)  # concurrent steps finish and are recorded
        if was_open and orderly and self._mismatch is not None:
            yield from self._fail_mismatch(self._mismatch, error)
        if not was_open or self.over:
            forgotten = self.past.forgotten() if was_open and error is None else None
            if forgotten is not None:
                raise forgotten
            return
        of_another = isinstance(error, Cancelled) and error.run != self.id
        if self._lost is not None or (isinstance(error, StaleLease | Cancelled) and not of_another):
            yield Store(quietly(work_of(self.lease.release)()))
            if error is None and self._lost is not None:
                raise self._lost
            return
        if error is None:
            problem = yield from self._complete(result)
            if problem is None:
                return
            yield from self._fail(problem)
            raise problem
        if isinstance(error, StorageUnavailable) or not isinstance(error, Exception | Paused):
            yield Store(quietly(work_of(self.lease.release)()))
        elif isinstance(error, RunBusy) and self.waits:
            yield from self._pause(error)
        elif isinstance(error, Exception) or of_another:
            yield from self._fail(error)
        else:
            yield from self._pause(error)

    def _fail_mismatch(self, mismatch: StepMismatch, error: BaseException | None) -> Work[None]:
        """Let the run fail with a mismatch that its body caught, and raise it."""
        if self._lost is None and mismatch not in causes_of(error):
            if not self.over:
                yield from self._fail(mismatch)
            raise mismatch from error

    def _complete(self, result: Any) -> Work[Exception | None]:
        forgotten = self.past.forgotten()
        if forgotten is not None:
            return forgotten
        try:
            value, lowered = to_stored(result)
        except NotStorable as error:
            return error
        data = [LOWERED if lowered else PLAIN, value, False]
        yield Store(self._left("completed", lambda: self.log.weighed(COMPLETED, 0, data, 1)))
        return None

    def _fail(self, error: BaseException) -> Work[None]:
        came_from = {id(one) for one in causes_of(error)}
        steps = [n for one, n in self._raised if id(one) in came_from]
        assert self._head is not None
        data, now = {**error_data(error), "steps": steps}, self.context.kernel.now()
        status, data, more = failing(self.retry, self._head, error, data, now)
        yield Store(self._left(status, self.log.line(FAILED, 0, data), **more))

    def _pause(self, error: BaseException) -> Work[None]:
        if isinstance(error, Stopped):
            yield Store(self._left("queued", self.log.line(QUEUED, 0, None)))
            return
        times = [until for _, _, until in self.waits if until is not None]
        if self._head is not None and self._head.deadline is not None:
            times.append(self._head.deadline)
        waits = tuple((kind, ref) for kind, ref, _ in self.waits if ref)
        status = "in_doubt" if isinstance(error, InDoubt) else "waiting"
        if status == "in_doubt":
            log.warning("%s", error)
        wake = min(times, default=None)
        self._holds_up(current.get(), wake)
        yield Store(self._left(status, wake=wake, waits=waits))

    def _left(self, status: str, line: Write | Callable[[], Weighed] | None = None, **more: Any) -> Work[None]:
        assert self._head is not None
        head = self._head._replace(status=status, changed=self.context.kernel.now(), **more)
        checks: list[AnyCheck] = []
        lines: list[Write] = []
        more_writes: list[Write] = []
        request: bytes | None = None

        def attempt() -> Work[None]:
            nonlocal checks, lines, more_writes, request
            if request is None:
                if callable(line):
                    checks, lines = yield from line()
                elif line is not None:
                    lines = [line]
                request = own_request(self.context.kernel.now())
                more_writes = self._waking(head)
            try:
                yield from self.lease._release_with(
                    checks, [*lines, *self.log.placed(head, self._head), *more_writes], request
                )
            except Conflict as error:
                if not checks or self.lease._token_key in error.keys:
                    raise (yield from self.fenced_out(StaleLease(str(error), error.keys), [], [])) from error
                request = None  # a blob's reference count changed: read it again
                raise StateConflict(str(error), error.keys) from error

        yield from self._retried(attempt, saving=status in OVER, on=StateConflict)
        leaving(self, status)

    def _waking(self, head: Head) -> list[Write]:
        """Return the writes that tell workers how this run was left."""
        above = current.get()
        if head.status in OVER and head.parent is not None and (above is None or above.id != head.parent):
            return self.engine.waking(head.parent, "child")
        return self.engine.notices.writes() if head.status == "queued" else []

    def __str__(self) -> str:
        """Return the resume line."""
        return resume_line(self.id, self.history, resumed=self.resumed, over=self.over)
