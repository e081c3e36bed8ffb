"""Creating the next checkpoint of a lineage, with a cache of lineage heads.

A client caches the tree of the newest state of each lineage that it writes to, up to a size limit. The next state is
encoded and compared with that tree. The commit checks that the cached head is still the newest; if not, it is reloaded.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tenuto.capabilities._core import blobs
from tenuto.capabilities._core.base import Context, stamp
from tenuto.capabilities._core.blobs import Blobs, Content
from tenuto.capabilities.checkpoints.storage import Checkpoint, Item, Lineage, Placed, squeezed
from tenuto.errors import Conflict, TooLarge
from tenuto.kernel import codec, delta, tree
from tenuto.kernel.contract import AnyCheck, Check, Put, Write
from tenuto.kernel.transact import commit_once
from tenuto.kernel.tree import Hold, Node
from tenuto.kernel.work import Work

Grow: TypeAlias = Callable[[Node | None, Hold], Node]
"""Builds the tree of a state from the previous tree and a function that stores large parts, like `tree.grow`."""

_INLINE: Final = 256 * 1024
"""The largest payload stored inline, in bytes; a larger one becomes a blob."""
_STEP: Final = 512
"""The cost of reading one more delta, in bytes."""
_SPARE: Final = 4_096
"""The bytes that a chain may exceed twice the state, so that a small state is not rewritten each time."""
_REMEMBERED: Final = 64 * 1024 * 1024
"""The size limit of the cached trees, in bytes."""


class _Large(NamedTuple):
    """A large text or bytes value. It is immutable, so the same object is not hashed twice."""

    value: str | bytes
    reference: bytes
    digest: bytes
    size: int


class CachedHead(NamedTuple):
    """The newest checkpoint of a lineage, as cached."""

    placed: Placed
    """Without its payload."""
    tree: Node
    shown: int
    """The number of the newest visible checkpoint."""
    names: dict[str, tuple[int, int]]
    """For each name, its last number and the version of its name record."""
    large: dict[int, _Large]
    """By object id."""


class Draft(NamedTuple):
    """A checkpoint to create."""

    name: str
    state: dict[str, Any]
    user: str | None
    meta: Any
    origin: str | None = None
    grow: Grow | None = None
    """Builds the tree of the state, where the caller has a faster way than `tree.grow`."""
    once: bool = False
    """Whether its name must be new; if not, `add` returns None."""
    checks: Sequence[AnyCheck] = ()
    writes: Sequence[Write] = ()
    """Committed together with it."""


class CheckpointWriter:
    """Creates checkpoints; caches the heads of one client's lineages."""

    def __init__(self, context: Context, blobs: Blobs) -> None:
        self._context = context
        self._kernel = context.kernel
        self._blobs = blobs
        self._heads: OrderedDict[bytes, CachedHead] = OrderedDict()
        self._size = 0  # of their trees
        self._mutex = threading.Lock()

    def get(self, line: Lineage) -> CachedHead | None:
        """Return the head of a lineage, from the cache if possible."""
        return self._heads.get(line.root) or self.load(line)

    def remembered(self) -> dict[bytes, CachedHead]:
        """Return the cached heads by key prefix; other writers may have moved on."""
        return self._heads

    def load(self, line: Lineage) -> CachedHead | None:
        """Read the head of a lineage from the store; None if it is empty."""
        placed = line.newest()
        if placed is None:
            return None
        shown = next(line.backwards(), None)
        grown = tree.regrow({}) if placed.item.is_end else line.tree_of(placed)
        head = CachedHead(placed.bare(), grown, shown.number if shown is not None else 0, {}, {})
        self._remember(line, head)
        return head

    def forget(self, line: Lineage) -> None:
        """Evict a lineage's head from the cache."""
        with self._mutex:
            self._drop(line.root)

    def _drop(self, root: bytes) -> None:
        head = self._heads.pop(root, None)
        if head is not None:
            self._size -= head.tree.size

    def _remember(self, line: Lineage, head: CachedHead) -> None:
        with self._mutex:
            self._drop(line.root)
            self._heads[line.root] = head
            self._size += head.tree.size
            self._evict()

    def _evict(self) -> None:
        while self._heads and self._size > _REMEMBERED:
            self._drop(next(iter(self._heads)))

    def add(self, line: Lineage, head: CachedHead | None, draft: Draft, limit: int) -> Work[Checkpoint | None]:
        """Commit a checkpoint after `head`, atomically and durably; return None on a conflict."""
        known = head.large if head is not None else {}
        seen: dict[int, _Large] = {}

        def hold(value: str | bytes) -> bytes:
            part = known.get(id(value))
            if part is None or part.value is not value:
                digest, size = blobs.digest_of(value), len(value.encode() if isinstance(value, str) else value)
                part = _Large(value, codec.held(digest, size, text=isinstance(value, str)), digest, size)
            seen[id(value)] = part
            return part.reference

        before = head.tree if head is not None else None
        grown = tree.grow(draft.state, before, hold) if draft.grow is None else draft.grow(before, hold)
        contents = {part.digest: part for part in seen.values()}
        size = grown.size + sum(part.size for part in contents.values())
        if size > limit:
            raise TooLarge(
                f"The state has {size:,} bytes; the limit is {limit:,}. Most of it is {_most(draft.state, grown)}: "
                "store a reference to that part, or raise agent.checkpoint.limit."
            )
        number = head.placed.number + 1 if head is not None else 1
        change = _change(head, grown)
        if change is None or head is None:
            of, weight, stored = number, grown.size, grown.size
            refers = list(contents)
        else:
            of, weight, stored = head.placed.item.keyframe, head.placed.item.weight + len(change) + _STEP, len(change)
            refers = [part.digest for part in contents.values() if part.reference in change]
        needed: dict[bytes, Content] = {digest: contents[digest].value for digest in refers}
        payload, blob = None, None
        if stored > _INLINE:
            whole: Content = grown.pieces if change is None else change
            blob = blobs.digest_of(whole)
            needed[blob] = whole
        else:
            payload = squeezed(b"".join(grown.pieces()) if change is None else change)
            stored = len(payload)
        last, version = (0, 0) if draft.once else self._last_of(line, head, draft.name)
        item = Item(
            draft.name,
            *stamp(self._context),
            draft.user,
            head.shown if head is not None else 0,
            draft.origin,
            last,
            of,
            weight,
            size,
            stored,
            grown.digest,
            draft.meta,
            sorted(refers),
            payload,
            blob,
        )
        try:
            yield from self._blobs.ensure(needed)
            counts, counted = self._blobs.counted(blobs.changes(item.references))
            checks, writes = _placing(line, head, number, draft.name, version)
            done = yield from commit_once(
                self._kernel,
                [*checks, *counts, *draft.checks],
                [Put(line.key(number), codec.encode(list(item))), *writes, *counted, *draft.writes],
            )
        except Conflict:
            self.forget(line)
            return None
        names = head.names if head is not None else {}
        if not draft.once:
            names = {**names, draft.name: (number, done.versions[1] if writes else 0)}
        placed = Placed(number, done.versions[0], done.at, item)
        self._remember(line, CachedHead(placed.bare(), grown, number, names, seen))
        return line.describe(placed)

    def _last_of(self, line: Lineage, head: CachedHead | None, name: str) -> tuple[int, int]:
        """Return the last number of a name, and the version of its name record."""
        if line.thread is None:
            return (head.placed.number if head is not None else 0), 0
        if head is not None and name in head.names:
            return head.names[name]
        record = self._kernel.read([line.name_key(name)])[0]
        return (0, 0) if record is None else (codec.decode(record.value), record.version)


