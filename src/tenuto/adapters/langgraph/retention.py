"""Copy, delete and prune the checkpoints of graphs. A crash in between loses nothing that must stay.

Deleting hides checkpoints and then removes those that no delta needs (`capabilities/checkpoints/retention.py`): the
base of a remaining delta stays hidden in the store. Task writes and index records are deleted first, so that a crash
leaves no orphans.

Pruning keeps, in each namespace, the newest checkpoint with its writes (including an open question), and the ancestors
of its delta channels back to the nearest snapshot. Deleting the checkpoints of runs does the same for every checkpoint
of other runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tenuto.adapters.langgraph.checkpoints import LIMIT, GraphCheckpoints
from tenuto.adapters.langgraph.storage import GraphLineage, parent_of
from tenuto.adapters.langgraph.writes import checkpoint_of
from tenuto.capabilities.checkpoints import Draft, Placed, remove
from tenuto.errors import Conflict, InvalidInput
from tenuto.kernel.contract import Delete, Put, Write
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work

_AT_ONCE: Final = 100
_STRATEGIES: Final = ("keep_latest", "delete")


class GraphRetention:
    """Deletes, prunes and copies threads."""

    def __init__(self, graphs: GraphCheckpoints) -> None:
        self._graphs = graphs
        self._kernel = graphs.kernel

    # -- deleting ------------------------------------------------------------------------------------------------

    def delete_thread(self, thread: str) -> Work[None]:
        """Delete all checkpoints and writes of a thread."""
        yield from self._graphs.writes.remove(self._graphs.writes.records(thread))
        for line in self._graphs.lines(thread):
            yield from self._delete(line, list(line.graphs()))
        yield from self._graphs.blobs.sweep()

    def delete_for_runs(self, run_ids: Sequence[str]) -> Work[None]:
        """Delete the checkpoints of runs, except those that other checkpoints need."""
        gone = set(run_ids)
        for thread in self._graphs.threads() if gone else ():
            for line in self._graphs.lines(thread):
                shown = list(line.graphs())
                made = [one for one in shown if one.item.meta["metadata"].get("run_id") in gone]
                if made:
                    others = [one for one in shown if one not in made]
                    needed = _needed(shown, others)
                    yield from self._delete_with_writes(line, [one for one in made if one.item.name not in needed])

    def prune(self, thread_ids: Sequence[str], strategy: str) -> Work[None]:
        """Keep only the newest checkpoint of each namespace and what it needs, or nothing."""
        if strategy not in _STRATEGIES:
            raise InvalidInput(f"`strategy` must be one of {', '.join(_STRATEGIES)}, not {strategy!r}.")
        for thread in thread_ids:
            if strategy == "delete":
                yield from self.delete_thread(str(thread))
                continue
            for line in self._graphs.lines(str(thread)):
                shown = list(line.graphs())
                kept = _needed(shown, [max(shown, key=lambda placed: placed.number)] if shown else [])
                yield from self._delete_with_writes(line, [one for one in shown if one.item.name not in kept])
        yield from self._graphs.blobs.sweep()

    def _delete_with_writes(self, line: GraphLineage, gone: Sequence[Placed]) -> Work[None]:
        ids = {placed.item.name for placed in gone}
        records = self._graphs.writes.records(line.scope, line.ns)
        yield from self._graphs.writes.remove(record for record in records if checkpoint_of(record) in ids)
        yield from self._delete(line, gone)

    def _delete(self, line: GraphLineage, gone: Sequence[Placed]) -> Work[None]:
        for start in range(0, len(gone), _AT_ONCE):
            some = gone[start : start + _AT_ONCE]
            writes: list[Write] = [Put(line.hidden_key(placed.number), b"") for placed in some]
            writes += [Delete(line.name_key(placed.item.name)) for placed in some]
            yield from commit_once(self._kernel, [], writes)
        if gone or line.hidden():
            self._graphs.writer.forget(line)
            yield from remove(self._kernel, line, self._graphs.blobs)

    # -- copying -------------------------------------------------------------------------------------------------

    def copy_thread(self, source: str, target: str) -> Work[None]:
        """Copy all checkpoints of a thread, oldest first, with their writes. An interrupted copy can be repeated."""
        if source == target:
            raise InvalidInput("Source and target are the same thread; nothing was copied. Copy to another thread.")
        for line in self._graphs.lines(source):
            yield from self._copy(line, self._graphs.line(target, line.ns))
        for record in self._graphs.writes.records(source):
            yield from self._graphs.writes.copy(record, target)

    def _copy(self, line: GraphLineage, other: GraphLineage) -> Work[None]:
        shown = sorted(line.graphs(), key=lambda placed: placed.number)
        there = {placed.item.name for placed in other.graphs()}
        if not there <= {placed.item.name for placed in shown}:
            raise Conflict(
                f"The thread {other.scope!r} has checkpoints of its own; nothing was copied. Copy to another thread.",
                [other.root],
            )
        for start in range(0, len(shown), 32):
            some = [placed for placed in shown[start : start + 32] if placed.item.name not in there]
            states = line.states(some) if some else {}
            for placed in some:
                draft = Draft(placed.item.name, states[placed.number], None, placed.item.meta, line.id(placed.number))
                delays = backoff()
                while True:
                    made = yield from self._graphs.writer.add(other, self._graphs.writer.get(other), draft, LIMIT)
                    if made is not None:
                        break
                    yield Sleep(next(delays))


def _needed(shown: Sequence[Placed], kept: Sequence[Placed]) -> set[str]:
    """Return the ids of the kept checkpoints, and of the ancestors that their delta channels need."""
    by_id = {placed.item.name: placed for placed in shown}
    found = {placed.item.name for placed in kept}
    for placed in kept:
        remaining, wanted = _deltas(placed), parent_of(placed.item)
        while remaining and wanted in by_id:
            ancestor = by_id[wanted]
            found.add(wanted)
            noted = ancestor.item.meta.get("channels")
            if noted is None:
                break  # written before delta channels existed: every channel is a snapshot
            remaining -= set(noted)
            wanted = parent_of(ancestor.item)
    return found


def _deltas(placed: Placed) -> set[str]:
    """Return the channels of a checkpoint that are rebuilt from its ancestors' writes."""
    counted = placed.item.meta["metadata"].get("counters_since_delta_snapshot") or {}
    return set(counted) - set(placed.item.meta.get("channels", ()))
