"""A writer's cache of keys and streams, filled on demand and valid until another process writes.

It also caches the newest gaps between keys: new keys of one kind, such as tasks, follow each other, so one proof of absence
serves for the next ones.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import apsw

from tenuto.backends.sqlite import reading, rows
from tenuto.backends.sqlite.rows import RECORD, SHIFT, STREAM, TOMBSTONE, End, Gap, Head
from tenuto.errors import InvalidInput, TooLarge
from tenuto.kernel import keys
from tenuto.kernel.contract import NOT_BOTH

_KEPT: Final = 4_096
_GAPS: Final = 8
_MOST_STREAMS: Final = 1 << 23


class Known(NamedTuple):
    """The cached facts about a key that its next write needs."""

    id: int
    kind: int
    version: int
    expires: float | None

    def is_live(self, now: float) -> bool:
        """Return whether it is a record that has not expired."""
        return self.kind == RECORD and (self.expires is None or self.expires > now)


class Cache:
    """The newest row of each key and the last entry of each stream, as this writer's transaction sees them."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self.heads: dict[bytes, Known | None] = {}
        self.ends: dict[bytes, End | None] = {}
        self.last_stream = 0
        """The highest id of a stream; 0 until it is read."""
        self._gaps: list[Gap] = []
        """The newest gaps. What this writer has inserted into one since is in `heads`."""

    @property
    def is_full(self) -> bool:
        """Return whether the cache should be cleared."""
        return len(self.heads) + len(self.ends) > _KEPT

    def clear(self) -> None:
        """Discard the cache."""
        self.heads, self.ends, self.last_stream, self._gaps = {}, {}, 0, []

    def head(self, key: bytes) -> Known | None:
        """Return the row at a key, whatever its kind, or None if there is none."""
        try:
            return self.heads[key]
        except KeyError:
            known = self.heads[key] = self._found(key)
            return known

    def _found(self, key: bytes) -> Known | None:
        for below, above in self._gaps:
            if below < key < above:
                return None
        found = reading.find_head_or_gap(self._connection, key)
        if isinstance(found, Head):
            return Known(found.id, found.kind, found.version, found.expires)
        self._gaps = [*self._gaps[1 - _GAPS :], found]
        return None

    def record(self, key: bytes) -> Known | None:
        """Return the record or tombstone at a key, or None; raise `InvalidInput` if the key is a stream's."""
        known = self.head(key)
        if known is not None and known.kind > TOMBSTONE:
            raise InvalidInput(NOT_BOTH)
        return known

    def end(self, stream: bytes) -> End | None:
        """Return the last entry of a stream, or None if there is no such stream."""
        try:
            return self.ends[stream]
        except KeyError:
            head = self.head(stream)
            if head is not None and head.kind != STREAM:
                raise InvalidInput(NOT_BOTH) from None
            end = None if head is None else reading.find_end(self._connection, stream, head.version)
            self.ends[stream] = end
            return end

    def floor(self, key: bytes) -> int:
        """Return the version above which a new key starts."""
        floor = self.head(rows.floor_key(keys.scope_of(key)))
        return floor.version if floor is not None else 0

    def new_stream(self, stream: bytes, others: dict[bytes, End]) -> int:
        """Return the id for a new stream; `others` are streams that the same commit adds to."""
        keys.scope_of(stream)  # rejects a key without a scope
        if not self.last_stream:
            last: list[Any] = self._connection.execute("SELECT coalesce(max(id), 0) FROM entries").fetchall()
            self.last_stream = last[0][0] >> SHIFT
        new = max(self.last_stream, *(end.stream for end in others.values()), 0) + 1
        if new >= _MOST_STREAMS:
            raise TooLarge(
                f"A SQLite store holds up to {_MOST_STREAMS:,} streams. Begin another file, or use Postgres."
            )
        return new
