"""What is kept of a task, where, and what each change of it writes.

Keys, below the tenant. `("tasks", "task", id)` is the task: its payload, its rules, and what became of it. While it is
not over, exactly one more record says where it stands: `(queue, "tasks", "ready", -priority, user, order, id)` that it
may be taken, in the order of these keys; `(queue, "tasks", "later", due, id)` that its time has not come;
`(queue, "tasks", "held", id)` that somebody has it in hand, until when, at which attempt; `(queue, "tasks", "beat", id)`
stands beside it, and expires, where that was extended. `(queue, "tasks", "dead", when, id)` lists those that were
given up. `(queue, "tasks", "idle")` says for a while that somebody waits for work; as
long as it does, an enqueue adds a line to the stream `(queue, "tasks")`, which rings his bell.

Every change is one commit that moves the task from one place to the next, and checks the place that it leaves:

    enqueue    nowhere -> ready or later     checks that there is no such task
    mature     later   -> ready              checks the later record; up to 100 tasks a commit
    claim      ready   -> held               checks the ready record
    take over  held    -> held               checks held record and beat: its lease has run out, or its holder died here
    extend     held    -> held               checks the held record, writes the beat
    complete   held    -> over               checks the held record and the task
    fail       held    -> later, or dead     checks the held record and the task
    cancel     any     -> over               checks the task and the place

So of two who claim a task one has it, and whoever lost it can change nothing any more: the version of the held record
is the fencing token. A crash between any two commits leaves a task in one place; in `held` it stays until its lease
runs out, or until somebody on the same machine sees that its holder is gone, and is then delivered again, marked so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import moment

_TASK: Final = keys.pack("tasks", "task")
_PART: Final = keys.pack("tasks")
_READY, _LATER, _HELD, _DEAD, _BEAT = (
    keys.pack("tasks", place) for place in ("ready", "later", "held", "dead", "beat")
)
_SCHEDULE: Final = keys.pack("tasks", "schedule")
STATUSES: Final = ("waiting", "running", "completed", "dead", "cancelled")
OVER: Final = frozenset({"completed", "dead", "cancelled"})


class Rules(NamedTuple):
    """How often a task that failed is tried, after how long, and how long it is kept when it is over."""

    attempts: int = 5
    first: float = 1.0
    factor: float = 2.0
    most: float = 3_600.0
    keep: float | None = None

    def delay(self, failures: int) -> float:
        """Return how long to wait after so many failures."""
        return float(min(self.first * self.factor ** max(failures - 1, 0), self.most))


class TaskRecord(NamedTuple):
    """A task as it is stored. While somebody has it in hand it stays as it was before."""

    queue: str | None
    """None where somebody only noted that something is done."""
    payload: Any
    priority: int
    user: str | None
    rules: Rules
    created: float
    writer: str
    correlation: str | None
    due: float
    status: str = "waiting"
    attempts: int = 0
    failures: int = 0
    redeliveries: int = 0
    result: Any = None
    error: dict[str, Any] | None = None
    finished: float | None = None
    by: str | None = None
    schedule: str | None = None
    order: int = 0
    """Its place among those that may be taken: from when on it may be, in microseconds; those of one client follow each
    other. 0: as `due` says."""


class Hold(NamedTuple):
    """Who has a task in hand."""

    until: float
    attempt: int
    redeliveries: int
    """How often in a row it was delivered again because its holder was lost."""
    owner: dict[str, Any]
    since: float


@dataclass(frozen=True)
class ErrorSaid:
    """An error, as it was recorded."""

    type: str
    message: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.type}: {self.message}"


@dataclass(frozen=True)
class TaskInfo:
    """A task, as it is known."""

    id: str
    queue: str | None
    payload: Any
    status: str
    """waiting, running, completed, dead or cancelled."""
    priority: int
    user: str | None
    attempts: int
    """How often it was begun."""
    failures: int
    redeliveries: int
    """How often it was delivered again because its holder was lost."""
    created: datetime
    due: datetime
    """When it may be taken, or could be."""
    finished: datetime | None
    result: Any
    error: ErrorSaid | None
    """Of the last attempt that failed."""
    writer: str
    by: str | None
    """Who has it in hand, or finished it."""
    until: datetime | None
    """Until when it is held, unless that is extended."""
    schedule: str | None
    correlation_id: str | None


# -- keys ----------------------------------------------------------------------------------------------------------


def task_key(task_id: str) -> bytes:
    """Return where a task is kept."""
    return _TASK + keys.named(task_id, "task id")


def bell_stream(queue: str) -> bytes:
    """Return the stream whose bell rings when there is something to do."""
    return keys.named(queue, "queue") + _PART


def idle_key(queue: str) -> bytes:
    """Return where it says that somebody waits for work."""
    return keys.named(queue, "queue") + _PART + keys.pack("idle")


def ready_prefix(queue: str) -> bytes:
    """Return below which key the tasks lie that may be taken."""
    return keys.named(queue, "queue") + _READY


def lane_prefix(queue: str, priority: int, user: str | None = None) -> bytes:
    """Return below which key tasks of a priority lie; with `user` (not None), those of one user."""
    lane = ready_prefix(queue) + keys.pack(-priority)
    return lane if user is None else lane + keys.pack(user)


def later_prefix(queue: str) -> bytes:
    """Return below which key the tasks lie whose time has not come."""
    return keys.named(queue, "queue") + _LATER


def held_prefix(queue: str) -> bytes:
    """Return below which key the tasks lie that are in somebody's hands."""
    return keys.named(queue, "queue") + _HELD


