"""The document of a workflow: its ordered steps with their status, and how to edit them. Pure functions.

People identify a step by its number or label, the run by a stable id that survives adding, moving and renumbering.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, get_args

from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.durations import moment

Label = int | str
WorkflowStatus = Literal["pending", "in_progress", "completed", "failed", "blocked"]
WorkflowStepStatus = Literal["pending", "in_progress", "completed", "failed", "blocked", "skipped"]
STATUSES: Final[tuple[WorkflowStatus, ...]] = get_args(WorkflowStatus)
STEP_STATUSES: Final[tuple[WorkflowStepStatus, ...]] = get_args(WorkflowStepStatus)
DONE: Final = frozenset({"completed", "skipped"})
_KNOWN: Final = frozenset(
    {"step", "action", "status", "result", "error", "reason", "attempts", "started", "ended", "by"}
)
_MOST: Final = 1_000


class StepRecord(NamedTuple):
    """The stored form of a step; its result has its own record."""

    uid: str
    label: Label
    action: str
    more: dict[str, Any]
    """Other data of the step: arguments, a description, …"""
    status: WorkflowStepStatus = "pending"
    error: str | None = None
    reason: str | None = None
    attempts: int = 0
    started: float | None = None
    ended: float | None = None
    by: dict[str, Any] | None = None
    """Who started it: the writer, and the process or run."""
    has_result: bool = False


class Document(NamedTuple):
    """The stored form of a workflow."""

    name: str
    user: str | None
    steps: tuple[StepRecord, ...]
    created: float
    changed: float
    generation: int = 1
    """The number of its run: a completed workflow that gets more steps gets a new run."""

    @property
    def status(self) -> WorkflowStatus:
        """Return the status of the whole workflow."""
        left = self.next()
        if left is None:
            return "completed"
        if left.status in ("in_progress", "failed", "blocked"):
            return left.status
        return "in_progress" if any(one.status in DONE for one in self.steps) else "pending"

    def next(self) -> StepRecord | None:
        """Return the first step that is not done."""
        return next((one for one in self.steps if one.status not in DONE), None)

    def step(self, label: Label) -> StepRecord:
        """Return a step by its number or label; `NotFound` if there is none."""
        for one in self.steps:
            if one.label == label and type(one.label) is type(label):
                return one
        known = ", ".join(repr(one.label) for one in self.steps)
        raise NotFound(f"The workflow {self.name!r} has no step {label!r}. Its steps are {known}.")

    def by_uid(self, uid: str) -> StepRecord | None:
        """Return a step by its stable id."""
        return next((one for one in self.steps if one.uid == uid), None)

    def replaced(self, step: StepRecord, now: float) -> Document:
        """Return the workflow with one step changed; a done step that was removed meanwhile is added again."""
        if self.by_uid(step.uid) is None:
            if any(one.label == step.label for one in self.steps):
                step = step._replace(label=f"{step.label} ({step.uid[:4]})")
            return self._replace(steps=(*self.steps, step) if step.status in DONE else self.steps, changed=now)
        return self._replace(steps=tuple(step if one.uid == step.uid else one for one in self.steps), changed=now)

    def stored(self) -> bytes:
        """Return the stored form."""
        return codec.encode([self.name, self.user, [list(one) for one in self.steps], *self[3:]])


def document(value: bytes) -> Document:
    """Return the workflow of its stored form."""
    name, user, steps, *rest = codec.decode(value)
    return Document(name, user, tuple(StepRecord(*one) for one in steps), *rest)


def steps_of(given: Sequence[Any], now: float) -> tuple[list[StepRecord], dict[str, Any]]:
    """Return the given steps, validated, and their results by id."""
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise InvalidInput("The steps of a workflow must be a list of dicts, each with an action.")
    found: list[StepRecord] = []
    results: dict[str, Any] = {}
    for place, one in enumerate(given):
        step, result = _step(one, place + 1, now)
        if any(step.label == other.label for other in found):
            raise InvalidInput(f"Two steps have the number {step.label!r}. Number them differently.")
        found.append(step)
        if step.has_result:
            results[step.uid] = result
    if not found or len(found) > _MOST:
        raise InvalidInput(f"A workflow must have 1 to {_MOST:,} steps, not {len(found)}.")
    return found, results


def _step(given: Any, place: int, now: float) -> tuple[StepRecord, Any]:
    if isinstance(given, str):
        given = {"action": given}
    if not isinstance(given, Mapping) or "action" not in given:
        raise InvalidInput(f'Step {place} must be a dict such as {{"action": "scrape"}}, not {given!r:.80}.')
    label = given.get("step", place)
    if type(label) not in (int, str):
        raise InvalidInput(f"The number of a step must be an int or str, not {label!r:.80}.")
    status = given.get("status", "pending")
    if status not in STEP_STATUSES:
        raise InvalidInput(f"The status of a step must be one of {', '.join(STEP_STATUSES)}; not {status!r}.")
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
            int(given.get("attempts", 0 if status == "pending" else 1)),
            None if status == "pending" else now,
            now if status in (*DONE, "failed") else None,
            None,
            given.get("result") is not None,
        ),
        given.get("result"),
    )


def same_steps(old: Sequence[StepRecord], new: Sequence[StepRecord]) -> bool:
    """Return whether two lists have the same steps, whatever their status."""
    one, other = ([(step.label, step.action, codec.pack(step.more)) for step in steps] for steps in (old, new))
    return one == other


def edited(doc: Document, new: Sequence[StepRecord], now: float) -> Document:
    """Return a workflow with other steps; matching steps keep their status.

    Steps match by number and action, or by an action that only one of them has. A done step that the new list omits
    stays, before the others.
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
                f"Step {one.label!r} of the workflow {doc.name!r} is {one.status} as {one.action!r}; nothing was "
                "written. Give the new step another number."
            )
    for place, one in enumerate(new):
        old = kept.get(place)
        steps.append(one if old is None else old._replace(label=one.label, more=one.more))
    again = doc.next() is None and any(one.status not in DONE for one in steps)
    return doc._replace(steps=tuple(steps), changed=now, generation=doc.generation + again)


