"""Runs as they are shown: what a log tells, for people and programs to read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tenuto.capabilities.runlog import TEXT, Head, Op, RunLog, Told, usage_sum
from tenuto.kernel.durations import moment

_STEPS = ("step", "map", "sleep", "wait", "ask")
STATUSES = ("queued", "running", "waiting", "interrupted", "in_doubt", "failed", "completed", "cancelled")


@dataclass(frozen=True)
class ErrorInfo:
    """An error, as it was recorded."""

    type: str
    message: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.type}: {self.message}"


@dataclass(frozen=True)
class StepInfo:
    """A step, as far as it has come."""

    name: str
    occurrence: int
    """Which one of its name it is, from 1 on."""
    key: str | None
    kind: str
    """A step, or an item of a map, a sleep, a wait, an ask; among the notes: now, state, thread, emit, …"""
    effect: str
    status: str
    """completed, failed, running, in_doubt, waiting."""
    attempts: int
    repeated_in_doubt: int
    """How often it was run again without anybody knowing whether it had happened."""
    verified: bool
    """True where `verify`, or people, said that it happened."""
    started: datetime
    ended: datetime | None
    seconds: float
    reused: int
    """How often the run was resumed and did not do it again."""
    args: Any
    """What it was called with, or how that begins; None where it has a key."""
    result: Any
    error: ErrorInfo | None
    question: str | None
    until: datetime | None
    cost: float


@dataclass(frozen=True)
class RunInfo:
    """A run, as it is listed."""

    id: str
    status: str
    function: str | None
    user: str | None
    parent: str | None
    created: datetime
    changed: datetime
    wakes: datetime | None
    waits_for: tuple[tuple[str, str], ...]
    deadline: datetime | None


@dataclass(frozen=True)
class RunRecord(RunInfo):
    """A run, with all that is on its record."""

    steps: list[StepInfo]
    notes: list[StepInfo]
    """What else is on record, and not done again: times, random numbers, writes to its state and thread, …"""
    result: Any
    error: ErrorInfo | None
    cost: float
    resumes: list[datetime]
    forked_from: str | None
    args: Any
    state: dict[str, Any]


def listed(run_id: str, head: Head, held: bool) -> dict[str, Any]:  # noqa: FBT001 - one of two answers
    """Return what a head tells."""
    status = "interrupted" if head.status == "running" and not held else head.status
    return {
        "id": run_id,
        "status": status,
        "function": head.fn,
        "user": head.user,
        "parent": head.parent,
        "created": moment(head.created),
        "changed": moment(head.changed),
        "wakes": None if head.wake is None else moment(head.wake),
        "waits_for": head.waits,
        "deadline": None if head.deadline is None else moment(head.deadline),
    }


def record(log: RunLog, head: Head, told: Told, *, held: bool) -> RunRecord:
    """Return a run with all that is on its record."""
    about = listed(log.id, head, held)
    counts: dict[str, int] = {}
    steps: list[StepInfo] = []
    state: dict[str, Any] = {}
    for n in sorted(told.ops):
        op = told.ops[n]
        counts[op.identity.name] = counts.get(op.identity.name, 0) + 1
        steps.append(_step(log, op, counts[op.identity.name], told, about["status"]))
        if op.identity.kind == "state":
            if op.value:
                state[op.identity.name] = log.value(op)[0]
            else:
                state.pop(op.identity.name, None)
    finished = head.status == "completed"
    forked = told.started.get("forked")
    return RunRecord(
        **about,
        steps=[one for one in steps if one.kind in _STEPS],
        notes=[one for one in steps if one.kind not in _STEPS],
        result=log.whole(told.form, told.value, told.raw, 1) if finished else None,
        error=_error(told.error) if head.status == "failed" else None,
        cost=usage_sum(told.ops.values()),
        resumes=[moment(at) for at in told.resumes],
        forked_from=forked[0] if forked else None,
        args=told.started.get("args"),
        state=state,
    )


def _step(log: RunLog, op: Op, occurrence: int, told: Told, status: str) -> StepInfo:
    described = op.identity.described
    done = op.state == "done"
    return StepInfo(
        name=op.identity.name,
        occurrence=occurrence,
        key=op.identity.key,
        kind=op.identity.kind,
        effect=op.identity.effect,
        status=_status(op, status),
        attempts=op.attempts,
        repeated_in_doubt=op.doubts,
        verified=op.verified,
        started=moment(op.at),
        ended=None if op.ended is None else moment(op.ended),
        seconds=op.seconds,
        reused=sum(op.ended is not None and at >= op.ended for at in told.resumes) if done else 0,
        args=described.whole if described.preview is None else described.preview,
        result=log.value(op) if done else None,
        error=_error(op.error),
        question=op.question or (op.ref if op.identity.kind == "ask" else None),
        until=None if op.until is None else moment(op.until),
        cost=usage_sum([op]),
    )


def _status(op: Op, status: str) -> str:
    if op.state == "done":
        return "failed" if op.form & TEXT else "completed"
    if op.state == "error":
        return "failed"
    if op.identity.kind in ("sleep", "wait", "ask"):
        over = op.identity.kind == "sleep" and status in ("completed", "running")
        return "completed" if over else "waiting"
    if op.state == "halted":
        return "waiting"
    return "running" if status == "running" else "in_doubt"


def _error(data: dict[str, Any] | None) -> ErrorInfo | None:
    return None if data is None else ErrorInfo(data["type"], data["message"])
