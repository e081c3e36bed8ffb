"""The public view of runs and steps, made from a run's head and log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal, cast, get_args

from tenuto.capabilities.leases import Holder
from tenuto.capabilities.runs.heartbeat import Beat, beats_of
from tenuto.capabilities.runs.log import (
    TEXT,
    Equal,
    Head,
    History,
    Op,
    RunLog,
    equal_to,
    idempotency_key_of,
    usage_sum,
)
from tenuto.capabilities.runs.options import Effect
from tenuto.kernel.durations import moment

_STEPS = ("step", "map", "sleep", "wait", "ask")
RunStatus = Literal["queued", "running", "waiting", "interrupted", "in_doubt", "failed", "completed", "cancelled"]
StepStatus = Literal["completed", "failed", "running", "in_doubt", "waiting"]
RepeatReason = Literal["doubt", "not happened", "retry", "failed", "halted"]
STATUSES: Final[tuple[RunStatus, ...]] = get_args(RunStatus)


@dataclass(frozen=True)
class ErrorInfo:
    """A recorded error."""

    type: str
    message: str
    traceback: str | None = None
    """The end of its traceback, at most 4 KB."""

    def __str__(self) -> str:
        """Return type and message in one line."""
        return f"{self.type}: {self.message}"


@dataclass(frozen=True)
class RepeatInfo:
    """A further attempt of a step, and why it was made."""

    attempt: int
    at: datetime
    why: RepeatReason
    """`doubt`: its outcome was unknown. `not happened`: see `said_by`. `retry`: of its `retry=`. `failed`, `halted`: the
    run was resumed after an error, or after the step paused."""
    said_by: str | None
    """Who said that the attempt before it did not happen: "verify", or the person who answered."""
    said_at: datetime | None


@dataclass(frozen=True)
class StepInfo:
    """A step and its status."""

    name: str
    occurrence: int
    """Its number among the steps of its name, from 1."""
    key: str | None
    kind: str
    """A step, or an item of a map, a sleep, a wait, an ask; among the notes: now, state, thread, emit, …"""
    effect: Effect
    status: StepStatus
    attempts: int
    repeated_in_doubt: int
    """How often it was repeated while its outcome was unknown."""
    repeats: list[RepeatInfo]
    verified: bool
    """True if `verify` or people said that it happened."""
    verified_by: str | None
    """Who said so: "verify", or the person who answered."""
    started: datetime
    ended: datetime | None
    seconds: float
    reused: int
    """How often a resumed run reused it."""
    args: Any
    """Its arguments or a preview of them; None if it has a key."""
    result: Any
    error: ErrorInfo | None
    question: str | None
    until: datetime | None
    cost: float
    heartbeat: datetime | None
    """When the step last reported that it still works: `run.heartbeat()`."""
    detail: Any
    """What it reported."""
    number: int
    """Its number in the run; `Runs.history` uses it too."""
    idempotency_key: str | None
    """What `tenuto.idempotency_key()` returns inside it; None for what is not a step or an item of a map."""
    given: Any = None
    """The arguments with which `Runs.fork` replaced `args` for it; None if it did not."""


@dataclass(frozen=True)
class RunInfo:
    """A run in a list."""

    id: str
    status: RunStatus
    function: str | None
    user: str | None
    parent: str | None
    created_at: datetime
    updated_at: datetime
    """When it last started, paused or ended."""
    wakes: datetime | None
    waits_for: tuple[tuple[str, str], ...]
    deadline: datetime | None
    priority: int
    """Among queued runs the highest is executed first."""
    failures: int
    """How often it failed and was retried by its function's `retry=`."""
    due: str | None
    """Why a run that waits can continue although no worker has taken it yet: answered, signalled, child, …"""


@dataclass(frozen=True)
class RunRecord(RunInfo):
    """A run with its complete record."""

    steps: list[StepInfo]
    notes: list[StepInfo]
    """Other recorded operations: times, random numbers, writes to its state and thread, …"""
    result: Any
    error: ErrorInfo | None
    cost: float
    resumes: list[datetime]
    forked_from: str | None
    args: Any
    state: dict[str, Any]
    holder: Holder | None
    """The process that executes it now, and since when."""


