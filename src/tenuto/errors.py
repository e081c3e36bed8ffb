"""Every error that tenuto raises. Each message says what happened, what it means for the data and what to do next.

    TenutoError
    ├── Conflict              another write came first; nothing of this call was applied
    │   ├── StateConflict     a state value or a thread is not at the expected version
    │   ├── StepMismatch      the code asks for a step that differs from the recorded one
    │   ├── RunBusy           another process or thread has the run open
    │   ├── StaleLease        another holder acquired the lease; this one may no longer write
    │   └── LeaseHeld         another holder has the lease
    ├── Blocked               an open question blocks the resource (see `question`); nothing was written
    ├── NotFound              the named object does not exist
    ├── InvalidInput          an argument is invalid (also a ValueError)
    │   ├── AmbiguousStep     concurrent steps share a name and have no keys to tell them apart
    │   ├── TooLarge          a value, key or commit exceeds its limit
    │   └── RequestReused     one request id was used for two different commits
    ├── NotStorable           a value contains a type that cannot be stored (also a TypeError)
    ├── UnknownType           a stored value contains an application type that is not registered
    ├── StepFailed            a step raised an error of a type that is not registered; see `type`
    ├── RunFailed             a run failed or was cancelled, so it has no result; see `type`
    ├── TaskFailed            a task failed for good or was cancelled; see `type`
    ├── BudgetExceeded        a run has spent its budget; the next step was not begun
    ├── TimedOut              a step, a wait or a run exceeded its time limit (also a TimeoutError)
    ├── RequestExpired        a request id is older than the recorded outcomes
    ├── Damaged               stored bytes fail their checksum or cannot be decoded
    ├── Encrypted             the store is encrypted, and no key was given
    │   └── WrongKey          none of the given keys opens it
    ├── NotEncrypted          a key was given, and the store holds data in the clear
    ├── StorageUnavailable    the store is unreachable or did not answer; see `outcome`
    │   └── StorageFull       the disk or the memory of the store is full
    ├── ReadOnly              this store, or this view of it, is read-only
    ├── AccessDenied          the API key is wrong, or does not allow this call
    ├── NewerFormat           the store was written by a newer version of tenuto
    ├── MissingDriver         an optional package is not installed (also an ImportError)
    └── Closed                the client was closed (also a RuntimeError)

    Paused (a BaseException, so that `except Exception` cannot swallow it)
    ├── Waiting               the run waits for a time, a signal or an answer
    ├── InDoubt               a step may or may not have happened; a question in the inbox asks
    └── Cancelled             the run was cancelled

Except for `StorageUnavailable` with `outcome="unknown"`, a call that raises has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

__all__ = [
    "AccessDenied",
    "AmbiguousStep",
    "Blocked",
    "BudgetExceeded",
    "Cancelled",
    "Closed",
    "Conflict",
    "Damaged",
    "Encrypted",
    "InDoubt",
    "InvalidInput",
    "LeaseHeld",
    "MissingDriver",
    "NewerFormat",
    "NotEncrypted",
    "NotFound",
    "NotStorable",
    "Paused",
    "ReadOnly",
    "RequestExpired",
    "RequestReused",
    "RunBusy",
    "RunFailed",
    "StaleLease",
    "StateConflict",
    "StepFailed",
    "StepMismatch",
    "StorageFull",
    "StorageUnavailable",
    "TaskFailed",
    "TenutoError",
    "TimedOut",
    "TooLarge",
    "UnknownType",
    "Waiting",
    "WrongKey",
]


class TenutoError(Exception):
    """Base class of every error of tenuto."""


class Conflict(TenutoError):
    """Another write came first; nothing of this call was applied.

    Read again, then retry. `keys` names the keys that differed.
    """

    def __init__(self, message: str, keys: Sequence[bytes] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)


class StateConflict(Conflict):
    """A state value or a thread is not at the expected version."""


class StaleLease(Conflict):
    """Another holder acquired the lease; the write it fenced was not applied."""


class LeaseHeld(Conflict):
    """Another holder has the lease."""


class StepMismatch(Conflict):
    """The code asks for a step that differs from the recorded one; nothing was executed.

    `step` names the first step that differs. Restore the recorded order in the code, or fork the run there.
    """

    def __init__(self, message: str, step: str = "") -> None:
        super().__init__(message)
        self.step = step


class RunBusy(Conflict):
    """Another process or thread has the run open."""


class Blocked(TenutoError):
    """An open question blocks the resource; nothing was written.

    `question` is its id, `context` what its asker attached. An answer opens the gate.
    """

    def __init__(self, message: str, resource: str = "", question: str = "", context: object = None) -> None:
        super().__init__(message)
        self.resource = resource
        self.question = question
        self.context = context


class NotFound(TenutoError):
    """The named object does not exist."""


class InvalidInput(TenutoError, ValueError):
    """An argument is invalid; nothing was written."""


class AmbiguousStep(InvalidInput):
    """Concurrent steps share a name and have no keys, so a replay could not tell them apart."""


class TooLarge(InvalidInput):
    """A value, a key or a commit exceeds its limit; nothing was written."""


class RequestReused(InvalidInput):
    """One request id was used for two different commits; the second was not applied."""


class NotStorable(TenutoError, TypeError):
    """A value contains a type that cannot be stored; `path` says where."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class UnknownType(TenutoError):
    """A stored value contains an application type that this process has not registered."""


