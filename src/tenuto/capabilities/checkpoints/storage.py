"""A lineage: the checkpoints of one thread, or of one name, each stored as what changed since the one before.

Keys, below the tenant, where `kind` is "checkpoint" and the scope a thread, or `kind` is "snapshot" and the
scope a name: `(scope, kind, "at", n)` is checkpoint n; `(scope, kind, "name", name)` says which one was the last
of that name; `(scope, kind, "hidden", n)` is there when n was deleted and others still stand on it;
`("checkpoints", kind, scope)` says that the lineage exists.

A checkpoint is a keyframe, or the change from n - 1 to n; it says on which keyframe it stands. To create one
is one commit, which checks that n - 1 is as it was known and that n is not there: two creators cannot both be
next. Deleting one hides it, in one commit. Checkpoints are taken away together, when all that stand on one
keyframe are hidden and a newer keyframe has followed; or, when the whole lineage is hidden, down to an end that
keeps the count. Each of these commits checks what it takes away, so that nothing is let go twice.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities.blobs import Blobs
from tenuto.capabilities.context import Context
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
_EXPANDED: Final = 16 * 1024 * 1024
"""No payload that is not a blob has more bytes than a commit, whoever wrote it."""


class Checkpoint(NamedTuple):
    """What is known of a checkpoint without its state."""

    id: str
    name: str
    thread: str | None
    parent: str | None
    created_at: datetime
    size: int
    """Of the state, in bytes."""
    stored_bytes: int
    """What was written for it."""
    meta: Any
    user: str | None
    writer: str
    correlation_id: str | None
    origin: str | None
    """The checkpoint that this was forked from."""


class Item(NamedTuple):
    """A checkpoint as it is stored."""

    name: str
    writer: str
    correlation_id: str | None
    user: str | None
    parent: int
    """The newest one before it that was to be seen; 0 if there was none."""
    origin: str | None
    """What it was forked from."""
    before: int
    """The one before it with the same name; 0 if there was none."""
    keyframe: int
    """The one on which it stands; its own number if it is one."""
    weight: int
    """What has to be read to restore it, in bytes, with an allowance for each step."""
    size: int
    """Of the state."""
    stored: int
    """What was written for it."""
    digest: bytes
    """Of the tree of the state."""
    meta: Any
    held: list[bytes]
    """The blobs to which its payload refers."""
    payload: bytes | None
    """As `squeezed` made it."""
    blob: bytes | None
    """The payload as it is, if it is large. An end has neither."""

    @property
    def is_end(self) -> bool:
        """Tell whether this only keeps the count."""
        return self.payload is None and self.blob is None

    @property
    def references(self) -> list[bytes]:
        """Return every blob that this refers to."""
        return self.held if self.blob is None else [*self.held, self.blob]


class Placed(NamedTuple):
    """An item with its place."""

    number: int
    version: int
    at: float
    item: Item


def place(record: Record, number: int | None = None) -> Placed:
    """Return a record as the checkpoint that it holds; its number is in its key, for who does not know it."""
    try:
        at = int(keys.unpack(record.key)[-1]) if number is None else number
        return Placed(at, record.version, record.written_at, Item(*codec.decode(record.value)))
    except (TypeError, ValueError) as error:
        raise Damaged(f"the record of it is not one of a checkpoint ({error})") from error


class Lineage:
    """Where one lineage is kept."""

    def __init__(self, context: Context, blobs: Blobs, kind: str, scope: str) -> None:
        self._kernel = context.kernel
        self._blobs = blobs
        self.kind = kind
        self.scope = scope
        self.root = keys.named(scope, "thread" if kind == THREAD else "name") + keys.pack(kind)
        self.items = self.root + keys.pack("at")
        self.entry = keys.pack("checkpoints", kind, scope)

    @property
    def thread(self) -> str | None:
        """Return the thread, if it is one's."""
        return self.scope if self.kind == THREAD else None

    def id(self, number: int) -> str:
        """Return by which id people know a checkpoint."""
        return f"{self.scope}{_MARKS[self.kind]}{number}"

    def key(self, number: int) -> bytes:
        """Return the key of a checkpoint."""
        return self.items + keys.pack(number)

    def name_key(self, name: str) -> bytes:
        """Return the key that says which checkpoint is the last of a name."""
        return self.root + keys.pack("name") + keys.named(name, "name")

    def hidden_key(self, number: int) -> bytes:
        """Return the key that says that a checkpoint is deleted."""
        return self.root + keys.pack("hidden", number)

    def told(self, placed: Placed) -> Checkpoint:
        """Return what people are told of a checkpoint."""
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

    # -- reading -----------------------------------------------------------------------------------

    def newest(self) -> Placed | None:
        """Return the newest one, hidden or not, or an end."""
        found = self._kernel.scan(self.items, limit=1, reverse=True)
        return place(found[0]) if found else None

    def at(self, number: int) -> Placed | None:
        """Return one by its number, unless it is hidden."""
        record, hidden = self._kernel.read([self.key(number), self.hidden_key(number)])
        if record is None or hidden is not None:
            return None
        placed = place(record)
        return None if placed.item.is_end else placed

    def hidden(self) -> set[int]:
        """Return the numbers of those that are deleted and still stood upon."""
        found: set[int] = set()
        after: bytes | None = None
        while page := self._kernel.scan(self.root + keys.pack("hidden"), after=after, limit=1_000):
            found.update(int(keys.unpack(record.key)[-1]) for record in page)
            after = page[-1].key
        return found

    def backwards(self) -> Iterator[Placed]:
        """Yield every one that is to be seen, newest first."""
        hidden = self.hidden()
        for placed in self.all(reverse=True):
            if placed.number not in hidden and not placed.item.is_end:
                yield placed

    def all(self, *, reverse: bool = False) -> Iterator[Placed]:
        """Yield all that is stored, in order."""
        after: bytes | None = None
        limit = 2  # often only the first is wanted, and each comes with its payload
        while page := self._kernel.scan(self.items, after=after, limit=limit, reverse=reverse):
            for record in page:
                yield place(record)
            after, limit = page[-1].key, min(2 * limit, 64)

    def survivors(self) -> Iterator[Placed]:
        """Yield what is to be seen, newest first, one by one: for when some of it cannot be read."""
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
        """Return the highest number by asking for single ones; 0 if that finds none."""
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
        """Return the newest one of a name that is to be seen."""
        if self.kind == NAME:
            return next(self.backwards(), None)
        record = self._kernel.read([self.name_key(name)])[0]
        number = 0 if record is None else codec.decode(record.value)
        while number:
            found, hidden = self._kernel.read([self.key(number), self.hidden_key(number)])
            if found is None:  # taken away; one before it may be there
                return next((placed for placed in self.backwards() if placed.item.name == name), None)
            placed = place(found)
            if hidden is None and not placed.item.is_end:
                return placed
            number = placed.item.before
        return None

    # -- restoring ---------------------------------------------------------------------------------

    def tree_of(self, placed: Placed) -> Node:
        """Return the tree of a checkpoint's state, proven to be the one that was stored, or raise `Damaged`."""
        try:
            grown = tree.regrow(self._rebuilt(placed.number, placed.item.keyframe))
        except (TypeError, ValueError) as error:
            raise Damaged(f"a record of it is not one of a checkpoint ({error})") from error
        if grown.digest != placed.item.digest:
            raise Damaged("what is stored does not add up to it")
        return grown

    def _rebuilt(self, number: int, keyframe: int) -> Any:
        """Return a state as plain data, by its keyframe and every change since."""
        plain: Any = None
        for _, plain in self.rebuilding(keyframe, number):  # noqa: B007 - the last one is what is wanted
            pass
        return plain

    def rebuilding(self, keyframe: int, last: int) -> Iterator[tuple[int, Any]]:
        """Yield each state from a keyframe on, with its number: plain data, which becomes the next one."""
        plain: Any = None
        at, after = keyframe, self.items + keys.pack(keyframe - 1)
        while at <= last:
            page = self._kernel.scan(self.items, after=after, limit=min(_PAGE, last - at + 1))
            for record in page:
                if record.key != self.key(at):
                    break  # one is missing in between
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
            raise Damaged(f"it stands on {self.id(at)}, which is missing")

    def state_of(self, placed: Placed) -> Any:
        """Return a checkpoint's state, proven to be the one that was stored, or raise `Damaged`."""
        item = placed.item
        if item.keyframe == placed.number and item.blob is not None:
            return codec.unpack(self._blobs.get(item.blob), self._blobs.find)  # its digest is the proof
        return codec.unpack(b"".join(self.tree_of(placed).pieces()), self._blobs.find)

    def _payload(self, item: Item) -> bytes:
        if item.payload is not None:
            return expanded(item.payload)
        if item.blob is None:
            raise Damaged("it stands on one that was deleted")
        return self._blobs.get(item.blob)