def dead_prefix(queue: str) -> bytes:
    """Return below which key the tasks lie that were given up."""
    return keys.named(queue, "queue") + _DEAD


def schedule_prefix(queue: str) -> bytes:
    """Return below which key the recurring tasks of a queue lie."""
    return keys.named(queue, "queue") + _SCHEDULE


def is_place(queue: str, record: Record) -> bool:
    """Tell whether a record says where a task stands that is not over."""
    return record.key.startswith((ready_prefix(queue), later_prefix(queue), held_prefix(queue)))


def held_key(queue: str, task_id: str) -> bytes:
    """Return where it says who has a task in hand."""
    return held_prefix(queue) + keys.pack(task_id)


def beat_key(queue: str, task_id: str) -> bytes:
    """Return where it says that whoever has a task in hand has extended that."""
    return keys.named(queue, "queue") + _BEAT + keys.pack(task_id)


def ready_key(queue: str, task_id: str, task: TaskRecord) -> bytes:
    """Return where a task stands that may be taken."""
    return lane_prefix(queue, task.priority, task.user or "") + keys.pack(_order(task), task_id)


def later_key(queue: str, task_id: str, task: TaskRecord) -> bytes:
    """Return where a task stands whose time has not come."""
    return later_prefix(queue) + keys.pack(_micros(task.due), task_id)


def _micros(at: float) -> int:
    return int(at * 1e6)


def _order(task: TaskRecord) -> int:
    return task.order or _micros(task.due)


def id_of(record: Record) -> str:
    """Return the task that a place is of."""
    return str(keys.unpack(record.key)[-1])


def due_of(record: Record) -> float:
    """Return when the time comes of a task that stands in `later`."""
    return int(keys.unpack(record.key)[-2]) / 1e6


# -- records -------------------------------------------------------------------------------------------------------


def task_of(record: Record) -> TaskRecord:
    """Return a task as its record says."""
    parts: list[Any] = codec.decode(record.value)
    parts[4] = Rules(*parts[4])
    return TaskRecord(*parts)


def stored(task_id: str, task: TaskRecord) -> Put:
    """Return what writes a task down; one that is over is kept as long as its rules say."""
    value = codec.encode([*task[:4], list(task.rules), *task[5:]])
    return Put(task_key(task_id), value, task.rules.keep if task.status in OVER else None)


def hold_of(record: Record) -> Hold:
    """Return who has a task in hand."""
    return Hold(*codec.decode(record.value))


def held(queue: str, task_id: str, hold: Hold) -> Put:
    """Return what says who has a task in hand."""
    return Put(held_key(queue, task_id), codec.encode(list(hold)))


def info(task_id: str, task: TaskRecord, hold: Hold | None = None) -> TaskInfo:
    """Return a task as it is shown."""
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
        created=moment(task.created),
        due=moment(task.due),
        finished=None if task.finished is None else moment(task.finished),
        result=task.result,
        error=None if error is None else ErrorSaid(error["type"], error["message"]),
        writer=task.writer,
        by=hold.owner["writer"] if hold is not None and running else task.by,
        until=moment(hold.until) if hold is not None and running else None,
        schedule=task.schedule,
        correlation_id=task.correlation,
    )


# -- changes -------------------------------------------------------------------------------------------------------


def placed(task_id: str, task: TaskRecord, now: float) -> Put:
    """Return what puts a waiting task where it belongs now."""
    assert task.queue is not None
    if task.due <= now:
        return Put(ready_key(task.queue, task_id, task), b"")
    return Put(later_key(task.queue, task_id, task), codec.encode([task.priority, task.user, _order(task)]))


def matured(queue: str, record: Record) -> tuple[AnyCheck, list[Write]]:
    """Return what moves a task whose time has come to where it may be taken."""
    priority, user, order = codec.decode(record.value)
    place = lane_prefix(queue, priority, user or "") + keys.pack(order, id_of(record))
    return Check(record.key, record.version), [Delete(record.key), Put(place, b"")]


def failed(task_id: str, task: TaskRecord, hold: Hold, now: float, error: dict[str, Any], due: float) -> list[Write]:
    """Return what sends a task back after a failure, to be tried again at `due`."""
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
    """Return what gives a task up: it is dead, and listed as that."""
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
    """Return the keys at one of which a task stands, or is listed."""
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
