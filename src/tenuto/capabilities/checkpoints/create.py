"""The tip of a lineage: the newest checkpoint as this client knows it, and putting the next one behind it.

A client keeps the tree of the newest state of each lineage that it writes to, up to a limit. The next state is
encoded and compared with it piece by piece, and the commit checks that the tip is still the newest; if not, it
is read again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tenuto.capabilities import blobs as large
from tenuto.capabilities.blobs import Blobs, Content
from tenuto.capabilities.context import Context, stamp
from tenuto.capabilities.lineage import Checkpoint, Item, Lineage, Placed, squeezed
from tenuto.errors import Conflict, TooLarge
from tenuto.kernel import codec, delta, tree
from tenuto.kernel.contract import AnyCheck, Check, Put, Write
from tenuto.kernel.transact import Steps, settle
from tenuto.kernel.tree import Hold, Node

Grow: TypeAlias = Callable[[Node | None, Hold], Node]
"""Makes the tree of a state, given that of the state before and what holds large parts: as `tree.grow` would."""

_INLINE: Final = 256 * 1024
"""A payload beyond this is a blob."""
_STEP: Final = 512
"""What reading one more step of a chain costs, in bytes."""
_SPARE: Final = 4_096
"""So many bytes a chain may grow beyond twice the state, so that a small one is not written whole each time."""
_REMEMBERED: Final = 64 * 1024 * 1024
"""How many bytes of trees a client keeps."""


class _Large(NamedTuple):
    """A large part as it was seen. It cannot change, so the same object needs no second look."""

    value: str | bytes
    reference: bytes
    digest: bytes
    size: int


class Tip(NamedTuple):
    """The newest checkpoint of a lineage."""

    placed: Placed
    """Without its payload."""
    tree: Node
    shown: int
    """The newest that is to be seen."""
    names: dict[str, tuple[int, int]]
    """For a name, the last number and the version of the record that says so."""
    large: dict[int, _Large]
    """By identity."""


class Draft(NamedTuple):
    """What a checkpoint is made of."""

    name: str
    state: dict[str, Any]
    user: str | None
    meta: Any
    origin: str | None = None
    grow: Grow | None = None
    """How its state becomes a tree, for who knows more of it than its bytes."""
    once: bool = False
    """Whether its name must be new: then `add` is None also where it is not."""
    checks: Sequence[AnyCheck] = ()
    writes: Sequence[Write] = ()
    """What is committed with it."""


class Tips:
    """The tips that one client keeps."""

    def __init__(self, context: Context, blobs: Blobs) -> None:
        self._context = context
        self._kernel = context.kernel
        self._blobs = blobs
        self._tips: OrderedDict[bytes, Tip] = OrderedDict()
        self._size = 0  # of their trees
        self._mutex = threading.Lock()

    def get(self, line: Lineage) -> Tip | None:
        """Return the tip, as remembered if it is."""
        return self._tips.get(line.root) or self.load(line)

    def remembered(self) -> dict[bytes, Tip]:
        """Return the tips that are remembered, by what their lineages' keys begin with; others may have moved them on."""
        return self._tips

    def load(self, line: Lineage) -> Tip | None:
        """Read the tip of a lineage; None if it has none."""
        placed = line.newest()
        if placed is None:
            return None
        shown = next(line.backwards(), None)
        grown = tree.regrow({}) if placed.item.is_end else line.tree_of(placed)
        tip = Tip(_bare(placed), grown, shown.number if shown is not None else 0, {}, {})
        self._remember(line, tip)
        return tip

    def forget(self, line: Lineage) -> None:
        """Read the tip again next time."""
        with self._mutex:
            self._drop(line.root)

    def _drop(self, root: bytes) -> None:
        tip = self._tips.pop(root, None)
        if tip is not None:
            self._size -= tip.tree.size

    def _remember(self, line: Lineage, tip: Tip) -> None:
        with self._mutex:
            self._drop(line.root)
            self._tips[line.root] = tip
            self._size += tip.tree.size
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self._tips and self._size > _REMEMBERED:
            self._drop(next(iter(self._tips)))

    def add(self, line: Lineage, tip: Tip | None, draft: Draft, limit: int) -> Steps[Checkpoint | None]:
        """Commit a checkpoint behind a tip; None if something else came first."""
        known = tip.large if tip is not None else {}
        seen: dict[int, _Large] = {}

        def hold(value: str | bytes) -> bytes:
            part = known.get(id(value))
            if part is None or part.value is not value:
                digest, size = large.digest_of(value), len(value.encode() if isinstance(value, str) else value)
                part = _Large(value, codec.held(digest, size, text=isinstance(value, str)), digest, size)
            seen[id(value)] = part
            return part.reference

        before = tip.tree if tip is not None else None
        grown = tree.grow(draft.state, before, hold) if draft.grow is None else draft.grow(before, hold)
        contents = {part.digest: part for part in seen.values()}
        size = grown.size + sum(part.size for part in contents.values())
        if size > limit:
            raise TooLarge(
                f"The state has {size:,} bytes and the limit is {limit:,}; most of it is {_most(draft.state, grown)}. "
                "Keep that part elsewhere and store where it is, or raise agent.checkpoint.limit."
            )
        number = tip.placed.number + 1 if tip is not None else 1
        change = _change(tip, grown)
        if change is None or tip is None:
            of, weight, stored = number, grown.size, grown.size
            refers = list(contents)
        else:
            of, weight, stored = tip.placed.item.keyframe, tip.placed.item.weight + len(change) + _STEP, len(change)
            refers = [part.digest for part in contents.values() if part.reference in change]
        needed: dict[bytes, Content] = {digest: contents[digest].value for digest in refers}
        payload, blob = None, None
        if stored > _INLINE:
            whole: Content = grown.pieces if change is None else change
            blob = large.digest_of(whole)
            needed[blob] = whole
        else:
            payload = squeezed(b"".join(grown.pieces()) if change is None else change)
            stored = len(payload)
        last, version = (0, 0) if draft.once else self._last_of(line, tip, draft.name)
        item = Item(
            draft.name,
            *stamp(self._context),
            draft.user,
            tip.shown if tip is not None else 0,
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
            counts, counted = self._blobs.counted(large.changes(item.references))
            checks, writes = _placing(line, tip, number, draft.name, version)
            done = yield from settle(
                self._kernel,
                [*checks, *counts, *draft.checks],
                [Put(line.key(number), codec.encode(list(item))), *writes, *counted, *draft.writes],
            )
        except Conflict:
            self.forget(line)
            return None
        names = tip.names if tip is not None else {}
        if not draft.once:
            names = {**names, draft.name: (number, done.versions[1] if writes else 0)}
        placed = Placed(number, done.versions[0], done.at, item)
        self._remember(line, Tip(_bare(placed), grown, number, names, seen))
        return line.told(placed)

    def _last_of(self, line: Lineage, tip: Tip | None, name: str) -> tuple[int, int]:
        """Return the last number of a name, and the version of the record that says so."""
        if line.thread is None:
            return (tip.placed.number if tip is not None else 0), 0
        if tip is not None and name in tip.names:
            return tip.names[name]
        record = self._kernel.read([line.name_key(name)])[0]
        return (0, 0) if record is None else (codec.decode(record.value), record.version)


def _change(tip: Tip | None, grown: Node) -> bytes | None:
    """Return the change that leads from a tip to a tree, or None for a keyframe.

    A keyframe comes when the way from the last one has grown too long: restoring reads at most about twice the
    state, and appending alone never writes it again.
    """
    if tip is None or tip.placed.item.is_end:
        return None
    how = delta.change(tip.tree, grown)
    change = b"" if how is None else codec.pack(how)
    return None if tip.placed.item.weight + len(change) + _STEP > 2 * grown.size + _SPARE else change


def _placing(
    line: Lineage, tip: Tip | None, number: int, name: str, version: int
) -> tuple[list[AnyCheck], list[Write]]:
    """Return what makes a checkpoint the next one, and the last of its name."""
    checks: list[AnyCheck] = [Check(line.key(number), 0)]
    writes: list[Write] = []
    if tip is not None:
        checks.append(Check(line.key(tip.placed.number), tip.placed.version))
    if line.thread is not None:
        checks.append(Check(line.name_key(name), version))
        writes.append(Put(line.name_key(name), codec.encode(number)))
    if tip is None or not tip.shown:
        writes.append(Put(line.entry, b""))
    return checks, writes


def _bare(placed: Placed) -> Placed:
    item = placed.item
    return placed._replace(item=item._replace(payload=None if item.payload is None else b""))


def _most(state: dict[str, Any], grown: Node) -> str:
    """Return the path of the large part of a state."""
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
