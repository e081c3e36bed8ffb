"""The parts that were archived: one record each, which says where the part is and how far its move has come.

Key, below the tenant: `("archive", "part", kind, name, first)`. A part is a range of the lines of a thread or run, or a
keyframe of a lineage of checkpoints with its deltas. Its states, each entered by one commit that checks the record:

    copying   the object may be incomplete; the store has everything
    leaving   the object is complete and verified; the store still counts the part's blobs, and rows are being removed
    away      the rows are in the object alone, and the store no longer counts their blobs
    here      the rows were brought back, or are being brought back; the object stays
    gone      the thing was deleted; the object and then this record are removed by the next `archive`
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tenuto.capabilities._core.base import scan_all
from tenuto.capabilities.store import Archived
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Backend, Put, Record
from tenuto.kernel.durations import moment

COPYING, LEAVING, AWAY, HERE, GONE = "copying", "leaving", "away", "here", "gone"
LOGS: Final = ("thread", "run")
"""Kinds whose rows are the entries of a stream; those of the others are records."""
_PARTS: Final = keys.pack("archive", "part")


class Part(NamedTuple):
    """The stored form of a part, with the version of its record."""

    kind: str
    name: str
    first: int
    last: int
    state: str
    place: str
    object: str
    size: int
    digest: str
    """Of the rows, in order."""
    user: str | None
    blobs: Sequence[tuple[bytes, int]]
    """How often its rows refer to each blob."""
    at: float = 0.0
    version: int = 0

    @property
    def key(self) -> bytes:
        """Return the key of the part's record."""
        return _PARTS + keys.pack(self.kind, self.name, self.first)

    @property
    def stream(self) -> bytes:
        """Return the stream of a log."""
        return keys.pack(self.name, self.kind)

    @property
    def numbers(self) -> range:
        """Return the numbers of its rows."""
        return range(self.first, self.last + 1)

    def put(self, state: str) -> Put:
        """Return the write that records it in a state."""
        blobs = [list(one) for one in self.blobs]
        return Put(self.key, codec.encode([*self._replace(state=state)[:-3], blobs]))

    def shown(self) -> Archived:
        """Return the public view."""
        return Archived(
            self.kind, self.name, self.user, self.first, self.last, self.state, self.place, self.object, self.size,
            moment(self.at),
        )  # fmt: skip


def item_key(part: Part, number: int) -> bytes:
    """Return the key of a checkpoint."""
    return keys.pack(part.name, part.kind, "at", number)


def part_of(record: Record) -> Part:
    """Return the part in a record."""
    kind, name, first, last, state, place, named, size, digest, user, blobs = codec.decode(record.value)
    held = [(one, count) for one, count in blobs]
    return Part(
        kind, name, first, last, state, place, named, size, digest, user, held, record.written_at, record.version
    )


def all_parts(kernel: Backend, kind: str | None = None, name: str | None = None) -> list[Part]:
    """Return the parts of a tenant, a kind or a thing, by first number."""
    prefix = _PARTS if kind is None else _PARTS + keys.pack(kind)
    prefix = prefix if name is None else prefix + keys.named(name, "name")
    return [part_of(record) for record in scan_all(kernel, prefix)]
