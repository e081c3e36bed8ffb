"""What `archive` reports, and how a store finds what is old."""

from __future__ import annotations

import os
from datetime import datetime
from typing import NamedTuple, Protocol

from tenuto.kernel.durations import Duration
from tenuto.kernel.work import Work


class ArchiveReport(NamedTuple):
    """How many things were archived, in whole or in part; with `dry_run` how many would be."""

    threads: int
    runs: int
    checkpoints: int
    """Keyframes with their deltas count as the checkpoints that they are."""
    objects: int
    """Objects written to the archive."""
    bytes: int
    removed: int
    """Objects removed from the archive because what they hold was deleted."""
    place: str


class Archived(NamedTuple):
    """A part of a thread, run or lineage of checkpoints that is in the archive."""

    kind: str
    """"thread", "run", "checkpoint" (of a thread) or "snapshot" (of a name)."""
    name: str
    user: str | None
    first: int
    """The first line or checkpoint."""
    last: int
    state: str
    """"away", or "here" once it was brought back; "copying" or "leaving" while it is moved; "gone" once it was deleted."""
    place: str
    object: str
    bytes: int
    at: datetime
    """When it entered this state."""


class Archiving(Protocol):
    """How a store is archived; the client composes it of all capabilities."""

    def __call__(
        self, older_than: Duration, to: str | os.PathLike[str] | None, kinds: tuple[str, ...], *, dry: bool
    ) -> Work[ArchiveReport]:
        """Archive what is older than a duration."""
        ...
