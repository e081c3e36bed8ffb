"""Notify objects when this process forks.

A child inherits memory and open files but no threads. So each object pauses before the fork; afterwards it
continues in the parent and is reset in the child.

Python ignores what a fork hook raises, Control-C included. So an object is notified after a fork even if its
`before_fork` was interrupted or never called, and again if Control-C interrupted the notification.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from typing import Protocol


class Forking(Protocol):
    """An object that can pause while its process forks."""

    def before_fork(self) -> None:
        """Pause: no thread may hold anything that the child could not release."""
        ...

    def after_fork_in_parent(self) -> None:
        """Continue. Calling it twice is safe."""
        ...

    def after_fork_in_child(self) -> None:
        """Release what belongs to the parent and start over. Calling it twice is safe."""
        ...


_living: weakref.WeakSet[Forking] = weakref.WeakSet()


def tell(store: Forking) -> None:
    """Notify an object of every fork, for as long as it exists."""
    _living.add(store)


def _registered() -> list[Forking]:
    while True:
        with contextlib.suppress(RuntimeError):  # another thread has just added one
            return list(_living)


def _each(call: Callable[[Forking], None], *, again: bool) -> None:
    """Make a call for every object, even if one of them raises; then raise the last error."""
    problem: BaseException | None = None
    for store in _registered():
        while True:
            try:
                call(store)
            except KeyboardInterrupt as error:
                problem = error
                if again:
                    continue
            except BaseException as error:  # noqa: BLE001 - the other objects must still be notified
                problem = error
            break
    if problem is not None:
        raise problem


def _before() -> None:
    _each(lambda store: store.before_fork(), again=False)


def _after_in_parent() -> None:
    _each(lambda store: store.after_fork_in_parent(), again=True)


def _after_in_child() -> None:
    _each(lambda store: store.after_fork_in_child(), again=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
