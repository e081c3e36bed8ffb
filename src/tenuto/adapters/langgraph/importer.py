"""Import every thread, checkpoint and write from LangGraph's own savers.

The source, the file of a `SqliteSaver` or the database of a `PostgresSaver`, is read by SQL and never written. Only
registered types are decoded: LangChain's, LangGraph's, and those that were allowed. Any other type is `UnknownType`
with the way to allow it, and that checkpoint is not stored.

Checkpoints keep their ids, so an interrupted import resumes when it is repeated. At the end each checkpoint is read
from the new store and compared with the source.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot
from langgraph.types import Send

from tenuto.adapters.langgraph import stored_types as types
from tenuto.adapters.langgraph.checkpoints import GraphCheckpoints, Place
from tenuto.adapters.langgraph.writes import TaskWrites, ordered
from tenuto.errors import Damaged, MissingDriver, NotFound, TenutoError, UnknownType
from tenuto.kernel import codec
from tenuto.kernel.work import Work


class Brought(NamedTuple):
    """The result of importing one thread."""

    thread: str
    checkpoints: int
    """Number of checkpoints in the source; all of them are in the store and equal."""
    writes: int
    new: int
    """Number of checkpoints that this import added."""


class Row(NamedTuple):
    """A checkpoint in the source."""

    id: str
    parent: str | None
    checkpoint: dict[str, Any]
    metadata: dict[str, Any]


class Source(Protocol):
    """A database of one of LangGraph's savers."""

    def threads(self) -> list[str]:
        """Return all threads."""
        ...

    def namespaces(self, thread: str) -> list[str]:
        """Return the namespaces of a thread."""
        ...

    def rows(self, thread: str, ns: str) -> Iterator[Row]:
        """Yield the checkpoints of a namespace, oldest first."""
        ...

    def writes(self, thread: str, ns: str) -> Iterator[tuple[str, TaskWrites]]:
        """Yield the writes of the tasks of each checkpoint."""
        ...


def bring(graphs: GraphCheckpoints, source: Source, thread: str) -> Work[Brought]:
    """Import the missing checkpoints and writes of one thread; verify that the thread equals the source."""
    checkpoints = writes = new = 0
    for ns in source.namespaces(thread):
        line = graphs.line(thread, ns)
        there = {placed.item.name for placed in line.graphs()}
        of: dict[str, list[TaskWrites]] = {}
        for checkpoint, task in source.writes(thread, ns):
            of.setdefault(checkpoint, []).append(task)
        for row in source.rows(thread, ns):
            checkpoints += 1
            if row.id not in there:
                new += 1
                where = Place(thread, ns, row.parent)
                yield from graphs.put(where, _whole(row, of), row.metadata, None)
        for checkpoint, tasks in of.items():
            for task in tasks:
                writes += len(task.writes)
                yield from graphs.writes.put(thread, ns, checkpoint, task)
        _prove(graphs, source, thread, ns, of)
    return Brought(thread, checkpoints, writes, new)


def _prove(graphs: GraphCheckpoints, source: Source, thread: str, ns: str, of: Mapping[str, list[TaskWrites]]) -> None:
    """Raise `Damaged` unless every checkpoint of a namespace equals the source."""
    line = graphs.line(thread, ns)
    for row in source.rows(thread, ns):
        found, _ = graphs.get(Place(thread, ns, row.id), waits=False)
        wanted = _whole(row, of)
        same = (
            found is not None
            and found.checkpoint == wanted
            and found.metadata == row.metadata
            and (found.parent_config or {}).get("configurable", {}).get("checkpoint_id") == row.parent
            and found.pending_writes == ordered(of.get(row.id, []))
        )
        if not same:
            raise Damaged(
                f"The imported checkpoint {row.id} of the thread {line.scope!r} differs from the source, which was not "
                "changed. If another process writes to the source, stop it and import again."
            )


def _whole(row: Row, of: Mapping[str, list[TaskWrites]]) -> dict[str, Any]:
    """Return a checkpoint in today's format: before version 4, its tasks were in its parent's writes."""
    checkpoint = {**row.checkpoint, "id": row.id}
    if checkpoint.get("v", 1) >= 4 or row.parent is None:
        return checkpoint
    sends = [value for _, channel, value in ordered(of.get(row.parent, [])) if channel == TASKS]
    if not sends:
        return checkpoint
    versions = checkpoint["channel_versions"]
    newest = max(versions.values()) if versions else 1
    return {
        **checkpoint,
        "channel_values": {**checkpoint["channel_values"], TASKS: sends},
        "channel_versions": {**versions, TASKS: newest},
    }


