"""The checkpoints of graphs: putting, getting and listing them. Everything the saver does, without its interface.

Putting a checkpoint is one commit (`tips`): the change from the newest one of its namespace, the record that
finds it by its LangGraph id, and the writes of tasks that wait to go with it. The commit checks that the newest
is still the one it was compared with, so a crash leaves it whole or not there, and of two processes one is
second. The second reads again; if the run had stood on the checkpoint that was the newest, it gets a `Conflict`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from langchain_core.messages import BaseMessage, convert_to_openai_messages
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory, PendingWrite

from tenuto.adapters._langgraph_line import (
    BOOK,
    NAMESPACES,
    GraphLine,
    Lives,
    checkpoint_of,
    is_graph,
    meta_of,
    parent_of,
    state_of,
)
from tenuto.adapters._langgraph_run import Look
from tenuto.adapters._langgraph_writes import TaskWrites, Waiting, Writes
from tenuto.adapters.langchain import stored
from tenuto.capabilities.blobs import Blobs
from tenuto.capabilities.context import Context
from tenuto.capabilities.lineage import THREAD, Placed
from tenuto.capabilities.tips import Draft, Tip, Tips
from tenuto.errors import Conflict, InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.contract import Check, Put, Write
from tenuto.kernel.transact import Steps, backoff

_BATCH: Final = 32
"""So many checkpoints of a list are put together at once."""
LIMIT: Final = 1 << 30


class Place(NamedTuple):
    """Which checkpoint a LangGraph config means."""

    thread: str
    ns: str
    checkpoint: str | None

    def config(self, checkpoint: str | None = None) -> dict[str, Any]:
        """Return the config that means it, or another checkpoint of the same namespace."""
        wanted = checkpoint or self.checkpoint
        return {"configurable": {"thread_id": self.thread, "checkpoint_ns": self.ns, "checkpoint_id": wanted}}


def place_of(config: Mapping[str, Any]) -> Place:
    """Return what a config means."""
    given = config.get("configurable") or {}
    if "thread_id" not in given:
        raise InvalidInput(
            "A checkpoint belongs to a thread; say which: graph.invoke(…, {'configurable': {'thread_id': 't-1'}})."
        )
    return Place(str(given["thread_id"]), given.get("checkpoint_ns") or "", given.get("checkpoint_id") or None)


def leads_on(checkpoint: Mapping[str, Any]) -> bool:
    """Tell whether a checkpoint looks as if another task follows it: by the channels that start a graph's nodes."""
    return any(name.startswith("branch:to:") for name in checkpoint.get("updated_channels") or ())


_LINES: Final = 1_000
"""So many places of namespaces are kept at hand."""


