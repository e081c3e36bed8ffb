"""Every error that tenuto raises, each a sentence that says what happened and what to do next.

    TenutoError
    ├── Conflict              something else was written first; nothing of this call was applied
    │   ├── StateConflict     a state value or a thread is not as it was expected to be
    │   ├── StepMismatch      a run's code asks for another step than the one on record
    │   ├── RunBusy           somebody else has the run in hand
    │   ├── StaleLease        the lease has passed to another holder; this one may no longer write
    │   └── LeaseHeld         somebody else holds the lease
    ├── NotFound              there is no such thing
    ├── InvalidInput          an argument cannot be used (also a ValueError)
    │   ├── AmbiguousStep     two steps of one name are in flight and could not be told apart later
    │   ├── TooLarge          a value, key or commit is over its limit
    │   └── RequestReused     one request id was used for two different commits
    ├── NotStorable           a value holds something outside the data format (also a TypeError)
    ├── UnknownType           a stored value holds an application type that is not registered here
    ├── StepFailed            a step raised an error of a type that is not registered; see `type`
    ├── TaskFailed            a task was given up, or cancelled; see `type`
    ├── TimedOut              a step, a wait or a run took longer than it may (also a TimeoutError)
    ├── RequestExpired        a request id is too old for its outcome to be known
    ├── Damaged               stored bytes are not what was written
    ├── StorageUnavailable    the store cannot be reached or did not answer; see `outcome`
    │   └── StorageFull       there is no room left
    ├── ReadOnly              this store or this view of it takes no writes
    ├── NewerFormat           the store was written by a newer version of tenuto
    ├── MissingDriver         an optional package is not installed (also an ImportError)
    └── Closed                the client was closed (also a RuntimeError)

    Paused (a BaseException, so that `except Exception` cannot swallow it)
    ├── Waiting               the run goes on when it is time, or when what it waits for has come
    ├── InDoubt               a step may have happened, and nobody could say; there is a question in the inbox
    └── Cancelled             the run was cancelled

A call that raises anything but `StorageUnavailable` with `outcome="unknown"` has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

__all__ = [
    "AmbiguousStep",
    "Cancelled",
    "Closed",
    "Conflict",
    "Damaged",
    "InDoubt",
    "InvalidInput",
    "LeaseHeld",
    "MissingDriver",
    "NewerFormat",
    "NotFound",
    "NotStorable",
    "Paused",
    "ReadOnly",
    "RequestExpired",
    "RequestReused",
    "RunBusy",
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
]


class TenutoError(Exception):
    """The base of everything tenuto raises."""


class Conflict(TenutoError):
    """Something else was written first, and nothing of this call was applied.

    Read again and decide anew; `keys` names what differed.
    """

    def __init__(self, message: str, keys: Sequence[bytes] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)


class StateConflict(Conflict):
    """A state value is not at the version, or a thread not at the message, that was expected."""


class StaleLease(Conflict):
    """The lease has passed to another holder; a write fenced by it was not applied."""


class LeaseHeld(Conflict):
    """Somebody else holds the lease."""


class StepMismatch(Conflict):
    """A run's code asks for another step than the one on record; nothing was run.

    `step` is the name of the first one that differs. Let the code ask for what was recorded, or fork the run there.
    """

    def __init__(self, message: str, step: str = "") -> None:
        super().__init__(message)
        self.step = step


class RunBusy(Conflict):
    """Somebody else has the run in hand."""


class NotFound(TenutoError):
    """There is no such thing."""


class InvalidInput(TenutoError, ValueError):
    """An argument cannot be used; nothing was written."""


class AmbiguousStep(InvalidInput):
    """Two steps of one name are in flight without keys: which is which could not be told on a replay."""


class TooLarge(InvalidInput):
    """A value, a key or a commit is over its limit; nothing was written."""


class RequestReused(InvalidInput):
    """One request id was used for two different commits; the second was not applied."""


class NotStorable(TenutoError, TypeError):
    """A value holds something outside the data format; `path` says where."""

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class UnknownType(TenutoError):
    """A stored value holds an application type that this process has not registered."""


class StepFailed(TenutoError):
    """A step raised an error whose type is not registered, so it cannot be raised again as it was.

    `type` is the name of that type and `message` what it said; the first time the error itself is the cause.
    """

    def __init__(self, message: str, type: str = "", said: str = "") -> None:  # noqa: A002 - what it is called
        super().__init__(message)
        self.type = type
        self.message = said


class TaskFailed(TenutoError):
    """A task was given up, or cancelled, so it has no result. `type` and `message` tell of its last error."""

    def __init__(self, message: str, type: str = "", said: str = "") -> None:  # noqa: A002 - what it is called
        super().__init__(message)
        self.type = type
        self.message = said


class TimedOut(TenutoError, TimeoutError):
    """A step, a wait or a run took longer than it may."""


class RequestExpired(TenutoError):
    """A request id is too old for its outcome to be known; the commit was not applied now."""


class Damaged(TenutoError):
    """Stored bytes are not what was written; nothing of them is returned."""


class StorageUnavailable(TenutoError):
    """The store cannot be reached or did not answer in time.

    `outcome` is "not applied" when the commit surely did not happen, and "unknown" when it may have:
    then commit again with the same `request`, which applies it once whatever happened before.
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
    """There is no room left; nothing was written, and reads go on."""


class ReadOnly(TenutoError):
    """This store, or this view of it, takes no writes."""


class NewerFormat(TenutoError):
    """The store was written by a newer version of tenuto; it was left untouched."""


class MissingDriver(TenutoError, ImportError):
    """An optional package is not installed; the sentence names the extra to install."""


class Closed(TenutoError, RuntimeError):
    """The client was closed."""


class Paused(BaseException):
    """A run stopped here and is not over; whatever it has done is recorded.

    It is no `Exception`, so that code which handles errors does not take it for one.
    """

    def __init__(self, message: str, run: str = "") -> None:
        super().__init__(message)
        self.run = run


class Waiting(Paused):
    """A run waits: for a time, a signal or an answer. The same call, or a worker, goes on when that has come."""

    def __init__(self, message: str, run: str = "", until: float | None = None) -> None:
        super().__init__(message, run)
        self.until = until


class InDoubt(Paused):
    """A step that must not happen twice may have happened, and nobody could say.

    `question` is the id of the question in the inbox; the answer lets the run go on.
    """

    def __init__(self, message: str, run: str = "", question: str = "") -> None:
        super().__init__(message, run)
        self.question = question


class Cancelled(Paused):
    """The run was cancelled; it does nothing more."""
