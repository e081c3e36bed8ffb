"""The background thread of a SQLite store, for work off the commit path. It sleeps until woken."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from pathlib import Path
from typing import Final, Protocol

import apsw

from tenuto.errors import Closed, TenutoError
from tenuto.kernel.wake import Wake

_READERS_MS: Final = 100
_log = logging.getLogger("tenuto.sqlite")


class Maintained(Protocol):
    """A store with upkeep to do."""

    path: Path

    def upkeep(self) -> None:
        """Do the work that is due."""
        ...


def run_upkeep(ref: weakref.ref[Maintained], wake: Wake) -> None:
    """Call `upkeep` whenever woken, until the store is closed or collected."""
    while True:
        wake.wait()
        backend = ref()
        if backend is None:
            wake.set()  # an interrupt may have started two of these threads
            return
        try:
            backend.upkeep()
        except Closed:
            wake.set()
            return
        except TenutoError as error:
            _log.warning("upkeep of %s failed and will be retried: %s", backend.path, error)
        del backend


def checkpoint(connection: apsw.Connection) -> None:
    """Move the write-ahead log into the file, without blocking other threads."""
    # Busy: another process is doing it, or a commit is changing the log's index.
    for _ in range(20):
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.BusyError:
            time.sleep(0.001)
        else:
            return


def restart_log(connection: apsw.Connection, timeout: float) -> None:
    """Wait, for a tenth of a second, until no reader needs the write-ahead log; then the next commit starts it over."""
    connection.set_busy_timeout(_READERS_MS)
    try:
        with contextlib.suppress(apsw.BusyError):  # a long read: the log grows until it ends
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_RESTART)
    finally:
        connection.set_busy_timeout(int(timeout * 1000))
