"""Workflows: documented procedures, with the status and result of each step.

Keys, below the tenant: `(name, "workflow", "document")` is the workflow with its steps; `(name, "workflow", "result",
uid)` the result of a step; the stream `(name, "workflow")` its history; `("workflows", "index", "every", name)` and
`("workflows", "index", "user", user, name)` list workflows.

Each change is one commit that checks the document's version and writes document, result and history line. After a
conflict the change is applied again to the new document, so several processes may work on one workflow.

`resume` executes the remaining steps in the run `workflow:NAME`, one process at a time; see `resume.py` for its commits.
A crash between a step's intent and result leaves it in doubt, as in any run. So does a step that was started by hand
and never ended. A crash before the intent leaves a step that has not started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from tenuto.capabilities._core.base import Context, Timed, must_limit, stamp
from tenuto.capabilities.runs import Effect, Engine, Retry, Verify, to_stored
from tenuto.capabilities.tasks import is_gone, owner
from tenuto.capabilities.workflows import document
from tenuto.capabilities.workflows.document import (
    DONE,
    Document,
    Label,
    StepRecord,
    WorkflowInfo,
    WorkflowStatus,
    WorkflowStep,
)
from tenuto.capabilities.workflows.resume import resume_workflow
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Append, Check, Delete, Put, Write
from tenuto.kernel.durations import Duration, moment
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work, on_caller, on_store

_EVERY: Final = keys.pack("workflows", "index", "every")
_OF_USER: Final = keys.pack("workflows", "index", "user")
_PAGE: Final = 500


class Action(NamedTuple):
    """The function that executes a step."""

    fn: Callable[[WorkflowStep], Any]
    effect: Effect = "idempotent"
    verify: Verify | None = None
    retry: Retry | None = None
    timeout: Duration | None = None


Actions = dict[str, Action]


class WorkflowEvent(NamedTuple):
    """An event in a workflow's history."""

    number: int
    at: datetime
    what: str
    """created, started, completed, failed, blocked, unblocked, skipped, edited, in doubt."""
    step: Label | None
    action: str | None
    detail: Any
    """The error, the reason, or the added and removed steps."""
    writer: str
    correlation_id: str | None


