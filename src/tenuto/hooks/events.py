"""Events as frozen data. A hook is any callable that accepts one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verb: TypeAlias = Literal["read", "scan", "entries", "commit", "check", "stats"]


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


Event: TypeAlias = Call | SignFound
Hook: TypeAlias = Callable[[Event], object]
