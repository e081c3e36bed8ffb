"""Operations on runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from tenuto.capabilities.runs import Emitted, RunEvent, RunInfo, RunRecord, RunStatus, ScheduleInfo
from tenuto.client import Tenuto
from tenuto.kernel.durations import seconds
from tenuto.operations.table import Done, Value, operation, page

_ALL = 1_000_000
RunId = Annotated[str, "Run id"]


@operation("runs list", "id", "status", "function", "user", "created_at", "updated_at")
def runs_list(
    agent: Tenuto,
    *,
    status: Annotated[RunStatus | None, "Only runs with this status"] = None,
    user: Annotated[str | None, "Only runs of this user"] = None,
    function: Annotated[str | None, "Only runs of this durable function"] = None,
    since: Annotated[str | None, 'Only runs created within this time, e.g. "24h"'] = None,
    after: Annotated[str | None, "Start after the run with this id"] = None,
    limit: Annotated[int, "Maximum number of runs"] = 100,
) -> list[RunInfo]:
    """List runs, newest first."""
    earliest = None if since is None else agent.kernel.now() - seconds(since, "since")
    found = [
        run
        for run in agent.runs.list(status, user, limit=_ALL)
        if function in (None, run.function) and (earliest is None or run.created_at.timestamp() >= earliest)
    ]
    found.sort(key=lambda run: (run.created_at, run.id), reverse=True)
    return page(found, lambda run: run.id, after, limit)


@operation("runs show")
def runs_show(agent: Tenuto, run: RunId) -> RunRecord:
    """Show a run and its steps: attempts, reused results, doubts, and what it waits for."""
    return agent.runs.get(run)


@operation("runs watch", "number", "value", "at")
def runs_watch(
    agent: Tenuto,
    run: RunId,
    *,
    after: Annotated[int | None, "Start after this number"] = None,
    timeout: Annotated[str | None, "Stop after this long without a new value"] = None,
) -> Iterator[Emitted]:
    """Print the values that a run emits, as they arrive, until the run ends."""
    return agent.runs.watch(run, after=after, timeout=timeout)


@operation("runs history", "number", "what", "step", "at", "writer", "correlation_id")
def runs_history(agent: Tenuto, run: RunId, *, after: Annotated[int, "Start after this number"] = 0) -> list[RunEvent]:
    """List what happened to a run: each line of its log, with its writer and correlation id."""
    return list(agent.runs.history(run, after=after))


@operation("runs follow", "number", "what", "step", "at", "writer")
def runs_follow(
    agent: Tenuto,
    run: RunId,
    *,
    after: Annotated[int | None, "Start after this number"] = None,
    timeout: Annotated[str | None, "Stop after this long without an event"] = None,
) -> Iterator[RunEvent]:
    """Print what happens to a run, as any process records it."""
    return agent.runs.follow(run, after=after, timeout=timeout)


@operation("runs fork", writes=True)
def runs_fork(
    agent: Tenuto,
    run: RunId,
    new: Annotated[str, "Id of the new run"],
    *,
    at: Annotated[str | None, "Step to continue from; default: the first step that is not done"] = None,
    occurrence: Annotated[str, "Which step of that name: its number or its key"] = "1",
    args: Annotated[Any, "New arguments of that step, as a JSON list"] = None,
    results: Annotated[Any, "New results of earlier steps, as a JSON object by name"] = None,
) -> RunInfo:
    """Start another run from the recorded steps before a given step. The original is unchanged."""
    which: int | str = occurrence
    if occurrence.isdecimal() and not any((s.name, s.key) == (at, occurrence) for s in agent.runs.get(run).steps):
        which = int(occurrence)
    return agent.runs.fork(run, new, at=at, occurrence=which, args=args, results=results)


@operation("runs retry", writes=True)
def runs_retry(agent: Tenuto, run: RunId) -> RunInfo:
    """Retry a failed or cancelled run: queue it for a worker."""
    agent.runs.retry(run)
    return agent.runs.info(run)


@operation("runs cancel", asks="Cancel the run {run!r} and its child runs?")
def runs_cancel(agent: Tenuto, run: RunId) -> Done:
    """Cancel a run and its child runs. No further step starts; the run can be retried later."""
    return Done(agent.runs.cancel(run))


@operation("runs signal", writes=True)
def runs_signal(
    agent: Tenuto, run: RunId, event: Annotated[str, "Event that the run waits for"], payload: Value = None
) -> Done:
    """Send a signal to a run. If two arrive before the run reads one, the first counts."""
    return Done(agent.signal(run, event, payload))


@operation("runs recurring", "name", "owner", "cron", "interval", "next", "last", "fired")
def runs_recurring(agent: Tenuto) -> list[ScheduleInfo]:
    """List the recurring runs of durable functions."""
    return agent.runs.recurring()


@operation("runs delete", asks="Delete the run {run!r} and its record permanently?")
def runs_delete(agent: Tenuto, run: RunId) -> Done:
    """Delete a run and its record permanently. Its thread stays."""
    return Done(agent.runs.delete(run))
