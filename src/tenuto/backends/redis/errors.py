"""Translate the driver's errors: the only module that knows redis-py's exceptions.

An error reply means that nothing was done, because every script decides before it writes. A call that was
sent and got no reply may have been applied; only its request id can tell.
"""

from __future__ import annotations

from typing import Final

from redis import exceptions as driver

from tenuto.errors import InvalidInput, ReadOnly, StorageFull, StorageUnavailable, TenutoError

PASSING: Final = ("BUSY", "MISCONF", "NOREPLICAS", "MASTERDOWN")
"""Prefixes of error replies about the server's state, not the command: it accepts no calls, or no writes, now."""


def translated(  # noqa: C901, PLR0911 - one error after the other
    error: Exception, where: str, *, sent: bool = False, request: bytes | None = None
) -> TenutoError:
    """Return the tenuto error for a driver error; `sent` says that a commit was sent.

    The driver's text is included only if it comes from the server and contains no secret.
    """
    if isinstance(error, TenutoError):
        return error
    text = _said(error)
    if isinstance(error, driver.AuthenticationError | driver.AuthorizationError):
        return StorageUnavailable(
            f"{where} refused the login. Nothing was written; "
            "check user and password in the URL (percent-encode special characters)."
        )
    if isinstance(error, driver.BusyLoadingError):
        return StorageUnavailable(f"{where} is still loading its data. Nothing was written; try again in a moment.")
    if isinstance(error, driver.OutOfMemoryError) or "OOM command not allowed" in text:
        return StorageFull(
            f"{where} has reached its maxmemory. Nothing was written, and reads still work; "
            "raise maxmemory or free memory, then try again.",
            request=request,
        )
    if isinstance(error, driver.NoPermissionError):
        return StorageUnavailable(
            f"{where} denies this user a command that tenuto needs ({text}). Nothing was written; "
            "grant the commands listed in docs/backends.md on the keys of its prefix."
        )
    if isinstance(error, driver.ReadOnlyError) or text.startswith("READONLY"):
        return ReadOnly(
            f"{where} is a read-only replica. Nothing was written; use the address of the primary, "
            "or a redis+sentinel:// or redis+cluster:// URL, which finds it."
        )
    if isinstance(error, driver.ClusterDownError | driver.TryAgainError | driver.AskError):
        return StorageUnavailable(
            f"The cluster at {where} cannot serve this tenant ({text}). Nothing was written; "
            "try again when redis-cli cluster info shows cluster_state:ok."
        )
    if isinstance(error, driver.ResponseError):
        if text.startswith("MISCONF") and "No space left" in text:
            return StorageFull(
                f"The disk of {where} is full ({text}). Nothing was written, and reads still work; "
                "free space there, then try again.",
                request=request,
            )
        if text.startswith(PASSING):
            what = "accepts no calls now" if text.startswith("BUSY") else "accepts no writes now"
            return StorageUnavailable(
                f"{where} {what} ({text}). Nothing was written; repair the server, then try again.", request=request
            )
        if "cluster support disabled" in text:
            return InvalidInput(f"{where} is not a cluster. Use redis:// instead of redis+cluster://.")
        return StorageUnavailable(f"{where} refused a call ({text}). Nothing was written; check the server's log.")
    if sent:
        return StorageUnavailable(
            f"{where} did not answer ({_kind(error)}). Whether the commit was applied is not known; "
            "commit again with the same request id.",
            outcome="unknown",
            request=request,
        )
    return StorageUnavailable(
        f"{where} cannot be reached ({_kind(error)}). Nothing was written; check that it runs and that the URL is correct.",
        request=request,
    )


def _kind(error: Exception) -> str:
    text = str(error).lower()
    if isinstance(error, driver.TimeoutError | TimeoutError) or "timed out" in text or "timeout" in text:
        return "timeout"
    if "refused" in text:
        return "connection refused"
    if "name or service" in text or "getaddrinfo" in text or "name resolution" in text:
        return "unknown host"
    if "ssl" in text or "certificate" in text:
        return "TLS failed"
    return "connection lost"


def _said(error: Exception) -> str:
    text = str(error).split("script:", 1)[0].strip()
    return text.split(". ", 1)[0].rstrip(",.")[:200]
