"""A copy of a store's file, made while it is in use: one snapshot, however busy the store is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tenuto.backends.sqlite import connections
from tenuto.backends.sqlite.connections import Handle

_PAGES: Final = 2_000
"""Number of pages copied in one call. Other threads, and a fork, wait for one call at most."""
Progress = Callable[[int, int], None]


def copy(source: Handle, target: Path, progress: Progress | None = None, *, replace: bool = False) -> int:
    """Copy a snapshot into a new file, durably; return its size in bytes.

    The copy is written under another name first, so the target appears complete or not at all.
    """
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        copied = connections.open_copy(partial)
        try:
            _copy(source, copied, progress)
        finally:
            copied.close()
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        if replace:
            partial.replace(target)
        else:
            os.link(partial, target)  # unlike a rename, it never replaces a file
            partial.unlink()
        sync_folder(target.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return target.stat().st_size


def _copy(source: Handle, copied: Handle, progress: Progress | None) -> None:
    _begin(source, copied)
    while not _step(source, copied):
        job = copied.job
        if progress is not None and job is not None:
            progress(job.page_count - job.remaining, job.page_count)
    with source.lock, copied.lock:
        source.connection.execute("COMMIT")
        copied.connection.execute("UPDATE meta SET value = 0 WHERE name = 'in_use'")
        copied.connection.pragma("journal_mode", "wal")
        copied.connection.pragma("wal_checkpoint", "truncate")


def _begin(source: Handle, copied: Handle) -> None:
    with source.lock, copied.lock:
        # No rollback journal: a forked child that closes its copy of this connection then writes nothing.
        copied.connection.pragma("journal_mode", "off")
        source.connection.execute("BEGIN")
        source.connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # this fixes the snapshot
        copied.job = copied.connection.backup("main", source.connection, "main")


def _step(source: Handle, copied: Handle) -> bool:
    """Copy some pages; return True when all are copied."""
    connections.wait_for_fork()
    with source.lock, copied.lock:
        job = copied.job
        assert job is not None
        if not job.done:
            job.step(_PAGES)
            return False
        job.finish()
        copied.job = None
        return True


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
