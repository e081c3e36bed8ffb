"""Translate Postgres's errors: the only module that knows the driver's exceptions."""

from __future__ import annotations

from typing import Final

import psycopg

from tenuto.backends.postgres import schema
from tenuto.errors import (
    InvalidInput,
    NewerFormat,
    ReadOnly,
    RequestExpired,
    RequestReused,
    StorageFull,
    StorageUnavailable,
    TenutoError,
)
from tenuto.kernel.contract import NOT_BOTH

PREPARED: Final = ("26000", "42P05", "08P01", "22P03")
"""A prepared statement is missing, exists already, or is another client's with other parameters: there is a
pooler in between. Nothing was executed."""
AGAIN: Final = ("40001", "40P01", "23505")
"""The server rolled back because of another transaction: nothing was applied, and a retry helps."""
STARTING: Final = "57P03"
READ_ONLY: Final = "25006"
_NO_PRIMARY: Final = ("session is read-only", "server is in hot standby mode")
_LOGIN: Final = ("authentication failed", "no password supplied", "no pg_hba.conf entry")

_NOT_APPLIED: Final = "Nothing was written. "


class DeadlineExceeded(psycopg.OperationalError):
    """The server did not answer in time; the connection was closed."""


def lost(error: psycopg.Error) -> bool:
    """Return whether the reply is missing, so that the outcome of the statement is unknown.

    An error that ends the session (FATAL, PANIC) may occur while the commit is being written to disk.
    """
    return error.sqlstate is None or error.diag.severity_nonlocalized in ("FATAL", "PANIC")


def unprepared(error: psycopg.Error) -> bool:
    """Return whether the statement was refused because a pooler mixed up prepared statements."""
    return error.sqlstate in PREPARED and error.diag.severity_nonlocalized == "ERROR"


def translated(  # noqa: C901, PLR0911, PLR0912 - one error after the other
    error: Exception, place: str, *, sent: bool = False, request: bytes | None = None
) -> TenutoError:
    """Return the tenuto error for a driver error; `sent` says that a commit was sent."""
    if isinstance(error, TenutoError):
        return error
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    text = _first_line(error)
    if sent and (not isinstance(error, psycopg.Error) or lost(error)):
        return StorageUnavailable(
            f"{place} did not answer ({text}). Whether the commit was applied is not known; "
            "commit again with the same request id.",
            outcome="unknown",
            request=request,
        )
    if state == schema.REUSED:
        return RequestReused("This request id was used for another commit. Nothing was written; use a new id.")
    if state == schema.EXPIRED:
        return RequestExpired(
            "This request id is too old for its outcome to be known. Nothing was written; read what is stored first."
        )
    if state == schema.BOTH:
        return InvalidInput(NOT_BOTH)
    if state in (schema.NEWER, "42883", "42P01", "3F000"):
        return NewerFormat(
            f"The store in {place} does not support this version of tenuto ({text}). "
            "Nothing was changed; upgrade tenuto, or run `tenuto migrate` if the store is new."
        )
    if state == schema.ISOLATION:
        return StorageUnavailable(
            f"{place}: {text}. {_NOT_APPLIED}Set default_transaction_isolation to 'read committed' for this role."
        )
    if state == "53100":
        return StorageFull(
            f"The disk of {place} is full ({text}). {_NOT_APPLIED}Free space on the server, then try again.",
            request=request,
        )
    if state == READ_ONLY:
        return ReadOnly(
            f"{place} is read-only: a replica, or configured so. {_NOT_APPLIED}"
            "Use the primary, or several hosts with target_session_attrs=read-write."
        )
    if state == "42501":
        return StorageUnavailable(
            f"The role lacks permissions in {place} ({text}). {_NOT_APPLIED}Ask the owner to grant them; "
            "`tenuto migrate --sql` prints them.",
            request=request,
        )
    # Errors before there is a session have no SQLSTATE in libpq, only text.
    if state in ("28P01", "28000") or any(word in text for word in _LOGIN):
        return StorageUnavailable(f"{place} refused the login ({text}). {_NOT_APPLIED}Check user and password.")
    if any(word in text for word in _NO_PRIMARY):
        return StorageUnavailable(
            f"No server of {place} accepts writes now: all are replicas or read-only ({text}). {_NOT_APPLIED}"
            "Try again after a failover, or use the primary.",
            request=request,
        )
    if state == "55P03":
        return StorageUnavailable(
            f"Another transaction in {place} held a lock for longer than the timeout. {_NOT_APPLIED}Try again.",
            request=request,
        )
    if isinstance(error, psycopg.Error) and not lost(error):
        return StorageUnavailable(
            f"{place} refused the call ({text}). {_NOT_APPLIED}Check the server's log.", request=request
        )
    return StorageUnavailable(
        f"{place} cannot be reached or did not answer ({text}). {_NOT_APPLIED}"
        "Check that the server runs and that this machine may connect.",
        request=request,
    )


def _first_line(error: Exception) -> str:
    # The driver's messages name host, user and database, never the password.
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    lines = (primary or str(error) or type(error).__name__).strip().splitlines()
    each = [line[2:] for line in lines if line.startswith("- host")]  # the result for each of several hosts
    return ("; ".join(each) or " ".join(lines[:2])).rstrip(".")