def _change(head: CachedHead | None, grown: Node) -> bytes | None:
    """Return the delta from the cached head to a tree, or None if a keyframe is due.

    A keyframe is due when the chain of deltas has grown too long. So a restore reads at most about twice the state,
    and appends alone never cause a rewrite.
    """
    if head is None or head.placed.item.is_end:
        return None
    how = delta.change(head.tree, grown)
    change = b"" if how is None else codec.pack(how)
    return None if head.placed.item.weight + len(change) + _STEP > 2 * grown.size + _SPARE else change


def _placing(
    line: Lineage, head: CachedHead | None, number: int, name: str, version: int
) -> tuple[list[AnyCheck], list[Write]]:
    """Return the checks and writes that make a checkpoint the next one, and the last of its name."""
    checks: list[AnyCheck] = [Check(line.key(number), 0)]
    writes: list[Write] = []
    if head is not None:
        checks.append(Check(line.key(head.placed.number), head.placed.version))
    if line.thread is not None:
        checks.append(Check(line.name_key(name), version))
        writes.append(Put(line.name_key(name), codec.encode(number)))
    if head is None or not head.shown:
        writes.append(Put(line.entry, b""))
    return checks, writes


def _most(state: dict[str, Any], grown: Node) -> str:
    """Return the path of the largest part of a state."""
    heavy = max(_texts(state, ""), default=(0, ""))
    return heavy[1] if heavy[0] * 2 > grown.size else tree.largest(grown)


def _texts(value: Any, path: str) -> Iterator[tuple[int, str]]:
    if isinstance(value, str | bytes) and len(value) >= tree.LARGE:
        yield len(value), path.removeprefix(".")
    elif type(value) is dict:
        for name, inner in value.items():
            yield from _texts(inner, f"{path}.{name}")
    elif type(value) is list:
        for at, inner in enumerate(value):
            yield from _texts(inner, f"{path}[{at}]")
