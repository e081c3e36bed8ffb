"""Runs and questions, as operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from tenuto.capabilities.questions import Happened, NotHappened, Question
from tenuto.capabilities.runs import Emitted
from tenuto.capabilities.runviews import RunInfo, RunRecord
from tenuto.client import Tenuto
from tenuto.servers.table import Done, Value, operation

RunStatus = Literal["queued", "running", "waiting", "interrupted", "in_doubt", "failed", "completed", "cancelled"]
QuestionStatus = Literal["pending", "answered", "cancelled", "expired"]

# -- runs -----------------------------------------------------------------------------------------------------------

RunId = Annotated[str, "The run"]


@operation("runs list", "id", "status", "function", "user", "created", "changed")
def runs_list(
    agent: Tenuto,
    *,
    status: Annotated[RunStatus | None, "Only those"] = None,
    user: Annotated[str | None, "Only this user's"] = None,
    limit: Annotated[int, "How many at most"] = 100,
) -> list[RunInfo]:
    """List runs."""
    return agent.runs.list(status, user, limit=limit)


@operation("runs show")
def runs_show(agent: Tenuto, run: RunId) -> RunRecord:
    """Show a run with its steps: attempts, what was reused, what is in doubt, what it waits for."""
    return agent.runs.get(run)


@operation("runs watch", "number", "value", "at")
def runs_watch(
    agent: Tenuto,
    run: RunId,
    *,
    after: Annotated[int | None, "Go on behind this number"] = None,
    timeout: Annotated[str | None, "End when nothing has come for so long"] = None,
) -> Iterator[Emitted]:
    """Show what a run emits, as it lands, until it is over."""
    return agent.runs.watch(run, after=after, timeout=timeout)


@operation("runs fork", writes=True)
def runs_fork(
    agent: Tenuto,
    run: RunId,
    new: Annotated[str, "The id of the fork"],
    *,
    at: Annotated[str | None, "The step to go on from; without it, the first that is not done"] = None,
    occurrence: Annotated[str, "Which step of that name: a number, or its key"] = "1",
    args: Annotated[Any, "The arguments of that step, a JSON list"] = None,
    results: Annotated[Any, "Results of steps before it, a JSON object by name"] = None,
) -> RunInfo:
    """Begin another run with what this one had done before a step; the original stays as it is."""
    which: int | str = occurrence
    if occurrence.isdecimal() and not any((s.name, s.key) == (at, occurrence) for s in agent.runs.get(run).steps):
        which = int(occurrence)
    return agent.runs.fork(run, new, at=at, occurrence=which, args=args, results=results)


@operation("runs retry", writes=True)
def runs_retry(agent: Tenuto, run: RunId) -> RunInfo:
    """Let a run that failed or was cancelled go on; it is queued for a worker."""
    agent.runs.retry(run)
    return agent.runs.info(run)


@operation("runs cancel", asks="Cancel the run {run!r}, and those that it began?")
def runs_cancel(agent: Tenuto, run: RunId) -> Done:
    """Cancel a run and those it began: nothing more begins; it may be retried later."""
    return Done(agent.runs.cancel(run))


@operation("runs signal", writes=True)
def runs_signal(
    agent: Tenuto, run: RunId, event: Annotated[str, "What the run waits for"], payload: Value = None
) -> Done:
    """Send a signal to a run; of two that come before it is taken the first counts."""
    return Done(agent.signal(run, event, payload))


@operation("runs delete", asks="Take the run {run!r} and its record away, for good?")
def runs_delete(agent: Tenuto, run: RunId) -> Done:
    """Take a run and its record away, for good; its conversation stays."""
    return Done(agent.runs.delete(run))


# -- questions ------------------------------------------------------------------------------------------------------

QuestionId = Annotated[str, "The question; or the run that asks it, if it asks one"]


def _question(agent: Tenuto, given: str) -> str:
    """Return the id of a question: the one given, or the only open one of the run that is given."""
    asked = agent.inbox.list(run=given)
    return asked[0].id if len(asked) == 1 else given


@operation("inbox list", "id", "text", "to", "run", "deadline")
def inbox_list(
    agent: Tenuto,
    *,
    to: Annotated[str | None, "Only those to them"] = None,
    status: Annotated[QuestionStatus, "Which"] = "pending",
) -> list[Question]:
    """List questions that wait for an answer."""
    return agent.inbox.list(to, status)


@operation("inbox show")
def inbox_show(agent: Tenuto, question: QuestionId) -> Question:
    """Show a question, what it is about, and what became of it."""
    return agent.inbox.get(_question(agent, question))


@operation("inbox answer", writes=True)
def inbox_answer(
    agent: Tenuto,
    question: QuestionId,
    answer: Value,
    *,
    by: Annotated[str | None, "Who answers"] = None,
    result: Annotated[Any, "For a step in doubt that happened: what came of it, JSON or text"] = None,
) -> Question:
    """Answer a question, once; the run that waits for it goes on. A step in doubt: happened, or "not happened"."""
    if answer == "happened" and result is not None:
        answer = Happened(result)
    elif answer == "not happened":
        answer = NotHappened()
    return agent.inbox.answer(_question(agent, question), answer, by=by)


@operation("inbox cancel", asks="Take the question {question!r} back?")
def inbox_cancel(agent: Tenuto, question: QuestionId, *, by: Annotated[str | None, "Who"] = None) -> Question:
    """Take a question back; the run that waits for it goes on with an error."""
    return agent.inbox.cancel(_question(agent, question), by=by)
