"""Bells of a Redis store: the commit script publishes to the channel of a stream that somebody has subscribed to.

A script is one moment, so a commit either precedes a subscription, and is seen by the look that follows it, or it
publishes. On a cluster there are no bells: its watchers poll.
"""

from __future__ import annotations

import time
from typing import Any, Final

from redis import exceptions as driver

from tenuto.backends._redis_link import Link

FAILURES: Final = (driver.RedisError,)
_ANSWER: Final = 5.0


class RedisEar:
    """A connection that is subscribed to what is watched."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._told: list[bytes] = []

    def fileno(self) -> int:
        """Return the connection's socket."""
        number: int = self._connection._sock.fileno()
        return number

    def mark(self, name: bytes) -> bool:
        """Subscribe to the stream's channel."""
        self._send("SUBSCRIBE", name, until=b"subscribe")
        return True

    def unmark(self, name: bytes) -> None:
        """Subscribe to it no more."""
        self._send("UNSUBSCRIBE", name, until=b"unsubscribe")

    def heard(self) -> list[bytes]:
        """Return the channels that something was published to."""
        while self._connection.can_read(timeout=0):
            self._take()
        told, self._told[:] = list(self._told), []
        return told

    def ask(self) -> None:
        """Ask for an answer, which differs by whether anything is subscribed to."""
        self._connection.send_command("PING")
        self._take()

    def close(self) -> None:
        """End the connection."""
        self._connection.disconnect()

    def _send(self, *command: Any, until: bytes) -> None:
        self._connection.send_command(*command)
        while self._take() != until:
            pass

    def _take(self) -> Any:
        message = self._connection.read_response(timeout=_ANSWER)
        if isinstance(message, list) and message[0] == b"message":
            self._told.append(message[1])
        return message[0] if isinstance(message, list) else message


def listen(link: Link) -> RedisEar | None:
    """Return a connection to subscribe on, or None on a cluster."""
    if link.target.kind == "cluster":
        return None
    return RedisEar(link.connect(link.places()[0], time.monotonic() + _ANSWER))
