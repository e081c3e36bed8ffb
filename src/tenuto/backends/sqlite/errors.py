"""Translate SQLite's errors: the only module that knows the driver's exceptions."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Final

import apsw

from tenuto.errors import (
    Damaged,
    InvalidInput,
    ReadOnly,
    StorageFull,
    StorageUnavailable,
    TenutoError,
)

DRIVER: Final = (apsw.Error, OSError, UnicodeDecodeError)
"""What the driver raises. The last comes from a blob that a flipped bit made a text."""
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
_DAMAGE: Final = (
    UnicodeDecodeError,
    apsw.CorruptError,
    apsw.ConstraintError,
    apsw.SQLError,
    apsw.FormatError,
    apsw.MismatchError,
)


def translated(  # noqa: PLR0911 - one error after the other
    error: Exception, path: Path, *, committing: bool = False, request: bytes | None = None
) -> TenutoError:
    """Return the tenuto error for a driver error; `committing` says that COMMIT had begun."""
    name = path.name
    if isinstance(error, TenutoError):
        return error
    if _is_full(error):
        return StorageFull(
            f"The disk of {name} is full. Nothing was written, and reads still work. Free space, then try again."
        )
    if isinstance(error, apsw.NotADBError):
        return InvalidInput(
            f"{path} is not a tenuto store. If it should be one, restore it from a backup; otherwise use another path."
        )
    if isinstance(error, _DAMAGE):
        return Damaged(f"{name} is damaged ({error}). Stop writing to it, keep a copy, and restore a backup.")
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
        return ReadOnly(f"{path} cannot be written ({error}). Check the permissions of the file and its folder.")
    if isinstance(error, apsw.CantOpenError):
        return StorageUnavailable(f"{path} cannot be opened ({error}). Check that the folder exists and is writable.")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return StorageUnavailable(
            f"Another program holds {name} locked ({error}). Nothing was written. End its transaction and try again."
        )
    if isinstance(error, OSError):
        return StorageUnavailable(f"{path} cannot be used ({error.strerror}). Check the path and its permissions.")
    return _disk_error(error, name, committing=committing, request=request)


def _disk_error(error: Exception, name: str, *, committing: bool, request: bytes | None) -> StorageUnavailable:
    if committing:
        return StorageUnavailable(
            f"The disk under {name} failed during a commit ({error}). Whether the commit was applied is not known; "
            "commit again with the same request id.",
            outcome="unknown",
            request=request,
        )
    if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHORT_READ:
        return StorageUnavailable(
            f"{name} is shorter than its write-ahead log says: the file was removed, replaced or cut while a process had it "
            "open. Nothing was written. Close every process that uses it, then open it again or restore a backup."
        )
    return StorageUnavailable(f"The disk under {name} failed ({error}). Nothing was written; check the disk.")


def _is_full(error: Exception) -> bool:
    if isinstance(error, apsw.IOError):  # no space for the index of the write-ahead log
        return getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE
    return isinstance(error, apsw.FullError) or (isinstance(error, OSError) and error.errno in _NO_ROOM)
