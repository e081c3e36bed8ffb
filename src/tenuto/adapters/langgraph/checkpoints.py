"""The checkpoints of graphs: put, get and list. The saver without LangGraph's interface.

Putting a checkpoint is one commit (`checkpoints/create.py`): the delta from the newest one of its namespace, the index
record of its LangGraph id, and the pending writes of tasks. A crash leaves it stored or not stored. The commit checks
that the newest checkpoint is still the base of the delta, so of two concurrent processes one loses and reads again.
If its run continued from the checkpoint that was the newest, it gets a `Conflict`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite

from tenuto.adapters.langchain import stored
from tenuto.adapters.langgraph.run import RunView
from tenuto.adapters.langgraph.storage import (
    BOOK,
    NAMESPACES,
    ChannelCache,
    GraphLineage,
    checkpoint_of,
    is_graph,
    meta_of,
    parent_of,
    state_of,
)
from tenuto.adapters.langgraph.writes import TaskWrites, Waiting, Writes
from tenuto.capabilities._core.base import Context
from tenuto.capabilities._core.blobs import Blobs
from tenuto.capabilities.checkpoints import THREAD, CachedHead, CheckpointWriter, Draft, Placed
from tenuto.errors import Conflict, InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.contract import Check, Put, Write
from tenuto.kernel.transact import backoff
from tenuto.kernel.work import Sleep, Work

_BATCH: Final = 32
"""Number of checkpoints of a list that are decoded together."""
LIMIT: Final = 1 << 30


class Place(NamedTuple):
    """The checkpoint that a LangGraph config addresses."""

    thread: str
    ns: str
    checkpoint: str | None

    def config(self, checkpoint: str | None = None) -> dict[str, Any]:
        """Return the config of this checkpoint, or of another one of the same namespace."""
        wanted = checkpoint or self.checkpoint
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.ns, "checkpoint_id": wanted}}


def place_of(config: Mapping[str, Any]) -> Place:
    """Return the checkpoint that a config addresses."""
    given = config.get("configurable") or {}
    if "thread_id" not in given:
        raise InvalidInput(
            "The config has no thread_id. Pass one: graph.invoke(…, {'configurable': {'thread_id': 't-1'}})."
        )
    return Place(str(given["thread_id"]), given.get("checkpoint_ns") or "", given.get("checkpoint_id") or None)


def leads_on(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether another task is likely to follow a checkpoint, by the channels that start a graph's nodes."""
    return any(name.startswith("branch:to:") for name in checkpoint.get("updated_channels") or ())


_LINES: Final = 1_000
"""Maximum number of cached lineages."""


