"""What `prune` reports."""

from __future__ import annotations

from typing import NamedTuple


class Pruned(NamedTuple):
    """How many were removed of each kind; with `dry_run` how many would be."""

    journals: int
    """Entries of journals of state and preferences, and of notices to workers."""
    runs: int
    tasks: int
    checkpoints: int
    threads: int
    """Expired or deleted threads that still had content or entries."""

    @property
    def total(self) -> int:
        """Return the number of all kinds together."""
        return sum(self)
