"""SQLite's errors as tenuto's: the one place where the driver's exceptions are known."""

from __future__ import annotations

import errno
from pathlib import Path

import apsw

from tenuto.errors import (
    Damaged,
    InvalidInput,
    ReadOnly,
    StorageFull,
    StorageUnavailable,
    TenutoError,
)

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def translated(  # noqa: PLR0911 - one error after the other
    error: Exception, path: Path, *, committing: bool = False, request: bytes | None = None
) -> TenutoError:
    """Return the error to raise instead of the driver's; `committing` says that COMMIT had begun."""
    name = path.name
    if isinstance(error, TenutoError):
        return error
    if isinstance(error, apsw.FullError) or (isinstance(error, OSError) and error.errno in _NO_ROOM):
        return StorageFull(
            f"There is no room left for {name}. Nothing was written, and reading goes on; make room, then try again."
        )
    if isinstance(error, apsw.NotADBError):
        return InvalidInput(
            f"{path} is not a tenuto store. If it should be one, restore it from a backup; else give another path."
        )
    if isinstance(
        error, UnicodeDecodeError | apsw.CorruptError | apsw.SQLError | apsw.FormatError | apsw.MismatchError
    ):
        return Damaged(f"{name} is damaged ({error}). Stop writing to it, keep a copy, and restore a backup.")
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
        return ReadOnly(f"{path} cannot be written ({error}); check the permissions of the file and its folder.")
    if isinstance(error, apsw.CantOpenError):
        return StorageUnavailable(f"{path} cannot be opened ({error}); check that the folder exists and is writable.")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StorageUnavailable(
            f"Another program holds {name} locked ({error}). Nothing was written; end that program's transaction and try again."
        )
    if isinstance(error, OSError):
        return StorageUnavailable(f"{path} cannot be used ({error.strerror}); check the path and its permissions.")
    return StorageUnavailable(
        f"The storage under {name} failed ({error}). "
        + (
            "Whether the commit was applied is not known; commit again with the same request id."
            if committing
            else "Nothing was written; check the disk."
        ),
        outcome="unknown" if committing else "not applied",
        request=request,
    )
