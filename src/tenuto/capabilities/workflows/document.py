"""A workflow as a document: its steps in order, what became of each, and how it is edited. Pure data; nothing is stored here.

A step is known to people by its number or label, and to the run that carries it out by an id of its own, which stays
with it when steps are added, moved or renumbered.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.durations import moment

Label = int | str
PENDING, IN_PROGRESS, COMPLETED, FAILED, BLOCKED, SKIPPED = STEP_STATUSES = (
    "pending", "in_progress", "completed", "failed", "blocked", "skipped",
)  # fmt: skip
STATUSES: Final = ("pending", "in_progress", "completed", "failed", "blocked")
DONE: Final = frozenset({COMPLETED, SKIPPED})
_KNOWN: Final = frozenset(
    {"step", "action", "status", "result", "error", "reason", "attempts", "started", "ended", "by"}
)
_MOST: Final = 1_000


class StepRecord(NamedTuple):
    """One step as it is stored. Its result is stored beside the document."""

    uid: str
    label: Label
    action: str
    more: dict[str, Any]
    """Whatever else was said of the step: arguments, a description, …"""
    status: str = PENDING
    error: str | None = None
    reason: str | None = None
    attempts: int = 0
    started: float | None = None
    ended: float | None = None
    by: dict[str, Any] | None = None
    """Who began it: the writer, and the process or the run."""
    has_result: bool = False


class Document(NamedTuple):
    """A workflow as it is stored."""

    name: str
    user: str | None
    steps: tuple[StepRecord, ...]
    created: float
    changed: float
    generation: int = 1
    """Which run carries it out: another one when a workflow that was done is given more steps."""

    @property
    def status(self) -> str:
        """Return where it stands as a whole."""
        left = self.next()
        if left is None:
            return COMPLETED
        if left.status != PENDING:
            return left.status
        return IN_PROGRESS if any(one.status in DONE for one in self.steps) else PENDING

    def next(self) -> StepRecord | None:
        """Return the first step that is not done."""
        return next((one for one in self.steps if one.status not in DONE), None)

    def step(self, label: Label) -> StepRecord:
        """Return a step by its number or label; `NotFound` if there is none."""
        for one in self.steps:
            if one.label == label and type(one.label) is type(label):
                return one
        known = ", ".join(repr(one.label) for one in self.steps)
        raise NotFound(f"The workflow {self.name!r} has no step {label!r}; it has {known}.")

    def by_uid(self, uid: str) -> StepRecord | None:
        """Return a step by the id that stays with it."""
        return next((one for one in self.steps if one.uid == uid), None)

    def replaced(self, step: StepRecord, now: float) -> Document:
        """Return the workflow with one step changed; one that was taken out meanwhile comes back if it is done."""
        if self.by_uid(step.uid) is None:
            if any(one.label == step.label for one in self.steps):
                step = step._replace(label=f"{step.label} ({step.uid[:4]})")
            return self._replace(steps=(*self.steps, step) if step.status in DONE else self.steps, changed=now)
        return self._replace(steps=tuple(step if one.uid == step.uid else one for one in self.steps), changed=now)

    def stored(self) -> bytes:
        """Return it as it is stored."""
        return codec.encode([self.name, self.user, [list(one) for one in self.steps], *self[3:]])


def document(value: bytes) -> Document:
    """Return a workflow as it was stored."""
    name, user, steps, *rest = codec.decode(value)
    return Document(name, user, tuple(StepRecord(*one) for one in steps), *rest)


def steps_of(given: Sequence[Any], now: float) -> tuple[list[StepRecord], dict[str, Any]]:
    """Return steps as somebody wrote them down, and the results of those that have one, by id."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput("The steps of a workflow are a list of dicts, each with at least an action.")
    found: list[StepRecord] = []
    results: dict[str, Any] = {}
    for place, one in enumerate(given):
        step, result = _step(one, place + 1, now)
        if any(step.label == other.label for other in found):
            raise InvalidInput(f"Two steps have the number {step.label!r}; give each its own.")
        found.append(step)
        if step.has_result:
            results[step.uid] = result
    if not found or len(found) > _MOST:
        raise InvalidInput(f"A workflow has from 1 to {_MOST:,} steps, not {len(found)}.")
    return found, results


