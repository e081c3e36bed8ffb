"""Workflows: documented procedures, step by step, with what became of each.

Keys, below the tenant: `(name, "workflow", "document")` is the workflow with all its steps; `(name, "workflow", "result",
uid)` what a step came to; the stream `(name, "workflow")` its history; `("workflows", "index", "every", name)` and
`("workflows", "index", "user", user, name)` list them.

Each change is one commit: it checks that the document is as it was read, writes it, the result if there is one, and the
line that tells of it. So several processes may work on one workflow: a change made on what somebody else has changed
meanwhile is made anew on that. A crash leaves the document as it was before or after.

`resume` carries out what is left as steps of the run `workflow:NAME`, one at a time by one process at a time. The run's
log is the truth about what was carried out, and the document follows it: before a step, a commit says that it is in
progress and which run has it; then the run writes its intent, calls the action and writes the result; then a commit
writes the result into the document. A crash between the last two leaves a step that is in progress here and done there:
resuming finds its result and calls nothing. One between intent and result leaves a step in doubt, as in any run. One
between the first two leaves a step that was not begun, since the run knows nothing of it. A step that somebody began by
hand and that nobody ended is in doubt too, and is written into the run's log as that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities import outcomes, procedure
from tenuto.capabilities.arguments import Described
from tenuto.capabilities.context import Context, stamp
from tenuto.capabilities.procedure import (
    BLOCKED,
    COMPLETED,
    DONE,
    FAILED,
    IN_PROGRESS,
    PENDING,
    SKIPPED,
    Document,
    Label,
    StepRecord,
    WorkflowInfo,
    WorkflowStep,
)
from tenuto.capabilities.replay import Past
from tenuto.capabilities.run import Run
from tenuto.capabilities.runlog import INTENT, Identity, Op
from tenuto.capabilities.running import Engine, Running
from tenuto.capabilities.stepping import Effect, Retry, Step, Verify, stepping
from tenuto.capabilities.task import is_gone, owner
from tenuto.errors import Conflict, InDoubt, InvalidInput, NotFound, Paused, StorageUnavailable, Waiting
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Append, Check, Delete, Put, Write
from tenuto.kernel.durations import Duration, moment
from tenuto.kernel.transact import Steps, backoff, paced, settle
from tenuto.kernel.work import Work, worked

_EVERY: Final = keys.pack("workflows", "index", "every")
_OF_USER: Final = keys.pack("workflows", "index", "user")
_PAGE: Final = 500


class Action(NamedTuple):
    """What a step calls when its workflow is resumed."""

    fn: Callable[[WorkflowStep], Any]
    effect: Effect = "idempotent"
    verify: Verify | None = None
    retry: Retry | None = None
    timeout: Duration | None = None


Actions = dict[str, Action]


class WorkflowEvent(NamedTuple):
    """Something that happened to a workflow."""

    number: int
    at: datetime
    what: str
    """created, started, completed, failed, blocked, unblocked, skipped, edited, in doubt."""
    step: Label | None
    action: str | None
    detail: Any
    """The error, the reason, or the steps that were added and taken out."""
    writer: str
    correlation_id: str | None


class Workflows:
    """The workflows of a tenant."""

    def __init__(self, engine: Engine, actions: Actions) -> None:
        self._engine = engine
        self._context = engine.context
        self._kernel = engine.context.kernel
        self._actions = actions

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._context.clock

    @paced
    def create(self, name: str, steps: Sequence[Any], *, user: str | None = None) -> Steps[Workflow]:
        """Write a workflow down, durably, and return it. Doing it again returns the stored one, as far as it has come.

        A step is a dict with an `action`; it may say its number (`step`), `status`, `result`, and whatever else the
        action needs. The same name with other steps is a `Conflict`: change them with `edit`.
        """
        place = _Place(self._context, name)
        now = self._kernel.now()
        fresh, results = procedure.steps_of(steps, now)
        who = None if user is None else keys.name(user, "user")
        while True:
            found, _ = place.read()
            if found is not None:
                if not procedure.same_steps(found.steps, fresh):
                    raise Conflict(
                        f"There is a workflow {name!r} with other steps; it stays as it is. Use another name, or change "
                        f"it with workflows.get({name!r}).edit(steps).",
                        [place.key],
                    )
                if who not in (None, found.user):
                    raise Conflict(
                        f"The workflow {name!r} belongs to the user {found.user!r}, not to {who!r}.", [place.key]
                    )
                return self._handle(place, found)
            doc = Document(name, who, tuple(fresh), now, now)
            writes = [Put(_EVERY + keys.named(name, "workflow"), b"")]
            if who is not None:
                writes.append(Put(_OF_USER + keys.pack(who) + keys.named(name, "workflow"), b""))
            try:
                yield from place.write(doc, 0, "created", results=results, also=writes)
            except Conflict:
                yield 0.002
            else:
                return self._handle(place, doc)

    def get(self, name: str) -> Workflow:
        """Return a workflow as it is now; `NotFound` if there is none."""
        place = _Place(self._context, name)
        return self._handle(place, place.must()[0])

    def list(self, status: str | None = None, user: str | None = None, *, limit: int = 1_000) -> list[Workflow]:
        """Return workflows by name: all, those in a status, those of a user. "active" are all that are not completed."""
        if status is not None and status not in (*procedure.STATUSES, "active"):
            raise InvalidInput(f"A workflow is {', '.join(procedure.STATUSES)}, or active; not {status!r}.")
        found: list[Workflow] = []
        for doc in self._documents(user):
            if status in (None, doc.status) or (status == "active" and doc.status != COMPLETED):
                found.append(self._handle(_Place(self._context, doc.name), doc))
                if len(found) >= limit:
                    break
        return found

    @paced
    def delete(self, name: str) -> Steps[bool]:
        """Take a workflow and its results away, durably; tell whether it was there. Its history and its run stay."""
        place = _Place(self._context, name)
        for delay in backoff(None):
            doc, version = place.read()
            if doc is None:
                return False
            gone: list[Write] = [Delete(place.key), Delete(_EVERY + keys.named(name, "workflow"))]
            if doc.user is not None:
                gone.append(Delete(_OF_USER + keys.pack(doc.user) + keys.named(name, "workflow")))
            gone += [Delete(place.result_key(one.uid)) for one in doc.steps if one.has_result][:900]
            gone.append(place.line("deleted", None, None))
            try:
                yield from settle(self._kernel, [Check(place.key, version)], gone)
            except Conflict:
                yield delay
            else:
                return True
        raise AssertionError("the back-off never ends")

    def _documents(self, user: str | None) -> Iterator[Document]:
        prefix = _EVERY if user is None else _OF_USER + keys.pack(keys.name(user, "user"))
        after: bytes | None = None
        while page := self._kernel.scan(prefix, after=after, limit=_PAGE):
            after = page[-1].key
            names = [str(keys.unpack(one.key)[-1]) for one in page]
            for record in self._kernel.read([_Place(self._context, name).key for name in names]):
                if record is not None:
                    yield procedure.document(record.value)

    def _handle(self, place: _Place, doc: Document) -> Workflow:
        return Workflow(self._engine, self._actions, place, doc, place.results(doc))


class _Place:
    """Where one workflow is kept."""

    def __init__(self, context: Context, name: str) -> None:
        self.context = context
        self.name = keys.name(name, "workflow")
        self.stream = keys.named(name, "workflow") + keys.pack("workflow")
        self.key = self.stream + keys.pack("document")

    def result_key(self, uid: str) -> bytes:
        return self.stream + keys.pack("result", uid)

    def read(self) -> tuple[Document | None, int]:
        record = self.context.kernel.read([self.key])[0]
        return (None, 0) if record is None else (procedure.document(record.value), record.version)

    def must(self) -> tuple[Document, int]:
        doc, version = self.read()
        if doc is None:
            raise NotFound(f"There is no workflow {self.name!r}. See which there are with workflows.list().")
        return doc, version

    def results(self, doc: Document) -> dict[str, Any]:
        uids = [one.uid for one in doc.steps if one.has_result]
        records = self.context.kernel.read([self.result_key(uid) for uid in uids]) if uids else []
        found = zip(uids, records, strict=True)
        return {uid: codec.decode(record.value) for uid, record in found if record is not None}

    def line(self, what: str, step: StepRecord | None, detail: Any) -> Append:
        label, action = (None, None) if step is None else (step.label, step.action)
        return Append(self.stream, codec.encode([*stamp(self.context), what, label, action, detail]))

    def write(
        self,
        doc: Document,
        version: int,
        what: str,
        step: StepRecord | None = None,
        detail: Any = None,
        *,
        results: Mapping[str, Any] | None = None,
        also: Sequence[Write] = (),
    ) -> Steps[None]:
        """Commit a workflow as it is to be, if it is still as it was read."""
        held = [Put(self.result_key(uid), codec.encode(value)) for uid, value in (results or {}).items()]
        writes = [Put(self.key, doc.stored()), *held, *also, self.line(what, step, detail)]
        yield from settle(self.context.kernel, [Check(self.key, version)], writes)


class Workflow:
    """A workflow in hand. `steps`, `status` and `progress` tell what this handle has read or written last."""

    def __init__(self, engine: Engine, actions: Actions, place: _Place, doc: Document, results: dict[str, Any]) -> None:
        self._engine = engine
        self._context = engine.context
        self._actions = actions
        self._place = place
        self._doc = doc
        self._results = results
        self.name = doc.name

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._context.clock

    @property
    def user(self) -> str | None:
        """Return whose workflow it is."""
        return self._doc.user

    @property
    def status(self) -> str:
        """Return where it stands: pending, in_progress, completed, failed or blocked."""
        return self._doc.status

    @property
    def progress(self) -> float:
        """Return which part of its steps is done, from 0 to 1."""
        return sum(one.status in DONE for one in self._doc.steps) / len(self._doc.steps)

    @property
    def run_id(self) -> str:
        """Return the run that carries it out."""
        again = "" if self._doc.generation == 1 else f"#{self._doc.generation}"
        return f"workflow:{self.name}{again}"

    @property
    def steps(self) -> list[WorkflowStep]:
        """Return all steps in order."""
        return [procedure.shown(self._doc, one, self._results) for one in self._doc.steps]

    def step(self, step: Label) -> WorkflowStep:
        """Return one step, as it is now; `NotFound` if there is none."""
        self.refresh()
        return procedure.shown(self._doc, self._doc.step(step), self._results)

    def next_incomplete_step(self) -> WorkflowStep | None:
        """Return the first step that is neither completed nor skipped, as it is now; None when all is done."""
        self.refresh()
        left = self._doc.next()
        return None if left is None else procedure.shown(self._doc, left, self._results)

    def refresh(self) -> Workflow:
        """Read it again, and return it."""
        self._doc = self._place.must()[0]
        self._results = self._place.results(self._doc)
        return self

    def history(self, after: int = 0) -> list[WorkflowEvent]:
        """Return everything that happened to it, oldest first; `after` leaves out what is known."""
        found: list[WorkflowEvent] = []
        while page := self._context.kernel.entries(self._place.stream, after=after, limit=_PAGE):
            for entry in page:
                writer, correlation, what, label, action, detail = codec.decode(entry.value)
                at = moment(entry.written_at)
                found.append(WorkflowEvent(entry.number, at, what, label, action, detail, writer, correlation))
            after = page[-1].number
        return found

    def info(self) -> WorkflowInfo:
        """Return how far it has come, as this handle has read it."""
        left, doc = self._doc.next(), self._doc
        label = None if left is None else left.label
        return WorkflowInfo(
            self.name, self.status, self.user, self.progress, label, moment(doc.created), moment(doc.changed)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data, as this handle has read it."""
        left = self._doc.next()
        return {
            "name": self.name,
            "user": self.user,
            "status": self.status,
            "progress": self.progress,
            "next_step": None if left is None else left.label,
            "steps": [one.as_dict() for one in self.steps],
        }

    # -- by hand ---------------------------------------------------------------------------------------------------

    @paced
    def start(self, step: Label, *, again: bool = False) -> Steps[WorkflowStep]:
        """Begin a step, durably. One that is in somebody else's hands is a `Conflict`, unless he is gone, or with `again`."""
        mine = owner(self._context.writer)

        def begun(old: StepRecord) -> StepRecord:
            other = old.by
            if old.status == IN_PROGRESS and other is not None and not again:
                if other.get("pid") == mine["pid"] and other.get("host") == mine["host"]:
                    return old
                if "run" in other or not is_gone(other):
                    where = f"the run {other['run']!r}" if "run" in other else f"process {other['pid']}"
                    raise Conflict(
                        f"Step {step!r} of the workflow {self.name!r} is in the hands of {other['writer']} ({where}). "
                        "If that one is gone, start it with again=True."
                    )
            return self._started(old, mine)

        return (yield from self._step(step, "started", begun))

    @paced
    def complete(self, step: Label, result: Any = None) -> Steps[WorkflowStep]:
        """Say that a step is done, durably, and what came of it. What is done stays done: doing it again is a `Conflict`."""
        return (yield from self._step(step, "completed", self._completed, result=outcomes.kept(result)[0]))

    @paced
    def fail(self, step: Label, error: str | BaseException) -> Steps[WorkflowStep]:
        """Say that a step failed, durably, and why; it is the next one to be done."""
        said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return (yield from self._step(step, "failed", lambda old: self._failed(old, said), detail=said))

    @paced
    def block(self, step: Label, reason: str) -> Steps[WorkflowStep]:
        """Say that a step cannot be done for now, durably, and why; `resume` stops before it."""

        def blocked(old: StepRecord) -> StepRecord:
            return old._replace(status=BLOCKED, reason=str(reason), by=None)

        return (yield from self._step(step, "blocked", blocked, detail=str(reason)))

    @paced
    def unblock(self, step: Label) -> Steps[WorkflowStep]:
        """Say that a step can be done again, durably."""

        def free(old: StepRecord) -> StepRecord:
            return old._replace(status=PENDING, reason=None) if old.status == BLOCKED else old

        return (yield from self._step(step, "unblocked", free))

    @paced
    def skip(self, step: Label, reason: str | None = None) -> Steps[WorkflowStep]:
        """Say that a step need not be done, durably."""

        def skipped(old: StepRecord) -> StepRecord:
            return old._replace(status=SKIPPED, reason=reason, ended=self._context.kernel.now(), by=None)

        return (yield from self._step(step, "skipped", skipped, detail=reason))

    @paced
    def edit(self, steps: Sequence[Any]) -> Steps[Workflow]:
        """Give it other steps, durably, also while it runs: added, moved, renumbered, taken out. What is done stays done."""
        fresh, results = procedure.steps_of(steps, self._context.kernel.now())
        for delay in backoff(None):
            doc, version = self._place.must()
            new = procedure.edited(doc, fresh, self._context.kernel.now())
            there = {one.uid for one in new.steps}
            detail = {
                "added": [[one.label, one.action] for one in new.steps if doc.by_uid(one.uid) is None],
                "taken out": [[one.label, one.action] for one in doc.steps if one.uid not in there],
            }
            try:
                held = {uid: value for uid, value in results.items() if uid in there}
                yield from self._place.write(new, version, "edited", detail=detail, results=held)
            except Conflict:
                yield delay
            else:
                self._doc = new
                self._results = self._place.results(new)
                return self
        raise AssertionError("the back-off never ends")

    def _step(
        self,
        label: Label,
        what: str,
        change: Callable[[StepRecord], StepRecord],
        *,
        result: Any = None,
        detail: Any = None,
        known: StepRecord | None = None,
    ) -> Steps[WorkflowStep]:
        """Change one step, on what is there now; one that is `known` may have been renumbered, or taken out."""
        for delay in backoff(None):
            doc, version = self._place.must()
            old = doc.step(label) if known is None else doc.by_uid(known.uid) or known
            if old.status in DONE:
                raise Conflict(
                    f"Step {old.label!r} of the workflow {self.name!r} is {old.status}; what is done stays done, and nothing "
                    "was written."
                )
            new = change(old)
            if new == old:
                self._doc = doc
                return procedure.shown(doc, old, self._results)
            new = new._replace(has_result=new.status == COMPLETED and result is not None)
            doc = doc.replaced(new, self._context.kernel.now())
            try:
                held = {new.uid: result} if new.has_result else {}
                yield from self._place.write(doc, version, what, new, detail, results=held)
            except Conflict:
                yield delay
            else:
                self._doc, self._results = doc, {**self._results, **held}
                return procedure.shown(doc, new, self._results)
        raise AssertionError("the back-off never ends")

    def _started(self, old: StepRecord, by: dict[str, Any]) -> StepRecord:
        now = self._context.kernel.now()
        return old._replace(
            status=IN_PROGRESS, attempts=old.attempts + 1, started=now, ended=None, error=None, reason=None, by=by
        )

    def _completed(self, old: StepRecord) -> StepRecord:
        return old._replace(status=COMPLETED, ended=self._context.kernel.now(), error=None, reason=None)

    def _failed(self, old: StepRecord, said: str) -> StepRecord:
        return old._replace(status=FAILED, error=said[:20_000], ended=self._context.kernel.now(), by=None)

    # -- by its actions --------------------------------------------------------------------------------------------

    @worked
    def resume(self, *, wait: Duration = 15) -> Work[Workflow]:
        """Carry out what is left, each step by its action as a durable step of the run `workflow:NAME`; return it.

        It returns when all is done, or at a step that is blocked. An action that fails ends it with that error; the same
        call tries that step again. A step that was begun before and not ended is in doubt: it is handled as its action
        was declared. Somebody else who resumes it is waited for, and then it is `RunBusy`.
        """
        return (yield from self.resuming(wait))

    def resuming(self, wait: Duration = 15) -> Work[Workflow]:
        """Carry out what is left: what both faces do."""
        self.refresh()
        run = Run(self._engine, self.run_id, user=self.user, wait=wait)
        yield from run.taking()
        try:
            while (left := self.refresh()._doc.next()) is not None:
                yield from self._carry_out(run._running, left)
        except _Blocked as pause:
            yield from run.leaving(pause)
            return self
        except BaseException as error:
            yield from run.leaving(error)
            raise
        yield from run.leaving(None)
        return self

    def _carry_out(self, run: Running, left: StepRecord) -> Work[None]:
        if left.status == BLOCKED:
            raise _Blocked(f"Step {left.label!r} of the workflow {self.name!r} is blocked: {left.reason}.", run.id)
        action = self._actions.get(left.action)
        if action is None:
            raise InvalidInput(
                f"There is no action {left.action!r} here, which step {left.label!r} of the workflow {self.name!r} asks for. "
                f"Register it with @agent.action({left.action!r}), or end the step by hand with complete({left.label!r}, …)."
            )
        known = any((op.identity.name, op.identity.key) == (left.action, left.uid) for op in run.told.ops.values())
        if left.status == IN_PROGRESS and not known and "run" not in (left.by or {}):
            yield from _begun_by_hand(run, left, action)
        by = {**owner(self._context.writer), "run": run.id}
        given: WorkflowStep = yield self._step(left.label, "started", lambda old: self._started(old, by), known=left)
        if self._doc.by_uid(left.uid) is None:
            return  # taken out a moment ago
        step = Step(
            left.action, action.fn, (given,), left.uid, action.effect, action.verify, action.retry, action.timeout
        )
        try:
            result = yield from stepping(run, step)
        except InDoubt as pause:
            said = f"in doubt: {pause}"
            yield self._step(left.label, "in doubt", lambda old: old._replace(reason=said), detail=said, known=left)
            raise
        except (Paused, StorageUnavailable):
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            yield self._step(left.label, "failed", lambda old: self._failed(old, said), detail=said, known=left)
            raise
        stored = outcomes.kept(result)[0]
        yield self._ended(left, stored)

    def _ended(self, left: StepRecord, result: Any) -> Steps[None]:
        try:
            yield from self._step(left.label, "completed", self._completed, result=result, known=left)
        except Conflict:
            return  # somebody has said so by hand meanwhile, and what is done stays done

    def __repr__(self) -> str:
        """Say how far it has come."""
        done = sum(one.status in DONE for one in self._doc.steps)
        return f"<workflow {self.name!r}: {self.status}, {done} of {len(self._doc.steps)} steps done>"


class _Blocked(Waiting):
    """A step is blocked; the run waits for somebody to say otherwise."""


def _begun_by_hand(run: Running, left: StepRecord, action: Action) -> Work[None]:
    """Write into the run's log that a step was begun, by somebody who did not say how it ended: it is in doubt."""
    identity = Identity("step", left.action, left.uid, Described(b""), action.effect)
    n = run.number()
    yield run.write([], [run.log.line(INTENT, n, identity.stored())])
    run.told.ops[n] = Op(n, identity, left.started if left.started is not None else run.context.kernel.now())
    run.past = Past(run.id, run.told)