@dataclass(frozen=True)
class WorkflowStep:
    """A step of a workflow; also the argument of an action."""

    workflow: str
    step: Label
    action: str
    status: WorkflowStepStatus
    """pending, in_progress, completed, failed, blocked or skipped."""
    result: Any = None
    error: str | None = None
    reason: str | None = None
    """Why it is blocked or skipped."""
    attempts: int = 0
    started: datetime | None = None
    ended: datetime | None = None
    by: str | None = None
    """Who started it."""
    data: dict[str, Any] = field(default_factory=dict)
    """Other data of the step: `step["url"]` is short for `step.data["url"]`."""
    results: dict[str, Any] = field(default_factory=dict, repr=False)
    """The results of completed steps, by action."""

    def __getitem__(self, key: str) -> Any:
        """Return a value of the step's data."""
        return self.data[key]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value of the step's data, or `default`."""
        return self.data.get(key, default)

    def as_dict(self) -> dict[str, Any]:
        """Return the step as plain data."""
        shown = ("step", "action", "status", "result", "error", "reason", "attempts")
        return {**self.data, **{name: getattr(self, name) for name in shown}}


@dataclass(frozen=True)
class WorkflowInfo:
    """A workflow in a list."""

    name: str
    status: WorkflowStatus
    user: str | None
    progress: float
    """The share of its steps that is done, from 0 to 1."""
    next_step: Label | None
    created_at: datetime
    updated_at: datetime


def shown(doc: Document, one: StepRecord, results: Mapping[str, Any]) -> WorkflowStep:
    """Return the public view of a step."""
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
        results={other.action: results.get(other.uid) for other in doc.steps if other.status == "completed"},
    )
