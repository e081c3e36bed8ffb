"""Choose the server for a call: the one in the URL, the primary that Sentinel names, or a cluster's node.

Routes are cached until a server fails, then looked up again. Lookups count towards the call's deadline, and
each server gets only a share of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from redis import exceptions as driver
from redis.crc import key_slot

from tenuto.backends.redis.connections import Connections
from tenuto.backends.redis.url import Place
from tenuto.errors import StorageUnavailable


class Routes:
    """The routes of one store: which server holds which keys."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.target = connections.target
        self._slots: dict[int, Place] = {}
        self._primary = self.target.places[0] if self.target.kind == "server" else None
        self._learning = threading.Lock()

    def place(self, name: bytes, deadline: float) -> Place:
        """Return the server that holds a key."""
        if self.target.kind == "cluster":
            slot = key_slot(name)
            place = self._slots.get(slot)  # another thread may clear the cache
            if place is None:
                place = self._learned(deadline).get(slot)
            if place is None:
                raise driver.ClusterDownError(f"no node serves slot {slot}")
            return place
        place = self._primary
        if place is None:
            place = self._primary = self._named_by_sentinels(deadline)
        return place

    def places(self, deadline: float) -> list[Place]:
        """Return all primaries, looking them up if needed."""
        if self.target.kind == "cluster":
            return sorted(set(self._learned(deadline).values()))
        return [self.place(b"", deadline)]

    def moved(self, slot: int, place: Place) -> None:
        """Record that a slot has moved to another node."""
        self._slots[slot] = place

    def forget(self, place: Place | None) -> None:
        """Clear the cached routes after a server failed."""
        if place is not None:
            self._connections.drop(place)
        if self.target.kind == "sentinel":
            self._primary = None
        elif self.target.kind == "cluster":
            self._slots = {}

    def _learned(self, deadline: float) -> dict[int, Place]:
        with self._learning:
            return self._ask_nodes(deadline)

    def _ask_nodes(self, deadline: float) -> dict[int, Place]:
        """Ask the nodes of a cluster, one after the other, for the owner of each slot."""
        last: Exception = driver.ConnectionError("no node was asked")
        known = list(dict.fromkeys([*self._connections.facts, *self.target.places]))
        for place, until in _shared(known, deadline):
            try:
                ranges = self._asked(place, until, self.target.options, "CLUSTER", "SLOTS")
            except (driver.RedisError, OSError) as error:
                last = error
                if isinstance(error, driver.AuthenticationError | driver.ResponseError):
                    break
                continue
            slots: dict[int, Place] = {}
            for first, end, primary, *_ in ranges:
                host = (primary[0] or b"").decode() or place.host
                slots.update(dict.fromkeys(range(first, end + 1), Place(host, primary[1])))
            if slots:
                self._slots = slots
                return slots
        raise last

    def _named_by_sentinels(self, deadline: float) -> Place:
        last: Exception = driver.ConnectionError("no sentinel was asked")
        wanted = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.target.service)
        for place, until in _shared(self.target.places, deadline):
            try:
                found = self._asked(place, until, self.target.sentinel, *wanted)
            except (driver.RedisError, OSError) as error:
                last = error
                continue
            if found:
                return Place(found[0].decode(), int(found[1]))
            last = StorageUnavailable(
                f"The sentinels at {self.target} do not know the service {self.target.service!r}. Check its name in the URL."
            )
        raise last

    def _asked(self, place: Place, until: float, options: dict[str, Any], *command: str) -> Any:
        connection = self._connections.connect(place, until, options)
        try:
            connection.send_command(*command)
            return connection.read_response()
        finally:
            connection.disconnect()


def _shared(places: Sequence[Place], deadline: float) -> Iterator[tuple[Place, float]]:
    """Yield each place with its own deadline: a silent server leaves time for the others."""
    for at, place in enumerate(places):
        now = time.monotonic()
        yield place, now + min(5.0, (deadline - now) / (len(places) - at))
