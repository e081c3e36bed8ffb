"""Bells: notifications that a stream has grown. They only reduce polling; correctness never depends on them.

A watcher polls a stream and waits between polls. With a `live` bell it polls rarely; with any other bell it polls
often. A notification may be spurious, late or lost, so the watcher always reads the stream itself.

To miss no entry: `hush`, read, and `wait` if nothing was found. An entry added after the read sets the bell after
the `hush`, and `wait` returns at once if the bell is set. There are no locks, so a process may fork at any time
and `ring` may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable

from tenuto.kernel.wake import Wake


class Bell:
    """One watcher's notification for one stream. This base class is never notified by itself."""

    live = False
    """True while the store intends to notify soon after entries are added."""

    def __init__(self, on_close: Callable[[Bell], None] | None = None) -> None:
        self.rung = False
        self._heard: Callable[[], None] | None = None
        self._on_close = on_close

    def ring(self) -> None:
        """Set the bell and wake its waiter."""
        self.rung = True
        heard = self._heard
        if heard is not None:
            heard()

    def hush(self) -> None:
        """Clear the bell; call this before reading the stream."""
        self.rung = False

    def tell(self, heard: Callable[[], None] | None) -> None:
        """Call `heard` on each notification, and at once if the bell is set; None unregisters. It may be called repeatedly."""
        self._heard = heard
        if heard is not None and self.rung:
            heard()

    def wait(self, seconds: float) -> None:
        """Block this thread until the bell is set, for at most `seconds`."""
        heard = Wake()
        self.tell(heard.set)
        heard.wait(max(0.0, seconds))
        self.tell(None)

    def close(self) -> None:
        """Unregister from the store. Closing twice is safe."""
        self.live = False
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close(self)
