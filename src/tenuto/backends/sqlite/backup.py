"""A copy of a store's file, made while it is in use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import apsw

from tenuto.backends._sqlite_errors import translated
from tenuto.errors import InvalidInput

_PAGES = 2_000
"""So many pages are copied at once; writers go on in between, and what they write is in the copy too."""


def backup(source: apsw.Connection, target: Path, progress: Callable[[int, int], None] | None = None) -> int:
    """Copy everything as of one moment into a new file, durably; return its size in bytes."""
    if target.exists():
        raise InvalidInput(f"{target} is there already, and is left as it is. Give a name that is free.")
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    try:
        copy = apsw.Connection(str(partial))
        try:
            with copy.backup("main", source, "main") as job:
                while not job.done:
                    job.step(_PAGES)
                    if progress is not None:
                        progress(job.page_count - job.remaining, job.page_count)
            copy.pragma("journal_mode", "wal")
            copy.pragma("wal_checkpoint", "truncate")
        finally:
            copy.close()
        with partial.open("rb+") as file:
            file.flush()
            os.fsync(file.fileno())
        partial.rename(target)
    except (apsw.Error, OSError) as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, apsw.Error):
            raise translated(error, target) from error
        raise InvalidInput(f"{target} cannot be written: {error}. Nothing was left behind.") from error
    return target.stat().st_size
