"""What a SQLite store does off the commit path: a thread that is woken when there is something to do."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from pathlib import Path
from typing import Protocol

import apsw

from tenuto.errors import Closed, TenutoError

_log = logging.getLogger("tenuto.sqlite")


class Kept(Protocol):
    """A store with work to do now and then."""

    path: Path

    def upkeep(self) -> None:
        """Do what is due."""
        ...


def keep_up(ref: weakref.ref[Kept], wake: threading.Event) -> None:
    """Call `upkeep` whenever woken, until the store is closed or gone."""
    while True:
        wake.wait()
        wake.clear()
        backend = ref()
        if backend is None:
            return
        try:
            backend.upkeep()
        except Closed:
            return
        except TenutoError as error:
            _log.warning("upkeep of %s failed and will be tried again: %s", backend.path, error)
        del backend


def checkpoint(connection: apsw.Connection) -> None:
    """Move what is in the write-ahead log into the file, without blocking anybody."""
    # Busy means that another process is at it, or that a commit was just changing the log's index.
    for _ in range(20):
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            time.sleep(0.001)
        else:
            return


def wal_pages(connection: apsw.Connection) -> int:
    """Return how many pages are in the write-ahead log."""
    return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
