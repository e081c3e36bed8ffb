"""Events: what happened, as data. A hook is any callable that takes one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verb: TypeAlias = Literal["read", "scan", "entries", "commit", "check", "stats"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a storage verb, told after it ended, however it ended."""

    verb: Verb
    seconds: float
    """How long it took."""
    count: int
    """Keys read, records or entries returned, or writes committed."""
    size: int
    """Bytes of the values that went in or came out."""
    error: str | None
    """The name of the error's class, or None."""
    correlation_id: str | None
    repeated: bool = False
    """True for a commit whose outcome was already known by its request id."""


Hook: TypeAlias = Callable[[Call], object]
