"""Enqueueing: the checks and writes that add a task to its queue, as one commit or as a part of another."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, stamp
from tenuto.capabilities._core.notices import Notices
from tenuto.capabilities.runs import Retry
from tenuto.capabilities.tasks import records
from tenuto.capabilities.tasks.records import Rules, TaskInfo, TaskRecord
from tenuto.errors import Conflict, InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Check, Record, Write
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.durations import ttl as ttl_seconds

KEPT: Final = 7 * 86_400.0
"""Seconds for which an ended task without a key is kept. One with a key is kept for ever: the key prevents a repeat."""


class Enqueue(NamedTuple):
    """A task to enqueue: its checks and writes, for one commit."""

    info: TaskInfo
    checks: Sequence[AnyCheck]
    writes: Sequence[Write]
    notify: Callable[[Enqueue], None]

    def entered(self) -> None:
        """Wake this client's idle workers; call it after the commit."""
        self.notify(self)


class Enqueuer:
    """Prepares enqueues for one client: orders its tasks, and notifies idle workers."""

    def __init__(self, context: Context, notify: Callable[[Enqueue], None]) -> None:
        self._context = context
        self._kernel = context.kernel
        self._notify = notify
        self._lock = threading.Lock()
        self._last = 0
        self._sent: dict[str, Notices] = {}

    def prepare(  # noqa: PLR0913 - the words of `enqueue`
        self,
        queue: str,
        payload: Any = None,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        user: str | None = None,
        retry: Retry | None = None,
        keep: Duration | None = None,
    ) -> Enqueue:
        """Return what enqueues a task as part of a commit; without writes if its key exists already."""
        keys.name(queue, "queue")
        if type(priority) is not int or not -(1 << 31) <= priority < 1 << 31:
            raise InvalidInput(f"priority must be a 32-bit int (higher is sooner), not {priority!r}.")
        now = self._kernel.now()
        due = now if delay is None else now + seconds(delay, "delay")
        task_id = keys.name(key, "key") if key is not None else f"{int(now * 1000):013d}-{secrets.token_hex(6)}"
        if key is not None:
            there = self._kernel.read([records.task_key(key), records.held_key(queue, key)])
            if there[0] is not None:
                return Enqueue(self._known(key, queue, there[0], there[1]), (), (), self._notify)
        life = ttl_seconds(keep) if keep is not None else None if key is not None else KEPT
        writer, correlation = stamp(self._context)
        task = TaskRecord(
            queue,
            payload,
            priority,
            None if user is None else keys.name(user, "user"),
            rules_of(retry, life),
            now,
            writer,
            correlation,
            due,
            order=self._order(due),
        )
        writes: list[Write] = [records.stored(task_id, task), records.placed(task_id, task, now)]
        writes += self._notices(queue).writes()
        # A generated id is unique: checking it would be a third of the commit's time on SQLite.
        checks = [] if key is None else [Check(records.task_key(task_id), 0)]
        return Enqueue(records.viewed(task_id, task, now), checks, writes, self._notify)

    def _order(self, due: float) -> int:
        """Return an order number for a due time, after all that this client has assigned."""
        order = int(due * 1e6)
        if due <= self._kernel.now():
            with self._lock:
                self._last = order = max(order, self._last + 1)
        return order

    def _known(self, task_id: str, queue: str, record: Record, hold: Record | None) -> TaskInfo:
        task = records.task_of(record)
        if task.queue not in (None, queue):
            raise Conflict(
                f"The task {task_id!r} is already in the queue {task.queue!r}, not {queue!r}. Use another key.",
                [record.key],
            )
        return records.info(task_id, record, None if hold is None else records.hold_of(hold))

    def _notices(self, queue: str) -> Notices:
        found = self._sent.get(queue)
        if found is None:
            found = self._sent[queue] = Notices(self._kernel, records.bell_stream(queue))
        return found


def paired(payloads: Iterable[Any], names: Iterable[str] | None) -> list[tuple[Any, str | None]]:
    """Return each payload with its key, or with None if there are no keys."""
    if isinstance(payloads, str | bytes | Mapping) or not isinstance(payloads, Iterable):
        raise InvalidInput(
            f"payloads must be a list with the payload of each task, not {type(payloads).__name__}. Nothing was enqueued."
        )
    given = list(payloads)
    named = [None] * len(given) if names is None else list(names)
    if len(named) != len(given):
        raise InvalidInput(f"{len(given)} tasks need as many keys, not {len(named)}. Nothing was enqueued.")
    return list(zip(given, named, strict=True))


def together(entering: list[Enqueue]) -> tuple[list[AnyCheck], list[Write], list[Enqueue]]:
    """Return several enqueues as one commit: a key twice is one task, and workers are notified once."""
    firsts: dict[str, Enqueue] = {}
    for one in entering:
        firsts.setdefault(one.info.id, one)
    writes: dict[bytes, Write] = {}
    for one in firsts.values():
        for write in one.writes:
            writes.setdefault(write[0], write)
    checks = [check for one in firsts.values() for check in one.checks]
    return checks, list(writes.values()), [firsts[one.info.id] for one in entering]


def rules_of(retry: Retry | None, keep: float | None) -> Rules:
    """Return the stored retry policy, with how long an ended task is kept."""
    if retry is None:
        return Rules(keep=keep)
    if not isinstance(retry, Retry):
        raise InvalidInput("retry is a tenuto.Retry.")
    if retry.on != (Exception,):
        raise InvalidInput("A task is retried after any error. Leave out on=, and use task.fail(retry=False) instead.")
    return Rules(retry.attempts, seconds(retry.first), retry.factor, seconds(retry.most), keep)
