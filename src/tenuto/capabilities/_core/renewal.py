"""The one thread that renews a client's leases, also while a model call takes ten minutes."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Protocol

from tenuto.errors import Closed
from tenuto.kernel.wake import Wake

_log = logging.getLogger("tenuto.leases")


class Renewable(Protocol):
    """Something that has to be renewed every so often."""

    @property
    def interval(self) -> float:
        """Return how often, in seconds."""
        ...

    def renew(self) -> bool:
        """Renew it; False means that it is over."""
        ...


class Keeper:
    """Renews what it was given until told to stop. The thread runs only while there is something to keep."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._start_afresh()

    def _start_afresh(self) -> None:
        self._mutex = threading.RLock()  # a signal's handler may come in the middle of it
        self._changed = Wake()
        self._kept: dict[int, tuple[Renewable, float]] = {}
        self._thread: threading.Thread | None = None

    def keep(self, lease: Renewable) -> None:
        """Begin renewing."""
        if self._pid != os.getpid():  # forked: the parent's leases and thread are the parent's
            self._pid = os.getpid()
            self._start_afresh()
        with self._mutex:
            self._kept[id(lease)] = (lease, time.monotonic() + lease.interval)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="tenuto-leases", daemon=True)
                self._thread.start()
        self._changed.set()

    def drop(self, lease: Renewable) -> None:
        """Stop renewing."""
        if self._pid == os.getpid():
            with self._mutex:
                self._kept.pop(id(lease), None)
            self._changed.set()

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._kept:
                    self._thread = None
                    return
                now = time.monotonic()
                due = [lease for lease, at in self._kept.values() if at <= now]
                next_one = min(at for _, at in self._kept.values())
            if not due:
                self._changed.wait(next_one - now)
            for lease in due:
                try:
                    going = lease.renew()
                except Closed:
                    going = False  # the client is gone, and its leases run out
                except Exception as error:  # noqa: BLE001 - whatever it was, the other leases are kept
                    _log.warning("%r could not be renewed and is tried again: %s", lease, error)
                    going = True
                with self._mutex:
                    if id(lease) in self._kept:
                        if going:
                            self._kept[id(lease)] = (lease, time.monotonic() + lease.interval)
                        else:
                            del self._kept[id(lease)]