class Graphs:
    """The checkpoints of every graph of a tenant."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.kernel = context.kernel
        self.blobs = Blobs(context)
        self.writes = Writes(context, self.blobs)
        self.tips = Tips(context, self.blobs)
        self._lives: dict[bytes, Lives] = {}
        self._places: dict[tuple[str, str], GraphLine] = {}

    def line(self, thread: str, ns: str) -> GraphLine:
        """Return where the checkpoints of a namespace are."""
        known = self._places.get((thread, ns))
        if known is None:
            if len(self._places) >= _LINES:
                self._places.clear()
            known = self._places[thread, ns] = GraphLine(self.context, self.blobs, thread, ns)
        return known

    # -- putting -----------------------------------------------------------------------------------------------

    def put(
        self,
        where: Place,
        checkpoint: Mapping[str, Any],
        metadata: Mapping[str, Any],
        look: Look | None,
        writers: int | None = None,
    ) -> Steps[dict[str, Any]]:
        """Store a checkpoint that follows the one given, atomically and durably, with the writes that wait for it.

        `writers` is how many tasks' writes are expected to, if that is known; those on their way are waited for a moment.
        """
        line = self.line(where.thread, where.ns)
        state, wanted = state_of(checkpoint), str(checkpoint["id"])
        meta = meta_of(where.checkpoint, metadata, checkpoint["channel_values"])
        once = True
        for delay in backoff(None):
            tip = self.tips.get(line)
            number = tip.placed.number if tip is not None else 0
            _stand_firm(line, look, where.checkpoint, number)
            lives = Lives()
            lives.versions = dict(checkpoint["channel_versions"])
            before = self._lives.get(line.root) or Lives()
            same = _unchanged(tip, where.checkpoint, before, lives.versions)
            taken = self.writes.take(where.thread, where.ns, writers)
            draft = Draft(
                wanted,
                state,
                None,
                meta,
                grow=functools.partial(lives.grow, state, same, before),
                once=once,
                checks=[Check(record.key, 0) for record in taken],
                writes=[Put(record.key, record.value) for record in taken],
            )
            if not once:
                draft = self._in_place_of(line, wanted, draft)
            made = None
            try:
                made = yield from self.tips.add(line, tip, draft, LIMIT)
            finally:
                for record in taken:
                    record.settle(kept=made is not None)
            if made is not None:
                self._remember(line, lives)
                if look is not None:
                    look.newest, look.number = wanted, number + 1
                return where.config(wanted)
            once, writers = not line.number_of(wanted)[0], None
            if not taken:
                yield delay
        raise AssertionError("the back-off never ends")

    def _in_place_of(self, line: GraphLine, wanted: str, draft: Draft) -> Draft:
        """Let a checkpoint that is put again take the place of the one with its id."""
        old, _ = line.number_of(wanted)
        hidden: list[Write] = [Put(line.hidden_key(old), b"")] if old else []
        return draft._replace(writes=[*draft.writes, *hidden])

    def _remember(self, line: GraphLine, lives: Lives) -> None:
        self._lives.pop(line.root, None)
        self._lives[line.root] = lives
        known = self.tips.remembered()
        if len(self._lives) > len(known):
            for root in [root for root in self._lives if root not in known]:
                self._lives.pop(root, None)

    def put_writes(self, where: Place, task: TaskWrites) -> Steps[None]:
        """Keep what a task wrote on a checkpoint, durably, by a commit of its own."""
        return self.writes.put(where.thread, where.ns, _named(where), task)

    def offer_writes(self, where: Place, task: TaskWrites) -> Waiting | None:
        """Let what a task wrote on a checkpoint wait for the commit of the next one, if it can."""
        return self.writes.offer(where.thread, where.ns, _named(where), task)

    # -- getting -----------------------------------------------------------------------------------------------

    def get(self, where: Place, *, waits: bool) -> tuple[CheckpointTuple | None, Look]:
        """Return a checkpoint, or the newest, and what there is to remember of the thread as it was then."""
        line = self.line(where.thread, where.ns)
        tip = self._current(line)
        if tip is None and where.checkpoint is None:
            tip = self.tips.load(line)
        head = tip.placed if tip is not None else line.newest()
        shown = tip is not None and tip.shown == tip.placed.number and is_graph(tip.placed.item)
        newest = head if shown else None if head is None else self._newest(line, head)
        look = Look(line.root, newest.item.name if newest else None, head.number if head else 0, waits=waits)
        if where.checkpoint is None or (newest is not None and newest.item.name == where.checkpoint):
            found = newest
        else:
            found = line.named(where.checkpoint)
        if found is None:
            return None, look
        if tip is not None and found.number == tip.placed.number:
            lives = self._lives.get(line.root) or Lives()
            state = lives.values(tip.tree, self.blobs)
            lives.versions = dict(state[BOOK]["channel_versions"])
            self._remember(line, lives)
        else:
            state = line.states([found])[found.number]
        return self._told(line, found, state, self.writes.of(where.thread, where.ns, found.item.name)), look

    def _current(self, line: GraphLine) -> Tip | None:
        """Return the tip as it is remembered, if it still is the tip."""
        tip = self.tips.remembered().get(line.root)
        if tip is None:
            return None
        number = tip.placed.number
        own, following, hidden = self.kernel.read([line.key(number), line.key(number + 1), line.hidden_key(number)])
        if own is None or own.version != tip.placed.version or following is not None or hidden is not None:
            self.tips.forget(line)
            return None
        return tip

    def _newest(self, line: GraphLine, head: Placed) -> Placed | None:
        """Return the newest checkpoint of a graph that is to be seen."""
        if is_graph(head.item) and self.kernel.read([line.hidden_key(head.number)])[0] is None:
            return head
        return next(line.graphs(), None)

    def _told(
        self, line: GraphLine, placed: Placed, state: Mapping[str, Any], writes: list[PendingWrite]
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
        """Return the conversation of a graph as dicts that every provider knows; None where there is none.

        Where it is `whole`, what only LangChain has (ids, usage, metadata) is beside them, as in a thread of its history.
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
        """Yield the checkpoints that are asked for, newest first, some at a time; nothing is held in between."""
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

    def _batch(self, line: GraphLine, batch: list[Placed]) -> list[CheckpointTuple]:
        states = line.states(batch)
        ids = {placed.item.name for placed in batch}
        writes = self.writes.between(line.scope, line.ns, ids)
        return [self._told(line, placed, states[placed.number], writes.get(placed.item.name, [])) for placed in batch]

    def _lines(self, config: Mapping[str, Any] | None) -> Iterator[tuple[GraphLine, str | None]]:
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
        """Return every thread that has checkpoints."""
        found = dict.fromkeys(str(parts[2]) for parts in self._entries(keys.pack("checkpoints", THREAD)))
        found.update(dict.fromkeys(str(parts[2]) for parts in self._entries(NAMESPACES)))
        return list(found)

    def lines(self, thread: str) -> list[GraphLine]:
        """Return the namespaces of a thread, the root first."""
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
        """Return what each channel was written since the nearest ancestor that has it as a value, oldest first."""
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
        raise InvalidInput("Writes belong to a checkpoint; the config names none (checkpoint_id).")
    return where.checkpoint


def _stand_firm(line: GraphLine, look: Look | None, parent: str | None, number: int) -> None:
    """Raise `Conflict` if a run stood on the newest checkpoint, and now there is a newer one."""
    if look is None or look.newest != parent or look.number == number:
        return
    raise Conflict(
        f"The thread {line.scope!r} has gone on since this run read it: somebody else is working on it, and nothing "
        "of this step was stored. Let one run at a time work on a thread, or read it again and decide anew.",
        [line.key(number)],
    )


def _unchanged(tip: Tip | None, parent: str | None, before: Lives, versions: Mapping[str, Any]) -> set[str]:
    """Return the channels that a checkpoint has as its parent had them, if the parent is the tip."""
    if tip is None or parent is None or tip.placed.item.name != parent or before.tree is not tip.tree:
        return set()
    return {name for name, version in versions.items() if before.versions.get(name) == version}


def _has(metadata: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(metadata.get(name) == value for name, value in wanted.items())
