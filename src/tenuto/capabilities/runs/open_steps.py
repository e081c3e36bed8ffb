"""The steps of a run in flight: their numbers, and the thread or task that runs them.

Steps may be in flight concurrently, in threads and tasks. Each has a number, in the order of their beginning, and an
occurrence among equal steps. A run is left only when none is in flight.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tenuto.capabilities.runs.heartbeat import Heartbeats
from tenuto.capabilities.runs.log import Equal, Identity, equal_to
from tenuto.capabilities.runs.options import Retry
from tenuto.errors import AmbiguousStep, Closed, StorageUnavailable
from tenuto.kernel.work import Work

_log: Final = logging.getLogger("tenuto.runs")


class OpenSteps:
    """The steps in flight and the counters of one run."""

    def __init__(self, run_id: str) -> None:
        self.beats = Heartbeats()
        self.retry: Retry | None = None
        """How a worker retries the run if it fails."""
        self.id = run_id
        self.budget: float | None = None
        self.spent = 0.0
        """What was spent since the run was opened, in dollars."""
        self.next = 1
        """The number of the next operation."""
        self._open = False
        self._busy = 0
        self._maps: dict[str, int] = {}
        self._equals: dict[Equal, int] = {}
        self._flying: dict[str, int] = {}
        self._lock = threading.Lock()
        self._home: tuple[int, int] = (0, 0)
        self._pid = 0

    def spend(self, cost: float | None) -> None:
        """Count a cost towards the budget."""
        with self._lock:
            self.spent += cost or 0.0

    def number(self) -> int:
        """Return the next operation number."""
        with self._lock:
            self.next += 1
            return self.next - 1

    def equal(self, identity: Identity) -> int:
        """Return the occurrence of a step among equal ones, from 1."""
        which = equal_to(identity)
        with self._lock:
            self._equals[which] = self._equals.get(which, 0) + 1
            return self._equals[which]

    def beside(self) -> bool:
        """Return whether other steps are in flight, or this is another task or thread than the run's own."""
        return bool(self._flying or self._busy) or here() != self._home

    def mapping(self, name: str) -> int:
        """Return the occurrence of a map of this name, from 1."""
        with self._lock:
            self._maps[name] = self._maps.get(name, 0) + 1
            return self._maps[name]

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the run open during a write or wait; raise `Closed` if it is not open."""
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
        """Register a step in flight; raise `AmbiguousStep` if an indistinguishable one is in flight."""
        name = identity.name if identity.key is None else f"{identity.name}\0{identity.key}"
        with self._lock:
            self._must_be_open(f"the step {identity.name!r}")
            if name in self._flying:
                raise AmbiguousStep(
                    f"Two steps {identity.name!r} of the run {self.id!r} are in flight and a replay could not "
                    "distinguish them; this one was not run. Pass a different key= to each, or use run.map."
                )
            self._flying[name] = 1
        try:
            yield
        finally:
            with self._lock:
                del self._flying[name]

    def _must_be_open(self, what: str) -> None:
        if not self._open or self._pid != os.getpid():
            raise Closed(f"The run {self.id!r} is not open here; {what} was not done. Use it inside `with`.")


def here() -> tuple[int, int]:
    """Return the ids of the current thread and task."""
    asyncio = sys.modules.get("asyncio")
    task = None
    if asyncio is not None:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
    return threading.get_ident(), id(task) if task is not None else 0


def quietly(steps: Work[None]) -> Work[None]:
    """Perform work whose failure is harmless: a lease that is not released expires."""
    try:
        yield from steps
    except StorageUnavailable:
        _log.info("The lease of a run could not be released; it will expire.")
