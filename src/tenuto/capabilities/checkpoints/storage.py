"""A lineage: the checkpoints of one thread, or of one name, stored as keyframes and deltas.

Keys, below the tenant, where `kind` is "checkpoint" and the scope a thread, or `kind` is "snapshot" and the scope a
name: `(scope, kind, "at", n)` is checkpoint n; `(scope, kind, "name", name)` holds the last number of that name;
`(scope, kind, "hidden", n)` exists when n is deleted but later ones still need it; `("checkpoints", kind, scope)`
lists the lineage.

A checkpoint is a keyframe, or the delta from n - 1 to n, and names its keyframe. Creating one is one commit, which
checks that n - 1 is unchanged and n absent, so two creators cannot both succeed. Deleting one hides it, in one commit.
A keyframe and its deltas are deleted together, once all are hidden and a newer keyframe exists. When the whole lineage
is hidden, only an end marker stays, which continues the numbers. Each commit checks what it deletes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, scan_all
from tenuto.capabilities._core.blobs import Blobs
from tenuto.errors import Damaged
from tenuto.kernel import codec, delta, keys, tree
from tenuto.kernel.contract import Record
from tenuto.kernel.durations import moment
from tenuto.kernel.tree import Node

THREAD: Final = "checkpoint"
NAME: Final = "snapshot"
_MARKS: Final = {THREAD: "@", NAME: "#"}
_PAGE: Final = 200
_WORTH: Final = 200
_SHORT: Final = 4_096
_EXPANDED: Final = 16 * 1024 * 1024
"""The largest inline payload after expansion, in bytes: that of a commit."""


class Checkpoint(NamedTuple):
    """The description of a checkpoint, without its state."""

    id: str
    name: str
    thread: str | None
    parent: str | None
    created_at: datetime
    size: int
    """The size of the state, in bytes."""
    stored_bytes: int
    """The bytes written for it."""
    meta: Any
    user: str | None
    writer: str
    correlation_id: str | None
    origin: str | None
    """The checkpoint from which this was forked."""


class Item(NamedTuple):
    """The stored form of a checkpoint."""

    name: str
    writer: str
    correlation_id: str | None
    user: str | None
    parent: int
    """The newest visible one before it; 0 if there is none."""
    origin: str | None
    """The checkpoint from which this was forked."""
    before: int
    """The previous one with the same name; 0 if there is none."""
    keyframe: int
    """Its keyframe; its own number if it is one."""
    weight: int
    """The cost of restoring it: bytes to read, and an allowance for each delta."""
    size: int
    stored: int
    digest: bytes
    """Of the tree of the state."""
    meta: Any
    held: list[bytes]
    """The blobs to which its payload refers."""
    payload: bytes | None
    """Compressed by `squeezed`."""
    blob: bytes | None
    """The digest of a large payload. An end marker has neither payload nor blob."""

    @property
    def is_end(self) -> bool:
        """Return whether this is an end marker."""
        return self.payload is None and self.blob is None

    @property
    def references(self) -> list[bytes]:
        """Return every blob that this refers to."""
        return self.held if self.blob is None else [*self.held, self.blob]


class Placed(NamedTuple):
    """An item with its number, version and time."""

    number: int
    version: int
    at: float
    item: Item

    def bare(self) -> Placed:
        """Return it without its payload."""
        return self if self.item.payload is None else self._replace(item=self.item._replace(payload=b""))


def place(record: Record, number: int | None = None) -> Placed:
    """Return a record as a checkpoint; without `number`, take it from the key."""
    try:
        at = int(keys.unpack(record.key)[-1]) if number is None else number
        return Placed(at, record.version, record.written_at, Item(*codec.decode(record.value)))
    except (TypeError, ValueError) as error:
        raise Damaged(f"its record is not a valid checkpoint ({error})") from error


class Lineage:
    """The keys and records of one lineage."""

    def __init__(self, context: Context, blobs: Blobs, kind: str, scope: str) -> None:
        self._kernel = context.kernel
        self._archive = context.archive
        self._blobs = blobs
        self.kind = kind
        self.scope = scope
        self.root = keys.named(scope, "thread" if kind == THREAD else "name") + keys.pack(kind)
        self.items = self.root + keys.pack("at")
        self.entry = keys.pack("checkpoints", kind, scope)

    @property
    def thread(self) -> str | None:
        """Return the thread of the lineage, if it has one."""
        return self.scope if self.kind == THREAD else None

    def id(self, number: int) -> str:
        """Return the public id of a checkpoint."""
        return f"{self.scope}{_MARKS[self.kind]}{number}"

    def key(self, number: int) -> bytes:
        """Return the key of a checkpoint."""
        return self.items + keys.pack(number)

    def name_key(self, name: str) -> bytes:
        """Return the key of a name's last number."""
        return self.root + keys.pack("name") + keys.named(name, "name")

    def hidden_key(self, number: int) -> bytes:
        """Return the key that marks a checkpoint as deleted."""
        return self.root + keys.pack("hidden", number)

    def describe(self, placed: Placed) -> Checkpoint:
        """Return the public description of a checkpoint."""
        item = placed.item
        return Checkpoint(
            self.id(placed.number),
            item.name,
            self.thread,
            self.id(item.parent) if item.parent else None,
            moment(placed.at),
            item.size,
            item.stored,
            item.meta,
            item.user,
            item.writer,
            item.correlation_id,
            item.origin,
        )

    def newest(self) -> Placed | None:
        """Return the newest one, also if it is hidden or an end marker."""
        found = self._kernel.scan(self.items, limit=1, reverse=True)
        return place(found[0]) if found else None

    def at(self, number: int) -> Placed | None:
        """Return a visible checkpoint by its number, or None."""
        record, hidden = self._kernel.read([self.key(number), self.hidden_key(number)])
        if record is None and hidden is None and self._bring_back(number):
            record = self._kernel.read([self.key(number)])[0]
        if record is None or hidden is not None:
            return None
        placed = place(record)
        return None if placed.item.is_end else placed

    def _bring_back(self, number: int) -> bool:
        """Bring back a checkpoint that was archived; return whether it is there."""
        return self._archive.bring_back(self.kind, self.scope, number)

    def hidden(self) -> set[int]:
        """Return the numbers of hidden checkpoints."""
        return {int(keys.unpack(one.key)[-1]) for one in scan_all(self._kernel, self.root + keys.pack("hidden"))}

    def backwards(self) -> Iterator[Placed]:
        """Yield every visible checkpoint, newest first."""
        hidden = self.hidden()
        for placed in self.all(reverse=True):
            if placed.number not in hidden and not placed.item.is_end:
                yield placed

    def all(self, *, reverse: bool = False) -> Iterator[Placed]:
        """Yield all stored checkpoints, hidden ones included, in order."""
        after: bytes | None = None
        limit = 2  # often only the first is needed, and each comes with its payload
        while page := self._kernel.scan(self.items, after=after, limit=limit, reverse=reverse):
            for record in page:
                yield place(record)
            after, limit = page[-1].key, min(2 * limit, 64)

    def survivors(self) -> Iterator[Placed]:
        """Yield the visible checkpoints, newest first, skipping unreadable ones."""
        number = self._highest()
        while number:
            try:
                placed = self.at(number)
            except Damaged:
                placed = None
            if placed is not None:
                yield placed
            number -= 1

    def _highest(self) -> int:
        """Return the highest number, found by single reads: a scan would fail at a damaged record."""
        found = self._kernel.scan(self.items, limit=1)
        low = place(found[0]).number if found else 0
        step = 1
        while low and step:
            if self._is_there(low + step):
                low, step = low + step, step * 2
            else:
                step //= 2
        return low

    def _is_there(self, number: int) -> bool:
        try:
            return self._kernel.read([self.key(number)])[0] is not None
        except Damaged:
            return True

    def last_of(self, name: str) -> Placed | None:
        """Return the newest visible checkpoint of a name."""
        if self.kind == NAME:
            return next(self.backwards(), None)
        record = self._kernel.read([self.name_key(name)])[0]
        number = 0 if record is None else codec.decode(record.value)
        while number:
            found, hidden = self._kernel.read([self.key(number), self.hidden_key(number)])
            if found is None and self._bring_back(number):
                found = self._kernel.read([self.key(number)])[0]
            if found is None:  # deleted; an older one may exist
                return next((placed for placed in self.backwards() if placed.item.name == name), None)
            placed = place(found)
            if hidden is None and not placed.item.is_end:
                return placed
            number = placed.item.before
        return None

    def tree_of(self, placed: Placed) -> Node:
        """Return the tree of a checkpoint's state, verified by its digest; raise `Damaged` if that fails."""
        try:
            grown = tree.regrow(self._rebuilt(placed.number, placed.item.keyframe))
        except (TypeError, ValueError) as error:
            raise Damaged(f"one of its records is not a valid checkpoint ({error})") from error
        if grown.digest != placed.item.digest:
            raise Damaged("the restored state does not match its checksum")
        return grown

    def _rebuilt(self, number: int, keyframe: int) -> Any:
        """Return a state as plain data, from its keyframe and every delta since."""
        plain: Any = None
        for _, plain in self.rebuilding(keyframe, number):  # noqa: B007 - only the last one is needed
            pass
        return plain

    def rebuilding(self, keyframe: int, last: int) -> Iterator[tuple[int, Any]]:
        """Yield the number and plain data of each state from a keyframe on; the data is then changed in place."""
        plain: Any = None
        at, after = keyframe, self.items + keys.pack(keyframe - 1)
        while at <= last:
            page = self._kernel.scan(self.items, after=after, limit=min(_PAGE, last - at + 1))
            for record in page:
                if record.key != self.key(at):
                    break  # one is missing
                payload = self._payload(place(record, at).item)
                if at == keyframe:
                    plain = codec.unpack_plain(payload)
                elif payload:
                    plain = delta.apply(plain, codec.unpack(payload))
                yield at, plain
                at, after = at + 1, record.key
            else:
                if page:
                    continue
            if self._bring_back(at):
                continue
            raise Damaged(f"it depends on {self.id(at)}, which is missing")

    def state_of(self, placed: Placed) -> Any:
        """Return a checkpoint's state, verified by its digest; raise `Damaged` if that fails."""
        item = placed.item
        if item.keyframe == placed.number and item.blob is not None:
            return codec.unpack(self._blobs.get(item.blob), self._blobs.find)  # verified by the blob's digest
        return codec.unpack(b"".join(self.tree_of(placed).pieces()), self._blobs.find)

    def _payload(self, item: Item) -> bytes:
        if item.payload is not None:
            return expanded(item.payload)
        if item.blob is None:
            raise Damaged("it depends on a deleted checkpoint")
        return self._blobs.get(item.blob)