class GraphCheckpoints:
    """The checkpoints of every graph of a tenant."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.kernel = context.kernel
        self.blobs = Blobs(context)
        self.writes = Writes(context, self.blobs)
        self.writer = CheckpointWriter(context, self.blobs)
        self._caches: dict[bytes, ChannelCache] = {}
        self._places: dict[tuple[str, str], GraphLineage] = {}

    def line(self, thread: str, ns: str) -> GraphLineage:
        """Return the lineage of a namespace."""
        known = self._places.get((thread, ns))
        if known is None:
            if len(self._places) >= _LINES:
                self._places.clear()
            known = self._places[thread, ns] = GraphLineage(self.context, self.blobs, thread, ns)
        return known

    # -- putting -----------------------------------------------------------------------------------------------

    def put(
        self,
        where: Place,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        look: RunView | None,
        writers: int | None = None,
    ) -> Work[dict[str, Any]]:
        """Store a checkpoint after the given one, atomically and durably, with the pending writes of its tasks.

        `writers` is the expected number of tasks with pending writes, if known; those in flight are awaited briefly.
        """
        line = self.line(where.thread, where.ns)
        state, wanted = state_of(checkpoint), str(checkpoint["id"])
        meta = meta_of(where.checkpoint, metadata, checkpoint["channel_values"])
        once = True
        delays = backoff()
        while True:
            cached = self.writer.get(line)
            number = cached.placed.number if cached is not None else 0
            _check_unmoved(line, look, where.checkpoint, number)
            cache = ChannelCache()
            cache.versions = dict(checkpoint["channel_versions"])
            before = self._caches.get(line.root) or ChannelCache()
            same = _unchanged(cached, where.checkpoint, before, cache.versions)
            taken = self.writes.take(where.thread, where.ns, writers)
            draft = Draft(
                wanted,
                state,
                None,
                meta,
                grow=functools.partial(cache.grow, state, same, before),
                once=once,
                checks=[Check(record.key, 0) for record in taken],
                writes=[Put(record.key, record.value) for record in taken],
            )
            if not once:
                draft = self._in_place_of(line, wanted, draft)
            made = None
            try:
                made = yield from self.writer.add(line, cached, draft, LIMIT)
            finally:
                for record in taken:
                    record.settle(kept=made is not None)
            if made is not None:
                self._remember(line, cache)
                if look is not None:
                    look.newest, look.number = wanted, number + 1
                return where.config(wanted)
            once, writers = not line.number_of(wanted)[0], None
            if not taken:
                yield Sleep(next(delays))

    def _in_place_of(self, line: GraphLineage, wanted: str, draft: Draft) -> Draft:
        """Return a draft that replaces the checkpoint of the same id."""
        old, _ = line.number_of(wanted)
        hidden: list[Write] = [Put(line.hidden_key(old), b"")] if old else []
        return draft._replace(writes=[*draft.writes, *hidden])

    def _remember(self, line: GraphLineage, cache: ChannelCache) -> None:
        self._caches.pop(line.root, None)
        self._caches[line.root] = cache
        known = self.writer.remembered()
        if len(self._caches) > len(known):
            for root in [root for root in self._caches if root not in known]:
                self._caches.pop(root, None)

    def put_writes(self, where: Place, task: TaskWrites) -> Work[None]:
        """Store the writes of a task durably, in a separate commit."""
        return self.writes.put(where.thread, where.ns, _named(where), task)

    def offer_writes(self, where: Place, task: TaskWrites) -> Waiting | None:
        """Queue the writes of a task for the commit of the next checkpoint; None if they cannot wait."""
        return self.writes.offer(where.thread, where.ns, _named(where), task)

    # -- getting -----------------------------------------------------------------------------------------------

    def get(self, where: Place, *, waits: bool) -> tuple[CheckpointTuple | None, RunView]:
        """Return a checkpoint, or the newest, and the run's view of the thread at this moment."""
        line = self.line(where.thread, where.ns)
        cached = self._current(line)
        if cached is None and where.checkpoint is None:
            cached = self.writer.load(line)
        head = cached.placed if cached is not None else line.newest()
        shown = cached is not None and cached.shown == cached.placed.number and is_graph(cached.placed.item)
        newest = head if shown else None if head is None else self._newest(line, head)
        look = RunView(line.root, newest.item.name if newest else None, head.number if head else 0, waits=waits)
        if where.checkpoint is None or (newest is not None and newest.item.name == where.checkpoint):
            found = newest
        else:
            found = line.named(where.checkpoint)
        if found is None:
            return None, look
        if cached is not None and found.number == cached.placed.number:
            cache = self._caches.get(line.root) or ChannelCache()
            state = cache.values(cached.tree, self.blobs)
            cache.versions = dict(state[BOOK]["channel_versions"])
            self._remember(line, cache)
        else:
            state = line.states([found])[found.number]
        return self._tuple(line, found, state, self.writes.of(where.thread, where.ns, found.item.name)), look

    def _current(self, line: GraphLineage) -> CachedHead | None:
        """Return the cached head, if it is still the head."""
        cached = self.writer.remembered().get(line.root)
        if cached is None:
            return None
        number = cached.placed.number
        own, following, hidden = self.kernel.read([line.key(number), line.key(number + 1), line.hidden_key(number)])
        if own is None or own.version != cached.placed.version or following is not None or hidden is not None:
            self.writer.forget(line)
            return None
        return cached

    def _newest(self, line: GraphLineage, head: Placed) -> Placed | None:
        """Return the newest visible checkpoint of a graph."""
        if is_graph(head.item) and self.kernel.read([line.hidden_key(head.number)])[0] is None:
            return head
        return next(line.graphs(), None)

    def _tuple(
        self, line: GraphLineage, placed: Placed, state: Mapping[str, Any], writes: list[PendingWrite]
    ) -> CheckpointTuple:
        where = Place(line.scope, line.ns, placed.item.name)
        parent = parent_of(placed.item)
        return CheckpointTuple(
            where.config(),  # type: ignore[arg-type]
            checkpoint_of(placed.item.name, state),  # type: ignore[arg-type]
            placed.item.meta["metadata"],
            where.config(parent) if parent else None,  # type: ignore[arg-type]
            writes,
        )

    def messages(self, thread: str, *, whole: bool) -> list[dict[str, Any]] | None:
        """Return the conversation of a graph as chat messages; None if there is none.

        With `whole` they also carry LangChain's own fields (ids, usage, metadata), as in a thread of its history.
        """
        found, _ = self.get(Place(thread, "", None), waits=False)
        messages = found.checkpoint["channel_values"].get("messages") if found is not None else None
        if not isinstance(messages, list):
            return None
        if whole and all(isinstance(message, BaseMessage) for message in messages):
            return [stored(message) for message in messages]
        return [dict(message) for message in convert_to_openai_messages(messages)]

    # -- listing -----------------------------------------------------------------------------------------------

    def batches(
        self,
        config: Mapping[str, Any] | None,
        metadata: Mapping[str, Any] | None,
        before: Mapping[str, Any] | None,
        limit: int | None,
    ) -> Iterator[list[CheckpointTuple]]:
        """Yield the matching checkpoints, newest first, in batches; no cursor stays open in between."""
        earlier = (before.get("configurable") or {}).get("checkpoint_id") if before is not None else None
        left = limit
        for line, wanted in self._lines(config):
            batch: list[Placed] = []
            for placed in line.graphs():
                if left is not None and left <= len(batch):
                    break
                if wanted is not None and placed.item.name != wanted:
                    continue
                if earlier is not None and placed.item.name >= earlier:
                    continue
                if metadata and not _has(placed.item.meta["metadata"], metadata):
                    continue
                batch.append(placed)
                if len(batch) == _BATCH:
                    yield self._batch(line, batch)
                    left, batch = None if left is None else left - len(batch), []
            if batch:
                yield self._batch(line, batch)
                left = None if left is None else left - len(batch)

    def _batch(self, line: GraphLineage, batch: list[Placed]) -> list[CheckpointTuple]:
        states = line.states(batch)
        ids = {placed.item.name for placed in batch}
        writes = self.writes.between(line.scope, line.ns, ids)
        return [self._tuple(line, placed, states[placed.number], writes.get(placed.item.name, [])) for placed in batch]

    def _lines(self, config: Mapping[str, Any] | None) -> Iterator[tuple[GraphLineage, str | None]]:
        if config is None:
            for thread in self.threads():
                for line in self.lines(thread):
                    yield line, None
            return
        where = place_of(config)
        if "checkpoint_ns" in config["configurable"]:
            yield self.line(where.thread, where.ns), where.checkpoint
            return
        for line in self.lines(where.thread):
            yield line, where.checkpoint

    def threads(self) -> list[str]:
        """Return all threads with checkpoints."""
        found = dict.fromkeys(str(parts[2]) for parts in self._entries(keys.pack("checkpoints", THREAD)))
        found.update(dict.fromkeys(str(parts[2]) for parts in self._entries(NAMESPACES)))
        return list(found)

    def lines(self, thread: str) -> list[GraphLineage]:
        """Return the lineages of a thread, the root namespace first."""
        inner = [str(parts[3]) for parts in self._entries(NAMESPACES + keys.pack(thread))]
        return [self.line(thread, ns) for ns in ["", *inner]]

    def _entries(self, prefix: bytes) -> Iterator[tuple[keys.Part, ...]]:
        after: bytes | None = None
        while page := self.kernel.scan(prefix, after=after, limit=1_000):
            for record in page:
                yield keys.unpack(record.key)
            after = page[-1].key

    # -- delta channels ----------------------------------------------------------------------------------------

    def history(self, where: Place, channels: Sequence[str]) -> dict[str, DeltaChannelHistory]:
        """Return the writes to each channel since its nearest snapshot among the ancestors, oldest first."""
        line = self.line(where.thread, where.ns)
        target = line.named(where.checkpoint) if where.checkpoint else next(line.graphs(), None)
        remaining, chain = set(channels), list[tuple[str, set[str]]]()
        seeds: dict[str, Any] = {}
        wanted = parent_of(target.item) if target is not None else None
        for placed in line.graphs() if wanted else ():
            if placed.item.name != wanted:
                continue
            chain.append((placed.item.name, set(remaining)))
            noted = placed.item.meta.get("channels")
            if noted is None or not remaining.isdisjoint(noted):
                state = line.states([placed])[placed.number]
                here = {name for name in remaining if name in state}
                seeds.update({name: state[name] for name in here})
                remaining -= here
            wanted = parent_of(placed.item)
            if not remaining or wanted is None:
                break
        writes = self.writes.between(where.thread, where.ns, {name for name, _ in chain}) if chain else {}
        found: dict[str, DeltaChannelHistory] = {name: {"writes": []} for name in channels}
        for name, open_channels in reversed(chain):
            for write in writes.get(name, []):
                if write[1] in open_channels and write[1] in found:
                    found[write[1]]["writes"].append(write)
        for name, seed in seeds.items():
            found[name]["seed"] = seed
        return found


def _named(where: Place) -> str:
    if where.checkpoint is None:
        raise InvalidInput("The config has no checkpoint_id, so the writes were not stored. Pass one.")
    return where.checkpoint


def _check_unmoved(line: GraphLineage, look: RunView | None, parent: str | None, number: int) -> None:
    """Raise `Conflict` if a run continued from the newest checkpoint, and now there is a newer one."""
    if look is None or look.newest != parent or look.number == number:
        return
    raise Conflict(
        f"Another process wrote to the thread {line.scope!r} since this run read it, so this step was not stored. "
        "Let one run at a time work on a thread, or read it again and retry.",
        [line.key(number)],
    )


def _unchanged(
    cached: CachedHead | None, parent: str | None, before: ChannelCache, versions: Mapping[str, Any]
) -> set[str]:
    """Return the channels that are unchanged since the parent, if the parent is the head."""
    if cached is None or parent is None or cached.placed.item.name != parent or before.tree is not cached.tree:
        return set()
    return {name for name, version in versions.items() if before.versions.get(name) == version}


def _has(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(name) == value for name, value in wanted.items())
