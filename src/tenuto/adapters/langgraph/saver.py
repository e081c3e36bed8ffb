"""LangGraph on tenuto: `TenutoSaver` keeps the checkpoints of graphs, `TenutoStore` their long-term memory.

    graph = builder.compile(checkpointer=TenutoSaver("agent.db"))

One object serves sync and async code, threads and processes. Each checkpoint is stored as what changed since
the one before, whatever the channels are; each superstep is one commit, durable before the next node runs.

Which keys are whose: `_langgraph_line` (checkpoints, in the lineages of `capabilities/lineage.py`),
`_langgraph_writes` (what tasks wrote), `_langgraph_store`. What a crash leaves: a checkpoint is there with the
writes that went with it, or not there; writes may be there without the checkpoint that follows, and are then
handed back to their tasks, which do not run again. Deleting and pruning hide first and take away after that, as
`capabilities/retention.py` says; a crash in between leaves things that nobody sees, and the next one takes them.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, ParamSpec, Self, TypeVar

from tenuto._offload import drive as _drive_async
from tenuto._offload import settle as _settle
from tenuto.aio import AsyncTenuto
from tenuto.capabilities.stepping import Effect, Retry
from tenuto.client import Tenuto
from tenuto.errors import MissingDriver
from tenuto.kernel.durations import Duration
from tenuto.kernel.transact import Steps, drive

try:
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
    from langgraph.store.base import BaseStore, IndexConfig, Op, Result, TTLConfig, validate_op_namespace

    from tenuto.adapters import _langgraph_import as importing
    from tenuto.adapters import _langgraph_run as runs
    from tenuto.adapters import _langgraph_types as types
    from tenuto.adapters._langgraph_graphs import Graphs, leads_on, place_of
    from tenuto.adapters._langgraph_run import Look
    from tenuto.adapters._langgraph_store import Items, Vectors
    from tenuto.adapters._langgraph_tools import durable
    from tenuto.adapters._langgraph_upkeep import Upkeep
    from tenuto.adapters._langgraph_writes import TaskWrites, indexed
except ImportError as error:
    raise MissingDriver('LangGraph is not installed; run: pip install "tenuto[langgraph]".') from error

__all__ = ["TenutoSaver", "TenutoStore", "durable_tool"]

P = ParamSpec("P")
R = TypeVar("R")
_THREADS: Final = 8
HOLD: Final = 0.25
"""For so many seconds at most an event loop waits for a checkpoint; what takes longer is awaited."""


reading = importing.opened


class _Own(NamedTuple):
    """What one opened itself."""

    store: bool
    threads: bool


def opened(agent: Tenuto | AsyncTenuto | str | None) -> tuple[Tenuto, ThreadPoolExecutor, _Own]:
    """Return the client of an agent or a URL, the threads for its async calls, and which of both are one's own."""
    if isinstance(agent, AsyncTenuto):
        return agent._sync, agent._pool, _Own(store=False, threads=False)
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tenuto-langgraph")
    if isinstance(agent, Tenuto):
        return agent, pool, _Own(store=False, threads=True)
    return Tenuto("langgraph", agent), pool, _Own(store=True, threads=True)


def _let_go(agent: Tenuto, pool: ThreadPoolExecutor, own: _Own) -> None:
    if own.store:
        agent.close()
    if own.threads:
        pool.shutdown(wait=False)


