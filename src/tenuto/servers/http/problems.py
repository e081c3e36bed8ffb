"""Errors as HTTP: a status for each type, and RFC 9457 problem documents with the message that Python users read."""

from __future__ import annotations

from typing import Any, Final

from tenuto import errors

_STATUSES: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (errors.TooLarge, 413),
    (errors.InvalidInput, 400),
    (errors.NotStorable, 400),
    (errors.NotFound, 404),
    (errors.Conflict, 409),
    (errors.RequestExpired, 409),
    (errors.TaskFailed, 409),
    (errors.RunFailed, 409),
    (errors.StepFailed, 409),
    (errors.Blocked, 409),
    (errors.BudgetExceeded, 409),
    (errors.Encrypted, 409),  # by the client: this server has no key, and no retry changes that
    (errors.NotEncrypted, 409),
    (errors.UnknownType, 409),
    (errors.Paused, 409),
    (errors.AccessDenied, 403),
    (errors.ReadOnly, 403),
    (errors.StorageFull, 507),
    (errors.StorageUnavailable, 503),
    (errors.Closed, 503),
    (errors.TimedOut, 503),
)
PROBLEM: Final = "application/problem+json"


class Refused(errors.TenutoError):
    """A request that is refused before it reaches the store, with its status."""

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Stopping(errors.StorageUnavailable):
    """This server process stops; another one may answer at once."""


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, Refused):
        return error.status
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def problem_of(error: BaseException) -> dict[str, Any]:
    """Return the problem document of an error."""
    status = status_of(error)
    kind = type(error).__name__
    fields: dict[str, Any] = {
        "type": f"urn:tenuto:error:{kind}",
        "title": kind,
        "status": status,
        "detail": str(error),
    }
    if isinstance(error, errors.StorageUnavailable):
        fields["outcome"] = error.outcome
    return fields