# -- the sources -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def opened(source: str) -> Iterator[Source]:
    """Open a source for reading: a file, or a Postgres URL."""
    if source.startswith(("postgres://", "postgresql://")):
        try:
            import psycopg  # noqa: PLC0415 - optional
        except ImportError as error:
            raise MissingDriver('psycopg is not installed. Run: pip install "tenuto[postgres]".') from error
        with psycopg.connect(source, autocommit=True) as postgres:
            yield _Postgres(lambda sql, given: postgres.execute(sql.replace("?", "%s"), given))
        return
    import apsw  # noqa: PLC0415 - only for a file

    if not Path(source).exists():
        raise NotFound(f"There is no file {source!r}. Nothing was imported.")
    sqlite = apsw.Connection(source, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        yield _Sqlite(sqlite.execute)
    finally:
        sqlite.close()


Execute = Callable[[str, Sequence[Any]], Any]


class _Sqlite:
    """The file of a `SqliteSaver`: a checkpoint contains its values."""

    TABLE: Final = "writes"
    VALUE: Final = "value"

    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    def threads(self) -> list[str]:
        """Return all threads."""
        return self._column("SELECT DISTINCT thread_id FROM checkpoints ORDER BY 1")

    def namespaces(self, thread: str) -> list[str]:
        """Return the namespaces of a thread."""
        return self._column("SELECT DISTINCT checkpoint_ns FROM checkpoints WHERE thread_id = ? ORDER BY 1", thread)

    def _column(self, sql: str, *given: Any) -> list[str]:
        return [str(row[0]) for row in self._execute(sql, given).fetchall()]

    def rows(self, thread: str, ns: str) -> Iterator[Row]:
        """Yield the checkpoints of a namespace, oldest first."""
        for one in self._ids(thread, ns):
            parent, kind, checkpoint, metadata = self._execute(
                "SELECT parent_checkpoint_id, type, checkpoint, metadata FROM checkpoints "
                "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
                (thread, ns, one),
            ).fetchall()[0]
            yield Row(one, parent or None, loads(kind, checkpoint), json.loads(metadata) if metadata else {})

    def _ids(self, thread: str, ns: str) -> list[str]:
        return self._column(
            "SELECT checkpoint_id FROM checkpoints WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY 1", thread, ns
        )

    def writes(self, thread: str, ns: str) -> Iterator[tuple[str, TaskWrites]]:
        """Yield the writes of the tasks of each checkpoint."""
        of: dict[tuple[str, str], TaskWrites] = {}
        rows = self._execute(
            f"SELECT checkpoint_id, task_id, {self._path()}, idx, channel, type, {self.VALUE} FROM {self.TABLE} "  # noqa: S608 - names of ours
            "WHERE thread_id = ? AND checkpoint_ns = ? ORDER BY 1, 2, 4",
            (thread, ns),
        )
        for checkpoint, task, path, idx, channel, kind, value in rows.fetchall():
            made = of.setdefault((checkpoint, str(task)), TaskWrites(str(task), path or "", []))
            made.writes.append((idx, channel, loads(kind, value)))
        for (checkpoint, _), task in of.items():
            yield checkpoint, task

    def _path(self) -> str:
        """Return the column of a task's path; older files have none."""
        columns = [row[1] for row in self._execute("PRAGMA table_info(writes)", ()).fetchall()]
        return "task_path" if "task_path" in columns else "''"


class _Postgres(_Sqlite):
    """The database of a `PostgresSaver`: a checkpoint is JSON; larger values are blobs by channel and version."""

    TABLE: Final = "checkpoint_writes"  # type: ignore[misc]
    VALUE: Final = "blob"  # type: ignore[misc]

    def rows(self, thread: str, ns: str) -> Iterator[Row]:
        """Yield the checkpoints of a namespace, oldest first."""
        for one in self._ids(thread, ns):
            parent, checkpoint, metadata = self._execute(
                "SELECT parent_checkpoint_id, checkpoint, metadata FROM checkpoints "
                "WHERE thread_id = ? AND checkpoint_ns = ? AND checkpoint_id = ?",
                (thread, ns, one),
            ).fetchall()[0]
            blobs = self._execute(
                "SELECT b.channel, b.type, b.blob FROM checkpoints c, jsonb_each_text(c.checkpoint -> 'channel_versions') v, "
                "checkpoint_blobs b WHERE c.thread_id = ? AND c.checkpoint_ns = ? AND c.checkpoint_id = ? "
                "AND b.thread_id = c.thread_id AND b.checkpoint_ns = c.checkpoint_ns "
                "AND b.channel = v.key AND b.version = v.value",
                (thread, ns, one),
            ).fetchall()
            values = dict(checkpoint.get("channel_values") or {})
            values.update({name: loads(kind, blob) for name, kind, blob in blobs if kind != "empty"})
            yield Row(one, parent or None, {**checkpoint, "channel_values": values}, metadata or {})

    def _path(self) -> str:
        return "task_path"


# -- LangGraph's serialized values -------------------------------------------------------------------------------


def loads(kind: str | None, data: bytes | None) -> Any:
    """Decode a value that LangGraph serialized; only registered types are imported or called."""
    if kind == "null" or data is None:
        return None
    if kind == "bytes":
        return bytes(data)
    if kind == "bytearray":
        return bytearray(data)
    if kind != "msgpack":
        raise UnknownType(
            f"A value is serialized as {kind!r}; only msgpack, LangGraph's format since 2024, can be imported. "
            "Let LangGraph write it again (graph.update_state), or select other threads with --thread."
        )
    return _Loader().unpack(bytes(data))


class _Loader:
    """Decodes one value. ormsgpack hides the errors of its hook, so they are recorded here."""

    def __init__(self) -> None:
        self._error: TenutoError | None = None

    def unpack(self, data: bytes) -> Any:
        """Return the decoded value."""
        try:
            return ormsgpack.unpackb(data, ext_hook=self._hook, option=ormsgpack.OPT_NON_STR_KEYS)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._error or Damaged(f"A value of the source is damaged ({error}).") from error

    def _hook(self, code: int, data: bytes) -> Any:
        try:
            return self._lifted(code, self.unpack(data))
        except TenutoError as error:
            self._error = error
            raise ValueError(str(error)) from error

    def _lifted(self, code: int, given: Any) -> Any:
        if code == _DELTA:
            return _DeltaSnapshot(given)
        if code not in (_SINGLE, _POSITIONAL, _NAMED, _METHOD, _PYDANTIC_1, _PYDANTIC_2) or len(given) < 3:
            raise UnknownType(f"A value has LangGraph's extension type {code}, which cannot be imported.")
        module, name, argument = given[:3]
        cls = _known().get((module, name))
        if cls is None or (code == _METHOD and (cls is not datetime or given[3] != "fromisoformat")):
            raise UnknownType(
                f"A value has the type {module}.{name}, which is not allowed; its checkpoint was not imported. "
                f"If the type is yours: tenuto import langgraph --allow {module}:{name}."
            )
        try:
            if code == _METHOD:
                return datetime.fromisoformat(argument)
            if cls is Send:
                return Send(*argument[:2], timeout=argument[2] if len(argument) > 2 else None)
            if code == _SINGLE:
                return cls(argument)
            return cls(*argument) if code == _POSITIONAL else cls(**argument)
        except Exception as error:
            raise UnknownType(f"A {module}.{name} of the source cannot be constructed: {error}.") from error


_SINGLE, _POSITIONAL, _NAMED, _METHOD, _PYDANTIC_1, _PYDANTIC_2, _, _DELTA = range(8)


def _known() -> dict[tuple[str, str], Any]:
    """Return the types that a value may name: some of Python's, and the registered ones."""
    plain = (datetime, date, time, timedelta, timezone, Decimal, UUID, ZoneInfo, set, frozenset)
    found: dict[tuple[str, str], Any] = {(cls.__module__, cls.__name__): cls for cls in plain}
    found.update({(cls.__module__, cls.__name__): cls for cls in codec.registered()})
    path = type(Path())
    found.update({("pathlib", name): path for name in ("Path", "PosixPath", "WindowsPath")})
    found["re", "compile"] = types.compiled
    return found
