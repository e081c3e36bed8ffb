"""Copying, deleting and pruning what graphs have left. A crash in between loses nothing that was to stay.

Deleting hides checkpoints and then takes away what nothing stands on (`capabilities/retention.py`): what a kept
one was compared with stays in the store, unseen, until it is not needed any more. The writes of tasks and the
records that find a checkpoint by its id go first, so that a crash leaves none of them behind unseen.

Pruning keeps of each namespace the newest checkpoint with its writes (a question that waits for its answer is
among them), and every ancestor from which a delta channel is put together: as far back as the nearest one that
has the channel as a value. So does deleting what runs have made, for every checkpoint of other runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tenuto.adapters._langgraph_graphs import LIMIT, Graphs
from tenuto.adapters._langgraph_line import GraphLine, parent_of
from tenuto.adapters._langgraph_writes import checkpoint_of
from tenuto.capabilities.lineage import Placed
from tenuto.capabilities.retention import remove
from tenuto.capabilities.tips import Draft
from tenuto.errors import Conflict, InvalidInput
from tenuto.kernel.contract import Delete, Put, Write
from tenuto.kernel.transact import Steps, backoff, settle

_AT_ONCE: Final = 100
_STRATEGIES: Final = ("keep_latest", "delete")


class Upkeep:
    """What is done to threads as a whole."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._kernel = graphs.kernel

    # -- deleting ------------------------------------------------------------------------------------------------

    def delete_thread(self, thread: str) -> Steps[None]:
        """Delete everything of a thread."""
        yield from self._graphs.writes.remove(self._graphs.writes.records(thread))
        for line in self._graphs.lines(thread):
            yield from self._delete(line, list(line.graphs()))
        yield from self._graphs.blobs.sweep()

    def delete_for_runs(self, run_ids: Sequence[str]) -> Steps[None]:
        """Delete what runs have made."""
        gone = set(run_ids)
        for thread in self._graphs.threads() if gone else ():
            for line in self._graphs.lines(thread):
                shown = list(line.graphs())
                made = [one for one in shown if one.item.meta["metadata"].get("run_id") in gone]
                if made:
                    others = [one for one in shown if one not in made]
                    needed = _needed(shown, others)
                    yield from self._delete_with_writes(line, [one for one in made if one.item.name not in needed])

    def prune(self, thread_ids: Sequence[str], strategy: str) -> Steps[None]:
        """Keep of each namespace the newest checkpoint and what it needs, or nothing."""
        if strategy not in _STRATEGIES:
            raise InvalidInput(f"{strategy!r} is no strategy; there are {', '.join(_STRATEGIES)}.")
        for thread in thread_ids:
            if strategy == "delete":
                yield from self.delete_thread(str(thread))
                continue
            for line in self._graphs.lines(str(thread)):
                shown = list(line.graphs())
                kept = _needed(shown, [max(shown, key=lambda placed: placed.number)] if shown else [])
                yield from self._delete_with_writes(line, [one for one in shown if one.item.name not in kept])
        yield from self._graphs.blobs.sweep()

    def _delete_with_writes(self, line: GraphLine, gone: Sequence[Placed]) -> Steps[None]:
        ids = {placed.item.name for placed in gone}
        records = self._graphs.writes.records(line.scope, line.ns)
        yield from self._graphs.writes.remove(record for record in records if checkpoint_of(record) in ids)
        yield from self._delete(line, gone)

    def _delete(self, line: GraphLine, gone: Sequence[Placed]) -> Steps[None]:
        for start in range(0, len(gone), _AT_ONCE):
            some = gone[start : start + _AT_ONCE]
            writes: list[Write] = [Put(line.hidden_key(placed.number), b"") for placed in some]
            writes += [Delete(line.name_key(placed.item.name)) for placed in some]
            yield from settle(self._kernel, [], writes)
        if gone or line.hidden():
            self._graphs.tips.forget(line)
            yield from remove(self._kernel, line, self._graphs.blobs)

    # -- copying -------------------------------------------------------------------------------------------------

    def copy_thread(self, source: str, target: str) -> Steps[None]:
        """Copy every checkpoint of a thread, oldest first, with its writes: a copy that was cut off is gone on with."""
        if source == target:
            raise InvalidInput("A thread is copied to another one, not to itself.")
        for line in self._graphs.lines(source):
            yield from self._copy(line, self._graphs.line(target, line.ns))
        for record in self._graphs.writes.records(source):
            yield from self._graphs.writes.copy(record, target)

    def _copy(self, line: GraphLine, other: GraphLine) -> Steps[None]:
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
                for delay in backoff(None):
                    made = yield from self._graphs.tips.add(other, self._graphs.tips.get(other), draft, LIMIT)
                    if made is not None:
                        break
                    yield delay


def _needed(shown: Sequence[Placed], kept: Sequence[Placed]) -> set[str]:
    """Return the ids of those that are kept, and of the ancestors from which their delta channels are put together."""
    by_id = {placed.item.name: placed for placed in shown}
    found = {placed.item.name for placed in kept}
    for placed in kept:
        remaining, wanted = _deltas(placed), parent_of(placed.item)
        while remaining and wanted in by_id:
            ancestor = by_id[wanted]
            found.add(wanted)
            noted = ancestor.item.meta.get("channels")
            if noted is None:
                break  # from before there were delta channels: it has every channel as a value
            remaining -= set(noted)
            wanted = parent_of(ancestor.item)
    return found


def _deltas(placed: Placed) -> set[str]:
    """Return the channels of a checkpoint that are put together from its ancestors' writes."""
    counted = placed.item.meta["metadata"].get("counters_since_delta_snapshot") or {}
    return set(counted) - set(placed.item.meta.get("channels", ()))
