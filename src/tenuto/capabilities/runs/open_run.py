"""A run in hand: held under its lease, its log read, and written to line by line.

Taking a run is one commit that takes the lease, adds `STARTED` or `RESUMED` and says in the head that it runs; it
checks that head and log are as they were read, so what was read is all there is. Leaving it is one commit that
adds how it ended, or that it pauses, says so in the head and gives the lease up. A crash in between leaves a run
that is `running` and held by nobody, which is what interrupted means: whoever takes it next goes on from its log.

A run that is completed is not taken: its code may be run again, and finds everything on record.
"""

from __future__ import annotations

import contextvars
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, TypeVar

from tenuto.capabilities import lives, outcomes
from tenuto.capabilities.context import Context, commit
from tenuto.capabilities.flight import Flight, here
from tenuto.capabilities.keeper import Keeper
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.questions import Inbox
from tenuto.capabilities.replay import Past
from tenuto.capabilities.runlog import (
    COMPLETED,
    FAILED,
    LOWERED,
    OVER,
    PLAIN,
    QUEUED,
    RESUMED,
    STARTED,
    Head,
    Identity,
    Op,
    RunLog,
    Told,
    resume_line,
    user_key,
)
from tenuto.capabilities.threads import Threads
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
from tenuto.kernel.bell import Pause
from tenuto.kernel.contract import AnyCheck, Check, CheckEnd, Commit, Put, Write
from tenuto.kernel.transact import Steps, backoff, done, own_request, settle
from tenuto.kernel.work import Work

R = TypeVar("R")
Weighed = Steps[tuple[list[AnyCheck], list[Write]]]
log: Final = logging.getLogger("tenuto.runs")
TTL: Final = 10.0
_A_WHILE: Final = 5.0
PATIENCE: Final = 60.0
"""For so many seconds a result is tried to be stored while the store is away."""

current: contextvars.ContextVar[Running | None] = contextvars.ContextVar("tenuto_run", default=None)
current_step: contextvars.ContextVar[StepContext | None] = contextvars.ContextVar("tenuto_step", default=None)


class Engine(NamedTuple):
    """What runs stand on."""

    context: Context
    keeper: Keeper
    threads: Threads
    inbox: Inbox


class StepContext(NamedTuple):
    """What is known inside a step's function."""

    run: Running
    n: int
    attempt: int
    key: str
    """The idempotency key: the same at every attempt."""
    usage: list[Any]


class Stopped(Paused):
    """A worker lets go of a run, between two steps; another one goes on."""


class Given(NamedTuple):
    """What a durable function was called with."""

    fn: str
    args: list[Any]
    kwargs: dict[str, Any]


