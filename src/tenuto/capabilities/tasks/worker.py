"""The worker of tasks: takes a task, calls the handler, and ends the task in the commit that takes the next one.

The lanes, polling and stopping are those of `_core/worker.py`. What is written, and what a crash leaves, is described
in `records`: a worker stores nothing else. The claims of running tasks are extended in the background.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import Token
from typing import Any, Final, Self

from tenuto.capabilities._core.base import Context, Stop
from tenuto.capabilities._core.tracebacks import of_user
from tenuto.capabilities.tasks import records
from tenuto.capabilities.tasks.claimed import Ending, Task
from tenuto.capabilities.tasks.queue import TaskQueue
from tenuto.errors import NotStorable, Paused, StaleLease, TenutoError, Waiting
from tenuto.kernel import correlation
from tenuto.kernel.work import Call, Store, Work

_PAUSED: Final = 60.0
"""Seconds after which a task whose run paused without a time is executed again."""


class TaskSource:
    """The tasks of a queue that a worker executes."""

    log = logging.getLogger("tenuto.tasks")

    def __init__(
        self,
        context: Context,
        queue: TaskQueue,
        handler: Callable[[Any], Any],
        *,
        lease: float,
        timeout: float | None,
        face: Callable[[Task], Any] | None,
    ) -> None:
        self.what = f"tasks of {queue.queue!r}"
        self.stream = records.bell_stream(queue.queue)
        self.stop: Stop = threading.Event()
        self.done = 0
        self._kernel = context.kernel
        self._queue = queue
        self._handler = handler
        self._lease = lease
        self._timeout = timeout
        self._face = face
        self._lock = threading.Lock()
        self._running: dict[Task, float] = {}
        """The tasks, and when they began by a clock that never jumps."""

    @property
    def more(self) -> bool:
        """Return whether the last scan found more than one task."""
        return self._queue.more

    def take(self, ended: Ending | None) -> Work[Task | None]:
        """Claim the next task durably, and end the last one in the same commit."""
        return (yield from self._queue.take(self._lease, ended, eager=False))

    def execute(self, task: Task) -> Work[Ending | None]:
        """Call the handler; return how the task ends, unless the handler ended it."""
        given = task if self._face is None else self._face(task)
        self._running[task] = time.monotonic()
        around = _Around(task)
        try:
            value = yield Call(self._handler, (given,), lambda: around, f"The task {task.id!r}", self._timeout)
            with self._lock:
                self.done += 1
            return None if task.over else task._completing(value)
        except NotStorable as error:
            self.log.warning("The task %r has a result that cannot be stored, and is dead: %s", task.id, error)
            return None if task.over else task._failing(error, retry=False)
        except Paused as pause:
            later = pause.until if isinstance(pause, Waiting) and pause.until is not None else None
            self.log.info("The task %r waits: %s", task.id, pause)
            return None if task.over else task._releasing(later or self._kernel.now() + _PAUSED)
        except StaleLease as error:
            self.log.warning("%s", error)
            return None
        except Exception as error:
            self.log.warning(
                "The task %r failed at attempt %d: %s: %s", task.id, task.attempt, type(error).__name__, error,
                exc_info=of_user(error),
            )  # fmt: skip
            return None if task.over else task._failing(error)
        except BaseException:
            if not task.over:
                yield Store(self.end(task._releasing()))
            raise
        finally:
            del self._running[task]

    def end(self, ended: Ending) -> Work[None]:
        """Write the end of a task; a failure is only logged: another worker can claim the task again."""
        try:
            yield from ended.task._end(ended)
        except TenutoError as error:
            self.log.warning("The end of the task %r was not written: %s", ended.task.id, error)

    def is_empty(self) -> bool:
        """Return whether no task of the queue waits or runs."""
        # One scan of all places: a task that moves between two scans would be seen in neither.
        queue = self._queue.queue
        after = records.dead_prefix(queue) + b"\xff"
        found = self._kernel.scan(records.bell_stream(queue), after=after, limit=2)
        return not any(records.is_place(queue, one) for one in found)

    def seconds_left(self) -> float:
        """Return the seconds until the next delayed task is due."""
        return self._queue.seconds_left()

    def abandon(self) -> None:
        """Stop extending the tasks that still run: others can claim them when their leases end."""
        for task in list(self._running):
            task._stop_extending()
            self.log.warning("The task %r did not end in time; another worker will take it.", task.id)

    @property
    def _interval(self) -> float:
        """Return the seconds between two extensions: a quarter of the lease."""
        return self._lease / 4

    def renew(self) -> bool:
        """Extend the claims of tasks that run for longer than a moment; called by the client's renewer."""
        early = time.monotonic() - self._interval / 2
        for task, since in list(self._running.items()):
            if since < early:
                task._renew()
        return True


class _Around:
    """Sets the correlation id of the enqueuing request during the handler."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._token: Token[str | None] | None = None

    def __enter__(self) -> Self:
        if self._task.correlation_id is not None:
            self._token = correlation.variable.set(self._task.correlation_id)
        return self

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            correlation.variable.reset(self._token)
