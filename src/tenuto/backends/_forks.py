"""Who has to be told when this process forks.

A child inherits memory and open files, and none of the threads. So before the fork everybody here comes to
rest, and after it the parent goes on and the child starts afresh.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forking(Protocol):
    """A store that can be at rest while its process forks."""

    def before_fork(self) -> None:
        """Come to rest: no thread may be inside of anything that the child could not let go of."""
        ...

    def after_fork_in_parent(self) -> None:
        """Go on."""
        ...

    def after_fork_in_child(self) -> None:
        """Let go of what is the parent's, and start afresh."""
        ...


_living: weakref.WeakSet[Forking] = weakref.WeakSet()
_resting: list[Forking] = []


def tell(store: Forking) -> None:
    """Tell a store of every fork, as long as it lives."""
    _living.add(store)


def _before() -> None:
    _resting.extend(_living)
    for store in _resting:
        store.before_fork()


def _after_in_parent() -> None:
    for store in _resting:
        store.after_fork_in_parent()
    _resting.clear()


def _after_in_child() -> None:
    for store in _resting:
        store.after_fork_in_child()
    _resting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
