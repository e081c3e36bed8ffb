"""Events as frozen data. A hook is any callable that accepts one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verb: TypeAlias = Literal["read", "scan", "entries", "commit", "streams", "load", "trim", "check", "stats"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a storage verb, reported after it ended, with or without an error."""

    verb: Verb
    seconds: float
    """Duration of the call."""
    count: int
    """Keys read, records or entries returned, or writes committed."""
    size: int
    """Total size of the values, in bytes."""
    error: str | None
    """The name of the error's class, or None."""
    correlation_id: str | None
    repeated: bool = False
    """True for a commit that was already applied under its request id."""
    version: int | None = None
    """The first version or number that a commit assigned, or the highest that a read returned."""


@dataclass(frozen=True, slots=True)
class SignFound:
    """A sign of lost context, found by a guard while it happened: in a turn, or in what a guard was asked about."""

    kind: str
    """`repeated_call`, `repeated_question`, `contradiction`, `restarted_work` or `known_answer`."""
    thread: str
    user: str | None
    text: str
    """What was said or called."""
    evidence: str
    correlation_id: str | None


@dataclass(frozen=True, slots=True)
class RunOpened:
    """A run was opened: started, or resumed."""

    run: str
    function: str | None
    resumed: bool
    taken_over: bool
    """True if the process before did not end the run in order: it died, or lost its lease."""
    before: str | None
    """What a hook returned for the last opening, for example a traceparent; stored for 30 days."""
    correlation_id: str | None


@dataclass(frozen=True, slots=True)
class RunLeft:
    """A run was left, durably."""

    run: str
    status: str
    """`completed`, `failed`, `waiting`, `in_doubt` or `queued`."""
    seconds: float
    reused: int
    """Recorded steps that were reused."""
    correlation_id: str | None


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step of a run was executed, with all its attempts."""

    run: str
    step: str
    outcome: Literal["completed", "failed", "in_doubt", "paused"]
    seconds: float
    error: str | None
    correlation_id: str | None
    attempts: int = 1
    """Attempts of this opening of the run; those beyond the first are retries. 0 if it ended before one, for example in doubt."""


@dataclass(frozen=True, slots=True)
class MemoryUsed:
    """An operation on memories, with the name that the GenAI conventions have for it."""

    operation: Literal["search_memory", "create_memory", "update_memory", "delete_memory"]
    count: int
    """Memories found or changed."""
    seconds: float
    record: str | None
    """The id of the memory, if it is one."""
    correlation_id: str | None


Event: TypeAlias = Call | SignFound | MemoryUsed | RunOpened | RunLeft | StepEnded
Hook: TypeAlias = Callable[[Event], object]