def squeezed(payload: bytes) -> bytes:
    """Return a payload as it is stored: compressed where that pays, which its first byte says.

    zlib at its fastest, which every Python has: on a change of 1 KB it takes 11 us and saves 40 %, as zstd does.
    """
    if len(payload) >= _WORTH:
        small = zlib.compress(payload, 1)
        if len(small) < 0.9 * len(payload):
            return b"\x01" + small
    return b"\x00" + payload


def expanded(stored: bytes) -> bytes:
    """Return a stored payload as it was given."""
    if stored[:1] == b"\x00":
        return stored[1:]
    expanding = zlib.decompressobj()
    try:
        found = expanding.decompress(stored[1:], _EXPANDED)
    except zlib.error as error:
        raise Damaged(f"a payload cannot be expanded ({error})") from error
    if stored[:1] != b"\x01" or not expanding.eof:
        raise Damaged("a payload is not one that was stored: it goes on for longer than any does")
    return found


def parse(checkpoint_id: str) -> tuple[str, str, int] | None:
    """Return kind, scope and number of an id, or None if it is not one."""
    for kind, mark in _MARKS.items():
        scope, found, number = checkpoint_id.rpartition(mark)
        if found and scope and number.isascii() and number.isdigit():
            return kind, scope, int(number)
    return None
