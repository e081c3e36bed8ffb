"""The dependencies of runs, and the context variables of the current run and step."""

from __future__ import annotations

import contextvars
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context
from tenuto.capabilities._core.notices import Notices
from tenuto.capabilities._core.renewal import Renewer
from tenuto.capabilities.memory import Memories
from tenuto.capabilities.people import Inbox
from tenuto.capabilities.runs.due import woken
from tenuto.capabilities.runs.log import STARTED, Head, History, RunLog, user_key
from tenuto.capabilities.threads import Threads
from tenuto.errors import BudgetExceeded, Conflict, InvalidInput, NotStorable, Paused, StepMismatch
from tenuto.kernel import codec
from tenuto.kernel.contract import Put, Write

if TYPE_CHECKING:
    from tenuto.capabilities.runs.open_run import OpenRun
    from tenuto.capabilities.runs.options import Retry
    from tenuto.capabilities.runs.usage import Prices

_FINAL: Final = (StepMismatch, NotStorable, BudgetExceeded)
"""Errors that come again however often a run is retried."""
current: contextvars.ContextVar[OpenRun | None] = contextvars.ContextVar("tenuto_run", default=None)
current_step: contextvars.ContextVar[StepContext | None] = contextvars.ContextVar("tenuto_step", default=None)


class Engine(NamedTuple):
    """The dependencies of runs."""

    context: Context
    renewer: Renewer
    threads: Threads
    inbox: Inbox
    memories: Memories
    notices: Notices
    prices: Prices
    policies: dict[str, Retry]
    """How workers retry the failed runs of each durable function; none: they do not."""
    progress: Callable[[str], Any] | None = None
    """Make the progress document of a run."""

    def waking(self, run_id: str, why: str) -> list[Write]:
        """Return the writes that make a run due at once, and the runs that wait for it; `why` is one word.

        They belong to the commit of the event that the run waits for.
        """
        writes: list[Write] = []
        above: str | None = run_id
        seen: set[str] = set()
        while above is not None and above not in seen:
            seen.add(above)
            # Also without a head: a run that starts just now may have looked for the event already.
            writes.append(woken(above, why if above == run_id else "child"))
            head, _ = RunLog(self.context, above).head()
            above = None if head is None else head.parent
        return [*writes, *self.notices.writes()]


class StepContext(NamedTuple):
    """The current step, as seen inside its function."""

    run: OpenRun
    n: int
    attempt: int
    key: str
    """The idempotency key: the same at every attempt."""
    usage: list[Any]


class Stopped(Paused):
    """A stopping worker releases a run between two steps; another one resumes it."""


class Given(NamedTuple):
    """The call of a durable function."""

    fn: str
    args: list[Any]
    kwargs: dict[str, Any]


def new_id(prefix: str) -> str:
    """Return a new run id; raise `InvalidInput` in a run, whose replay would start another run."""
    above = current.get()
    if above is not None:
        raise InvalidInput(
            f"A run started in the run {above.id!r} needs an id, or a replay would start another one; nothing was started. "
            f'Pass an id that stays the same, for example f"{{run.id}}/{prefix}".'
        )
    return f"{prefix}-{secrets.token_hex(8)}"


def begun(
    running: OpenRun, own: RunLog, given: Given | None, now: float, last: int
) -> tuple[Head, dict[str, Any], Write]:
    """Return the head of a new run, the data of its first line, and that line."""
    above = current.get()
    started: dict[str, Any] = {
        "uid": secrets.token_bytes(16),
        "salt": secrets.token_bytes(32),
        "fn": None if given is None else given.fn,
        "args": None if given is None else [given.args, given.kwargs],
        "user": running.user if running.user is not None else above.user if above is not None else None,
        "parent": None if above is None else above.id,
        "forked": None,
        "instead": {},
    }
    head = Head("running", started["fn"], started["user"], started["parent"], now, now, last + 1)
    return head, started, own.line(STARTED, 0, started)


def queued(
    running: OpenRun, own: RunLog, given: Given, now: float, last: int, priority: int, deadline: float | None
) -> list[Write]:
    """Return the writes that queue a new run for a worker."""
    head, _, line = begun(running, own, given, now, last)
    head = head._replace(status="queued", deadline=None if deadline is None else now + deadline, priority=priority)
    engine = running.engine
    writes: list[Write] = [line, *own.placed(head), *engine.notices.writes()]
    if head.user is not None:
        writes.append(Put(user_key(head.user, own.id), codec.encode(None)))
    if head.parent is not None:
        writes.append(Put(RunLog(engine.context, head.parent).child_key(own.id), codec.encode(None)))
    return writes


def failing(
    retry: Retry | None, head: Head, error: BaseException, data: dict[str, Any], now: float
) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the status of a run that failed, the data of its line, and what else changes in its head.

    It waits for another attempt if its policy has one, and the deadline does not come first.
    """
    at = now + retry.delay(head.failures + 1) if retry is not None else now
    in_time = head.deadline is None or at < head.deadline
    if retry is None or isinstance(error, _FINAL) or not isinstance(error, retry.on) or not in_time:
        return "failed", data, {}
    if head.failures + 1 >= retry.attempts:
        return "failed", data, {}
    return "waiting", {**data, "again": at}, {"wake": at, "waits": (), "failures": head.failures + 1}


def must_fit(run: OpenRun, head: Head, history: History) -> None:
    """Raise unless user, function and arguments match the stored run."""
    if run.user is not None and head.user != run.user:
        raise Conflict(f"The run {run.id!r} belongs to the user {head.user!r}, not to {run.user!r}. Use another id.")
    mine, theirs = run.given, history.started["fn"]
    if mine is not None and theirs is not None and mine.fn != theirs:
        raise StepMismatch(
            f"The run {run.id!r} was started by {theirs!r}, not by {mine.fn!r}. Use another id for another function."
        )
    if mine is not None and (mine.args or mine.kwargs) and theirs is not None:
        was = [*history.started["args"]]
        if codec.pack([mine.args, mine.kwargs]) != codec.pack(was):
            raise StepMismatch(
                f"The run {run.id!r} was started with other arguments: {was!r:.300}, not "
                f"{[mine.args, mine.kwargs]!r:.300}. Use another id for another call."
            )
