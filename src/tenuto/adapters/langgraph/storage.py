"""The checkpoints of one namespace of a LangGraph thread as a lineage of deltas.

The root namespace uses the thread's lineage (`capabilities/checkpoints/storage.py`), so that
`agent.checkpoint.list(thread)` and `diff` show it. A subgraph's namespace has a separate lineage under
`(thread, "langgraph", "sub", namespace)`, listed by `("langgraph", "ns", thread, namespace)`. A checkpoint's name is
its LangGraph id, its `meta` holds parent and metadata, and its state is the channels by name, with LangGraph's
bookkeeping under `__langgraph__`.

Growing the tree of a state encodes only what may have changed. A channel with the parent's version has not. A long list
of messages is compared by `fingerprints`, and only its changed runs are encoded. The client caches the latest state
with its messages and returns them again if their fingerprints still fit: a turn of a long conversation decodes no old
message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import ormsgpack

from tenuto.adapters.langgraph import stored_types as types
from tenuto.adapters.langgraph.fingerprints import Fingerprints
from tenuto.capabilities._core.base import Context
from tenuto.capabilities._core.blobs import Blobs
from tenuto.capabilities.checkpoints import THREAD, Item, Lineage, Placed
from tenuto.errors import Damaged, InvalidInput, NotStorable
from tenuto.kernel import codec, keys, tree
from tenuto.kernel.tree import RUN, SMALL, Elements, Fields, Hold, Node, Piece, Run, Way

BOOK: Final = "__langgraph__"
"""The key of LangGraph's bookkeeping in a state."""
NAMESPACES: Final = keys.pack("langgraph", "ns")
_SOME: Final = 4
"""Minimum number of messages for fingerprints to pay off."""


class GraphLineage(Lineage):
    """The lineage of one namespace."""

    def __init__(self, context: Context, blobs: Blobs, thread: str, ns: str) -> None:
        super().__init__(context, blobs, THREAD, thread)
        self.ns = ns
        if ns:
            self.root = keys.named(thread, "thread id") + keys.pack("langgraph", "sub", ns)
            self.items = self.root + keys.pack("at")
            self.entry = NAMESPACES + keys.pack(thread, ns)

    def id(self, number: int) -> str:
        """Return the public id of a checkpoint."""
        return f"{self.scope}|{self.ns}@{number}" if self.ns else super().id(number)

    def _bring_back(self, number: int) -> bool:
        return not self.ns and super()._bring_back(number)  # namespaces are never archived

    def number_of(self, checkpoint: str) -> tuple[int, int]:
        """Return the number of a checkpoint and the version of its index record; zeros if there is none."""
        record = self._kernel.read([self.name_key(checkpoint)])[0]
        return (0, 0) if record is None else (int(codec.decode(record.value)), record.version)

    def named(self, checkpoint: str) -> Placed | None:
        """Return a checkpoint by its LangGraph id."""
        number, _ = self.number_of(checkpoint)
        placed = self.at(number) if number else None
        return placed if placed is not None and is_graph(placed.item) else None

    def graphs(self) -> Iterator[Placed]:
        """Yield LangGraph's checkpoints, newest first."""
        return (placed for placed in self.backwards() if is_graph(placed.item))

    def states(self, wanted: Sequence[Placed]) -> dict[int, dict[str, Any]]:
        """Return the states of several checkpoints, each verified; shared parts are read and decoded once."""
        found: dict[int, dict[str, Any]] = {}
        seen: dict[int, tuple[Any, Any]] = {}
        by_keyframe: dict[int, dict[int, Placed]] = {}
        for placed in wanted:
            by_keyframe.setdefault(placed.item.keyframe, {})[placed.number] = placed
        for keyframe, group in by_keyframe.items():
            grown: Node | None = None
            for number, plain in self.rebuilding(keyframe, max(group)):
                if number in group:
                    grown = tree._grow(plain, grown, Way(ormsgpack.packb, None))
                    if grown.digest != group[number].item.digest:
                        raise Damaged(f"The checkpoint {self.id(number)} is damaged. Restore a backup.")
                    found[number] = {name: self._lifted(value, seen) for name, value in plain.items()}
        return found

    def _lifted(self, value: Any, seen: dict[int, tuple[Any, Any]]) -> Any:
        """Return a channel's value; registered objects are decoded once for all states."""
        if type(value) is not list or not value or type(value[0]) is not ormsgpack.Ext:
            return codec.unpack(ormsgpack.packb(value), self._blobs.find)
        lifted = []
        for element in value:
            known = seen.get(id(element))
            if known is None:
                known = seen[id(element)] = element, codec.unpack(ormsgpack.packb(element), self._blobs.find)
            lifted.append(known[1])
        return lifted


# -- stored forms --------------------------------------------------------------------------------------


def meta_of(parent: str | None, metadata: Mapping[str, Any], values: Iterable[str]) -> dict[str, Any]:
    """Return the `meta` of a checkpoint, with its channels if delta channels need them to find a snapshot."""
    meta = {"langgraph": parent or "", "metadata": dict(metadata)}
    if "counters_since_delta_snapshot" in metadata:
        meta["channels"] = sorted(values)
    return meta


def is_graph(item: Item) -> bool:
    """Return whether LangGraph wrote a checkpoint of a lineage."""
    return type(item.meta) is dict and "langgraph" in item.meta


def parent_of(item: Item) -> str | None:
    """Return the id of a checkpoint's parent."""
    return item.meta["langgraph"] or None


