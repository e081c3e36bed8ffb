"""The rule that says how long things stay."""

from __future__ import annotations

from typing import NamedTuple

from tenuto.kernel.durations import Duration


class Retention(NamedTuple):
    """How long things stay. None: for ever.

    Of checkpoints the newest `keep_last` stay. Of the others, those younger than `hourly` are thinned to the newest per hour, those
    younger than `daily` to the newest per day. The rest are deleted once `older_than`, or at once without it.
    """

    keep_last: int | None = None
    older_than: Duration | None = None
    hourly: Duration | None = None
    daily: Duration | None = None
    journals: Duration | None = None
    """How long the history of state and preferences stays; values themselves stay."""
    runs: Duration | None = None
    """How long completed, failed and cancelled runs stay after their end."""
    tasks: Duration | None = None
    """How long dead, completed and cancelled tasks stay after their end."""
    threads: Duration | None = None
    """How long the contents of expired and deleted threads stay after their last line."""

    @property
    def of_checkpoints(self) -> Retention | None:
        """Return the rule for checkpoints alone, None if there is none."""
        rule = self._replace(journals=None, runs=None, tasks=None, threads=None)
        return None if rule == Retention() else rule
