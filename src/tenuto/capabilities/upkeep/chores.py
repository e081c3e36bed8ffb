"""What a worker also does: timers, deliveries and, with a retention rule, a part of the pruning now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tenuto.capabilities._core.retention import Retention
from tenuto.capabilities.store import Pruned
from tenuto.capabilities.upkeep.prune import Pruner
from tenuto.kernel.work import Store, Work

_SECONDS: Final = 60.0
_COMMITS: Final = 100


class Chores:
    """The chores of one client's workers."""

    def __init__(self, fire: Callable[[], Work[int]], pruner: Pruner, retention: Retention | None) -> None:
        self._fire = fire
        self._pruner = pruner
        self._retention = retention
        self._due = 0.0

    def __call__(self) -> Work[int]:
        """Fire what is due and prune a part of what is old; return how much was done."""
        done = yield from self._fire()
        now = self._pruner.now()
        if self._retention is not None and now >= self._due:
            pruned: Pruned = yield Store(self._pruner.prune(self._retention, most=_COMMITS))
            self._due = now if pruned.total else now + _SECONDS  # at once, if there may be more
        return done