def squeezed(payload: bytes) -> bytes:
    """Return a payload in its stored form: compressed if that pays, with the form in the first byte.

    zlib level 1 saves 40 % of a delta of 1 KB, as zstd does, and every Python has it. A window of 4 KB is enough for a
    short payload and takes 7 us; the usual one takes longer to allocate than to use.
    """
    if len(payload) >= _WORTH:
        window, memory = (12, 5) if len(payload) <= _SHORT else (15, 8)
        compressing = zlib.compressobj(1, zlib.DEFLATED, window, memory)
        small = compressing.compress(payload) + compressing.flush()
        if len(small) < 0.9 * len(payload):
            return b"\x01" + small
    return b"\x00" + payload


def expanded(stored: bytes) -> bytes:
    """Return the original payload of its stored form."""
    if stored[:1] == b"\x00":
        return stored[1:]
    expanding = zlib.decompressobj()
    try:
        found = expanding.decompress(stored[1:], _EXPANDED)
    except zlib.error as error:
        raise Damaged(f"a payload cannot be decompressed ({error})") from error
    if stored[:1] != b"\x01" or not expanding.eof:
        raise Damaged("a payload has an unknown form or is larger than the limit")
    return found


def parse(checkpoint_id: str) -> tuple[str, str, int] | None:
    """Return kind, scope and number of an id, or None if it is not one."""
    for kind, mark in _MARKS.items():
        scope, found, number = checkpoint_id.rpartition(mark)
        if found and scope and number.isascii() and number.isdigit():
            return kind, scope, int(number)
    return None