class Workflows(Timed):
    """The workflows of a tenant."""

    def __init__(self, engine: Engine, actions: Actions) -> None:
        self._engine = engine
        self._context = engine.context
        self._kernel = engine.context.kernel
        self._actions = actions

    @on_store
    def create(self, name: str, steps: Sequence[Any], *, user: str | None = None) -> Work[Workflow]:
        """Create a workflow durably and return it; return the existing one if it has the same steps.

        A step is a dict with an `action` and optionally its number (`step`), `status`, `result`, and other data for the
        action. The same name with other steps raises `Conflict`: use `edit`.
        """
        place = _Place(self._context, name)
        now = self._kernel.now()
        fresh, results = document.steps_of(steps, now)
        who = None if user is None else keys.name(user, "user")
        while True:
            found, _ = place.read()
            if found is not None:
                if not document.same_steps(found.steps, fresh):
                    raise Conflict(
                        f"The workflow {name!r} exists with other steps; nothing was written. Use another name, or change "
                        f"it with workflows.get({name!r}).edit(steps).",
                        [place.key],
                    )
                if who not in (None, found.user):
                    raise Conflict(
                        f"The workflow {name!r} belongs to the user {found.user!r}, not to {who!r}. Use another name.",
                        [place.key],
                    )
                return self._handle(place, found)
            doc = Document(name, who, tuple(fresh), now, now)
            listed = [Put(where, b"") for where in place.listings(doc)]
            try:
                yield from place.write(doc, 0, "created", results=results, also=listed)
            except Conflict:
                yield Sleep(0.002)
            else:
                return self._handle(place, doc)

    def get(self, name: str) -> Workflow:
        """Return a workflow; `NotFound` if there is none."""
        place = _Place(self._context, name)
        return self._handle(place, place.must()[0])

    def list(
        self,
        status: WorkflowStatus | Literal["active"] | None = None,
        user: str | None = None,
        *,
        limit: int = 1_000,
        after: str | None = None,
    ) -> list[Workflow]:
        """Return up to `limit` workflows by name, of a status or user or all, from the name after `after`.

        The status "active" means not completed.
        """
        must_limit(limit)
        if status is not None and status not in (*document.STATUSES, "active"):
            raise InvalidInput(f"status must be one of {', '.join(document.STATUSES)} or active; not {status!r}.")
        found: list[Workflow] = []
        for doc in self._documents(user, after):
            if status in (None, doc.status) or (status == "active" and doc.status != "completed"):
                found.append(self._handle(_Place(self._context, doc.name), doc))
                if len(found) >= limit:
                    break
        return found

    @on_store
    def delete(self, name: str) -> Work[bool]:
        """Delete a workflow and its results durably; return whether it existed. Its history and run stay."""
        place = _Place(self._context, name)
        delays = backoff()
        while True:
            doc, version = place.read()
            if doc is None:
                return False
            results = [place.result_key(one.uid) for one in doc.steps if one.has_result][:900]
            gone = [Delete(where) for where in (place.key, *place.listings(doc), *results)]
            try:
                yield from commit_once(
                    self._kernel, [Check(place.key, version)], [*gone, place.line("deleted", None, None)]
                )
            except Conflict:
                yield Sleep(next(delays))
            else:
                return True

    def _documents(self, user: str | None, after: str | None = None) -> Iterator[Document]:
        prefix = _EVERY if user is None else _OF_USER + keys.pack(keys.name(user, "user"))
        seen = None if after is None else prefix + keys.named(after, "name")
        while page := self._kernel.scan(prefix, after=seen, limit=_PAGE):
            seen = page[-1].key
            names = [str(keys.unpack(one.key)[-1]) for one in page]
            for record in self._kernel.read([_Place(self._context, name).key for name in names]):
                if record is not None:
                    yield document.document(record.value)

    def _handle(self, place: _Place, doc: Document) -> Workflow:
        return Workflow(self._engine, self._actions, place, doc, place.results(doc))


class _Place:
    """The keys and records of one workflow."""

    def __init__(self, context: Context, name: str) -> None:
        self.context = context
        self.name = keys.name(name, "workflow")
        self.stream = keys.named(name, "workflow") + keys.pack("workflow")
        self.key = self.stream + keys.pack("document")

    def listings(self, doc: Document) -> list[bytes]:
        of_user = [] if doc.user is None else [_OF_USER + keys.pack(doc.user, self.name)]
        return [_EVERY + keys.pack(self.name), *of_user]

    def result_key(self, uid: str) -> bytes:
        return self.stream + keys.pack("result", uid)

    def read(self) -> tuple[Document | None, int]:
        record = self.context.kernel.read([self.key])[0]
        return (None, 0) if record is None else (document.document(record.value), record.version)

    def must(self) -> tuple[Document, int]:
        doc, version = self.read()
        if doc is None:
            raise NotFound(f"There is no workflow {self.name!r}. List the workflows with workflows.list().")
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
    ) -> Work[None]:
        """Commit a changed workflow if its version is still the one read."""
        held = [Put(self.result_key(uid), codec.encode(value)) for uid, value in (results or {}).items()]
        writes = [Put(self.key, doc.stored()), *held, *also, self.line(what, step, detail)]
        yield from commit_once(self.context.kernel, [Check(self.key, version)], writes)


