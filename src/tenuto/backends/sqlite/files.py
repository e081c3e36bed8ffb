"""The files of a SQLite store in the file system: permissions, identity, and syncs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import apsw

from tenuto.backends.sqlite.backup import sync_folder
from tenuto.errors import StorageUnavailable

_CHUNK: Final = 1 << 20
_DEFAULT: Final = (".tenuto", "tenuto.db")


def beside(path: Path, part: str) -> Path:
    """Return the path of a file that belongs to a store: its -wal, -shm or -lock."""
    return path.with_name(path.name + part)


def identify(path: str, log: str) -> tuple[int, int]:
    """Return the identity of a store's file and of its write-ahead log: their inodes."""
    return os.stat(path).st_ino, os.stat(log).st_ino  # noqa: PTH116 - every commit runs this


def refuse_replaced(path: str, log: str, opened: tuple[int, int]) -> None:
    """Raise `StorageUnavailable` if the files were removed or replaced since they were opened."""
    try:
        if identify(path, log) == opened:
            return
    except OSError:
        pass
    raise StorageUnavailable(
        f"{Path(path).name} or its -wal was removed or replaced while this client had it open. Nothing was written. "
        "Close this client, then open the store that is there now, or restore a backup."
    )


def obstacle(path: Path) -> str | None:
    """Return the reason why this user cannot write a store, or None."""
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        return f"{path} cannot be written by this user. Nothing was written; check its permissions."
    for part in ("-wal", "-shm", "-lock"):
        file = beside(path, part)
        if not file.exists() or os.access(file, os.W_OK):
            continue
        try:
            # Created by a reader while the store was read-only, with those permissions.
            file.chmod(path.stat().st_mode & 0o777)
        except OSError:
            return (
                f"{path} can be written, but {file.name} next to it cannot. Nothing was written; "
                f"give {file.name} the permissions of {path.name}."
            )
    return None


def align_lock(path: Path) -> None:
    """Give the lock file the permissions of the store: a user who may write one must be able to lock the other."""
    lock, mode = beside(path, "-lock"), path.stat().st_mode & 0o777
    if lock.stat().st_mode & 0o777 != mode:
        with suppress(OSError):  # another user's: the owner's next opening aligns it
            lock.chmod(mode)


def reading_flags(path: Path) -> int:
    """Return the flags to open a store that must not be written."""
    if os.statvfs(path.parent).f_flag & os.ST_RDONLY and _size(beside(path, "-wal")) == 0:
        # No file can be created there, and a read-only mount does not change: SQLite then needs no shared memory.
        return apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    return apsw.SQLITE_OPEN_READONLY


def sync_log(path: Path) -> None:
    """Sync the write-ahead log, if there is one.

    A process that is killed during its sync leaves commits in the page cache, which the next one recovers. They must
    not be used in any answer before a sync has covered them.
    """
    log = beside(path, "-wal")
    if _size(log):
        fd = os.open(log, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        sync_folder(path.parent)


def rewrite_log(connection: apsw.Connection, path: Path) -> None:
    """Write the bytes of the write-ahead log again, and sync them.

    After a failed sync the kernel marks the pages clean, although they are not on disk: a later sync succeeds
    without writing them. So this makes them dirty again. The write transaction keeps others from changing them.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        _rewrite(beside(path, "-wal"))
        sync_folder(path.parent)
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _rewrite(log: Path) -> None:
    fd = os.open(log, os.O_RDWR)
    try:
        at = 0
        while chunk := os.pread(fd, _CHUNK, at):
            os.pwrite(fd, chunk, at)
            at += len(chunk)
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(path: Path) -> None:
    """Create the folder of a store if it is missing; git ignores a new folder of the default store."""
    folder = path.parent
    if folder.exists():
        return
    _make(folder)
    if path.parts[-2:] == _DEFAULT:
        with suppress(OSError):  # a convenience, which must not keep the store from opening
            (folder / ".gitignore").write_text("*\n")


def _make(folder: Path) -> None:
    """Create a folder and its missing parents, each for its owner alone."""
    if not folder.exists():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def size_of(path: Path) -> Callable[[str], int]:
    """Return a function that gives the size of a store's file; see `beside`."""
    return lambda part: _size(beside(path, part))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
