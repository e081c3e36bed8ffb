"""The driver's errors as tenuto's: the one place where redis-py's exceptions are known.

A server's error reply says that nothing was done: every script of ours decides before it writes. A call
that was sent and got no reply may have been applied, which only its request id can tell.
"""

from __future__ import annotations

from typing import Final

from redis import exceptions as driver

from tenuto.errors import InvalidInput, ReadOnly, StorageFull, StorageUnavailable, TenutoError

PASSING: Final = ("BUSY", "MISCONF", "NOREPLICAS", "MASTERDOWN")
"""How replies begin that say nothing of the command, only that the server serves nobody, or no writes, now."""


def translated(  # noqa: C901, PLR0911 - one error after the other
    error: Exception, where: str, *, sent: bool = False, request: bytes | None = None
) -> TenutoError:
    """Return the error to raise instead of the driver's; `sent` says that a commit was on its way.

    The driver's own text is repeated only where it comes from the server and holds no secret.
    """
    if isinstance(error, TenutoError):
        return error
    text = _said(error)
    if isinstance(error, driver.AuthenticationError | driver.AuthorizationError):
        return StorageUnavailable(
            f"{where} refused the user or the password, or wants one. Nothing was written; "
            "check both in the URL (special characters are percent-encoded there)."
        )
    if isinstance(error, driver.BusyLoadingError):
        return StorageUnavailable(f"{where} is still loading its data. Nothing was written; try again in a moment.")
    if isinstance(error, driver.OutOfMemoryError) or "OOM command not allowed" in text:
        return StorageFull(
            f"{where} has reached its maxmemory. Nothing was written, and reading goes on; "
            "raise maxmemory or give it a larger machine, then try again.",
            request=request,
        )
    if isinstance(error, driver.NoPermissionError):
        return StorageUnavailable(
            f"{where} does not let this user do what a store needs ({text}). Nothing was written; "
            "grant it the commands named in docs/backends.md on the keys of its prefix."
        )
    if isinstance(error, driver.ReadOnlyError) or text.startswith("READONLY"):
        return ReadOnly(
            f"{where} is a read-only replica. Nothing was written; give the address of the primary, "
            "or a redis+sentinel:// or redis+cluster:// URL, which finds it."
        )
    if isinstance(error, driver.ClusterDownError | driver.TryAgainError | driver.AskError):
        return StorageUnavailable(f"The cluster at {where} cannot serve this tenant now ({text}). Nothing was written.")
    if isinstance(error, driver.ResponseError):
        if text.startswith("MISCONF") and "No space left" in text:
            return StorageFull(
                f"There is no room left on the disk of {where} ({text}). Nothing was written, and reading goes on; "
                "make room there, then try again.",
                request=request,
            )
        if text.startswith(PASSING):
            what = "serves nobody now" if text.startswith("BUSY") else "takes no writes now"
            return StorageUnavailable(
                f"{where} {what} ({text}). Nothing was written; see to the server, then try again.", request=request
            )
        if "cluster support disabled" in text:
            return InvalidInput(f"{where} is not a cluster; write its URL with redis:// instead of redis+cluster://.")
        return StorageUnavailable(f"{where} refused a call ({text}). Nothing was written; see the server's log.")
    if sent:
        return StorageUnavailable(
            f"{where} did not answer ({_kind(error)}). Whether the commit was applied is not known; "
            "commit again with the same request id.",
            outcome="unknown",
            request=request,
        )
    return StorageUnavailable(
        f"{where} cannot be reached ({_kind(error)}). Nothing was written; check that it runs and that the URL is right.",
        request=request,
    )


def _kind(error: Exception) -> str:
    text = str(error).lower()
    if isinstance(error, driver.TimeoutError | TimeoutError) or "timed out" in text or "timeout" in text:
        return "no answer in time"
    if "refused" in text:
        return "connection refused"
    if "name or service" in text or "getaddrinfo" in text or "name resolution" in text:
        return "the host is not known"
    if "ssl" in text or "certificate" in text:
        return "TLS failed"
    return "connection lost"


def _said(error: Exception) -> str:
    text = str(error).split("script:", 1)[0].strip()
    return text.split(". ", 1)[0].rstrip(",.")[:200]
