"""`TenutoSaver`: a LangGraph checkpointer on tenuto.

    graph = builder.compile(checkpointer=TenutoSaver("agent.db"))

One object serves sync and async code, threads and processes. Each checkpoint is stored as a delta, for all kinds of
channels. Each superstep is one commit, durable before the next node runs.

Keys: see `storage` (checkpoints, in the lineages of `capabilities/checkpoints/storage.py`), `writes` (writes of tasks)
and `store`. After a crash a checkpoint is stored with the writes of its commit, or not at all. Writes may be stored
without the next checkpoint; they are then returned to their tasks, which do not run again. Deleting and pruning hide
first and remove later, as in `capabilities/checkpoints/retention.py`; a crash in between leaves hidden records, which
the next call removes.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, ParamSpec, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_metadata,
)

from tenuto.adapters.langgraph import importer as importing
from tenuto.adapters.langgraph import run as runs
from tenuto.adapters.langgraph import stored_types as types
from tenuto.adapters.langgraph.checkpoints import GraphCheckpoints, leads_on, place_of
from tenuto.adapters.langgraph.connection import Connection
from tenuto.adapters.langgraph.retention import GraphRetention
from tenuto.adapters.langgraph.run import RunView
from tenuto.adapters.langgraph.writes import TaskWrites, indexed
from tenuto.aio import AsyncTenuto
from tenuto.aio.bridge import in_thread, stored
from tenuto.client import Tenuto
from tenuto.kernel.work import Work, perform

P = ParamSpec("P")
R = TypeVar("R")
HOLD: Final = 0.25
"""Maximum seconds that `aput` blocks the event loop; a longer save is awaited."""


class TenutoSaver(Connection, BaseCheckpointSaver[Any]):
    """A checkpointer for any graph. `put` and `put_writes` are durable when they return.

    `agent` is a `Tenuto` or `AsyncTenuto`, whose tenant is used, or a URL or path. `allow` lists your own types in
    states: pydantic models, dataclasses, enums, msgspec structs, named tuples. `hold` is the maximum number of seconds
    that `aput` blocks the event loop, so that a step is durable before the next node runs.
    """

    def __init__(
        self,
        agent: Tenuto | AsyncTenuto | str | None = None,
        *,
        allow: Iterable[type[Any]] = (),
        hold: float = HOLD,
    ) -> None:
        super().__init__()
        self._hold = hold
        types.allow(allow)
        self._connect(agent)
        self._graphs = GraphCheckpoints(self._agent._context)
        self._upkeep = GraphRetention(self._graphs)
        self._async_agent = AsyncTenuto._of(self._agent, self._pool)
        self._key = id(self._graphs)  # shared by copies of a saver
        self._agent.threads._elsewhere["langgraph"] = self._graphs.messages

    # -- sync ------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint of a config, or the newest of its thread, with its pending writes."""
        found, look = self._graphs.get(place_of(config), waits=True)
        runs.remember(self._key, look)
        return _as_asked(found, config)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's word
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first: of a thread, of one of its namespaces, or of all threads."""
        for batch in self._graphs.batches(config, filter, before, limit):
            yield from batch

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - changes are detected instead
    ) -> RunnableConfig:
        """Store a checkpoint after the one of the config, atomically and durably.

        Raise `Conflict` if another process has written to the thread since this run read it.
        """
        seen, run = self._looks(config)

        def save(writers: int | None = None) -> RunnableConfig:
            return self._now(self._put(config, checkpoint, metadata, seen, writers))

        return save() if run is None else run.save(save, leads_on=leads_on(checkpoint))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task durably."""
        where, task = place_of(config), TaskWrites(task_id, task_path, indexed(writes))
        record = self._graphs.offer_writes(where, task)
        if record is None or not self._graphs.writes.went(record):
            self._now(self._graphs.put_writes(where, task))

    def delete_thread(self, thread_id: str) -> None:
        """Delete all checkpoints and writes of a thread."""
        self._now(self._upkeep.delete_thread(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints and writes of runs, except those that other checkpoints need."""
        self._now(self._upkeep.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints of a thread with their writes to another thread, which must be empty."""
        self._now(self._upkeep.copy_thread(str(source_thread_id), str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep only the newest checkpoint of each namespace and what it needs, or nothing ("delete")."""
        self._now(self._upkeep.prune(thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes to delta channels since their nearest snapshot."""
        return self._graphs.history(place_of(config), channels) if channels else {}

    # -- async: the same calls on the client's threads ----------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint; see `get_tuple`."""
        where = place_of(config)
        found, look = await in_thread(self._pool, lambda: self._graphs.get(where, waits=False))
        runs.remember(self._key, look)
        return _as_asked(found, config)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph's word
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints; see `list`."""
        batches = self._graphs.batches(config, filter, before, limit)
        while batch := await in_thread(self._pool, lambda: next(batches, None)):
            for found in batch:
                yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - changes are detected instead
    ) -> RunnableConfig:
        """Store a checkpoint; see `put`."""
        seen, run = self._looks(config)
        with _HandedOver(run):
            return await self._soon(self._put(config, checkpoint, metadata, seen), hold=self._hold)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task; see `put_writes`."""
        where, task = place_of(config), TaskWrites(task_id, task_path, indexed(writes))
        record = self._graphs.offer_writes(where, task)
        if record is None or not await runs.went(self._graphs.writes, record):
            await self._soon(self._graphs.put_writes(where, task))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete a thread; see `delete_thread`."""
        await self._soon(self._upkeep.delete_thread(str(thread_id)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints of runs; see `delete_for_runs`."""
        await self._soon(self._upkeep.delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread; see `copy_thread`."""
        await self._soon(self._upkeep.copy_thread(str(source_thread_id), str(target_thread_id)))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune threads; see `prune`."""
        await self._soon(self._upkeep.prune(thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes to delta channels; see `get_delta_channel_history`."""
        if not channels:
            return {}
        where = place_of(config)
        return await in_thread(self._pool, lambda: self._graphs.history(where, channels))

    # -- called by LangGraph in between -------------------------------------------------------------------------

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002 - LangGraph's signature
        """Return the next version of a channel: a number, or a text if the thread was imported from another saver."""
        look = runs.current(self._key)
        if look is not None:
            look.expect()
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}"
        return 1 if current is None else int(current) + 1

    def __bool__(self) -> bool:
        """Return True. Before LangGraph creates a task, first wait until the run's saves are durable (see `run`)."""
        look = runs.current(self._key)
        if look is not None and sys._getframe(1).f_code.co_name.startswith("prepare_"):
            look.wait()
            look.task()
        return True

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:  # noqa: ARG002 - see below
        """Return this saver: only registered types are ever decoded."""
        return self

    def _bringing(self, source: importing.Source, thread: str) -> Work[importing.Brought]:
        """Import one thread of a source, for `tenuto import langgraph`."""
        return importing.bring(self._graphs, source, thread)

    # -- the rest -----------------------------------------------------------------------------------------------

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        seen: RunView | None,
        writers: int | None = None,
    ) -> Work[RunnableConfig]:
        noted = get_checkpoint_metadata(config, metadata)
        return (yield from self._graphs.put(place_of(config), checkpoint, noted, seen, writers))  # type: ignore[return-value]

    def _looks(self, config: RunnableConfig) -> tuple[RunView | None, RunView | None]:
        """Return the run's view of the namespace, and its latest view, which tracks the saves."""
        where = place_of(config)
        root = self._graphs.line(where.thread, where.ns).root
        return runs.seen(self._key, root), runs.current(self._key)

    def _now(self, steps: Work[R]) -> R:
        return perform(steps, self._agent.clock)

    async def _soon(self, steps: Work[R], *, hold: float = 0) -> R:
        return await stored(self._pool, steps, self._agent.clock, hold=hold)


class _HandedOver:
    """Reports the start and the end of a save to its run."""

    def __init__(self, run: RunView | None) -> None:
        self._run = run

    def __enter__(self) -> None:
        """Report the start."""
        if self._run is not None:
            self._run.begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Report the end, and the error if any."""
        if self._run is not None:
            self._run.end(error)


def _as_asked(found: CheckpointTuple | None, config: RunnableConfig) -> CheckpointTuple | None:
    """Return a checkpoint with the caller's config, if that has a checkpoint id."""
    asked = config["configurable"].get("checkpoint_id")
    return found if found is None or not asked else found._replace(config=config)
