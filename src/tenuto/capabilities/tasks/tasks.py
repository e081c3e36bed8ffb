"""Tasks: work that is put into a queue and executed by a worker, once each unless the worker dies meanwhile.

    agent.tasks.enqueue("reviews", {"file": 31}, key="pr-9/31")

    agent.tasks.work("reviews", lambda task: review(task.payload["file"]), concurrency=4)

`records` describes the records and the commits that move them; `queue` chooses the next task; `claimed` is a claimed
task; `worker` executes tasks; `recurring` enqueues those that recur.

A task is delivered at least once. One whose worker was lost is delivered again, with `task.redelivered` set. Put what
must not happen twice into `agent.once(task.id, …)` with a `verify`.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from tenuto.capabilities._core import schedules
from tenuto.capabilities._core.base import Context, Stop, page_after, raise_if_blocked, stamp
from tenuto.capabilities._core.gates import gate_check
from tenuto.capabilities._core.renewal import Renewer
from tenuto.capabilities._core.schedules import Missed, ScheduleInfo
from tenuto.capabilities._core.worker import Chores, Worker, work
from tenuto.capabilities.runs import Retry, to_stored
from tenuto.capabilities.tasks import records, recurring
from tenuto.capabilities.tasks.claimed import Task
from tenuto.capabilities.tasks.enqueue import KEPT, Enqueue, Enqueuer, paired, rules_of, together
from tenuto.capabilities.tasks.queue import TaskQueue
from tenuto.capabilities.tasks.records import OVER, Rules, TaskInfo, TaskRecord
from tenuto.capabilities.tasks.worker import TaskSource
from tenuto.errors import Conflict, InvalidInput, NotFound, TaskFailed, TimedOut
from tenuto.kernel import keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import AnyCheck, Check, Delete, Record, Write
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.durations import ttl as ttl_seconds
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work, on_store

_SOME: Final = 300
_PAGE: Final = 500
Handler = Callable[[Any], Any]


class Tasks:
    """The queues of a tenant. Every method is atomic, durable when it returns, and thread-safe."""

    def __init__(self, context: Context, renewer: Renewer) -> None:
        self._context = context
        self._kernel = context.kernel
        self._renewer = renewer
        self._queues: dict[str, TaskQueue] = {}
        self._workers: dict[str, list[Worker]] = {}
        self._chores: Chores | None = None
        """What a worker also does: the timers and deliveries of people; set by the client."""
        self._lock = threading.Lock()
        self._enqueuer = Enqueuer(context, self._entered)

    @property
    def _clock(self) -> Clock:
        return self._context.clock

    # -- enqueueing ------------------------------------------------------------------------------------------------

    @on_store
    def enqueue(  # noqa: PLR0913 - the words of the API
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
        gate: str | None = None,
    ) -> Work[TaskInfo]:
        """Enqueue a task durably and return it. `key` is an idempotency key, and becomes its id.

        It can be claimed after `delay`. The highest `priority` comes first; within it, users take turns. A failed task
        is retried by `retry` (5 attempts, after 1, 2, 4, … s). A finished one stays for `keep`: by default 7 days, with
        a key for ever. Raise `Blocked` if an open question blocks the resource `gate`.
        """
        guard = [] if gate is None else [gate_check(gate)]
        delays = backoff()
        while True:
            entering = self._enqueuer.prepare(
                queue, payload, key=key, delay=delay, priority=priority, user=user, retry=retry, keep=keep
            )
            if not entering.writes:
                return entering.info
            try:
                yield from commit_once(self._kernel, [*entering.checks, *guard], entering.writes)
            except Conflict:
                if gate is not None:
                    raise_if_blocked(self._kernel, gate)
                yield Sleep(next(delays))  # another client enqueued it just now
            else:
                self._entered(entering)
                return entering.info

    @on_store
    def enqueue_many(  # noqa: PLR0913 - the words of the API
        self,
        queue: str,
        payloads: Iterable[Any],
        *,
        keys: Iterable[str] | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        user: str | None = None,
        retry: Retry | None = None,
        keep: Duration | None = None,
    ) -> Work[list[TaskInfo]]:
        """Enqueue tasks durably, some hundreds per commit, and return them in order; see `enqueue`.

        A crash may leave the first ones enqueued. With `keys`, one per task, repeating the call adds only the rest.
        """
        given = paired(payloads, keys)
        found: list[TaskInfo] = []
        for start in range(0, len(given), _SOME):
            part = given[start : start + _SOME]
            delays = backoff()
            while True:
                entering = together(
                    [
                        self._enqueuer.prepare(
                            queue, payload, key=key, delay=delay, priority=priority, user=user, retry=retry, keep=keep
                        )
                        for payload, key in part
                    ]
                )
                try:
                    if entering[1]:
                        yield from commit_once(self._kernel, entering[0], entering[1])
                except Conflict:
                    yield Sleep(next(delays))
                else:
                    for one in entering[2]:
                        self._entered(one)
                    found += [one.info for one in entering[2]]
                    break
        return found

    def _entered(self, entering: Enqueue) -> None:
        """Wake this client's idle workers."""
        if entering.writes and entering.info.queue is not None:
            queue = entering.info.queue
            self._queue(queue).sooner(entering.info.due.timestamp())
            for worker in self._workers.get(queue, ()):
                worker.wake()

    # -- taking ----------------------------------------------------------------------------------------------------

    @on_store
    def claim(self, queue: str, *, lease: Duration = 30, wait: Duration | None = None) -> Work[Task | None]:
        """Claim the next task of a queue durably for `lease`; return None if none comes within `wait`.

        Complete, fail or extend it before the lease ends; after that, others can claim it.
        """
        length = _lease(lease)
        left = 0.0 if wait is None else seconds(wait, "wait")
        delays = backoff(first=0.005, most=0.1)
        while True:
            task = yield from self._queue(queue).take(length)
            if task is not None or left <= 0:
                return task
            pause = min(next(delays), left)
            left -= pause
            yield Sleep(pause)

    def work(  # noqa: PLR0913 - the words of the API
        self,
        queue: str,
        handler: Handler,
        *,
        concurrency: int = 4,
        lease: Duration = 30,
        timeout: Duration | None = None,
        poll: Duration = 0.05,
        grace: Duration = 30,
        until_empty: bool = False,
        stop: Stop | None = None,
        on_signal: bool = False,
    ) -> int:
        """Work: execute the tasks of a queue with `handler(task)`, up to `concurrency` at a time; return how many.

        The handler's return value is the task's result; an error retries the task, or makes it dead after its last
        attempt. Leases are extended in the background. To stop, set `stop`, or with `on_signal` send SIGTERM or SIGINT:
        running tasks finish, and after `grace` are left to other workers. With `until_empty` it returns when no task of
        the queue waits or runs.
        """
        source, worker = self._worker(
            queue, handler, lease=lease, timeout=timeout, poll=poll, until_empty=until_empty, stop=stop
        )
        try:
            work(worker, self._clock, concurrency=concurrency, grace=seconds(grace, "grace"), on_signal=on_signal)
        finally:
            self._remove(queue, source, worker)
        return source.done

    def _worker(  # noqa: PLR0913 - the words of `work`
        self,
        queue: str,
        handler: Handler,
        *,
        lease: Duration,
        timeout: Duration | None,
        poll: Duration,
        until_empty: bool,
        stop: Stop | None,
        face: Callable[[Task], Any] | None = None,
    ) -> tuple[TaskSource, Worker]:
        """Register and return a worker, whose leases are extended until `_remove`."""
        if not callable(handler):
            raise InvalidInput(f"handler must be a function of a task, not {type(handler).__name__}.")
        source = TaskSource(
            self._context,
            self._queue(queue),
            handler,
            lease=_lease(lease),
            timeout=None if timeout is None else seconds(timeout, "timeout"),
            face=face,
        )
        worker = Worker(
            self._kernel, source, poll=seconds(poll, "poll"), until_empty=until_empty, stop=stop, chores=self._chores
        )
        self._workers.setdefault(queue, []).append(worker)
        self._renewer.add(source)
        return source, worker

    def _remove(self, queue: str, source: TaskSource, worker: Worker) -> None:
        """Unregister a worker."""
        self._renewer.remove(source)
        self._workers[queue].remove(worker)

    def _queue(self, queue: str) -> TaskQueue:
        task_queue = self._queues.get(queue)
        if task_queue is None:
            name = keys.name(queue, "queue")
            task_queue = self._queues.setdefault(name, TaskQueue(self._context, name))
        return task_queue

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, task: str | TaskInfo) -> TaskInfo:
        """Return a task by its id or key; `NotFound` if there is none."""
        task_id = _id(task)
        record = self._record(task_id)
        queue = records.task_of(record).queue
        hold = None
        if queue is not None:
            both = self._kernel.read([record.key, records.held_key(queue, task_id)])
            record, hold = both[0] or record, both[1]
        return records.info(task_id, record, None if hold is None else records.hold_of(hold))

    def pending(self, queue: str, *, limit: int = 1_000, after: str | None = None) -> list[TaskInfo]:
        """Return up to `limit` waiting tasks of a queue, in order: first those that can be claimed now.

        They start after the task with the id `after`; `NotFound` if it is not in the list.
        """
        return self._listed([records.ready_prefix(queue), records.later_prefix(queue)], limit, after)

    def running(self, queue: str, *, limit: int = 1_000, after: str | None = None) -> list[TaskInfo]:
        """Return up to `limit` claimed tasks of a queue, by id; see `pending`."""
        return self._listed([records.held_prefix(queue)], limit, after, held=True)

    def dead(self, queue: str, *, limit: int = 1_000, after: str | None = None) -> list[TaskInfo]:
        """Return up to `limit` dead tasks of a queue, oldest first; see `pending`."""
        return self._listed([records.dead_prefix(queue)], limit, after)

    def queues(self) -> Sequence[str]:
        """Return the names of the queues that have tasks, in order. It reads all tasks of the tenant."""
        found = {records.task_of(one).queue for page in self._pages(records.EVERY) for one in page}
        return sorted(name for name in found if name is not None)

    def counts(self, queue: str) -> dict[str, int]:
        """Return the numbers of ready, later, running and dead tasks of a queue."""
        prefixes = records.ready_prefix, records.later_prefix, records.held_prefix, records.dead_prefix
        numbers = (sum(map(len, self._pages(prefix(queue)))) for prefix in prefixes)
        return dict(zip(("ready", "later", "running", "dead"), numbers, strict=True))

    def is_completed(self, task: str | TaskInfo) -> bool:
        """Return whether a task, by its id or key, is completed."""
        record = self._kernel.read([records.task_key(_id(task))])[0]
        return record is not None and records.task_of(record).status == "completed"

    @on_store
    def result(self, task: str | TaskInfo, *, wait: Duration | None = None) -> Work[Any]:
        """Return the result of a task by its id or key, waiting up to `wait`.

        Raise `NotFound` if there is none, `TimedOut` if it has not ended, `TaskFailed` if it is dead or cancelled.
        """
        task_id = _id(task)
        left = 0.0 if wait is None else seconds(wait, "wait")
        delays = backoff(first=0.005, most=0.1)
        while True:
            found = records.task_of(self._record(task_id))
            if found.status == "completed":
                return found.result
            if found.status in OVER:
                error = found.error or {"type": "Cancelled", "message": "it was cancelled"}
                raise TaskFailed(
                    f"The task {task_id!r} is {found.status} ({error['type']}: {error['message']:.500}). "
                    f"To run it again, call tasks.retry({task_id!r}).",
                    error["type"],
                    error["message"],
                )
            if left <= 0:
                raise TimedOut(f"The task {task_id!r} has not ended yet. Wait for it with wait=.")
            pause = min(next(delays), left)
            left -= pause
            yield Sleep(pause)

    def _record(self, task_id: str) -> Record:
        record = self._kernel.read([records.task_key(task_id)])[0]
        if record is None:
            raise NotFound(f"There is no task {task_id!r}; it may have ended and expired. Check the id.")
        return record

    def _listed(
        self, prefixes: Sequence[bytes], limit: int, after: str | None, *, held: bool = False
    ) -> list[TaskInfo]:
        places = (place for prefix in prefixes for page in self._pages(prefix) for place in page)
        wanted = page_after(places, records.id_of, after, limit)
        found: list[TaskInfo] = []
        for first in range(0, len(wanted), _PAGE):
            page = wanted[first : first + _PAGE]
            stored = self._kernel.read([records.task_key(records.id_of(one)) for one in page])
            for place, record in zip(page, stored, strict=True):
                if record is not None:
                    hold = records.hold_of(place) if held else None
                    found.append(records.info(records.id_of(place), record, hold))
        return found

    def _pages(self, prefix: bytes) -> Iterator[list[Record]]:
        after: bytes | None = None
        while page := self._kernel.scan(prefix, after=after, limit=_PAGE):
            yield page
            if len(page) < _PAGE:
                return  # a second scan would be of another moment
            after = page[-1].key

    # -- changing what is there ------------------------------------------------------------------------------------

    @on_store
    def mark_completed(self, task: str | TaskInfo, result: Any = None, *, keep: Duration | None = None) -> Work[bool]:
        """Mark a task, or any name of your own, as completed, durably; return False if it already was.

        A waiting task is not executed any more; the holder of a claimed one gets `StaleLease`. The first result counts.
        The mark stays for ever, or for `keep`.
        """
        stored = to_stored(result)[0]
        task_id = _id(task)
        delays = backoff()
        while True:
            now = self._kernel.now()
            record = self._kernel.read([records.task_key(task_id)])[0]
            old = None if record is None else records.task_of(record)
            if old is not None and old.status == "completed":
                return False
            writer, correlation = stamp(self._context)
            rules = old.rules if old is not None else Rules()
            life = ttl_seconds(keep) if keep is not None else rules.keep if old is not None else None
            fresh = old or TaskRecord(None, None, 0, None, rules, now, writer, correlation, now)
            done = fresh._replace(
                status="completed", result=stored, finished=now, by=writer, rules=rules._replace(keep=life)
            )
            if (yield from self._changed(task_id, record, old, [records.stored(task_id, done)])):
                return True
            yield Sleep(next(delays))

    @on_store
    def cancel(self, task: str | TaskInfo) -> Work[bool]:
        """Cancel a task durably; return False if it had ended. The holder of a claimed one gets `StaleLease`."""
        task_id = _id(task)
        delays = backoff()
        while True:
            record = self._record(task_id)
            old = records.task_of(record)
            if old.status in OVER:
                return False
            gone = old._replace(status="cancelled", finished=self._kernel.now(), by=self._context.writer)
            if (yield from self._changed(task_id, record, old, [records.stored(task_id, gone)])):
                return True
            yield Sleep(next(delays))

    @on_store
    def retry(self, task: str | TaskInfo) -> Work[None]:
        """Enqueue a dead or cancelled task durably again, with all its attempts."""
        task_id = _id(task)
        delays = backoff()
        while True:
            record = self._record(task_id)
            old = records.task_of(record)
            if old.status not in ("dead", "cancelled") or old.queue is None:
                raise InvalidInput(
                    f"The task {task_id!r} is {old.status}; only a dead or cancelled task can be retried."
                )
            now = self._kernel.now()
            again = old._replace(status="waiting", due=now, order=0, failures=0, redeliveries=0, finished=None, by=None)
            writes: list[Write] = [records.stored(task_id, again), records.placed(task_id, again, now)]
            if (yield from self._changed(task_id, record, old, writes)):
                self._entered(Enqueue(records.viewed(task_id, again, now), (), writes, self._entered))
                return
            yield Sleep(next(delays))

    def _changed(
        self, task_id: str, record: Record | None, old: TaskRecord | None, writes: Sequence[Write]
    ) -> Work[bool]:
        """Remove a task from its place, with other writes in the same commit; return False if it has moved."""
        checks: list[AnyCheck] = [Check(records.task_key(task_id), record.version if record is not None else 0)]
        places = records.places(task_id, old) if old is not None else []
        gone: list[Write] = []
        if places:
            there = self._kernel.read(places)
            checks += [
                Check(key, one.version if one is not None else 0) for key, one in zip(places, there, strict=True)
            ]
            gone = [Delete(one.key) for one in there if one is not None]
            if not gone and old is not None and old.status == "waiting":
                return False  # between two places: it was just moved
        kept = {write[0] for write in writes}
        try:
            yield from commit_once(self._kernel, checks, [*(one for one in gone if one[0] not in kept), *writes])
        except Conflict:
            return False
        return True

    # -- recurring tasks -------------------------------------------------------------------------------------------

    @on_store
    def every(  # noqa: PLR0913 - the words of the API
        self,
        name: str,
        queue: str,
        payload: Any = None,
        *,
        cron: str | None = None,
        interval: Duration | None = None,
        timezone: str = "UTC",
        missed: Missed = "once",
        grace: Duration = 60,
        priority: int = 0,
        user: str | None = None,
        retry: Retry | None = None,
        keep: Duration | None = None,
    ) -> Work[ScheduleInfo]:
        """Schedule a recurring task durably, by a cron expression or an interval. Idempotent.

        The workers of the queue enqueue it, once per time. For times missed without a worker, `missed="once"` enqueues
        the last, "all" each, "skip" none that is more than `grace` late.
        """
        keys.name(queue, "queue")
        life = KEPT if keep is None else ttl_seconds(keep)
        fresh = schedules.new(
            self._context,
            payload,
            cron=cron,
            interval=interval,
            timezone=timezone,
            missed=missed,
            grace=grace,
            priority=priority,
            user=user,
            rules=[*rules_of(retry, life)],
        )
        stored = yield from schedules.put(self._context, records.schedule_prefix(queue), name, fresh)
        return schedules.info(queue, name, stored)

    def recurring(self, queue: str) -> list[ScheduleInfo]:
        """Return the recurring tasks of a queue, by name, with their next times."""
        return schedules.listed(self._context, records.schedule_prefix(queue), queue)

    @on_store
    def stop_recurring(self, name: str, queue: str) -> Work[bool]:
        """Delete a recurring task durably; return whether it existed. Tasks already enqueued stay."""
        return (yield from schedules.end(self._context, records.schedule_prefix(queue), name))

    @on_store
    def fire(self, queue: str) -> Work[int]:
        """Enqueue the recurring tasks of a queue that are due; return how many. Workers do this automatically."""
        return (yield from recurring.fire(self._context, keys.name(queue, "queue")))


def _id(task: str | TaskInfo) -> str:
    return task.id if isinstance(task, TaskInfo) else keys.name(task, "task id")


def _lease(lease: Duration) -> float:
    length = seconds(lease, "lease")
    if length < 0.1 or math.isinf(length):
        raise InvalidInput(f"The lease of a task must be at least 0.1 s, not {lease!r}.")
    return length
