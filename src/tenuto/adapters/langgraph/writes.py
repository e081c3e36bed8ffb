"""The pending writes of the tasks of a superstep.

Keys: `(thread, "langgraph", "writes", namespace, checkpoint, task)` holds the path of a task and its writes, each with
index, channel and value.

A record belongs to one task and is usually written once, in a commit that checks that it is absent. LangGraph passes
the writes of a task and, a moment later, the next checkpoint. So a record waits briefly to join that commit, and is
committed alone if none comes: either way it is durable when `put` returns. Later writes of the same task are merged by
LangGraph's rule: an existing index stays, unless all writes are of the kinds that replace (an interrupt, a resume, an
error).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple
from uuid import UUID

from langgraph.checkpoint.base import WRITES_IDX_MAP, PendingWrite

from tenuto.capabilities._core.base import Context
from tenuto.capabilities._core.blobs import Blobs, Content, changes, digest_of, lifted
from tenuto.capabilities.checkpoints import expanded, squeezed
from tenuto.errors import Conflict, Damaged
from tenuto.kernel import codec, keys
from tenuto.kernel.codec import Held
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Record, Write
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.tree import LARGE
from tenuto.kernel.work import Sleep, Work

PATIENCE: Final = 0.01
"""Seconds that a record waits for the commit of the next checkpoint; reducers run in between."""
_ARRIVAL: Final = 0.002
"""Seconds that a checkpoint waits for writes that LangGraph passed just before it, on other threads."""
_INLINE: Final = 256 * 1024
"""A larger record is stored as a blob."""
_PAGE: Final = 1_000
_AT_ONCE: Final = 200

Indexed = list[tuple[int, str, Any]]
"""Writes as (index, channel, value)."""


class TaskWrites(NamedTuple):
    """The writes of one task."""

    task: str
    path: str
    writes: Indexed


class Waiting:
    """A record that waits to join a commit."""

    __slots__ = ("_done", "_tell", "key", "line", "state", "value")

    def __init__(self, line: bytes, key: bytes, value: bytes) -> None:
        self.line = line
        self.key = key
        self.value = value
        self.state = "waiting"  # then "taken", then "kept" or "alone"
        self._done = threading.Event()
        self._tell: Callable[[], None] | None = None

    def settle(self, *, kept: bool) -> None:
        """Wake the waiting thread or task: the commit has stored the record, or has failed."""
        self.state = "kept" if kept else "alone"
        self._done.set()
        if self._tell is not None:
            self._tell()

    def tell(self, callback: Callable[[], None]) -> None:
        """Call `callback` when the record is settled, possibly twice; immediately if it already is."""
        self._tell = callback
        if self._done.is_set():
            callback()

    def wait(self, seconds: float | None) -> bool:
        """Wait in this thread until the record is settled, up to `seconds`; return whether it is."""
        return self._done.wait(seconds)


class Writes:
    """The writes of all tasks of a tenant."""

    def __init__(self, context: Context, blobs: Blobs) -> None:
        self._kernel = context.kernel
        self._blobs = blobs
        self._mutex = threading.Condition()
        self._waiting: dict[bytes, list[Waiting]] = {}
        self._early: dict[bytes, int] = {}
        """Number of records that joined a checkpoint which expected none: the next one need not wait for them."""

    # -- adding ------------------------------------------------------------------------------------------

    def put(self, thread: str, ns: str, checkpoint: str, task: TaskWrites) -> Work[None]:
        """Store the writes of a task durably, in a separate commit."""
        key = _of_checkpoint(thread, ns, checkpoint) + keys.pack(short(task.task))
        delays = backoff()
        while True:
            done = yield from self._alone(key, task, replace=_replaces(task))
            if done:
                return
            yield Sleep(next(delays))

    def offer(self, thread: str, ns: str, checkpoint: str, task: TaskWrites) -> Waiting | None:
        """Queue the writes of a task for the next checkpoint's commit; None if they replace others or are too large."""
        packed = b"" if _replaces(task) else _packed(task.path, task.writes)
        if not packed or len(packed) >= LARGE:
            return None
        line = _of_namespace(thread, ns)
        record = Waiting(line, line + keys.pack(short(checkpoint), short(task.task)), squeezed(packed))
        with self._mutex:
            self._waiting.setdefault(line, []).append(record)
            self._mutex.notify_all()
        return record

    def went(self, record: Waiting) -> bool:
        """Wait briefly in this thread for the next checkpoint's commit; return whether it stored the record."""
        if not record.wait(PATIENCE) and self.withdraw(record):
            return False
        record.wait(None)  # the commit has started
        return record.state == "kept"

    def withdraw(self, record: Waiting) -> bool:
        """Remove a record from the queue; return False if a commit has already taken it."""
        with self._mutex:
            if record.state != "waiting":
                return False
            others = self._waiting[record.line]
            others.remove(record)
            if not others:
                del self._waiting[record.line]
            return True

    def take(self, thread: str, ns: str, expected: int | None = None) -> list[Waiting]:
        """Remove and return the queued records of this namespace; the caller must settle them.

        If fewer than `expected` are queued, wait briefly: LangGraph passes writes and checkpoint one after the other
        to different threads, which may run in any order.
        """
        if not self._waiting and not expected:
            return []
        line = _of_namespace(thread, ns)
        with self._mutex:
            missing = (expected or 0) - self._early.pop(line, 0)
            if missing > 0:
                self._mutex.wait_for(lambda: len(self._waiting.get(line, ())) >= missing, _ARRIVAL)
            found = self._waiting.pop(line, [])
            if found and expected == 0:
                self._early[line] = len(found)
            return _taken(found)

    def _alone(self, key: bytes, task: TaskWrites, *, replace: bool) -> Work[bool]:
        """Commit a record, merged with the stored one of its task; return False on a conflict."""
        there = self._kernel.read([key])[0]
        path, writes, ended = task.path, task.writes, set[bytes]()
        if there is not None:
            before = _decoded(there, self._blobs.find)
            path, ended = before.path or path, _held(there.value)
            writes = _merged(before.writes, writes, replace=replace)
        packed, contents = _lightened(path, writes)
        yield from self._blobs.ensure(contents)
        try:
            checks, counted = self._blobs.counted(changes(contents, ended))
            check: list[AnyCheck] = [Check(key, there.version if there is not None else 0), *checks]
            yield from commit_once(self._kernel, check, [Put(key, squeezed(packed)), *counted])
        except Conflict:
            return False
        return True

    # -- reading -----------------------------------------------------------------------------------------

    def of(self, thread: str, ns: str, checkpoint: str) -> list[PendingWrite]:
        """Return the writes on a checkpoint, in the order in which a run applies them."""
        return ordered(self._tasks(_of_checkpoint(thread, ns, checkpoint)))

    def between(self, thread: str, ns: str, checkpoints: set[str]) -> dict[str, list[PendingWrite]]:
        """Return the writes on each of several checkpoints, with one scan."""
        found: dict[str, list[TaskWrites]] = {}
        edges = sorted(_of_checkpoint(thread, ns, one) for one in checkpoints)
        prefix, after = _of_namespace(thread, ns), edges[0]
        while page := self._kernel.scan(prefix, after=after, limit=_PAGE):
            for record in page:
                if record.key > edges[-1] and not record.key.startswith(edges[-1]):
                    page = []  # after the last checkpoint
                    break
                if (one := checkpoint_of(record)) in checkpoints:
                    found.setdefault(one, []).append(_decoded(record, self._blobs.find))
            if len(page) < _PAGE:
                break
            after = page[-1].key
        return {one: ordered(tasks) for one, tasks in found.items()}

    def records(self, thread: str, ns: str | None = None, checkpoint: str | None = None) -> Iterator[Record]:
        """Yield the records of a thread, of one of its namespaces, or of a checkpoint."""
        prefix = _of_thread(thread) if ns is None else _of_namespace(thread, ns)
        yield from self._scan(prefix if ns is None or checkpoint is None else _of_checkpoint(thread, ns, checkpoint))

    def _tasks(self, prefix: bytes) -> list[TaskWrites]:
        return [_decoded(record, self._blobs.find) for record in self._scan(prefix)]

    def _scan(self, prefix: bytes) -> Iterator[Record]:
        after: bytes | None = None
        while page := self._kernel.scan(prefix, after=after, limit=_PAGE):
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1].key

    # -- deleting ------------------------------------------------------------------------------------------

    def remove(self, records: Iterable[Record]) -> Work[None]:
        """Delete records and their blob references, in batches."""
        gone = list(records)
        for start in range(0, len(gone), _AT_ONCE):
            for record in gone[start : start + _AT_ONCE]:
                if held := _held(record.value):
                    yield from self._remove_one(record, held)
            some: list[Write] = [Delete(record.key) for record in gone[start : start + _AT_ONCE]]
            yield from commit_once(self._kernel, [], some)

    def _remove_one(self, record: Record, held: set[bytes]) -> Work[None]:
        delays = backoff()
        while True:
            checks, counted = self._blobs.counted(changes((), held))
            try:
                checked: list[AnyCheck] = [Check(record.key, record.version), *checks]
                yield from commit_once(self._kernel, checked, [Delete(record.key), *counted])
            except Conflict as error:
                if record.key in error.keys:
                    return  # another process deletes it
                yield Sleep(next(delays))
            else:
                return

    def copy(self, record: Record, thread: str) -> Work[None]:
        """Copy a record unchanged into another thread."""
        _, _, _, *rest = keys.unpack(record.key)
        key = _of_thread(thread) + keys.pack(*rest)
        held = _held(record.value)
        delays = backoff()
        while True:
            there = self._kernel.read([key])[0]
            checks, counted = self._blobs.counted(changes(held))
            try:
                checked: list[AnyCheck] = [Check(key, there.version if there is not None else 0), *checks]
                yield from commit_once(self._kernel, checked, [Put(key, record.value), *counted])
            except Conflict:
                yield Sleep(next(delays))
            else:
                return