class TenutoSaver(BaseCheckpointSaver[Any]):
    """A checkpointer for any graph. Everything that `put` and `put_writes` take is durable when they return.

    `agent` is a `Tenuto` or `AsyncTenuto`, whose tenant it works in, or a URL or path. `allow` are the types of
    your own that states hold: pydantic models, dataclasses, enums, msgspec structs, named tuples. `hold` is for how
    many seconds at most `aput` keeps the event loop waiting, so that a step is durable before the next node runs.
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
        self._agent, self._pool, self._own = opened(agent)
        self._graphs = Graphs(self._agent._context)
        self._upkeep = Upkeep(self._graphs)
        self._faces = _Faces(self._agent, AsyncTenuto.of(self._agent, self._pool))
        self._key = id(self._graphs)  # copies of a saver are one
        self._agent.threads.elsewhere["langgraph"] = self._graphs.messages

    # -- sync ------------------------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config means, or the newest of its thread, with its pending writes."""
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
        """Yield checkpoints, newest first: of a thread, of a namespace of it, or of all threads."""
        for batch in self._graphs.batches(config, filter, before, limit):
            yield from batch

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - what changed is found, not believed
    ) -> RunnableConfig:
        """Store a checkpoint behind the one that the config names, atomically and durably.

        `Conflict` if the thread has gone on since this run read it.
        """
        seen, run = self._looks(config)

        def save(writers: int | None = None) -> RunnableConfig:
            return self._now(self._put(config, checkpoint, metadata, seen, writers))

        return save() if run is None else run.save(save, leads_on=leads_on(checkpoint))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what a task wrote on a checkpoint, durably."""
        where, task = place_of(config), TaskWrites(task_id, task_path, indexed(writes))
        record = self._graphs.offer_writes(where, task)
        if record is None or not self._graphs.writes.went(record):
            self._now(self._graphs.put_writes(where, task))

    def delete_thread(self, thread_id: str) -> None:
        """Delete everything of a thread."""
        self._now(self._upkeep.delete_thread(str(thread_id)))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints that runs have made, and their writes; what others need of them stays readable."""
        self._now(self._upkeep.delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy every checkpoint of a thread, with its writes, to another thread, which must have none."""
        self._now(self._upkeep.copy_thread(str(source_thread_id), str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Keep of each namespace only the newest checkpoint and what it needs, or nothing ("delete")."""
        self._now(self._upkeep.prune(thread_ids, strategy))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what delta channels were written since their nearest snapshot."""
        return self._graphs.history(place_of(config), channels) if channels else {}

    # -- async: the same calls, on threads of the client's own --------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return what `get_tuple` does."""
        where = place_of(config)
        found, look = await _settle(self._pool, lambda: self._graphs.get(where, waits=False))
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
        """Yield what `list` does."""
        batches = self._graphs.batches(config, filter, before, limit)
        while batch := await _settle(self._pool, lambda: next(batches, None)):
            for found in batch:
                yield found

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,  # noqa: ARG002 - what changed is found, not believed
    ) -> RunnableConfig:
        """Store what `put` does."""
        seen, run = self._looks(config)
        with _HandedOver(run):
            return await self._soon(self._put(config, checkpoint, metadata, seen), hold=self._hold)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Keep what `put_writes` does."""
        where, task = place_of(config), TaskWrites(task_id, task_path, indexed(writes))
        record = self._graphs.offer_writes(where, task)
        if record is None or not await runs.went(self._graphs.writes, record):
            await self._soon(self._graphs.put_writes(where, task))

    async def adelete_thread(self, thread_id: str) -> None:
        """Delete what `delete_thread` does."""
        await self._soon(self._upkeep.delete_thread(str(thread_id)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete what `delete_for_runs` does."""
        await self._soon(self._upkeep.delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy what `copy_thread` does."""
        await self._soon(self._upkeep.copy_thread(str(source_thread_id), str(target_thread_id)))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Prune what `prune` does."""
        await self._soon(self._upkeep.prune(thread_ids, strategy))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return what `get_delta_channel_history` does."""
        if not channels:
            return {}
        where = place_of(config)
        return await _settle(self._pool, lambda: self._graphs.history(where, channels))

    # -- what LangGraph asks in between -------------------------------------------------------------------------

    def get_next_version(self, current: Any, channel: None) -> Any:  # noqa: ARG002 - LangGraph's signature
        """Return a channel's next version: numbers, or text where a thread has it from another saver."""
        look = runs.current(self._key)
        if look is not None:
            look.expect()
        if isinstance(current, str):
            return f"{int(current.split('.')[0]) + 1:032}"
        return 1 if current is None else int(current) + 1

    def __bool__(self) -> bool:
        """Answer that there is a saver; before a task is made, once what the run handed over is durable (`_langgraph_run`)."""
        look = runs.current(self._key)
        if look is not None and sys._getframe(1).f_code.co_name.startswith("prepare_"):
            look.wait()
            look.task()
        return True

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Self:  # noqa: ARG002 - see below
        """Return this saver: what may be read is what was registered, in every mode of LangGraph's."""
        return self

    def bringing(self, source: importing.Source, thread: str) -> Steps[importing.Brought]:
        """Bring in one thread of a source that `reading` opened: what `tenuto import langgraph` does."""
        return importing.bring(self._graphs, source, thread)

    # -- the rest -----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of what this saver opened: the store, if it was given where that is, and its threads."""
        _let_go(self._agent, self._pool, self._own)

    def __enter__(self) -> Self:
        """Open the store."""
        self._agent.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, if this saver opened it."""
        self.close()

    async def __aenter__(self) -> Self:
        """Open the store."""
        await _settle(self._pool, self._agent.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it, if this saver opened it."""
        await _settle(self._pool, self.close)

    def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        seen: Look | None,
        writers: int | None = None,
    ) -> Steps[RunnableConfig]:
        noted = get_checkpoint_metadata(config, metadata)
        return (yield from self._graphs.put(place_of(config), checkpoint, noted, seen, writers))  # type: ignore[return-value]

    def _looks(self, config: RunnableConfig) -> tuple[Look | None, Look | None]:
        """Return what the run has seen of a namespace, and what it has seen last: that is told of what is saved."""
        where = place_of(config)
        root = self._graphs.line(where.thread, where.ns).root
        return runs.seen(self._key, root), runs.current(self._key)

    def _now(self, steps: Steps[R]) -> R:
        return drive(steps, self._agent.clock)

    async def _soon(self, steps: Steps[R], *, hold: float = 0) -> R:
        return await _drive_async(self._pool, steps, self._agent.clock, hold=hold)