class StepFailed(TenutoError):
    """A step raised an error whose type is not registered, so a replay cannot raise the original.

    `type` is the name of that type, `message` its text. On the first run the original error is the cause.
    """

    def __init__(self, message: str, type: str = "", said: str = "") -> None:  # noqa: A002 - what it is called
        super().__init__(message)
        self.type = type
        self.message = said


class BudgetExceeded(TenutoError):
    """A run has spent its budget; the next step was not begun. The same call with a higher budget resumes it."""

    def __init__(self, message: str, spent: float = 0.0, budget: float = 0.0) -> None:
        super().__init__(message)
        self.spent = spent
        self.budget = budget


class RunFailed(TenutoError):
    """A run failed or was cancelled, so it has no result. `type` and `message` describe its error."""

    def __init__(self, message: str, type: str = "", said: str = "") -> None:  # noqa: A002 - what it is called
        super().__init__(message)
        self.type = type
        self.message = said


class TaskFailed(TenutoError):
    """A task failed for good or was cancelled, so it has no result. `type` and `message` describe its last error."""

    def __init__(self, message: str, type: str = "", said: str = "") -> None:  # noqa: A002 - what it is called
        super().__init__(message)
        self.type = type
        self.message = said


class TimedOut(TenutoError, TimeoutError):
    """A step, a wait or a run exceeded its time limit."""


class RequestExpired(TenutoError):
    """A request id is older than the recorded outcomes; this attempt was not applied."""


class Damaged(TenutoError):
    """Stored bytes fail their checksum or cannot be decoded; nothing of them is returned."""


class Encrypted(TenutoError):
    """The data of the tenant is encrypted and no key was given; nothing was read or written."""


class WrongKey(Encrypted):
    """None of the given keys opens the tenant's data; nothing was read or written."""


class NotEncrypted(TenutoError):
    """A key was given, but the tenant holds data in the clear; nothing was read or written."""


class StorageUnavailable(TenutoError):
    """The store is unreachable or did not answer in time.

    `outcome` is "not applied" if the commit certainly did not happen, and "unknown" if it may have.
    If unknown, commit again with the same `request`: it is applied exactly once.
    """

    def __init__(
        self,
        message: str,
        *,
        outcome: Literal["not applied", "unknown"] = "not applied",
        request: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.request = request


class StorageFull(StorageUnavailable):
    """The disk or the memory of the store is full; nothing was written, reads still work."""


class ReadOnly(TenutoError):
    """This store, or this view of it, is read-only."""


class AccessDenied(TenutoError):
    """The API key is missing, wrong, expired or revoked, or it does not allow this call; nothing was done."""


class NewerFormat(TenutoError):
    """The store was written by a newer version of tenuto; nothing was changed."""


class MissingDriver(TenutoError, ImportError):
    """An optional package is not installed; the message names the extra to install."""


class Closed(TenutoError, RuntimeError):
    """The client was closed."""


class Paused(BaseException):
    """A run stopped before its end; every completed step is recorded.

    It is a `BaseException`, so that `except Exception` in a step cannot swallow it.
    """

    def __init__(self, message: str, run: str = "") -> None:
        super().__init__(message)
        self.run = run


class Waiting(Paused):
    """A run waits for a time, a signal or an answer. Make the same call again, or start a worker, to resume it."""

    def __init__(self, message: str, run: str = "", until: float | None = None) -> None:
        super().__init__(message, run)
        self.until = until


class InDoubt(Paused):
    """A step that must not happen twice may have happened, and `verify` could not tell.

    `question` is the id of the question in the inbox; its answer lets the run resume.
    """

    def __init__(self, message: str, run: str = "", question: str = "") -> None:
        super().__init__(message, run)
        self.question = question


class Cancelled(Paused):
    """The run was cancelled; no further step is executed."""