def _taken(found: list[Waiting]) -> list[Waiting]:
    for record in found:
        record.state = "taken"
    return found


def _replaces(task: TaskWrites) -> bool:
    return all(channel in WRITES_IDX_MAP for _, channel, _ in task.writes)


def indexed(writes: Sequence[tuple[str, Any]]) -> Indexed:
    """Return writes with LangGraph's indices."""
    return [
        (WRITES_IDX_MAP.get(channel, at), channel, repr(value) if isinstance(value, BaseException) else value)
        for at, (channel, value) in enumerate(writes)
    ]


def ordered(tasks: Iterable[TaskWrites]) -> list[PendingWrite]:
    """Return the writes of several tasks in the order in which a run applies them."""
    found = [(task.path, task.task, idx, channel, value) for task in tasks for idx, channel, value in task.writes]
    found.sort(key=lambda one: one[:3])
    return [(task, channel, value) for _, task, _, channel, value in found]


def checkpoint_of(record: Record) -> str:
    """Return the checkpoint that a record belongs to."""
    return long(keys.unpack(record.key)[4])


def _merged(before: Indexed, now: Indexed, *, replace: bool) -> Indexed:
    found = {one[0]: one for one in before}
    found.update({one[0]: one for one in now if replace or one[0] not in found})
    return list(found.values())