class Running(Flight):
    """One run in this process's hands."""

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
        self.lease = Lease(engine.context, engine.keeper, run_id, kind="run", ttl=TTL, wait=None)
        self.given = given
        self.told = Told()
        self.past = Past(run_id, self.told)
        self.resumed = False
        self.over = False
        """True where the run was completed before: nothing is written any more."""
        self.stopping: threading.Event | None = None
        self.handle: Any = None
        """What the body has of it: a `Run` or an `AsyncRun`."""
        self.instead: int | None = None
        """The number of the step that is given a fork's arguments."""
        self.waits: list[tuple[str, str, float | None]] = []
        self._wait = wait
        self._deadline = deadline
        self._head: Head | None = None
        self._lost: BaseException | None = None
        """Why nothing more may be done here: the run has passed on, or the store is away and the record has a gap."""
        self._raised: list[tuple[BaseException, int]] = []
        self.leaving = False

    # -- taking it ---------------------------------------------------------------------------------------------

    def take(self) -> Steps[None]:
        """Take the run and read what it has done; `RunBusy` if somebody else has it for longer than we wait."""
        if self._open:
            raise InvalidInput(f"The run {self.id!r} is open already in this handle; go on with the one you have.")
        above = current.get()
        if above is not None and above.id == self.id and above.engine is self.engine:
            raise RunBusy(f"The run {self.id!r} is asked for inside of itself. Give what it begins an id of its own.")
        if above is not None and self.stopping is None:
            self.stopping = above.stopping  # a worker that is to stop waits for no run inside of another
        left, hurried = self._wait, 0  # counted by what was slept: a clock set back would never end it
        for delay in backoff(None, first=0.01, most=0.25):
            head, version = self.log.head()
            if head is not None and head.status == "deleting":
                yield from lives.clear(self.log, head, version)
                continue
            holder = None if head is not None and head.status == "completed" else self.lease.holder()
            if holder is None:
                if (yield from self._taken(head, version)):
                    return
                hurried += 1
                if hurried < 100:
                    yield min(delay, 0.02)  # somebody took it, or sent it a signal just then: look again
                    continue
                holder = "somebody who was faster"
            if left <= 0:
                self._holds_up(above)
                raise RunBusy(
                    f"The run {self.id!r} is in the hands of {holder}. Wait longer with wait=, or look at it with "
                    f"agent.runs.get({self.id!r})."
                )
            pause = min(delay, left)
            left -= pause
            yield pause

    def _taken(self, head: Head | None, version: int) -> Steps[bool]:
        told = self.log.told(head.first) if head is not None else Told()
        if head is not None:
            self._fits(head, told)
        if head is not None and head.status == "completed":
            self.over = True
        else:
            last = told.last if head is not None else self.log.last()
            head, writes = self._beginning(head, told, last)
            checks: list[AnyCheck] = [Check(self.log.head_key, version), CheckEnd(self.log.own, last)]
            if (yield from self.lease.attempt(checks, writes)) is None:
                return False
            self.lease.kept()
        self._head, self.told, self.past = head, told, Past(self.id, told)
        self.waits, self.instead, self._lost, self.leaving = [], None, None, False
        self._equals, self._maps, self._raised = {}, {}, []
        self.user = head.user
        self.next = told.next
        self._open, self._home, self._pid = True, here(), os.getpid()
        return True

    def _fits(self, head: Head, told: Told) -> None:
        """Raise unless what is asked for is what was begun."""
        if head.status == "cancelled":
            raise Cancelled(
                f"The run {self.id!r} was cancelled. To let it go on after all, call agent.runs.retry({self.id!r}).",
                self.id,
            )
        if self.user is not None and head.user != self.user:
            raise Conflict(
                f"The run {self.id!r} belongs to the user {head.user!r}, not to {self.user!r}. Use another id."
            )
        mine, theirs = self.given, told.started["fn"]
        if mine is not None and theirs is not None and mine.fn != theirs:
            raise StepMismatch(
                f"The run {self.id!r} was begun by {theirs!r}, not by {mine.fn!r}. Use another id for another function."
            )
        if mine is not None and (mine.args or mine.kwargs) and theirs is not None:
            was = [*told.started["args"]]
            if codec.pack([mine.args, mine.kwargs]) != codec.pack(was):
                raise StepMismatch(
                    f"The run {self.id!r} was begun with other arguments: {was!r:.300}, not "
                    f"{[mine.args, mine.kwargs]!r:.300}. Use another id for another call."
                )

    def _beginning(self, head: Head | None, told: Told, last: int) -> tuple[Head, list[Write]]:
        now = self.context.kernel.now()
        if head is None:
            head, told.started, line = begun(self, self.log, self.given, now, last)
            told.at = now
            writes: list[Write] = [line]
            if head.user is not None:
                writes.append(Put(user_key(head.user, self.id), codec.encode(None)))
            if head.parent is not None:
                writes.append(Put(RunLog(self.context, head.parent).child_key(self.id), codec.encode(None)))
        else:
            self.resumed = head.status != "queued" or bool(told.ops)
            idle = head.status == "running" and told.got_on <= head.upto
            head = head._replace(takeovers=head.takeovers + 1 if idle else 0)
            writes = [self.log.line(RESUMED, 0, None)] if self.resumed else []
        head = head._replace(status="running", changed=now, wake=None, waits=(), upto=last + len(writes[:1]))
        if self._deadline is not None:  # from when the run began: the same call again does not put it off
            head = head._replace(deadline=head.created + self._deadline)
        return head, [*writes, *self.log.placed(head)]

    # -- what is on record -------------------------------------------------------------------------------------

    def recall(self, identity: Identity) -> Work[Op | None]:
        """Return what is on record for something, or None if it is new and may be done now."""
        with self._lock:
            op = self.past.take(identity)
            hindrance = self.past.hindrance(identity) if op is None else None
        for _ in range(20):
            if hindrance is None:
                break
            yield Pause(0.002)  # others may be about to ask for it
            with self._lock:
                op = self.past.take(identity)
                hindrance = self.past.hindrance(identity) if op is None else None
        if hindrance is not None:
            raise self.past.refuse(identity, hindrance)
        if op is None and self.over:
            raise StepMismatch(
                f"The run {self.id!r} is completed, and {identity.name!r} is not on its record. Nothing was run. "
                f"Use another id for more work, or go on from here in another run: agent.runs.fork({self.id!r}, NEW_ID).",
                identity.name,
            )
        return op

    def recall_next(self, name: str, digest: bytes) -> Op | None:
        """Return the next step on record if it is this one and is done; the short way of `recall`, for a long past."""
        if not self._open or self._lost is not None or current_step.get() is not None:
            return None
        with self._lock:
            op = self.past.take_next(name, digest)
            if op is not None:
                which = ("step", name, digest)
                self._equals[which] = self._equals.get(which, 0) + 1
        return op

    def value_of(self, op: Op) -> Steps[Any]:
        """Return what came of something, as it is stored; its large parts are read."""
        return done(lambda: self.log.value(op) if op.apart else op.value)

    @contextmanager
    def awaiting(self, kind: str, ref: str, until: float | None) -> Iterator[None]:
        """Know what the run waits for, from before it is written: also if whoever waits is cancelled meanwhile."""
        one = (kind, ref, until)
        self.waits.append(one)
        try:
            yield
        except Exception:
            self.waits.remove(one)
            raise
        self.waits.remove(one)

    def must_go_on(self, what: str) -> None:
        """Raise unless this run may do something more now."""
        self._must_be_open(what)
        if self._lost is not None:
            raise self._lost
        inside = current_step.get()
        if inside is not None and inside.run is self:
            raise InvalidInput(
                f"{what[:1].upper()}{what[1:]} was asked for inside of a step, whose function is not called on a replay. "
                "Ask for it in the run's body, or let the step begin a run of its own."
            )

    def may_begin(self, what: str) -> None:
        """Raise if nothing new may begin: the run is to stop, or its time is over."""
        if self.stopping is not None and self.stopping.is_set():
            raise Stopped(f"The run {self.id!r} stops before {what}, and goes on elsewhere.", self.id)
        self.in_time(what)

    def in_time(self, what: str) -> None:
        """Raise `TimedOut` if the run's time is over."""
        deadline = self._head.deadline if self._head is not None else None
        if deadline is not None and self.context.kernel.now() > deadline:
            raise TimedOut(
                f"The run {self.id!r} has passed its deadline; {what} was not done. Make the same call with a later "
                "deadline=, counted from when the run began."
            )

    # -- writing -----------------------------------------------------------------------------------------------

    def write(
        self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, saving: bool = False
    ) -> Steps[Commit | None]:
        """Commit under the run's lease. With `saving`, what would be lost otherwise is tried for a while.

        It happens once, however often it is tried. If it fails because the store is away, this is the end of the run
        in this process: what the code did next would stand on a record with a gap.
        """
        waited = 0.0
        request = own_request(self.context.kernel.now())
        for delay in backoff(None, first=0.05, most=2.0):
            try:
                return (yield from commit(self.context, checks, writes, self.lease, f"The run {self.id!r}", request))
            except StaleLease as error:
                yield from self.fenced_out(error, checks, writes if saving else ())
            except StorageUnavailable as error:
                waited += delay
                if not saving or waited > PATIENCE:
                    self._lost = error
                    raise
            yield delay
        raise AssertionError("the back-off never ends")

    def record(self, kind: int, n: int, data: list[Any], at: int, *, saving: bool = False) -> Steps[None]:
        """Add a line whose part `at` may be large. A large part that others refer to just then is counted again."""
        waited = 0.0
        for delay in backoff(None, first=0.05, most=2.0):
            try:
                checks, writes = yield from self.log.weighed(kind, n, data, at)
                yield from self.write(checks, writes, saving=saving)
            except StateConflict:
                yield delay / 50
            except StorageUnavailable as error:
                waited += delay
                if self._lost is not None or not saving or waited > PATIENCE:
                    self._lost = error
                    raise
                yield delay
            else:
                return

    def guarded(self, steps: Steps[R]) -> Steps[R]:
        """Do what commits under the run's lease by itself."""
        try:
            return (yield from steps)
        except StaleLease as error:
            yield from self.fenced_out(error, (), ())
        except StorageUnavailable as error:
            self._lost = error
            raise
        raise AssertionError("who is fenced out does not go on")

    def fenced_out(self, error: StaleLease, checks: Sequence[AnyCheck], writes: Sequence[Write]) -> Steps[None]:
        """Raise `Cancelled` if that is why we may not write any more; what had been done is recorded still."""
        head, _ = self.log.head()
        if head is not None and head.status == "cancelled":
            token = Check(self.lease.token_key, self.lease.token + 1)
            if writes:
                with suppress(Conflict):  # somebody has let it go on meanwhile
                    yield from settle(self.context.kernel, [token, *checks], writes)
            self._lost = Cancelled(
                f"The run {self.id!r} was cancelled; what it had done by then is on record. Stop this work here.",
                self.id,
            )
        else:
            self._lost = StaleLease(
                f"The run {self.id!r} has passed to another holder, who goes on with it; nothing was written. Stop this work here.",
                error.keys,
            )
        raise self._lost from error

    def _holds_up(self, above: Running | None) -> None:
        """Let the run in which this one was begun know that it pauses with it, and goes on when this one can."""
        if above is not None and above.engine is self.engine:
            above.waits.append(("run", self.id, None))
        elif above is not None:  # of another client: it cannot know, and looks again in a while
            above.waits.append(("", "", above.context.kernel.now() + _A_WHILE))

    def let_go(self) -> Steps[None]:
        """Give a run up that was taken and not begun here, if it was; it is as whoever was interrupted leaves it."""
        self._open = False
        yield from _quietly(self.lease.release.steps(self.lease))  # type: ignore[attr-defined]

    # -- leaving it --------------------------------------------------------------------------------------------

    def raises(self, error: Exception, op_number: int, identity: Identity) -> Exception:
        """Return an error that is about to be raised, and remember of which step it is: it may leave the run."""
        if identity.together:
            self._raised.append((error, op_number))
        return error

    def leave(self, error: BaseException | None, result: Any = None) -> Work[None]:  # noqa: C901 - one way out after the other
        """Leave the run: completed, failed, paused, or interrupted."""
        orderly = error is None or isinstance(error, Exception | Paused)
        self.leaving, was_open = orderly, False
        while True:
            with self._lock:
                if not orderly or not (self._flying or self._busy):
                    was_open, self._open = self._open, False
                    break
            yield Pause(0.005)  # what is done beside comes to its end, and is recorded
        if not was_open or self.over:
            forgotten = self.past.forgotten() if was_open and error is None else None
            if forgotten is not None:
                raise forgotten
            return
        of_another = isinstance(error, Cancelled) and error.run != self.id
        if self._lost is not None or (isinstance(error, StaleLease | Cancelled) and not of_another):
            yield _quietly(self.lease.release.steps(self.lease))  # type: ignore[attr-defined]
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
            yield _quietly(self.lease.release.steps(self.lease))  # type: ignore[attr-defined]
        elif isinstance(error, RunBusy) and self.waits:
            yield from self._pause(error)
        elif isinstance(error, Exception) or of_another:
            yield from self._fail(error)
        else:
            yield from self._pause(error)

    def _complete(self, result: Any) -> Work[Exception | None]:
        forgotten = self.past.forgotten()
        if forgotten is not None:
            return forgotten
        try:
            value, lowered = outcomes.kept(result)
        except NotStorable as error:
            return error
        data = [LOWERED if lowered else PLAIN, value, False]
        yield self._left("completed", lambda: self.log.weighed(COMPLETED, 0, data, 1))
        return None

    def _fail(self, error: BaseException) -> Work[None]:
        came_from = {id(one) for one in outcomes.within(error)}
        steps = [n for one, n in self._raised if id(one) in came_from]
        yield self._left("failed", self.log.line(FAILED, 0, {**outcomes.told(error), "steps": steps}))

    def _pause(self, error: BaseException) -> Work[None]:
        if isinstance(error, Stopped):
            yield self._left("queued", self.log.line(QUEUED, 0, None))
            return
        times = [until for _, _, until in self.waits if until is not None]
        if self._head is not None and self._head.deadline is not None:
            times.append(self._head.deadline)
        waits = tuple((kind, ref) for kind, ref, _ in self.waits if ref)
        status = "in_doubt" if isinstance(error, InDoubt) else "waiting"
        self._holds_up(current.get())
        yield self._left(status, wake=min(times, default=None), waits=waits)

    def _left(self, status: str, line: Write | Callable[[], Weighed] | None = None, **more: Any) -> Steps[None]:
        assert self._head is not None
        head = self._head._replace(status=status, changed=self.context.kernel.now(), **more)
        waited = 0.0
        checks: list[AnyCheck] = []
        lines: list[Write] = []
        request: bytes | None = None
        for delay in backoff(None, first=0.05, most=2.0):
            try:
                if request is None:
                    if callable(line):
                        checks, lines = yield from line()
                    elif line is not None:
                        lines = [line]
                    request = own_request(self.context.kernel.now())
                yield from self.lease.left(checks, [*lines, *self.log.placed(head)], request)
            except StorageUnavailable:
                waited += delay
                if status not in OVER or waited > PATIENCE:
                    raise
            except Conflict as error:
                if not checks or self.lease.token_key in error.keys:
                    yield from self.fenced_out(StaleLease(str(error), error.keys), [], [])
                request = None  # others refer to a large part of the result just then: it is counted again
            else:
                return
            yield delay

    # -- the resume line ---------------------------------------------------------------------------------------

    def __str__(self) -> str:
        """Say where the run stands, as it was taken."""
        return resume_line(self.id, self.told, resumed=self.resumed, over=self.over)


def begun(
    running: Running, own: RunLog, given: Given | None, now: float, last: int
) -> tuple[Head, dict[str, Any], Write]:
    """Return the head of a run that begins, what its first line says, and that line."""
    above = current.get()
    started: dict[str, Any] = {
        "uid": secrets.token_bytes(16),
        "salt": secrets.token_bytes(32),
        "fn": None if given is None else given.fn,
        "args": None if given is None else [given.args, given.kwargs],
        "user": running.user if running.user is not None else above.user if above is not None else None,
        "parent": None if above is None else above.id,
        "forked": None,
        "instead": {},
    }
    head = Head("running", started["fn"], started["user"], started["parent"], now, now, last + 1)
    return head, started, own.line(STARTED, 0, started)


def _quietly(steps: Steps[None]) -> Steps[None]:
    """Do something whose failure changes nothing: a lease that is not given up runs out."""
    try:
        yield from steps
    except StorageUnavailable:
        log.info("A run's lease could not be given up, and runs out by itself.")