def _step(given: Any, place: int, now: float) -> tuple[StepRecord, Any]:
    if isinstance(given, str):
        given = {"action": given}
    if not isinstance(given, Mapping) or "action" not in given:
        raise InvalidInput(f'Step {place} is a dict with an action, such as {{"action": "scrape"}}, not {given!r:.80}.')
    label = given.get("step", place)
    if type(label) not in (int, str):
        raise InvalidInput(f"A step is numbered or named; {label!r:.80} is neither.")
    status = given.get("status", PENDING)
    if status not in STEP_STATUSES:
        raise InvalidInput(f"A step is {', '.join(STEP_STATUSES)}; not {status!r}.")
    more = {key: value for key, value in given.items() if key not in _KNOWN}
    codec.pack(more)
    error = given.get("error")
    return (
        StepRecord(
            secrets.token_hex(8),
            label,
            keys.name(given["action"], "action"),
            more,
            status,
            None if error is None else str(error),
            given.get("reason"),
            int(given.get("attempts", 0 if status == PENDING else 1)),
            None if status == PENDING else now,
            now if status in (*DONE, FAILED) else None,
            None,
            given.get("result") is not None,
        ),
        given.get("result"),
    )


def same_steps(old: Sequence[StepRecord], new: Sequence[StepRecord]) -> bool:
    """Tell whether two lists describe the same procedure, whatever became of it."""
    return [(o.label, o.action, codec.pack(o.more)) for o in old] == [
        (n.label, n.action, codec.pack(n.more)) for n in new
    ]


def edited(doc: Document, new: Sequence[StepRecord], now: float) -> Document:
    """Return a workflow with other steps, in which what is done stays done and what is begun stays begun.

    A step is the same if number and action are, or if the action is and no other step could be meant. A done step that
    the new list leaves out stays, before the others.
    """
    left = list(doc.steps)
    kept: dict[int, StepRecord] = {}
    for place, one in enumerate(new):
        old = next((o for o in left if (o.label, o.action) == (one.label, one.action)), None)
        if old is not None:
            left.remove(old)
            kept[place] = old
    for place, one in enumerate(new):
        alike = [o for o in left if o.action == one.action]
        if place not in kept and len(alike) == 1:
            left.remove(alike[0])
            kept[place] = alike[0]
    steps = [one for one in left if one.status in DONE]
    labels = {one.label for one in new}
    for one in steps:
        if one.label in labels:
            raise Conflict(
                f"Step {one.label!r} of the workflow {doc.name!r} is {one.status} as {one.action!r}, which stays; give "
                "the new step another number."
            )
    for place, one in enumerate(new):
        old = kept.get(place)
        steps.append(one if old is None else old._replace(label=one.label, more=one.more))
    again = doc.next() is None and any(one.status not in DONE for one in steps)
    generation = doc.generation + 1 if again else doc.generation
    return doc._replace(steps=tuple(steps), changed=now, generation=generation)


@dataclass(frozen=True)
class WorkflowStep:
    """A step of a workflow, as it is known; also what an action is given."""

    workflow: str
    step: Label
    action: str
    status: str
    """pending, in_progress, completed, failed, blocked or skipped."""
    result: Any = None
    error: str | None = None
    reason: str | None = None
    """Why it is blocked, or was skipped."""
    attempts: int = 0
    started: datetime | None = None
    ended: datetime | None = None
    by: str | None = None
    """Who began it."""
    data: dict[str, Any] = field(default_factory=dict)
    """Whatever else the step was given: `step["url"]` is short for `step.data["url"]`."""
    results: dict[str, Any] = field(default_factory=dict, repr=False)
    """What the steps that are done came to, by action."""

    def __getitem__(self, key: str) -> Any:
        """Return what else the step was given under a name."""
        return self.data[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return what else the step was given under a name, or `default`."""
        return self.data.get(key, default)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        about = {
            "step": self.step,
            "action": self.action,
            "status": self.status,
            "result": self.result,
            "error": self.error,
            "reason": self.reason,
            "attempts": self.attempts,
        }
        return {**self.data, **about}


@dataclass(frozen=True)
class WorkflowInfo:
    """A workflow, as it is listed."""

    name: str
    status: str
    user: str | None
    progress: float
    """Which part of its steps is done, from 0 to 1."""
    next_step: Label | None
    created: datetime
    changed: datetime


def shown(doc: Document, one: StepRecord, results: Mapping[str, Any]) -> WorkflowStep:
    """Return a step as it is shown."""
    return WorkflowStep(
        workflow=doc.name,
        step=one.label,
        action=one.action,
        status=one.status,
        result=results.get(one.uid),
        error=one.error,
        reason=one.reason,
        attempts=one.attempts,
        started=None if one.started is None else moment(one.started),
        ended=None if one.ended is None else moment(one.ended),
        by=None if one.by is None else one.by.get("writer"),
        data=dict(one.more),
        results={other.action: results.get(other.uid) for other in doc.steps if other.status == COMPLETED},
    )
