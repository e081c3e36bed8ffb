"""The records of a task, and the writes of each change.

Keys, below the tenant. `("tasks", "task", id)` is the task: payload, rules, result. Until it ends, exactly one more
record is its place: `(queue, "tasks", "ready", -priority, user, order, id)`, claimable in the order of these keys;
`(queue, "tasks", "later", due, id)`, not yet due; or `(queue, "tasks", "held", id)`, claimed, with holder, lease and
attempt. An extended claim also has `(queue, "tasks", "beat", id)`, which expires. `(queue, "tasks", "dead", when, id)`
lists dead tasks. `(queue, "tasks", "idle")` exists while a worker is idle; then an enqueue also appends to the stream
`(queue, "tasks")`, which notifies it.

Every change is one commit that moves the task from one place to the next, and checks the place that it leaves:

    enqueue    nowhere -> ready or later     checks that there is no such task
    mature     later   -> ready              checks the later record; up to 100 tasks a commit
    claim      ready   -> held               checks the ready record
    take over  held    -> held               checks held record and beat: its lease has run out, or its holder died here
    extend     held    -> held               checks the held record, writes the beat
    complete   held    -> over               checks the held record and the task
    fail       held    -> later, or dead     checks the held record and the task
    cancel     any     -> over               checks the task and the place

So of two workers one gets the task, and a worker that lost it can no longer change it: the version of the held record
is the fencing token. A crash between two commits leaves a task in one place. A held task is delivered again when its
lease ends, or when a worker on the same machine sees that its holder has died.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple

from tenuto.capabilities._core.base import scan_all
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Backend, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import moment

EVERY: Final = keys.pack("tasks", "task")
"""The prefix of the records of tasks."""
_PART: Final = keys.pack("tasks")
_READY, _LATER, _HELD, _DEAD, _BEAT = (
    keys.pack("tasks", place) for place in ("ready", "later", "held", "dead", "beat")
)
_SCHEDULE: Final = keys.pack("tasks", "schedule")
TaskStatus = Literal["waiting", "running", "completed", "dead", "cancelled"]
OVER: Final = frozenset({"completed", "dead", "cancelled"})


class Rules(NamedTuple):
    """The retry policy of a task, and how long it stays after its end."""

    attempts: int = 5
    first: float = 1.0
    factor: float = 2.0
    most: float = 3_600.0
    keep: float | None = None

    def delay(self, failures: int) -> float:
        """Return the seconds to wait after a number of failures."""
        return float(min(self.first * self.factor ** max(failures - 1, 0), self.most))


class TaskRecord(NamedTuple):
    """The stored form of a task; a claim does not change it."""

    queue: str | None
    """None for a name that was only marked as completed."""
    payload: Any
    priority: int
    user: str | None
    rules: Rules
    created: float
    writer: str
    correlation: str | None
    due: float
    status: TaskStatus = "waiting"
    attempts: int = 0
    failures: int = 0
    redeliveries: int = 0
    result: Any = None
    error: dict[str, Any] | None = None
    finished: float | None = None
    by: str | None = None
    schedule: str | None = None
    order: int = 0
    """Its order among ready tasks: the due time in microseconds, increasing per client. 0: use `due`."""


class Hold(NamedTuple):
    """The claim of a task."""

    until: float
    attempt: int
    redeliveries: int
    """How often in a row it was redelivered because its holder was lost."""
    owner: dict[str, Any]
    since: float


@dataclass(frozen=True)
class ErrorSaid:
    """A recorded error."""

    type: str
    message: str

    def __str__(self) -> str:
        """Return type and message in one line."""
        return f"{self.type}: {self.message}"


@dataclass(frozen=True)
class TaskInfo:
    """A task and its status."""

    id: str
    queue: str | None
    payload: Any
    status: TaskStatus
    """waiting, running, completed, dead or cancelled."""
    priority: int
    user: str | None
    attempts: int
    """How often it was started."""
    failures: int
    redeliveries: int
    """How often it was redelivered because its holder was lost."""
    created_at: datetime
    updated_at: datetime
    """When it was enqueued, failed or ended."""
    due: datetime
    """The earliest time to claim it."""
    finished_at: datetime | None
    result: Any
    error: ErrorSaid | None
    """Of the last attempt that failed."""
    traceback: str | None
    """The end of its traceback, at most 4 KB."""
    writer: str
    by: str | None
    """Its holder, or who finished it."""
    until: datetime | None
    """The end of the lease, unless extended."""
    schedule: str | None
    correlation_id: str | None


def task_key(task_id: str) -> bytes:
    """Return the key of a task."""
    return EVERY + keys.named(task_id, "task id")


def bell_stream(queue: str) -> bytes:
    """Return the stream that notifies idle workers."""
    return keys.named(queue, "queue") + _PART


def dead_tasks(kernel: Backend) -> list[tuple[str, TaskRecord]]:
    """Return the ids and records of the dead tasks of all queues."""
    found = ((str(keys.unpack(record.key)[-1]), task_of(record)) for record in scan_all(kernel, EVERY))
    return [(task_id, task) for task_id, task in found if task.status == "dead"]


def ready_prefix(queue: str) -> bytes:
    """Return the key prefix of ready tasks."""
    return keys.named(queue, "queue") + _READY


def lane_prefix(queue: str, priority: int, user: str | None = None) -> bytes:
    """Return the key prefix of ready tasks of a priority, with `user` of one user."""
    lane = ready_prefix(queue) + keys.pack(-priority)
    return lane if user is None else lane + keys.pack(user)


def later_prefix(queue: str) -> bytes:
    """Return the key prefix of tasks that are not yet due."""
    return keys.named(queue, "queue") + _LATER


def held_prefix(queue: str) -> bytes:
    """Return the key prefix of claimed tasks."""
    return keys.named(queue, "queue") + _HELD


def dead_prefix(queue: str) -> bytes:
    """Return the key prefix of dead tasks."""
    return keys.named(queue, "queue") + _DEAD


def schedule_prefix(queue: str) -> bytes:
    """Return the key prefix of recurring tasks."""
    return keys.named(queue, "queue") + _SCHEDULE


def is_place(queue: str, record: Record) -> bool:
    """Return whether a record is the place of a task that has not ended."""
    return record.key.startswith((ready_prefix(queue), later_prefix(queue), held_prefix(queue)))


def held_key(queue: str, task_id: str) -> bytes:
    """Return the key of a claim."""
    return held_prefix(queue) + keys.pack(task_id)


def beat_key(queue: str, task_id: str) -> bytes:
    """Return the key of a claim's extension."""
    return keys.named(queue, "queue") + _BEAT + keys.pack(task_id)