def state_of(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored state of a checkpoint."""
    values = checkpoint["channel_values"]
    if BOOK in values:
        raise InvalidInput(f"The channel name {BOOK!r} is reserved; nothing was stored. Rename the channel.")
    return {**values, BOOK: {name: part for name, part in checkpoint.items() if name not in ("id", "channel_values")}}


def checkpoint_of(checkpoint_id: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checkpoint of a stored state."""
    book = state.get(BOOK)
    if type(book) is not dict or type(book.get("channel_versions")) is not dict:
        raise Damaged(f"The state of the checkpoint {checkpoint_id} is damaged: it is not a graph's. Restore a backup.")
    values = {name: value for name, value in state.items() if name != BOOK}
    return {**book, "id": checkpoint_id, "channel_values": values}


# -- growing and caching trees -----------------------------------------------------------------------------


class CachedChannel(NamedTuple):
    """The messages of a long channel as this client returned them, with their fingerprints."""

    node: Elements
    marks: Fingerprints
    messages: list[Any]


class ChannelCache:
    """The cached channels of the newest known state of a namespace."""

    def __init__(self) -> None:
        self.of: dict[str, CachedChannel] = {}
        self.versions: dict[str, Any] = {}
        self.tree: Node | None = None
        """The tree that the cache belongs to."""

    def grow(
        self, state: Mapping[str, Any], same: set[str], before: ChannelCache, old: Node | None, hold: Hold
    ) -> Node:
        """Return the tree of a state; `same` are the channels that are unchanged since `old`."""
        try:
            self.tree = self._grow(state, same, before, old, hold)
        except NotStorable:
            codec.encode(dict(state))  # raises the same error with the full path
            raise
        return self.tree

    def _grow(
        self, state: Mapping[str, Any], same: set[str], before: ChannelCache, old: Node | None, hold: Hold
    ) -> Node:
        way = Way(codec.pack, hold)
        nodes = old.of if type(old) is Fields else {}
        grown: dict[str, Node] = {}
        for name, value in state.items():
            node, live = nodes.get(name), before.of.get(name)
            if node is not None and name in same:
                grown[name] = node
                if live is not None and live.node is node:
                    self.of[name] = live
            elif type(value) is list and len(value) >= _SOME and types.are_messages(value):
                grown[name] = self._grow_messages(name, value, live if live and live.node is node else None, node, way)
            else:
                grown[name] = tree._grow(value, node, way)
        if type(old) is Fields and grown == old.of and list(grown) == list(old.of):
            return old
        fields = Fields(grown)
        return fields if fields.size > SMALL else tree._joined(fields, old)

    def _grow_messages(
        self, name: str, value: list[Any], live: CachedChannel | None, old: Node | None, way: Way
    ) -> Node:
        known = old.runs if type(old) is Elements else []
        fitting = live.marks.fitting(value) if live is not None else []
        runs: list[Piece | Run] = []
        for number, at in enumerate(range(0, len(value), RUN)):
            before = known[number] if number < len(known) else None
            if live is not None and before is not None and number < len(fitting) and fitting[number]:
                had = live.marks.count - at
                if had >= RUN or len(value) <= live.marks.count:
                    runs.append(before)
                    continue
                longer = _longer(before, value[at + had : at + RUN], way) if type(before) is Piece else None
            else:
                longer = None
            runs.append(longer or tree._grow_run(value[at : at + RUN], before, way))
        if type(old) is Elements and old.count == len(value) and all(a is b for a, b in zip(runs, known, strict=True)):
            node = old
        else:
            node = Elements(runs, len(value))
            if node.size <= SMALL:
                return tree._joined(node, old)
        self.of[name] = CachedChannel(node, _marks(value, live, fitting), list(value))
        return node

    def values(self, grown: Node, blobs: Blobs) -> dict[str, Any]:
        """Return the state of a tree; unchanged cached messages are returned again."""
        self.tree = grown
        if type(grown) is not Fields:
            return codec.unpack(b"".join(grown.pieces()), blobs.find)  # type: ignore[no-any-return]
        return {name: self._value(name, node, blobs) for name, node in grown.of.items()}

    def _value(self, name: str, node: Node, blobs: Blobs) -> Any:
        live = self.of.get(name)
        if live is None or live.node is not node:
            value = codec.unpack(b"".join(node.pieces()), blobs.find)
            if type(node) is Elements and node.count >= _SOME and types.are_messages(value):
                self.of[name] = CachedChannel(node, Fingerprints(value), list(value))
            return value
        if live.marks.fits(live.messages):
            return list(live.messages)
        # The caller has edited the returned messages: decode the stored ones again.
        del self.of[name]
        return self._value(name, node, blobs)


def _longer(old: Piece, more: list[Any], way: Way) -> Piece | None:
    """Return a run with more messages at its end, encoding only these; None if it becomes too wide."""
    added = way.pack(more)
    count = tree.count_of(old.data) + len(more)
    data = tree.array_head(count) + tree.without_head(old.data) + tree.without_head(added)
    return Piece(data) if len(data) <= tree.WIDE else None


def _marks(value: list[Any], live: CachedChannel | None, fitting: list[bool]) -> Fingerprints:
    """Return the fingerprints of messages; those that fit the cached ones are not examined again."""
    if live is None:
        return Fingerprints(value)
    if all(fitting):
        return live.marks if live.marks.count == len(value) else Fingerprints(value, live.marks, live.marks.count)
    return Fingerprints(value, live.marks, fitting.index(False) * RUN)