class TenutoStore(BaseStore):
    """LangGraph's long-term memory. A put is durable when it returns; an item past its time to live is absent.

    `agent` is a `Tenuto` or `AsyncTenuto`, or a URL or path. With `index` the texts of items are embedded and
    searched by meaning, exactly; without one they are searched by words. `ttl` is LangGraph's configuration.
    """

    supports_ttl = True

    def __init__(
        self,
        agent: Tenuto | AsyncTenuto | str | None = None,
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        allow: Iterable[type[Any]] = (),
    ) -> None:
        types.allow(allow)
        self.ttl_config = ttl
        self._agent, self._pool, self._own = opened(agent)
        self._items = Items(self._agent._context, index)
        self.index_config = index
        self.embeddings = self._items.embeddings

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Answer several operations: the reads before the puts, and those in one commit."""
        wanted = _checked(ops)
        items, queries = self._items.texts(wanted)
        made, asked = Vectors(), Vectors()
        if self._items.embeddings is not None and (items or queries):
            made = dict(zip(items, self._items.embeddings.embed_documents(items) if items else [], strict=True))
            asked = {query: self._items.embeddings.embed_query(query) for query in queries}
        return drive(self._items.batch(wanted, made, asked), self._agent.clock)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Answer what `batch` does."""
        wanted = _checked(ops)
        items, queries = self._items.texts(wanted)
        made, asked = Vectors(), Vectors()
        if self._items.embeddings is not None and (items or queries):
            vectors = await self._items.embeddings.aembed_documents(items) if items else []
            made = dict(zip(items, vectors, strict=True))
            asked = {query: await self._items.embeddings.aembed_query(query) for query in queries}
        return await _drive_async(self._pool, self._items.batch(wanted, made, asked), self._agent.clock)

    def close(self) -> None:
        """Let go of what this object opened: the store, if it was given where that is, and its threads."""
        _let_go(self._agent, self._pool, self._own)

    def __enter__(self) -> Self:
        """Open the store."""
        self._agent.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Close it, if this object opened it."""
        self.close()

    async def __aenter__(self) -> Self:
        """Open the store."""
        await _settle(self._pool, self._agent.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close it, if this object opened it."""
        await _settle(self._pool, self.close)


class _Faces(NamedTuple):
    """A client in both its faces."""

    sync: Tenuto
    awaited: AsyncTenuto


def _faces(saver: Any) -> _Faces | None:
    return saver._faces if isinstance(saver, TenutoSaver) else None


def durable_tool(
    fn: Callable[P, R],
    *,
    effect: Effect = "idempotent",
    verify: Callable[[Any], Any] | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    name: str | None = None,
) -> Callable[P, R]:
    """Return a tool like `fn` whose call, once it happened, is not made again when a graph runs its node again.

    Its intent is on record before it is called and its result before it returns, in the store of the graph's
    `TenutoSaver`. `effect`, `verify`, `retry` and `timeout` are those of `run.step`. Called inside a run, it is a step of
    that one.
    """
    steps = {"effect": effect, "verify": verify, "retry": retry, "timeout": timeout}
    return durable(fn, steps, _faces, name)


def _checked(ops: Iterable[Op]) -> list[Op]:
    wanted = list(ops)
    for op in wanted:
        validate_op_namespace(op)
    return wanted


class _HandedOver:
    """A checkpoint on its way: the run that handed it over is told when it is durable, or why it is not."""

    def __init__(self, run: Look | None) -> None:
        self._run = run

    def __enter__(self) -> None:
        """Tell that it was handed over."""
        if self._run is not None:
            self._run.begin()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tell how it ended."""
        if self._run is not None:
            self._run.end(error)


def _as_asked(found: CheckpointTuple | None, config: RunnableConfig) -> CheckpointTuple | None:
    """Return a checkpoint with the config that asked for it, if that named it."""
    asked = config["configurable"].get("checkpoint_id")
    return found if found is None or not asked else found._replace(config=config)
