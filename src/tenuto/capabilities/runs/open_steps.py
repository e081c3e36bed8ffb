"""What of a run is in flight: which steps, under which numbers, and from where they are asked for.

A run's steps may be in flight at once, from threads and tasks. Each has a number, in the order in which they begin, and
each knows which one of its equals it is. A run is left only when nothing is in flight any more.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tenuto.capabilities.runlog import Identity
from tenuto.errors import AmbiguousStep, Closed


class Flight:
    """The steps of one run that are in flight, and how many there have been."""

    def __init__(self, run_id: str) -> None:
        self.id = run_id
        self.next = 1
        """The number of whatever begins next."""
        self._open = False
        self._busy = 0
        self._maps: dict[str, int] = {}
        self._equals: dict[tuple[str, str, Any], int] = {}
        self._flying: dict[str, int] = {}
        self._lock = threading.Lock()
        self._home: tuple[int, int] = (0, 0)
        self._pid = 0

    def number(self) -> int:
        """Return the number of something that begins now."""
        with self._lock:
            self.next += 1
            return self.next - 1

    def equal(self, identity: Identity) -> int:
        """Return which one of its equals this is, from 1 on."""
        which = (identity.kind, identity.name, identity.key if identity.key is not None else identity.described.digest)
        with self._lock:
            self._equals[which] = self._equals.get(which, 0) + 1
            return self._equals[which]

    def beside(self) -> bool:
        """Tell whether this is asked beside other steps, or from another task or thread than the run's own."""
        return bool(self._flying or self._busy) or here() != self._home

    def mapping(self, name: str) -> int:
        """Return which map of its name begins now, from 1 on."""
        with self._lock:
            self._maps[name] = self._maps.get(name, 0) + 1
            return self._maps[name]

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Know that something is written or waited for: the run is not left meanwhile, and nothing begins after that."""
        with self._lock:
            self._must_be_open("it")
            self._busy += 1
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    @contextmanager
    def flying(self, identity: Identity) -> Iterator[None]:
        """Know that a step is in flight; `AmbiguousStep` if it could not be told from another one."""
        name = identity.name if identity.key is None else f"{identity.name}\0{identity.key}"
        with self._lock:
            self._must_be_open(f"the step {identity.name!r}")
            if name in self._flying:
                raise AmbiguousStep(
                    f"Two steps {identity.name!r} of the run {self.id!r} are in flight at once and could not be told "
                    "apart on a replay; this one was not run. Give each a key= of its own, or use run.map."
                )
            self._flying[name] = 1
        try:
            yield
        finally:
            with self._lock:
                del self._flying[name]

    def _must_be_open(self, what: str) -> None:
        if not self._open or self._pid != os.getpid():
            raise Closed(f"The run {self.id!r} is not open here; {what} was not done. Use it inside of `with`.")


def here() -> tuple[int, int]:
    """Return in which thread and task this is."""
    asyncio = sys.modules.get("asyncio")
    task = None
    if asyncio is not None:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
    return threading.get_ident(), id(task) if task is not None else 0
