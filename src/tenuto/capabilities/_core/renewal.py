"""The background thread that renews a client's leases, also during a model call of ten minutes."""

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
    """A lease, as the renewer sees it."""

    @property
    def _interval(self) -> float:
        """Return the seconds between two renewals."""
        ...

    def renew(self) -> bool:
        """Renew the lease; return whether it is still held."""
        ...


class Renewer:
    """Renews every lease from `add` to `remove`. The thread runs only while there are leases."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._reset()

    def _reset(self) -> None:
        self._mutex = threading.RLock()  # a signal handler may interrupt and re-enter
        self._changed = Wake()
        self._leases: dict[int, tuple[Renewable, float]] = {}
        self._thread: threading.Thread | None = None

    def add(self, lease: Renewable) -> None:
        """Start renewing a lease."""
        if self._pid != os.getpid():  # forked: leases and thread belong to the parent
            self._pid = os.getpid()
            self._reset()
        with self._mutex:
            self._leases[id(lease)] = (lease, time.monotonic() + lease._interval)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="tenuto-leases", daemon=True)
                self._thread.start()
        self._changed.set()

    def remove(self, lease: Renewable) -> None:
        """Stop renewing a lease."""
        if self._pid == os.getpid():
            with self._mutex:
                self._leases.pop(id(lease), None)
            self._changed.set()

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._leases:
                    self._thread = None
                    return
                now = time.monotonic()
                due = [lease for lease, at in self._leases.values() if at <= now]
                next_one = min(at for _, at in self._leases.values())
            if not due:
                self._changed.wait(next_one - now)
            for lease in due:
                try:
                    held = lease.renew()
                except Closed:
                    held = False  # the client is closed: its leases expire
                except Exception as error:  # noqa: BLE001 - the other leases must still be renewed
                    _log.warning("Renewing %r failed and will be retried: %s", lease, error)
                    held = True
                with self._mutex:
                    if id(lease) in self._leases:
                        if held:
                            self._leases[id(lease)] = (lease, time.monotonic() + lease._interval)
                        else:
                            del self._leases[id(lease)]
