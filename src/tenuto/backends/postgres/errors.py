"""Postgres's errors as tenuto's: the one place where the driver's exceptions are known."""

from __future__ import annotations

from typing import Final

import psycopg

from tenuto.backends import _postgres_schema as schema
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
"""A prepared statement is unknown to the server, was known before, or is another client's of the same name,
which takes other parameters: a pooler is in between. Nothing was executed."""
AGAIN: Final = ("40001", "40P01", "23505")
"""The server rolled back because of another transaction: nothing was applied, and trying again helps."""
STARTING: Final = "57P03"
READ_ONLY: Final = "25006"
_NO_PRIMARY: Final = ("session is read-only", "server is in hot standby mode")
_LOGIN: Final = ("authentication failed", "no password supplied", "no pg_hba.conf entry")

_NOT_APPLIED: Final = "Nothing was written. "
_UNKNOWN: Final = "Whether the commit was applied is not known; commit again with the same request id. "


class DeadlineExceeded(psycopg.OperationalError):
    """The server did not answer in time; the connection was cut."""


def lost(error: psycopg.Error) -> bool:
    """Tell whether the error says nothing about the statement: its answer is missing."""
    return error.sqlstate is None or (
        error.sqlstate[:2] in ("08", "57") and error.diag.severity_nonlocalized != "ERROR"
    )


def unprepared(error: psycopg.Error) -> bool:
    """Tell whether the statement was refused because a prepared one is not what this client had prepared."""
    return error.sqlstate in PREPARED and error.diag.severity_nonlocalized == "ERROR"


def translated(  # noqa: C901, PLR0911, PLR0912 - one error after the other
    error: Exception, place: str, *, sent: bool = False, request: bytes | None = None
) -> TenutoError:
    """Return the error to raise instead of the driver's; `sent` says that a commit had been sent."""
    if isinstance(error, TenutoError):
        return error
    state = error.sqlstate if isinstance(error, psycopg.Error) else None
    said = _first_line(error)
    if state == schema.REUSED:
        return RequestReused("This request id was used for another commit; make a new one.")
    if state == schema.EXPIRED:
        return RequestExpired(
            "This request id is too old for its outcome to be known. Read what is stored, then decide."
        )
    if state == schema.BOTH:
        return InvalidInput(NOT_BOTH)
    if state in (schema.NEWER, "42883", "42P01", "3F000"):
        return NewerFormat(
            f"The store in {place} has no function for this version of tenuto any more ({said}). "
            "It was left untouched; upgrade tenuto, or run `tenuto migrate` if the store was never set up."
        )
    if state == schema.ISOLATION:
        return StorageUnavailable(
            f"{place}: {said}. {_NOT_APPLIED}Set default_transaction_isolation to 'read committed' for this role."
        )
    if state == "53100":
        return StorageFull(
            f"There is no room left in {place} ({said}). {_NOT_APPLIED}Make room on the server, then try again.",
            request=request,
        )
    if state == READ_ONLY:
        return ReadOnly(
            f"{place} takes no writes: it is a replica, or set read-only. {_NOT_APPLIED}"
            "Name the primary, or several hosts with target_session_attrs=read-write."
        )
    if state == "42501":
        return StorageUnavailable(
            f"The role may not do this in {place} ({said}). {_NOT_APPLIED}Have its owner grant the rights; "
            "`tenuto migrate --sql` prints them.",
            request=request,
        )
    # What fails before there is a session has no SQLSTATE in libpq, only words.
    if state in ("28P01", "28000") or (not sent and any(word in said for word in _LOGIN)):
        return StorageUnavailable(f"{place} refuses the login ({said}). {_NOT_APPLIED}Check user and password.")
    if not sent and any(word in said for word in _NO_PRIMARY):
        return StorageUnavailable(
            f"Of {place} no server takes writes now: what answers is a replica, or set read-only ({said}). {_NOT_APPLIED}"
            "Try again when one was promoted, or name the primary.",
            request=request,
        )
    if state == "55P03":
        return StorageUnavailable(
            f"Another transaction in {place} held a lock for longer than the timeout. {_NOT_APPLIED}Try again.",
            request=request,
        )
    if isinstance(error, psycopg.Error) and not lost(error):
        return StorageUnavailable(
            f"{place} refused the call ({said}). {_NOT_APPLIED}The server's log says more.", request=request
        )
    unknown = sent and (not isinstance(error, psycopg.Error) or lost(error))
    return StorageUnavailable(
        f"{place} cannot be reached or did not answer ({said}). "
        + (_UNKNOWN if unknown else _NOT_APPLIED)
        + "Check that the server runs and that this machine may connect.",
        outcome="unknown" if unknown else "not applied",
        request=request,
    )


def _first_line(error: Exception) -> str:
    # The driver's own words name host, user and database, never the password.
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    lines = (primary or str(error) or type(error).__name__).strip().splitlines()
    each = [line[2:] for line in lines if line.startswith("- host")]  # what became of each of several hosts
    return ("; ".join(each) or " ".join(lines[:2])).rstrip(".")