def ready_key(queue: str, task_id: str, task: TaskRecord) -> bytes:
    """Return the place of a ready task."""
    return lane_prefix(queue, task.priority, task.user or "") + keys.pack(_order(task), task_id)


def later_key(queue: str, task_id: str, task: TaskRecord) -> bytes:
    """Return the place of a task that is not yet due."""
    return later_prefix(queue) + keys.pack(_micros(task.due), task_id)


def _micros(at: float) -> int:
    return int(at * 1e6)


def _order(task: TaskRecord) -> int:
    return task.order or _micros(task.due)


def id_of(record: Record) -> str:
    """Return the id of the task at a place."""
    return str(keys.unpack(record.key)[-1])


def due_of(record: Record) -> float:
    """Return the due time of a task in `later`."""
    return int(keys.unpack(record.key)[-2]) / 1e6


def task_of(record: Record) -> TaskRecord:
    """Return the task in a record."""
    parts: list[Any] = codec.decode(record.value)
    parts[4] = Rules(*parts[4])
    return TaskRecord(*parts)


def stored(task_id: str, task: TaskRecord) -> Put:
    """Return the write of a task; an ended one expires by its rules."""
    value = codec.encode([*task[:4], list(task.rules), *task[5:]])
    return Put(task_key(task_id), value, task.rules.keep if task.status in OVER else None)


