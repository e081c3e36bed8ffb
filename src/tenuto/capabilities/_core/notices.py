"""Wake idle workers of other processes.

Keys, below the tenant: a worker that waits for work keeps the record `(…, "idle")`, which expires. While it exists, a
commit that adds work also appends an empty entry to the stream `(…)`, which notifies the worker where the store can.
Nothing depends on a notification: a worker also polls. A crash leaves an idle record, which expires within a minute.
"""

from __future__ import annotations

import time
from typing import Final

from tenuto.errors import StorageUnavailable
from tenuto.kernel import codec, keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import Append, Backend, Put, Write
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work

CACHED: Final = 0.5
"""Seconds for which a client trusts what it knows about idle workers."""
_IDLE: Final = 60.0


class Notices:
    """The notifications of one stream, as one client sends them."""

    def __init__(self, kernel: Backend, stream: bytes) -> None:
        self._kernel = kernel
        self.stream = stream
        self.idle_key = stream + keys.pack("idle")
        self._known = 0.0
        self._awaited = False

    def writes(self) -> list[Write]:
        """Return the write that notifies idle workers; none if no worker is idle."""
        now = self._kernel.now()
        if not self._known <= now < self._known + CACHED:
            self._awaited = self.is_awaited()
            self._known = now
        return [Append(self.stream, codec.encode(None))] if self._awaited else []

    def is_awaited(self) -> bool:
        """Return whether a worker is idle, read now."""
        return self._kernel.read([self.idle_key])[0] is not None


class Listener:
    """The notifications of one stream, as an idle worker receives them."""

    def __init__(self, kernel: Backend, stream: bytes) -> None:
        self._kernel = kernel
        self._idle_key = Notices(kernel, stream).idle_key
        self._stream = stream
        self._bell: Bell | None = None
        self._wrote = -_IDLE
        self._since = 0.0

    def subscribe(self, waiter: Bell) -> Work[None]:
        """Ring `waiter` at each notification, and record that a worker is idle."""
        if self._bell is None:
            self._bell = self._kernel.bell(self._stream)
        self._bell.tell(waiter.ring)
        self._bell.hush()
        now = time.monotonic()
        if now - self._wrote > _IDLE / 3:
            if now - self._wrote >= _IDLE:
                self._since = now
            self._wrote = now
            try:
                yield from commit_once(self._kernel, [], [Put(self._idle_key, codec.encode(None), _IDLE)])
            except StorageUnavailable:
                return

    @property
    def reliable(self) -> bool:
        """Return whether notifications arrive: the store sends them, and clients know of this idle worker."""
        bell = self._bell
        return bell is not None and bell.live and time.monotonic() - self._since > 2 * CACHED

    def close(self) -> None:
        """Unsubscribe."""
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