def listed(run_id: str, head: Head, held: bool, due: str | None = None) -> dict[str, Any]:  # noqa: FBT001 - one of two answers
    """Return the fields of a `RunInfo`."""
    status = "interrupted" if head.status == "running" and not held else head.status
    return {
        "id": run_id,
        "status": status,
        "function": head.fn,
        "user": head.user,
        "parent": head.parent,
        "created_at": moment(head.created),
        "updated_at": moment(head.changed),
        "wakes": None if head.wake is None else moment(head.wake),
        "waits_for": head.waits,
        "deadline": None if head.deadline is None else moment(head.deadline),
        "priority": head.priority,
        "failures": head.failures,
        "due": due,
    }


def record(
    log: RunLog, head: Head, history: History, *, held: bool, holder: Holder | None, due: str | None = None
) -> RunRecord:
    """Return a run with its complete record."""
    about = listed(log.id, head, held, due)
    counts: dict[str, int] = {}
    steps: list[StepInfo] = []
    state: dict[str, Any] = {}
    beats = beats_of(log)
    equals: dict[Equal, int] = {}
    instead = history.started.get("instead") or {}
    replaced = next((n for n in sorted(history.ops) if instead and _is_replaced(history.ops[n], instead)), None)
    for n in sorted(history.ops):
        op = history.ops[n]
        counts[op.identity.name] = counts.get(op.identity.name, 0) + 1
        equal = equal_to(op.identity)
        equals[equal] = equals.get(equal, 0) + 1
        own = idempotency_key_of(history.started["uid"], equal, equals[equal])
        step = _step(log, op, counts[op.identity.name], history, about["status"], beats.get(n), own)
        steps.append(step if n != replaced else replace(step, given=instead["args"]))
        if op.identity.kind == "state":
            if op.value:
                state[op.identity.name] = log.value(op)[0]
            else:
                state.pop(op.identity.name, None)
    finished = head.status == "completed"
    forked = history.started.get("forked")
    return RunRecord(
        **about,
        steps=[one for one in steps if one.kind in _STEPS],
        notes=[one for one in steps if one.kind not in _STEPS],
        result=log.whole(history.form, history.value, history.raw, 1) if finished else None,
        error=_error(history.error) if head.status in ("failed", "waiting") else None,
        cost=usage_sum(history.ops.values()),
        resumes=[moment(at) for at in history.resumes],
        forked_from=forked[0] if forked else None,
        args=history.started.get("args"),
        state=state,
        holder=holder if about["status"] == "running" else None,
    )


def _step(log: RunLog, op: Op, occurrence: int, history: History, status: str, beat: Beat | None, own: str) -> StepInfo:
    described = op.identity.described
    done = op.state == "done"
    if beat is not None and (op.state != "begun" or beat.attempt != op.attempts):
        beat = None  # of an earlier attempt
    return StepInfo(
        name=op.identity.name,
        occurrence=occurrence,
        key=op.identity.key,
        kind=op.identity.kind,
        effect=cast("Effect", op.identity.effect),
        status=_status(op, status),
        attempts=op.attempts,
        repeated_in_doubt=op.doubts,
        repeats=[
            RepeatInfo(attempt, moment(at), why, by, None if said is None else moment(said))
            for attempt, at, why, by, said in op.repeats
        ],
        verified=op.verified is not None,
        verified_by=None if op.verified is None else op.verified[0],
        started=moment(op.at),
        ended=None if op.ended is None else moment(op.ended),
        seconds=op.seconds,
        reused=len(history.resumes) - op.resumes if done else 0,
        args=described.whole if described.preview is None else described.preview,
        result=log.value(op) if done else None,
        error=_error(op.error),
        question=op.question or (op.ref if op.identity.kind == "ask" else None),
        until=None if op.until is None else moment(op.until),
        cost=usage_sum([op], inherited=True),
        heartbeat=None if beat is None else moment(beat.at),
        detail=None if beat is None else beat.detail,
        number=op.n,
        idempotency_key=own if op.identity.kind in ("step", "map") else None,
    )


def _is_replaced(op: Op, instead: dict[str, Any]) -> bool:
    """Return whether an operation may be the step that got the arguments of a fork: the first such one did."""
    return op.n >= instead["from"] and op.identity.name == instead["name"] and op.identity.kind == "step"


def _status(op: Op, status: str) -> StepStatus:
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
    return None if data is None else ErrorInfo(data["type"], data["message"], data.get("traceback"))
