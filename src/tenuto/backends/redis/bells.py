"""Notifications of a Redis store: the commit script publishes to the channel of each stream that has subscribers.

Scripts are atomic, so a commit either precedes a subscription, and the watcher's next read finds it, or it
publishes. On a cluster there are no notifications: watchers poll.
"""

from __future__ import annotations

import time
from typing import Any, Final

from redis import exceptions as driver

from tenuto.backends.redis.calls import Calls

FAILURES: Final = (driver.RedisError,)
_ANSWER: Final = 5.0


class RedisEar:
    """A connection that subscribes to the watched streams."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._received: list[bytes] = []

    def fileno(self) -> int:
        """Return the connection's socket."""
        number: int = self._connection._sock.fileno()
        return number

    def mark(self, name: bytes) -> bool:
        """Subscribe to the stream's channel."""
        self._send("SUBSCRIBE", name, until=b"subscribe")
        return True

    def unmark(self, name: bytes) -> None:
        """Unsubscribe from the stream's channel."""
        self._send("UNSUBSCRIBE", name, until=b"unsubscribe")

    def heard(self) -> list[bytes]:
        """Return the channels that received a message."""
        while self._connection.can_read(timeout=0):
            self._take()
        received, self._received[:] = list(self._received), []
        return received

    def ask(self) -> None:
        """Ping the server; the protocol differs with and without subscriptions."""
        self._connection.send_command("PING")
        self._take()

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _send(self, *command: Any, until: bytes) -> None:
        self._connection.send_command(*command)
        while self._take() != until:
            pass

    def _take(self) -> Any:
        message = self._connection.read_response(timeout=_ANSWER)
        if isinstance(message, list) and message[0] == b"message":
            self._received.append(message[1])
        return message[0] if isinstance(message, list) else message


def listen(calls: Calls) -> RedisEar | None:
    """Return a connection to subscribe on, or None on a cluster."""
    if calls.target.kind == "cluster":
        return None
    return RedisEar(calls.connections.connect(calls.places()[0], time.monotonic() + _ANSWER))