def hold_of(record: Record) -> Hold:
    """Return the claim in a record."""
    return Hold(*codec.decode(record.value))


def held(queue: str, task_id: str, hold: Hold) -> Put:
    """Return the write of a claim."""
    return Put(held_key(queue, task_id), codec.encode(list(hold)))


def info(task_id: str, record: Record, hold: Hold | None = None) -> TaskInfo:
    """Return the public view of a stored task."""
    return viewed(task_id, task_of(record), record.written_at, hold)


def viewed(task_id: str, task: TaskRecord, written_at: float, hold: Hold | None = None) -> TaskInfo:
    """Return the public view of a task."""
    running = hold is not None and task.status == "waiting"
    error = task.error
    return TaskInfo(
        id=task_id,
        queue=task.queue,
        payload=task.payload,
        status="running" if running else task.status,
        priority=task.priority,
        user=task.user,
        attempts=hold.attempt if hold is not None and running else task.attempts,
        failures=task.failures,
        redeliveries=task.redeliveries + (hold.redeliveries if hold is not None and running else 0),
        created_at=moment(task.created),
        updated_at=moment(written_at),
        due=moment(task.due),
        finished_at=None if task.finished is None else moment(task.finished),
        result=task.result,
        error=None if error is None else ErrorSaid(error["type"], error["message"]),
        traceback=None if error is None else error.get("traceback"),
        writer=task.writer,
        by=hold.owner["writer"] if hold is not None and running else task.by,
        until=moment(hold.until) if hold is not None and running else None,
        schedule=task.schedule,
        correlation_id=task.correlation,
    )


def placed(task_id: str, task: TaskRecord, now: float) -> Put:
    """Return the write of a waiting task's place."""
    assert task.queue is not None
    if task.due <= now:
        return Put(ready_key(task.queue, task_id, task), b"")
    return Put(later_key(task.queue, task_id, task), codec.encode([task.priority, task.user, _order(task)]))


def matured(queue: str, record: Record) -> tuple[AnyCheck, list[Write]]:
    """Return the check and writes that make a due task ready."""
    priority, user, order = codec.decode(record.value)
    place = lane_prefix(queue, priority, user or "") + keys.pack(order, id_of(record))
    return Check(record.key, record.version), [Delete(record.key), Put(place, b"")]


def failed(task_id: str, task: TaskRecord, hold: Hold, now: float, error: dict[str, Any], due: float) -> list[Write]:
    """Return the writes that retry a failed task at `due`."""
    again = task._replace(
        due=due,
        order=0,
        attempts=hold.attempt,
        failures=task.failures + 1,
        redeliveries=task.redeliveries + hold.redeliveries,
        error=error,
    )
    return [stored(task_id, again), placed(task_id, again, now)]


def buried(task_id: str, task: TaskRecord, hold: Hold | None, now: float, error: dict[str, Any]) -> list[Write]:
    """Return the writes that make a task dead."""
    assert task.queue is not None
    gone = task._replace(
        status="dead",
        attempts=task.attempts if hold is None else hold.attempt,
        failures=task.failures + 1,
        redeliveries=task.redeliveries + (0 if hold is None else hold.redeliveries),
        error=error,
        finished=now,
        by=None if hold is None else hold.owner["writer"],
    )
    return [stored(task_id, gone), Put(_dead_key(task_id, gone), b"", gone.rules.keep)]


def _dead_key(task_id: str, task: TaskRecord) -> bytes:
    return dead_prefix(task.queue or "") + keys.pack(_micros(task.finished or 0.0), task_id)


def places(task_id: str, task: TaskRecord) -> list[bytes]:
    """Return the possible places of a task."""
    if task.queue is None:
        return []
    if task.status == "dead":
        return [_dead_key(task_id, task)]
    queue = task.queue
    return [
        ready_key(queue, task_id, task),
        later_key(queue, task_id, task),
        held_key(queue, task_id),
        beat_key(queue, task_id),
    ]
