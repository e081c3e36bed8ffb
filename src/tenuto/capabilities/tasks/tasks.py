"""Tasks: work that is put into a queue and done by whoever takes it, once each unless somebody dies over it.

    agent.tasks.enqueue("reviews", {"file": 31}, key="pr-9/31")

    agent.tasks.work("reviews", lambda task: review(task.payload["file"]), concurrency=4)

Which records there are and which commits move them is told in `taskbook`; which task is next, in `claiming`; what a task
in hand can do, in `task`; the loop of a worker, in `workers`; recurring ones, in `schedules`.

A task is delivered at least once. One whose worker was lost is delivered again, and says so (`task.redelivered`); what
must not happen twice is put into `agent.once(task.id, …)` with a `verify`.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from tenuto.capabilities import outcomes, schedules, taskbook
from tenuto.capabilities.claiming import Shelf
from tenuto.capabilities.context import Context, stamp
from tenuto.capabilities.keeper import Keeper
from tenuto.capabilities.schedules import Missed, ScheduleInfo
from tenuto.capabilities.stepping import Retry
from tenuto.capabilities.task import Task
from tenuto.capabilities.taskbook import OVER, Rules, TaskInfo, TaskRecord
from tenuto.capabilities.workers import Crew, Stop, work
from tenuto.errors import Conflict, InvalidInput, NotFound, TaskFailed, TimedOut
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import AnyCheck, Append, Check, Delete, Record, Write
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.durations import ttl as ttl_seconds
from tenuto.kernel.transact import Steps, backoff, paced, settle

_KEPT: Final = 7 * 86_400.0
"""A task without a key is kept for so long when it is over; one with a key for ever, since the key says that it was."""
_KNOWN: Final = 0.5
"""For so long it is believed whether somebody waits for work."""
_SOME: Final = 300
_PAGE: Final = 500
Handler = Callable[[Any], Any]


class Entering(NamedTuple):
    """A task that is about to be enqueued: what to check and to write, in one commit."""

    info: TaskInfo
    checks: Sequence[AnyCheck]
    writes: Sequence[Write]
    tasks: Tasks

    def entered(self) -> None:
        """Let those of this client who wait for work know that there is some; after the commit."""
        self.tasks.entered(self)


class Tasks:
    """The queues of a tenant. Everything here is atomic, durable when it returns, and safe to share."""

    def __init__(self, context: Context, keeper: Keeper) -> None:
        self._context = context
        self._kernel = context.kernel
        self._keeper = keeper
        self._shelves: dict[str, Shelf] = {}
        self._crews: dict[str, list[Crew]] = {}
        self._lock = threading.Lock()
        self._last = 0
        self._awaited: dict[str, tuple[float, bool]] = {}

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._context.clock

    # -- enqueueing ------------------------------------------------------------------------------------------------

    @paced
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
    ) -> Steps[TaskInfo]:
        """Put a task into a queue, durably, and return it. With `key`, which is then its id, it is put there once.

        It may be taken after `delay`; of those that may, the highest `priority` is first, and of one priority users have
        their turns. A task that fails is tried again as `retry` says (5 times, after 1, 2, 4, … s). When it is over it is
        kept for `keep`: by default 7 days, and with a key for ever.
        """
        for pause in backoff(None):
            entering = self.entering(
                queue, payload, key=key, delay=delay, priority=priority, user=user, retry=retry, keep=keep
            )
            if not entering.writes:
                return entering.info
            try:
                yield from settle(self._kernel, entering.checks, entering.writes)
            except Conflict:
                yield pause  # somebody else has enqueued it just now
            else:
                self.entered(entering)
                return entering.info
        raise AssertionError("the back-off never ends")

    @paced
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
    ) -> Steps[list[TaskInfo]]:
        """Put tasks into a queue, some hundreds a commit, and return them in order; see `enqueue`.

        If the process dies meanwhile the first ones are there. With `keys`, one for each, the same call goes on.
        """
        named: Iterable[str | None] = keys if keys is not None else iter(lambda: None, 0)
        given = list(zip(payloads, named, strict=keys is not None))
        found: list[TaskInfo] = []
        for start in range(0, len(given), _SOME):
            part = given[start : start + _SOME]
            for pause in backoff(None):
                entering = self._together(
                    [
                        self.entering(
                            queue, payload, key=key, delay=delay, priority=priority, user=user, retry=retry, keep=keep
                        )
                        for payload, key in part
                    ]
                )
                try:
                    if entering[1]:
                        yield from settle(self._kernel, entering[0], entering[1])
                except Conflict:
                    yield pause
                else:
                    for one in entering[2]:
                        self.entered(one)
                    found += [one.info for one in entering[2]]
                    break
        return found

    @staticmethod
    def _together(entering: list[Entering]) -> tuple[list[AnyCheck], list[Write], list[Entering]]:
        """Return several enqueues as one commit: a key twice is one task, and the bell is rung once."""
        firsts: dict[str, Entering] = {}
        for one in entering:
            firsts.setdefault(one.info.id, one)
        writes: dict[bytes, Write] = {}
        for one in firsts.values():
            for write in one.writes:
                writes.setdefault(write[0], write)
        checks = [check for one in firsts.values() for check in one.checks]
        return checks, list(writes.values()), [firsts[one.info.id] for one in entering]

    def entering(  # noqa: PLR0913 - the words of `enqueue`
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
    ) -> Entering:
        """Return what enqueues a task as part of a commit; without writes where its key is known already."""
        keys.name(queue, "queue")
        if type(priority) is not int or not -(1 << 31) <= priority < 1 << 31:
            raise InvalidInput(f"A priority is a number, the higher the sooner, not {priority!r}.")
        now = self._kernel.now()
        due = now if delay is None else now + seconds(delay, "delay")
        task_id = keys.name(key, "key") if key is not None else f"{int(now * 1000):013d}-{secrets.token_hex(6)}"
        if key is not None:
            there = self._kernel.read([taskbook.task_key(key), taskbook.held_key(queue, key)])
            if there[0] is not None:
                return Entering(self._known(key, queue, there[0], there[1]), (), (), self)
        life = ttl_seconds(keep) if keep is not None else None if key is not None else _KEPT
        writer, correlation = stamp(self._context)
        task = TaskRecord(
            queue,
            payload,
            priority,
            None if user is None else keys.name(user, "user"),
            _rules(retry, life),
            now,
            writer,
            correlation,
            due,
            order=self._order(due),
        )
        writes: list[Write] = [taskbook.stored(task_id, task), taskbook.placed(task_id, task, now)]
        if self._is_awaited(queue, now):
            writes.append(Append(taskbook.bell_stream(queue), codec.encode(None)))
        # An id of our own is nobody else's: looking that up would be a third of what the commit takes on SQLite.
        checks = [] if key is None else [Check(taskbook.task_key(task_id), 0)]
        return Entering(taskbook.info(task_id, task), checks, writes, self)

    def _order(self, due: float) -> int:
        """Return a place among those of that time, behind every one that this client has given before."""
        order = int(due * 1e6)
        if due <= self._kernel.now():
            with self._lock:
                self._last = order = max(order, self._last + 1)
        return order

    def _known(self, task_id: str, queue: str, record: Record, hold: Record | None) -> TaskInfo:
        task = taskbook.task_of(record)
        if task.queue not in (None, queue):
            raise Conflict(
                f"The task {task_id!r} was enqueued in {task.queue!r}, not in {queue!r}. Use another key for another task.",
                [record.key],
            )
        return taskbook.info(task_id, task, None if hold is None else taskbook.hold_of(hold))

    def entered(self, entering: Entering) -> None:
        """Let those of this client who wait for work know that there is some."""
        if entering.writes and entering.info.queue is not None:
            queue = entering.info.queue
            self._shelf(queue).sooner(entering.info.due.timestamp())
            for crew in self._crews.get(queue, ()):
                crew.wake()

    def _is_awaited(self, queue: str, now: float) -> bool:
        """Tell whether somebody elsewhere waits for work and would be woken; it is asked now and then."""
        known, awaited = self._awaited.get(queue, (0.0, False))
        if not known <= now < known + _KNOWN:
            awaited = self._kernel.read([taskbook.idle_key(queue)])[0] is not None
            self._awaited[queue] = now, awaited
        return awaited

    # -- taking ----------------------------------------------------------------------------------------------------

    @paced
    def claim(self, queue: str, *, lease: Duration = 30, wait: Duration | None = None) -> Steps[Task | None]:
        """Take the next task of a queue, durably, for as long as `lease`; None if there is none, or none comes in `wait`.

        Complete it, fail it or extend it before the lease is over: then it is anybody's.
        """
        length = _lease(lease)
        left = 0.0 if wait is None else seconds(wait, "wait")
        for delay in backoff(None, first=0.005, most=0.1):
            task = yield from self._shelf(queue).take(length)
            if task is not None or left <= 0:
                return task
            pause = min(delay, left)
            left -= pause
            yield pause
        raise AssertionError("the back-off never ends")

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
        """Be a worker: do the tasks of a queue by `handler(task)`, some at once, until told to stop; return how many.

        What the handler returns is the task's result; what it raises sends the task back, or gives it up when its
        attempts are used up. Tasks in hand are extended in the background. To stop, set `stop`, or with `on_signal` send
        SIGTERM or SIGINT: tasks in hand come to their end, and after `grace` are left to others. With `until_empty` it
        stops by itself when no task of the queue waits or is in anybody's hands.
        """
        crew = self.crew(queue, handler, lease=lease, timeout=timeout, poll=poll, until_empty=until_empty, stop=stop)
        try:
            return work(crew, concurrency=concurrency, grace=seconds(grace, "grace"), on_signal=on_signal)
        finally:
            self.dismissed(crew)

    def crew(  # noqa: PLR0913 - the words of `work`
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
    ) -> Crew:
        """Return what both faces' workers drive; it is woken, and its tasks are extended, until it is dismissed."""
        if not callable(handler):
            raise InvalidInput(f"A worker is given a function that takes a task, not {type(handler).__name__}.")
        crew = Crew(
            self._context,
            self._shelf(queue),
            handler,
            lease=_lease(lease),
            timeout=None if timeout is None else seconds(timeout, "timeout"),
            poll=seconds(poll, "poll"),
            until_empty=until_empty,
            stop=stop,
            face=face,
        )
        self._crews.setdefault(queue, []).append(crew)
        self._keeper.keep(crew)
        return crew

    def dismissed(self, crew: Crew) -> None:
        """Know a worker no more."""
        self._keeper.drop(crew)
        self._crews[crew.queue].remove(crew)

    def _shelf(self, queue: str) -> Shelf:
        shelf = self._shelves.get(queue)
        if shelf is None:
            name = keys.name(queue, "queue")
            shelf = self._shelves.setdefault(name, Shelf(self._context, name))
        return shelf

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, task: str | TaskInfo) -> TaskInfo:
        """Return a task as it is now, by its id or key; `NotFound` if there is none."""
        task_id = _id(task)
        record = self._record(task_id)
        queue = taskbook.task_of(record).queue
        hold = None
        if queue is not None:
            both = self._kernel.read([record.key, taskbook.held_key(queue, task_id)])
            record, hold = both[0] or record, both[1]
        return taskbook.info(task_id, taskbook.task_of(record), None if hold is None else taskbook.hold_of(hold))

    def pending(self, queue: str, *, limit: int = 1_000) -> list[TaskInfo]:
        """Return the tasks of a queue that wait, those first that may be taken, in their order."""
        ready = self._listed(taskbook.ready_prefix(queue), limit)
        return (ready + self._listed(taskbook.later_prefix(queue), limit))[:limit]

    def running(self, queue: str, *, limit: int = 1_000) -> list[TaskInfo]:
        """Return the tasks of a queue that are in somebody's hands."""
        return self._listed(taskbook.held_prefix(queue), limit, held=True)

    def dead(self, queue: str, *, limit: int = 1_000) -> list[TaskInfo]:
        """Return the tasks of a queue that were given up, the oldest first."""
        return self._listed(taskbook.dead_prefix(queue), limit)

    def counts(self, queue: str) -> dict[str, int]:
        """Return how many tasks of a queue may be taken, come later, are in somebody's hands, were given up."""
        return {
            "ready": sum(map(len, self._pages(taskbook.ready_prefix(queue)))),
            "later": sum(map(len, self._pages(taskbook.later_prefix(queue)))),
            "running": sum(map(len, self._pages(taskbook.held_prefix(queue)))),
            "dead": sum(map(len, self._pages(taskbook.dead_prefix(queue)))),
        }

    def is_completed(self, task: str | TaskInfo) -> bool:
        """Tell whether a task, by its id or key, was completed, or was marked so."""
        record = self._kernel.read([taskbook.task_key(_id(task))])[0]
        return record is not None and taskbook.task_of(record).status == "completed"

    @paced
    def result(self, task: str | TaskInfo, *, wait: Duration | None = None) -> Steps[Any]:
        """Return what a task came to, by its id or key, waiting for it if that is asked for.

        `NotFound` if there is no such task, `TimedOut` if it is not over yet, `TaskFailed` if it was given up or cancelled.
        """
        task_id = _id(task)
        left = 0.0 if wait is None else seconds(wait, "wait")
        for delay in backoff(None, first=0.005, most=0.1):
            found = taskbook.task_of(self._record(task_id))
            if found.status == "completed":
                return found.result
            if found.status in OVER:
                error = found.error or {"type": "Cancelled", "message": "it was cancelled"}
                raise TaskFailed(
                    f"The task {task_id!r} is {found.status} ({error['type']}: {error['message']:.500}). "
                    f"To let it go on after all, call tasks.retry({task_id!r}).",
                    error["type"],
                    error["message"],
                )
            if left <= 0:
                raise TimedOut(f"The task {task_id!r} is not over yet. Wait for it with wait=.")
            pause = min(delay, left)
            left -= pause
            yield pause
        raise AssertionError("the back-off never ends")

    def _record(self, task_id: str) -> Record:
        record = self._kernel.read([taskbook.task_key(task_id)])[0]
        if record is None:
            raise NotFound(f"There is no task {task_id!r}, or it is over for longer than it is kept.")
        return record

    def _listed(self, prefix: bytes, limit: int, *, held: bool = False) -> list[TaskInfo]:
        if limit < 1:
            raise InvalidInput(f"A limit is 1 or more, not {limit}.")
        found: list[TaskInfo] = []
        for page in self._pages(prefix):
            records = self._kernel.read([taskbook.task_key(taskbook.id_of(one)) for one in page])
            for place, record in zip(page, records, strict=True):
                if record is not None:
                    hold = taskbook.hold_of(place) if held else None
                    found.append(taskbook.info(taskbook.id_of(place), taskbook.task_of(record), hold))
            if len(found) >= limit:
                break
        return found[:limit]

    def _pages(self, prefix: bytes) -> Iterator[list[Record]]:
        after: bytes | None = None
        while page := self._kernel.scan(prefix, after=after, limit=_PAGE):
            yield page
            if len(page) < _PAGE:
                return  # no second look, at another moment
            after = page[-1].key

    # -- changing what is there ------------------------------------------------------------------------------------

    @paced
    def mark_completed(self, task: str | TaskInfo, result: Any = None, *, keep: Duration | None = None) -> Steps[bool]:
        """Say that something is done, durably, by the id or key of a task or by a name of your own; False if it was before.

        A task that waits is not done any more, and whoever has it in hand finds that it has passed on. The first result
        stands. It is known for ever, or for `keep`.
        """
        stored = outcomes.kept(result)[0]
        task_id = _id(task)
        for pause in backoff(None):
            now = self._kernel.now()
            record = self._kernel.read([taskbook.task_key(task_id)])[0]
            old = None if record is None else taskbook.task_of(record)
            if old is not None and old.status == "completed":
                return False
            writer, correlation = stamp(self._context)
            rules = old.rules if old is not None else Rules()
            life = ttl_seconds(keep) if keep is not None else rules.keep if old is not None else None
            fresh = old or TaskRecord(None, None, 0, None, rules, now, writer, correlation, now)
            done = fresh._replace(
                status="completed", result=stored, finished=now, by=writer, rules=rules._replace(keep=life)
            )
            if (yield from self._changed(task_id, record, old, [taskbook.stored(task_id, done)])):
                return True
            yield pause
        raise AssertionError("the back-off never ends")

    @paced
    def cancel(self, task: str | TaskInfo) -> Steps[bool]:
        """Let a task not be done, durably; tell whether it was not over yet. Whoever has it in hand can end it no more."""
        task_id = _id(task)
        for pause in backoff(None):
            record = self._record(task_id)
            old = taskbook.task_of(record)
            if old.status in OVER:
                return False
            gone = old._replace(status="cancelled", finished=self._kernel.now(), by=self._context.writer)
            if (yield from self._changed(task_id, record, old, [taskbook.stored(task_id, gone)])):
                return True
            yield pause
        raise AssertionError("the back-off never ends")

    @paced
    def retry(self, task: str | TaskInfo) -> Steps[None]:
        """Let a task that was given up or cancelled be done after all, durably, with all its attempts."""
        task_id = _id(task)
        for pause in backoff(None):
            record = self._record(task_id)
            old = taskbook.task_of(record)
            if old.status not in ("dead", "cancelled") or old.queue is None:
                raise InvalidInput(
                    f"The task {task_id!r} is {old.status}; only one that is dead or cancelled is retried."
                )
            now = self._kernel.now()
            again = old._replace(status="waiting", due=now, order=0, failures=0, redeliveries=0, finished=None, by=None)
            writes: list[Write] = [taskbook.stored(task_id, again), taskbook.placed(task_id, again, now)]
            if (yield from self._changed(task_id, record, old, writes)):
                self.entered(Entering(taskbook.info(task_id, again), (), writes, self))
                return
            yield pause

    def _changed(
        self, task_id: str, record: Record | None, old: TaskRecord | None, writes: Sequence[Write]
    ) -> Steps[bool]:
        """Take a task from wherever it stands, and write something in the same commit; False if it has moved meanwhile."""
        checks: list[AnyCheck] = [Check(taskbook.task_key(task_id), record.version if record is not None else 0)]
        places = taskbook.places(task_id, old) if old is not None else []
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
            yield from settle(self._kernel, checks, [*(one for one in gone if one[0] not in kept), *writes])
        except Conflict:
            return False
        return True

    # -- recurring tasks -------------------------------------------------------------------------------------------

    @paced
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
    ) -> Steps[ScheduleInfo]:
        """Let a task recur in a queue, durably: by a cron expression, or in an interval. Doing it again changes nothing.

        Whoever works on the queue fires it, each time once, however many they are. Times at which nobody was there are
        missed: `missed="once"` makes up for the last of them, "all" for each, "skip" for none that is later than `grace`.
        """
        keys.name(queue, "queue")
        life = _KEPT if keep is None else ttl_seconds(keep)
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
            rules=_rules(retry, life),
        )
        stored = yield from schedules.put(self._context, queue, name, fresh)
        return schedules.info(queue, name, stored)

    def recurring(self, queue: str) -> list[ScheduleInfo]:
        """Return the recurring tasks of a queue, by name, with when each comes next."""
        return schedules.listed(self._context, keys.name(queue, "queue"))

    @paced
    def stop_recurring(self, name: str, queue: str) -> Steps[bool]:
        """Let a task recur no more, durably; tell whether it did. What it has put into the queue stays."""
        return (yield from schedules.end(self._context, queue, name))

    @paced
    def fire(self, queue: str) -> Steps[int]:
        """Enqueue the recurring tasks of a queue whose time has come; return how many. Workers do it by themselves."""
        return (yield from schedules.fire(self._context, keys.name(queue, "queue")))


def _id(task: str | TaskInfo) -> str:
    return task.id if isinstance(task, TaskInfo) else keys.name(task, "task id")


def _lease(lease: Duration) -> float:
    length = seconds(lease, "lease")
    if length < 0.1 or math.isinf(length):
        raise InvalidInput(f"A task's lease is 0.1 s or more, not {lease!r}.")
    return length


def _rules(retry: Retry | None, keep: float | None) -> Rules:
    if retry is None:
        return Rules(keep=keep)
    if not isinstance(retry, Retry):
        raise InvalidInput("retry is a tenuto.Retry.")
    if retry.on != (Exception,):
        raise InvalidInput("A task is tried again whatever it raised; leave out on=, and fail it with retry=False.")
    return Rules(retry.attempts, seconds(retry.first), retry.factor, seconds(retry.most), keep)
