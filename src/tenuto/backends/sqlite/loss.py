"""Detect whether a SQLite store has lost commits, by its mark in the lock file and its in-use flag.

At `durability="full"` a mark ahead of the store always means loss: each commit was synced before its mark was written. At
`durability="process"` it means loss if the machine was not restarted since; otherwise it is the expected effect of a
power loss. An unknown boot never equals another boot.
"""

from __future__ import annotations

import logging
from pathlib import Path

from tenuto import _machine
from tenuto.backends.sqlite.files import beside, size_of
from tenuto.backends.sqlite.lockfile import Mark
from tenuto.backends.sqlite.rows import Last
from tenuto.errors import Damaged

_ACCEPT = "Restore a backup, or open it with ?accept_loss=true to continue with what is there."
_log = logging.getLogger("tenuto.sqlite")


class Loss:
    """Decide whether a store may be opened."""

    def __init__(self, path: Path, boot: bytes, *, accepted: bool) -> None:
        self.boot = boot
        self.accepted = accepted
        """Whether the user continues with what is there, whatever was lost."""
        self._path = path

    def refuse_empty(self, mark: Mark | None) -> None:
        """Raise `Damaged` if a file without tables should contain commits."""
        if mark is None or mark.number == 0 or self.accepted:
            return
        finding = self.between(mark, mark.store, Last(0, b""))
        if finding is not None:
            raise Damaged(finding)

    def refuse(self, mark: Mark | None, store: bytes, last: Last, *, in_use: bool) -> None:
        """Raise `Damaged` if acknowledged commits are missing."""
        if self.accepted:
            if mark is not None and mark.number > last.number:
                _log.warning("%s continues at commit %d; its mark was at %d", self._path, last.number, mark.number)
            return
        finding = self.between(mark, store, last) if mark is not None else self._without_log(in_use=in_use)
        if finding is not None:
            raise Damaged(finding)

    def between(self, mark: Mark, store: bytes, last: Last) -> str | None:
        """Return a message if the store is behind its mark, else None."""
        name = self._path.name
        if mark.store != store:
            return f"{name} is not the store that its lock file belongs to. {_ACCEPT}"
        if mark.number < last.number or (mark.number, mark.sum) == last:
            return None
        if not mark.full and not _machine.same_boot(mark.boot, self.boot):
            _log.warning(
                "%s lost its last %d commits with the machine, as durability='process' allows",
                self._path,
                mark.number - last.number,
            )
            return None
        if mark.number == last.number:
            return f"{name} has a commit {mark.number} that differs from the one that was made. {_ACCEPT}"
        return (
            f"{name} is at commit {last.number}, but commit {mark.number} was made: {mark.number - last.number} are "
            f"lost, through a damaged or missing write-ahead log or an older copy of the file. {_ACCEPT}"
        )

    def _without_log(self, *, in_use: bool) -> str | None:
        """Return a message if the file was copied while in use, without its write-ahead log."""
        if not in_use or size_of(self._path)("-wal"):
            return None
        return (
            f"{self._path.name} was copied while it was in use, without {beside(self._path, '-wal').name}: its newest "
            f"commits are missing. Copy a store with 'tenuto backup'. {_ACCEPT}"
        )
