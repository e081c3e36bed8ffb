"""What a SQLite store does off the commit path: a thread that is woken when there is something to do."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import time
import weakref
from pathlib import Path
from typing import Final, Protocol

import apsw

from tenuto.errors import Closed, TenutoError
from tenuto.kernel.wake import Wake

_ROOM: Final = 10 << 20
"""As long as the write-ahead log gets until it starts over: two thousand pages, and what is written meanwhile."""
_STEP: Final = 2 << 20
_SPARE: Final = 256 << 20
_ZEROS: Final = bytes(1 << 16)
_log = logging.getLogger("tenuto.sqlite")


class Kept(Protocol):
    """A store with work to do now and then."""

    path: Path

    def upkeep(self) -> None:
        """Do what is due."""
        ...


def keep_up(ref: weakref.ref[Kept], wake: Wake) -> None:
    """Call `upkeep` whenever woken, until the store is closed or gone."""
    while True:
        wake.wait()
        backend = ref()
        if backend is None:
            wake.set()  # an interrupt may have begun two of these
            return
        try:
            backend.upkeep()
        except Closed:
            wake.set()
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


def make_room(connection: apsw.Connection) -> None:
    """Let the write-ahead log be longer than it need be yet; in a write transaction, so that nobody adds to it meanwhile.

    A sync takes half as long where blocks are written over as where they make a file longer. Zeros are no
    frames: whoever reads the log ends before them. They are only ever put behind what is there: even if the path is
    another store's by now, or a fork goes on with this, nothing is written over. A disk that is nearly full is left alone.
    """
    with contextlib.suppress(OSError):
        path = connection.filename_wal
        if os.stat(path).st_size >= _ROOM or shutil.disk_usage(path).free < _SPARE:  # noqa: PTH116 - a text is what SQLite has
            return
        log = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            for _ in range(_STEP // len(_ZEROS)):
                os.write(log, _ZEROS)
        finally:
            os.close(log)


def wal_pages(connection: apsw.Connection, known: int) -> int:
    """Return how many pages are in the write-ahead log; what is `known`, while another program is changing it."""
    try:
        return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
    except apsw.Error:
        return known