class Workflow(Timed):
    """A workflow. `steps`, `status` and `progress` are those that this handle last read or wrote."""

    def __init__(self, engine: Engine, actions: Actions, place: _Place, doc: Document, results: dict[str, Any]) -> None:
        self._engine = engine
        self._context = engine.context
        self._actions = actions
        self._place = place
        self._doc = doc
        self._results = results
        self.name = doc.name

    @property
    def user(self) -> str | None:
        """Return the user of the workflow."""
        return self._doc.user

    @property
    def status(self) -> WorkflowStatus:
        """Return the status: pending, in_progress, completed, failed or blocked."""
        return self._doc.status

    @property
    def progress(self) -> float:
        """Return the share of its steps that is done, from 0 to 1."""
        return sum(one.status in DONE for one in self._doc.steps) / len(self._doc.steps)

    @property
    def run_id(self) -> str:
        """Return the id of the run that executes it."""
        again = "" if self._doc.generation == 1 else f"#{self._doc.generation}"
        return f"workflow:{self.name}{again}"

    @property
    def steps(self) -> list[WorkflowStep]:
        """Return all steps in order."""
        return [document.shown(self._doc, one, self._results) for one in self._doc.steps]

    def step(self, step: Label) -> WorkflowStep:
        """Read and return one step; `NotFound` if there is none."""
        self.refresh()
        return document.shown(self._doc, self._doc.step(step), self._results)

    def next_incomplete_step(self) -> WorkflowStep | None:
        """Read and return the first step that is neither completed nor skipped; None when all are done."""
        self.refresh()
        left = self._doc.next()
        return None if left is None else document.shown(self._doc, left, self._results)

    def refresh(self) -> Workflow:
        """Read the workflow again and return it."""
        self._doc = self._place.must()[0]
        self._results = self._place.results(self._doc)
        return self

    def history(self, after: int = 0) -> list[WorkflowEvent]:
        """Return the events after a number, oldest first."""
        found: list[WorkflowEvent] = []
        while page := self._context.kernel.entries(self._place.stream, after=after, limit=_PAGE):
            for entry in page:
                writer, correlation, what, label, action, detail = codec.decode(entry.value)
                at = moment(entry.written_at)
                found.append(WorkflowEvent(entry.number, at, what, label, action, detail, writer, correlation))
            after = page[-1].number
        return found

    def info(self) -> WorkflowInfo:
        """Return status and progress, as this handle last read them."""
        left, doc = self._doc.next(), self._doc
        label = None if left is None else left.label
        return WorkflowInfo(
            self.name, self.status, self.user, self.progress, label, moment(doc.created), moment(doc.changed)
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the workflow as plain data, as this handle last read it."""
        left = self._doc.next()
        return {
            "name": self.name,
            "user": self.user,
            "status": self.status,
            "progress": self.progress,
            "next_step": None if left is None else left.label,
            "steps": [one.as_dict() for one in self.steps],
        }

    @on_store
    def start(self, step: Label, *, again: bool = False) -> Work[WorkflowStep]:
        """Start a step durably; `Conflict` if another live process has started it, unless `again`."""
        mine = owner(self._context.writer)

        def begun(old: StepRecord) -> StepRecord:
            other = old.by
            if old.status == "in_progress" and other is not None and not again:
                if other.get("pid") == mine["pid"] and other.get("host") == mine["host"]:
                    return old
                if "run" in other or not is_gone(other):
                    where = f"the run {other['run']!r}" if "run" in other else f"process {other['pid']}"
                    raise Conflict(
                        f"Step {step!r} of the workflow {self.name!r} was started by {other['writer']} ({where}); nothing "
                        "was written. If that process is gone, start the step with again=True."
                    )
            return self._started(old, mine)

        return (yield from self._step(step, "started", begun))

    @on_store
    def complete(self, step: Label, result: Any = None) -> Work[WorkflowStep]:
        """Complete a step durably with a result; `Conflict` if it is already done."""
        return (yield from self._step(step, "completed", self._completed, result=to_stored(result)[0]))

    @on_store
    def fail(self, step: Label, error: str | BaseException) -> Work[WorkflowStep]:
        """Mark a step durably as failed; it is then the next one to execute."""
        said = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        return (yield from self._step(step, "failed", lambda old: self._failed(old, said), detail=said))

    @on_store
    def block(self, step: Label, reason: str) -> Work[WorkflowStep]:
        """Block a step durably; `resume` stops before it."""
        said = str(reason)
        change = self._step(
            step, "blocked", lambda old: old._replace(status="blocked", reason=said, by=None), detail=said
        )
        return (yield from change)

    @on_store
    def unblock(self, step: Label) -> Work[WorkflowStep]:
        """Unblock a step durably."""

        def free(old: StepRecord) -> StepRecord:
            return old._replace(status="pending", reason=None) if old.status == "blocked" else old

        return (yield from self._step(step, "unblocked", free))

    @on_store
    def skip(self, step: Label, reason: str | None = None) -> Work[WorkflowStep]:
        """Skip a step durably."""

        def skipped(old: StepRecord) -> StepRecord:
            return old._replace(status="skipped", reason=reason, ended=self._context.kernel.now(), by=None)

        return (yield from self._step(step, "skipped", skipped, detail=reason))

    @on_store
    def edit(self, steps: Sequence[Any]) -> Work[Workflow]:
        """Replace the steps durably, also while it runs; done steps stay done."""
        fresh, results = document.steps_of(steps, self._context.kernel.now())
        delays = backoff()
        while True:
            doc, version = self._place.must()
            new = document.edited(doc, fresh, self._context.kernel.now())
            there = {one.uid for one in new.steps}
            detail = {
                "added": [[one.label, one.action] for one in new.steps if doc.by_uid(one.uid) is None],
                "taken out": [[one.label, one.action] for one in doc.steps if one.uid not in there],
            }
            try:
                held = {uid: value for uid, value in results.items() if uid in there}
                yield from self._place.write(new, version, "edited", detail=detail, results=held)
            except Conflict:
                yield Sleep(next(delays))
            else:
                self._doc = new
                self._results = self._place.results(new)
                return self

    def _step(
        self,
        label: Label,
        what: str,
        change: Callable[[StepRecord], StepRecord],
        *,
        result: Any = None,
        detail: Any = None,
        known: StepRecord | None = None,
    ) -> Work[WorkflowStep]:
        """Change one step atomically and durably; a `known` one may have been renumbered or removed."""
        delays = backoff()
        while True:
            doc, version = self._place.must()
            old = doc.step(label) if known is None else doc.by_uid(known.uid) or known
            if old.status in DONE:
                raise Conflict(
                    f"Step {old.label!r} of the workflow {self.name!r} is already {old.status}; nothing was written. "
                    "Add another step with edit()."
                )
            new = change(old)
            if new == old:
                self._doc = doc
                return document.shown(doc, old, self._results)
            new = new._replace(has_result=new.status == "completed" and result is not None)
            doc = doc.replaced(new, self._context.kernel.now())
            try:
                held = {new.uid: result} if new.has_result else {}
                yield from self._place.write(doc, version, what, new, detail, results=held)
            except Conflict:
                yield Sleep(next(delays))
            else:
                self._doc, self._results = doc, {**self._results, **held}
                return document.shown(doc, new, self._results)

    def _started(self, old: StepRecord, by: dict[str, Any]) -> StepRecord:
        now = self._context.kernel.now()
        return old._replace(
            status="in_progress", attempts=old.attempts + 1, started=now, ended=None, error=None, reason=None, by=by
        )

    def _completed(self, old: StepRecord) -> StepRecord:
        return old._replace(status="completed", ended=self._context.kernel.now(), error=None, reason=None)

    def _failed(self, old: StepRecord, said: str) -> StepRecord:
        return old._replace(status="failed", error=said[:20_000], ended=self._context.kernel.now(), by=None)

    @on_caller
    def resume(self, *, wait: Duration = 15) -> Work[Workflow]:
        """Execute the remaining steps durably, each by its action in the run `workflow:NAME`; return the workflow.

        It returns when all are done, or at a blocked step. It raises the error of a failed action; the same call tries
        that step again. A step in doubt is handled by its action's effect. It waits up to `wait` for another process
        that executes the workflow, then raises `RunBusy`.
        """
        return (yield from resume_workflow(self, wait))

    def __repr__(self) -> str:
        """Describe the progress."""
        done = sum(one.status in DONE for one in self._doc.steps)
        return f"<workflow {self.name!r}: {self.status}, {done} of {len(self._doc.steps)} steps done>"