def _packed(path: str, writes: Iterable[Any]) -> bytes:
    return codec.pack([path, [list(one) for one in writes]])


def _lightened(path: str, writes: Indexed) -> tuple[bytes, dict[bytes, Content]]:
    """Return a record with its large parts replaced by references, and these parts by digest."""
    packed = _packed(path, writes)
    if len(packed) < LARGE:
        return packed, {}
    light, contents = lifted([list(one) for one in writes])
    packed = _packed(path, light)
    if len(packed) < _INLINE:
        return packed, contents
    whole = codec.pack([list(one) for one in writes])  # a large message cannot be split
    digest = digest_of(whole)
    return codec.pack([path, codec.stand_in(Held(digest, len(whole), text=False))]), {digest: whole}


def _held(value: bytes) -> set[bytes]:
    """Return the digests of the blobs that a record refers to."""
    return codec.held_in(expanded(value))


def _decoded(record: Record, find: codec.Find | None) -> TaskWrites:
    try:
        path, writes = codec.unpack(expanded(record.value), find)
        if isinstance(writes, bytes):
            writes = codec.unpack(writes, find)
        task = long(keys.unpack(record.key)[-1])
        return TaskWrites(task, str(path), [(int(idx), str(channel), value) for idx, channel, value in writes])
    except (TypeError, ValueError) as error:
        raise Damaged(f"The stored writes of a task are damaged ({error}). Restore them from a backup.") from error


def short(name: str) -> keys.Part:
    """Return the key part of an id: a UUID as its 16 bytes, which sort like its text."""
    try:
        raw = bytes.fromhex(name.replace("-", "")) if len(name) == 36 else b""
    except ValueError:
        return name
    return raw if len(raw) == 16 and str(UUID(bytes=raw)) == name else name


def long(part: keys.Part) -> str:
    """Return the id of a key part."""
    return str(UUID(bytes=part)) if isinstance(part, bytes) else str(part)


def _of_thread(thread: str) -> bytes:
    return keys.named(thread, "thread id") + _WRITES


def _of_namespace(thread: str, ns: str) -> bytes:
    return _of_thread(thread) + keys.pack(ns)


def _of_checkpoint(thread: str, ns: str, checkpoint: str) -> bytes:
    return _of_namespace(thread, ns) + keys.pack(short(checkpoint))


_WRITES: Final = keys.pack("langgraph", "writes")
