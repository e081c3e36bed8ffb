"""Playbooks: procedures with versions, lessons and how they ended; and the cases in which they were used.

Keys, below the tenant: `(name, "playbook", "at", version)` is a version; `(name, "playbook", "head")` the number of the
newest and the lessons learned since; `(name, "playbook", "case", as_)` a case; `("playbooks", "index", name)` lists
playbooks; `("playbooks", "case", as_)` names the playbook of a case. A playbook and a case are memories, too, written in
the same commit, so that `suggest` finds them by the one search: of the kinds `skill` and `case`.

`start` creates the workflow, then the case. A crash in between leaves a workflow without a case; the same call adds it.
How a case ended is read from its workflow until `finish` records it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from tenuto.capabilities._core.base import Timed, scan_all, stamp
from tenuto.capabilities.memory import TRUST, Memory, New, new
from tenuto.capabilities.runs import Engine, Runs
from tenuto.capabilities.workflows import Workflow, Workflows, queue_workflow
from tenuto.errors import InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Check, Put, Record, Write
from tenuto.kernel.durations import moment
from tenuto.kernel.work import Work, on_store, work_of

Outcome = Literal["running", "completed", "failed"]
_INDEX: Final = keys.pack("playbooks", "index")
_CASES: Final = keys.pack("playbooks", "case")
_MOST: Final = 1_000


class Playbook(NamedTuple):
    """A procedure, and what came of it."""

    name: str
    version: int
    description: str
    steps: list[Any]
    lessons: list[str]
    """Its own, and those that cases added."""
    preconditions: list[str]
    designed_by: str | None
    cost: float | None
    """What its design cost."""
    created_at: datetime
    writer: str
    started: int = 0
    completed: int = 0
    failed: int = 0
    success_rate: float | None = None
    """Completed of those that ended; None if none did."""
    average_cost: float | None = None
    """Of the cases with a known cost."""
    failing_steps: dict[str, int] = {}  # noqa: RUF012 - never changed
    """How often each action made a case fail."""

    def text(self) -> str:
        """Return the procedure as instructions for a model: its steps, when it applies, and what was learned."""
        lines = [f"Playbook {self.name}: {self.description}".rstrip(": ")]
        lines += [f"Only if: {one}" for one in self.preconditions]
        for number, step in enumerate(self.steps, 1):
            more = {key: one for key, one in step.items() if key != "action"} if isinstance(step, Mapping) else {}
            details = f" ({', '.join(f'{key}: {one}' for key, one in more.items())})" if more else ""
            lines.append(f"{number}. {_action(step)}{details}")
        return "\n".join([*lines, *(f"Lesson: {one}" for one in self.lessons)])


class Case(NamedTuple):
    """One use of a playbook."""

    id: str
    """The name of its workflow."""
    playbook: str
    version: int
    user: str | None
    situation: str
    outcome: Outcome
    failed_step: str | None
    cost: float | None
    lesson: str | None
    started_at: datetime
    ended_at: datetime | None


class Suggestion(NamedTuple):
    """A playbook, or a case in which one was used, that fits a situation."""

    playbook: Playbook
    case: Case | None
    score: float
    why: str


class Playbooks(Timed):
    """The playbooks of a tenant."""

    def __init__(self, engine: Engine, workflows: Workflows, runs: Runs) -> None:
        self._context = engine.context
        self._kernel = engine.context.kernel
        self._memories = engine.memories
        self._workflows = workflows
        self._runs = runs

    @on_store
    def save(
        self,
        name: str,
        steps: Sequence[Any],
        *,
        description: str = "",
        lessons: Iterable[str] = (),
        preconditions: Iterable[str] = (),
        designed_by: str | None = None,
        cost: float | None = None,
    ) -> Work[Playbook]:
        """Store a playbook atomically and durably as a new version; return it. The same content again changes nothing."""
        keys.name(name, "playbook")
        if not isinstance(steps, list | tuple) or not steps or not all(map(_action, steps)):
            raise InvalidInput("A playbook needs a list of steps, at least one: an action, or a dict with an action.")
        lessons, preconditions = _texts(lessons, "lessons"), _texts(preconditions, "preconditions")
        _texts([description], "description")
        _must_be_dollars(cost)
        if designed_by is not None:
            keys.name(designed_by, "model")
        content = [description, list(steps), lessons, preconditions, designed_by, cost]
        codec.encode(content)
        said = [name, description, *lessons, *preconditions, *(_action(one) for one in steps)]
        given = _given(". ".join(one for one in said if one), "skill", name, "playbook", None, {"playbook": name})
        known = self._newest(name)
        if known is not None and list(self._version(name, known[0])[0]) == content:
            return self.get(name)

        def along(_: Memory) -> tuple[list[AnyCheck], list[Write]]:
            head = self._kernel.read([_head(name)])[0]
            version, more = (0, []) if head is None else codec.decode(head.value)
            line = codec.encode([*stamp(self._context), self._kernel.now(), content])
            return [Check(_head(name), 0 if head is None else head.version)], [
                Put(_at(name, version + 1), line),
                Put(_head(name), codec.encode([version + 1, more])),
                Put(_INDEX + keys.named(name, "playbook"), b""),
            ]

        yield from self._memories._remembering(given, along=along)
        return self.get(name)

    def get(self, name: str, version: int | None = None) -> Playbook:
        """Return a playbook, its newest version or another, with how its cases ended; `NotFound` if there is none."""
        known = self._newest(keys.name(name, "playbook"))
        if known is None:
            raise NotFound(f"There is no playbook {name!r}. List them with agent.playbooks.list().")
        number, learned = known
        if version is not None:
            number = version
        (description, steps, lessons, preconditions, designer, cost), writer, at = self._version(name, number)
        cases = self.cases(name)
        done, lost = (sum(one.outcome == wanted for one in cases) for wanted in ("completed", "failed"))
        costs = [one.cost for one in cases if one.cost is not None]
        return Playbook(
            name,
            number,
            description,
            steps,
            [*lessons, *learned],
            preconditions,
            designer,
            cost,
            moment(at),
            writer,
            len(cases),
            done,
            lost,
            round(done / (done + lost), 3) if done + lost else None,
            sum(costs) / len(costs) if costs else None,
            dict(Counter(one.failed_step for one in cases if one.failed_step is not None)),
        )

    @on_store
    def start(
        self, name: str, as_: str, *, situation: str = "", user: str | None = None, version: int | None = None
    ) -> Work[Workflow]:
        """Create a workflow named `as_` from a playbook, durably, and record the case; return the workflow.

        Again with the same name, it returns the same workflow. `situation` says what the case is about, for `suggest`.
        """
        playbook = self.get(name, version)
        workflow = yield from work_of(self._workflows.create)(as_, playbook.steps, user=user)
        if self._kernel.read([_case(name, as_)])[0] is None:
            now = moment(self._kernel.now())
            case = Case(as_, name, playbook.version, user, situation, "running", None, None, None, now, None)
            yield from self._recorded(case)
        return workflow

    def _missed(self, name: str, as_: str, milestone: dict[str, Any]) -> Work[None]:
        """Start a playbook for a missed milestone, once, and queue its workflow for a worker that has the actions."""
        situation = f"The milestone {milestone['name']} of {milestone['due']:%Y-%m-%d %H:%M} UTC was missed."
        workflow = yield from work_of(self.start)(name, as_, situation=situation)
        yield from queue_workflow(workflow, as_)

    @on_store
    def finish(
        self,
        as_: str,
        outcome: Literal["completed", "failed"] | None = None,
        *,
        lesson: str | None = None,
        cost: float | None = None,
    ) -> Work[Case]:
        """Record durably how a case ended, what it cost and what was learned; return it.

        Outcome and cost are those of its workflow, unless given. A lesson is added to the playbook.
        """
        _texts([] if lesson is None else [lesson], "lesson")
        _must_be_dollars(cost)
        case = self._ended(self.case(as_))
        ended = outcome or case.outcome
        if ended not in ("completed", "failed"):
            raise InvalidInput(f"The case {as_!r} is still running; nothing was recorded. Pass its outcome.")
        done = case._replace(
            outcome=ended,
            lesson=lesson if lesson is not None else case.lesson,
            cost=case.cost if cost is None else float(cost),
            failed_step=case.failed_step if ended == "failed" else None,
            ended_at=moment(self._kernel.now()),
        )
        yield from self._recorded(done, lesson)
        return done

    def suggest(self, situation: str, k: int = 3, *, user: str | None = None) -> list[Suggestion]:
        """Return playbooks, and similar past cases with how they ended, that fit a situation, best first."""
        found: list[Suggestion] = []
        for kind in ("skill", "case"):
            for hit in self._memories.recall(situation, k, user=user, kind=kind, neighbours=0):
                meta = hit.memory.meta or {}
                if "playbook" not in meta:
                    continue
                try:
                    case = self._ended(self.case(meta["case"])) if "case" in meta else None
                    found.append(Suggestion(self.get(meta["playbook"]), case, hit.score, hit.why))
                except NotFound:  # deleted since
                    continue
        return sorted(found, key=lambda one: -one.score)[: 2 * k]

    def case(self, as_: str) -> Case:
        """Return a case by the name of its workflow; `NotFound` if there is none."""
        record = self._kernel.read([_CASES + keys.named(as_, "case")])[0]
        held = None if record is None else self._kernel.read([_case(codec.decode(record.value), as_)])[0]
        if held is None:
            raise NotFound(f"There is no case {as_!r}. Start one with agent.playbooks.start(name, as_={as_!r}).")
        return _case_of(held)

    def cases(self, name: str) -> list[Case]:
        """Return the cases of a playbook, with how they ended so far."""
        prefix = keys.named(name, "playbook") + keys.pack("playbook", "case")
        return [self._ended(_case_of(record)) for record in scan_all(self._kernel, prefix)][-_MOST:]

    def list(self) -> list[Playbook]:
        """Return all playbooks, by name."""
        return [self.get(str(keys.unpack(record.key)[-1])) for record in scan_all(self._kernel, _INDEX)]

    def _recorded(self, case: Case, lesson: str | None = None) -> Work[Memory]:
        ended = "" if case.outcome == "running" else f" It {case.outcome}."
        failed = f" The step {case.failed_step} failed." if case.failed_step else ""
        said = f"{case.situation or case.id}. Playbook {case.playbook}.{ended}{failed} {case.lesson or ''}".strip()
        meta = {"playbook": case.playbook, "case": case.id}
        given = _given(said, "case", case.id, "case", case.user, meta)

        def along(_: Memory) -> tuple[list[AnyCheck], list[Write]]:
            stored = [*case[:9], case.started_at.timestamp(), case.ended_at and case.ended_at.timestamp()]
            writes: list[Write] = [
                Put(_case(case.playbook, case.id), codec.encode(stored)),
                Put(_CASES + keys.named(case.id, "case"), codec.encode(case.playbook)),
            ]
            if lesson is None:
                return [], writes
            head = self._kernel.read([_head(case.playbook)])[0]
            if head is None:
                return [], writes
            version, learned = codec.decode(head.value)
            kept = learned if lesson in learned else [*learned, lesson]
            return [Check(head.key, head.version)], [*writes, Put(head.key, codec.encode([version, kept]))]

        return (yield from self._memories._remembering(given, along=along))

    def _ended(self, case: Case) -> Case:
        """Return a case with what its workflow says, if its end was not recorded."""
        if case.outcome != "running":
            return case
        try:
            workflow = self._workflows.get(case.id)
        except NotFound:
            return case
        failed = next((one for one in workflow.steps if one.status == "failed"), None)
        if workflow.status not in ("completed", "failed"):
            return case
        try:
            cost = self._runs.get(f"workflow:{case.id}").cost or None
        except NotFound:
            cost = None
        return case._replace(
            outcome="completed" if workflow.status == "completed" else "failed",
            failed_step=None if failed is None else failed.action,
            cost=case.cost if case.cost is not None else cost,
        )

    def _of_run(self, run_id: str) -> tuple[str, str | None] | None:
        """Return the playbook whose case a run carries out, and the model that designed it; None if there is none."""
        kind, _, as_ = run_id.partition(":")
        record = self._kernel.read([_CASES + keys.named(as_, "case")])[0] if kind == "workflow" and as_ else None
        if record is None:
            return None
        case = self.case(as_)
        return case.playbook, self._version(case.playbook, case.version)[0][4]

    def _newest(self, name: str) -> tuple[int, Sequence[str]] | None:
        record = self._kernel.read([_head(name)])[0]
        return None if record is None else (*codec.decode(record.value),)

    def _version(self, name: str, version: int) -> tuple[Sequence[Any], str, float]:
        record = self._kernel.read([_at(name, version)])[0]
        if record is None:
            raise NotFound(f"The playbook {name!r} has no version {version!r}.")
        writer, _, at, content = codec.decode(record.value)
        return content, writer, at


def _given(text: str, kind: str, about: str, predicate: str, user: str | None, meta: dict[str, Any]) -> New:
    return new(
        text[:60_000], trust=TRUST["tool"], user=user, kind=kind, about=about, predicate=predicate, meta=meta
    )  # fmt: skip


def _action(step: Any) -> str:
    """Return the action of a step; empty if it has none."""
    found = step.get("action") if isinstance(step, Mapping) else step
    return found if isinstance(found, str) else ""


def _texts(given: Iterable[str], what: str) -> list[str]:
    found: list[Any] = [None] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
    if not all(isinstance(one, str) for one in found):
        raise InvalidInput(f"{what} must be text, or a list of texts where there may be several; not {given!r:.80}.")
    return found


def _must_be_dollars(cost: float | None) -> None:
    if cost is not None and not (isinstance(cost, int | float) and 0 <= cost < math.inf):
        raise InvalidInput(f"cost must be an amount in dollars, 0 or more, not {cost!r}.")


def _at(name: str, version: int) -> bytes:
    return keys.named(name, "playbook") + keys.pack("playbook", "at", version)


def _head(name: str) -> bytes:
    return keys.named(name, "playbook") + keys.pack("playbook", "head")


def _case(name: str, as_: str) -> bytes:
    return keys.named(name, "playbook") + keys.pack("playbook", "case") + keys.named(as_, "case")


def _case_of(record: Record) -> Case:
    *fields, started, ended = codec.decode(record.value)
    return Case._make([*fields, moment(started), None if ended is None else moment(ended)])
