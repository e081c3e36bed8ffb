"""Notifications from a server, by long poll: a request waits there until a watched stream has grown.

The client sends the last number that it knows of each stream, so nothing is missed between two requests and the
next one may reach another server process. A failure only stops the notifications: watchers poll.
"""

from __future__ import annotations

import select
import socket
import time
from typing import Any, Final, cast

from tenuto.backends._listener import LINGER, MOST, Listener, drain
from tenuto.backends.remote import wire
from tenuto.backends.remote.calls import Calls
from tenuto.backends.remote.connections import Connection
from tenuto.errors import StorageUnavailable, TenutoError

POLL: Final = 20.0
"""Seconds that the server holds a request without news."""
_GRACE: Final = 10.0
_GATHER: Final = 0.02
"""Seconds to wait for further watchers before the request is sent again."""


class LongPoll(Listener):
    """Deliver notifications to the watchers of a client. The names of streams have no tenant."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(lambda: cast("Any", _Polling(calls)), (TenutoError,))

    def _attend(self, ear: object, wire_: socket.socket) -> None:
        """Poll until there have been no watchers for a while."""
        assert isinstance(ear, _Polling)
        watched = time.monotonic()
        while not self._closed:
            with self._guard:
                wanted = list(self._bells)[:MOST]
            if wanted:
                watched = time.monotonic()
                ear.ask_about(wanted)
            elif time.monotonic() - watched > LINGER:
                return
            if not ear.wait(wire_, LINGER if not wanted else POLL + _GRACE):
                if wanted:
                    raise StorageUnavailable("The server did not answer a long poll.")
                continue
            drain(wire_)
            self._tell(ear.grown())

    def _tell(self, grown: dict[bytes, int]) -> None:
        for name in grown:
            for bell in list(self._bells.get(name, ())):
                bell.live = True
                bell.ring()


class _Polling:
    """One connection with at most one waiting request."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._connection: Connection | None = None
        self._known: dict[bytes, int] = {}
        self._asked: set[bytes] | None = None

    def ask_about(self, names: list[bytes]) -> None:
        """Send a request about these streams, unless one is waiting."""
        wanted = set(names)
        if self._asked is not None and self._asked == wanted:
            return
        if self._asked is not None:
            self.close()  # the waiting request does not know the new stream
            time.sleep(_GATHER)
        self._known = {name: self._known.get(name, -1) for name in names}
        deadline = time.monotonic() + POLL + _GRACE
        if self._connection is None or not self._connection.open:
            self._connection = Connection(self._calls.target, deadline)
        body = wire.packed([[[name, number] for name, number in self._known.items()], POLL])
        self._calls.send(self._connection, "watch", body, deadline)
        self._asked = wanted

    def wait(self, wire_: socket.socket, seconds: float) -> bool:
        """Wait for the reply, or for a change of the watchers; return whether there was one of them."""
        ears = select.poll()
        ears.register(wire_, select.POLLIN)
        if self._asked is not None and self._connection is not None:
            ears.register(self._connection.fileno(), select.POLLIN)
        return bool(ears.poll(1000 * seconds))

    def grown(self) -> dict[bytes, int]:
        """Return the streams that have grown with their last numbers, if the reply has arrived."""
        if self._asked is None or self._connection is None or self._connection.silent():
            return {}
        reply = self._connection.reply(time.monotonic() + _GRACE)
        self._asked = None
        if reply.status != 200 or reply.headers.get("content-type") != wire.MEDIA:
            raise StorageUnavailable(f"The server answered a long poll with {reply.status}.")
        found = {bytes(name): int(number) for name, number in wire.unpacked(reply.body)[1]}
        self._known.update(found)
        return found

    def close(self) -> None:
        """Close the connection; the server ends the request."""
        self._asked = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None
