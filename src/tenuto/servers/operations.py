"""One table of what can be done to a store from outside; the command line renders it, and servers will.

An operation is a function of a client: what it takes by position is what it is about, what it takes by name are
options, its docstring says what it does, its annotation what it returns. So its help, its arguments, its JSON and
the schema of that JSON are one thing, written once.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from tenuto.capabilities.differences import Difference
from tenuto.capabilities.journal import Change
from tenuto.capabilities.lineage import Checkpoint
from tenuto.capabilities.procedure import WorkflowInfo, WorkflowStep
from tenuto.capabilities.questions import Happened, NotHappened, Question
from tenuto.capabilities.runs import Emitted
from tenuto.capabilities.runviews import RunInfo, RunRecord
from tenuto.capabilities.schedules import ScheduleInfo
from tenuto.capabilities.state import Entry
from tenuto.capabilities.taskbook import TaskInfo
from tenuto.capabilities.threads import ThreadInfo
from tenuto.capabilities.timeline import Decision, Event, ToolCall
from tenuto.client import Tenuto
from tenuto.errors import NotFound
from tenuto.kernel.contract import Finding

Value = Annotated[Any, "JSON, or plain text"]
RunStatus = Literal["queued", "running", "waiting", "interrupted", "in_doubt", "failed", "completed", "cancelled"]
WorkflowStatus = Literal["pending", "in_progress", "completed", "failed", "blocked", "active"]
QuestionStatus = Literal["pending", "answered", "cancelled", "expired"]


class Parameter(NamedTuple):
    """One thing that an operation takes."""

    name: str
    kind: Any
    help: str
    required: bool
    default: Any
    positional: bool


class Done(NamedTuple):
    """What an operation that changes something says: whether there was something to change."""

    changed: bool


class Stored(NamedTuple):
    """What a write says: the version it made."""

    version: int


class Number(NamedTuple):
    """How many."""

    number: int


@dataclass(frozen=True)
class Operation:
    """One thing that can be done."""

    name: str
    """Its words: "runs list"."""
    call: Callable[..., Any]
    help: str
    parameters: tuple[Parameter, ...]
    returns: Any
    columns: tuple[str, ...]
    """What a table of its rows shows; all else is in the JSON."""
    writes: bool
    asks: str | None
    """What is asked before it is done, if it cannot be undone."""

    @property
    def streams(self) -> bool:
        """Tell whether what it returns comes bit by bit."""
        return typing.get_origin(self.returns) in (Iterator, typing.get_origin(Iterator[Any]))

    @property
    def item(self) -> Any:
        """Return the type of one of the things that it returns."""
        return typing.get_args(self.returns)[0] if self.streams or self.rows else self.returns

    @property
    def rows(self) -> bool:
        """Tell whether it returns a list of things."""
        return typing.get_origin(self.returns) is list


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str, *columns: str, writes: bool = False, asks: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Put a function into the table."""

    def put(call: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(call, include_extras=True)
        found = []
        for one in list(inspect.signature(call).parameters.values())[1:]:
            kind, text = hints[one.name], ""
            if typing.get_origin(kind) is Annotated:
                kind, text = typing.get_args(kind)
            required = one.default is inspect.Parameter.empty
            default = None if required else one.default
            positional = one.kind is not inspect.Parameter.KEYWORD_ONLY
            found.append(Parameter(one.name, kind, text, required, default, positional))
        OPERATIONS[name] = Operation(
            name, call, inspect.getdoc(call) or "", tuple(found), hints["return"], columns, writes or bool(asks), asks
        )
        return call

    return put


# -- state ----------------------------------------------------------------------------------------------------------

Scope = Annotated[str, "What the value belongs to"]
Key = Annotated[str, "The name of the value"]


@operation("state get", "key", "value", "version", "updated_at")
def state_get(agent: Tenuto, scope: Scope, key: Key) -> Entry:
    """Show a value, its version, and who wrote it when."""
    entry = agent.state.entry(scope, key)
    if entry is None:
        raise NotFound(f"There is no value {key!r} in {scope!r}. See which there are: tenuto state list {scope}")
    return entry


@operation("state set", writes=True)
def state_set(
    agent: Tenuto,
    scope: Scope,
    key: Key,
    value: Value,
    *,
    expect: Annotated[int | None, "The version that it must have now; 0: it must not be there"] = None,
    ttl: Annotated[str | None, 'For how long it is kept, e.g. "24h"'] = None,
) -> Stored:
    """Set a value, durably."""
    return Stored(agent.state.set(scope, key, value, expect=expect, ttl=ttl))


@operation("state list", "key", "value")
def state_list(agent: Tenuto, scope: Scope) -> list[dict[str, Any]]:
    """List the values of a scope."""
    return [{"key": key, "value": value} for key, value in agent.state.items(scope).items()]


@operation("state history", "version", "value", "updated_at", "writer")
def state_history(
    agent: Tenuto, scope: Scope, key: Key, *, limit: Annotated[int, "How many, newest first"] = 20
) -> list[Entry]:
    """Show what a value was before."""
    return agent.state.history(scope, key, limit=limit)


@operation("state delete", asks="End the value {key!r} of {scope!r}? Its history stays.")
def state_delete(agent: Tenuto, scope: Scope, key: Key) -> Done:
    """End a value; its history stays."""
    return Done(agent.state.delete(scope, key))


@operation("state watch", "number", "key", "value", "at")
def state_watch(
    agent: Tenuto,
    scope: Scope,
    *,
    after: Annotated[int | None, "Go on behind this number"] = None,
    timeout: Annotated[str | None, "End when nothing has come for so long"] = None,
) -> Iterator[Change]:
    """Show changes of a scope as they land."""
    return agent.state.watch(scope, after=after, timeout=timeout)


# -- threads --------------------------------------------------------------------------------------------------------

ThreadId = Annotated[str, "The conversation"]


@operation("thread list", "id", "user", "created_at", "forked_from")
def thread_list(
    agent: Tenuto,
    *,
    user: Annotated[str | None, "Only this user's"] = None,
    limit: Annotated[int, "How many at most"] = 100,
) -> list[ThreadInfo]:
    """List conversations."""
    return agent.threads.list(user, limit=limit)


@operation("thread show", "role", "content")
def thread_show(
    agent: Tenuto, thread: ThreadId, *, last: Annotated[int | None, "Only the last so many"] = None
) -> list[dict[str, Any]]:
    """Show the messages of a conversation."""
    found = agent.thread(thread).messages(last=last)
    if not found and not agent.thread(thread).count():
        raise NotFound(f"There is no conversation {thread!r}. See which there are: tenuto thread list")
    return found


@operation("thread append", writes=True)
def thread_append(
    agent: Tenuto,
    thread: ThreadId,
    content: Annotated[str, "What is said"],
    *,
    role: Annotated[str, "Who says it"] = "user",
    key: Annotated[str | None, "With the same key it is appended once"] = None,
) -> Number:
    """Add a message to a conversation, durably."""
    return Number(agent.thread(thread).append({"role": role, "content": content}, key=key))


@operation("thread timeline", "number", "kind", "what", "at")
def thread_timeline(agent: Tenuto, thread: ThreadId) -> list[Event]:
    """Show everything that happened in a conversation, in order."""
    return list(agent.thread(thread).timeline())


@operation("thread decisions", "number", "text", "why", "at")
def thread_decisions(agent: Tenuto, thread: ThreadId) -> list[Decision]:
    """Show the decisions of a conversation, and their reasons."""
    return agent.thread(thread).decisions()


@operation("thread tools", "number", "name", "args", "result", "at")
def thread_tools(agent: Tenuto, thread: ThreadId) -> list[ToolCall]:
    """Show the tool calls of a conversation."""
    return agent.thread(thread).tool_calls()


@operation("thread fork", writes=True)
def thread_fork(
    agent: Tenuto,
    thread: ThreadId,
    other: Annotated[str, "The new conversation"],
    *,
    at: Annotated[int | None, "With its past up to this message"] = None,
) -> Number:
    """Begin another conversation with this one's past; nothing is copied."""
    return Number(agent.thread(thread).fork(other, at).count())


@operation("thread delete", asks="Take the conversation {thread!r} away, for good?")
def thread_delete(agent: Tenuto, thread: ThreadId) -> Done:
    """Take a conversation away, for good; those forked from it keep their past."""
    return Done(agent.thread(thread).delete())


# -- checkpoints ----------------------------------------------------------------------------------------------------

CheckpointId = Annotated[str, "Its id, or its name"]


@operation("checkpoint list", "id", "name", "thread", "created_at", "size", "stored_bytes")
def checkpoint_list(
    agent: Tenuto,
    *,
    thread: Annotated[str | None, "Only this thread's"] = None,
    name: Annotated[str | None, "Only those of this name"] = None,
    limit: Annotated[int, "How many at most"] = 50,
) -> list[Checkpoint]:
    """List checkpoints, newest first, without reading their states."""
    return agent.checkpoint.list(thread, name=name, limit=limit)


@operation("checkpoint show")
def checkpoint_show(
    agent: Tenuto, checkpoint: CheckpointId, *, thread: Annotated[str | None, "Where the name stands"] = None
) -> dict[str, Any]:
    """Show the state that a checkpoint holds."""
    return dict(agent.checkpoint._given(checkpoint, thread))


@operation("checkpoint diff", "path", "kind", "old", "new")
def checkpoint_diff(
    agent: Tenuto,
    before: CheckpointId,
    after: CheckpointId,
    *,
    thread: Annotated[str | None, "Where the names stand"] = None,
) -> list[Difference]:
    """Show what changed from one checkpoint to another."""
    return agent.checkpoint.diff(before, after, thread=thread)


@operation("checkpoint fork", writes=True)
def checkpoint_fork(
    agent: Tenuto, checkpoint: CheckpointId, *, thread: Annotated[str, "The thread that begins with it"]
) -> Checkpoint:
    """Begin another thread with the state of a checkpoint: time travel; the original stays as it is."""
    return agent.checkpoint.fork(checkpoint, thread=thread)


@operation("checkpoint restore", writes=True)
def checkpoint_restore(
    agent: Tenuto, checkpoint: CheckpointId, *, thread: Annotated[str | None, "Where the name stands"] = None
) -> Checkpoint:
    """Save the state of an earlier checkpoint as the newest one of its name; what came between stays."""
    found = agent.checkpoint.get(checkpoint, thread=thread) or agent.checkpoint.get(id=checkpoint)
    if found is None:
        raise NotFound(f"There is no checkpoint {checkpoint!r}. See which there are: tenuto checkpoint list")
    state = agent.checkpoint.restore(id=found.id)
    return agent.checkpoint.create(found.name, dict(state), thread=found.thread, meta={"restored": found.id})


@operation("checkpoint prune", asks="Take older checkpoints away, for good?")
def checkpoint_prune(
    agent: Tenuto,
    *,
    thread: Annotated[str | None, "Only this thread's"] = None,
    keep_last: Annotated[int | None, "How many are kept"] = None,
    older_than: Annotated[str | None, 'Only those older than this, e.g. "30d"'] = None,
) -> Number:
    """Take older checkpoints away; one that is kept stays whole."""
    return Number(agent.checkpoint.prune(thread, keep_last=keep_last, older_than=older_than))


@operation("checkpoint delete", asks="Take the checkpoint {checkpoint!r} away, for good?")
def checkpoint_delete(
    agent: Tenuto, checkpoint: CheckpointId, *, thread: Annotated[str | None, "Where the name stands"] = None
) -> Done:
    """Take a checkpoint away, for good."""
    return Done(bool(agent.checkpoint.delete(checkpoint, thread=thread)))


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
    occurrence: Annotated[int, "Which step of that name"] = 1,
    args: Annotated[Any, "The arguments of that step, a JSON list"] = None,
    results: Annotated[Any, "Results of steps before it, a JSON object by name"] = None,
) -> RunInfo:
    """Begin another run with what this one had done before a step; the original stays as it is."""
    return agent.runs.fork(run, new, at=at, occurrence=occurrence, args=args, results=results)


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

QuestionId = Annotated[str, "The question"]


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
    return agent.inbox.get(question)


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
    return agent.inbox.answer(question, answer, by=by)


@operation("inbox cancel", asks="Take the question {question!r} back?")
def inbox_cancel(agent: Tenuto, question: QuestionId, *, by: Annotated[str | None, "Who"] = None) -> Question:
    """Take a question back; the run that waits for it goes on with an error."""
    return agent.inbox.cancel(question, by=by)


# -- tasks and workflows ----------------------------------------------------------------------------------------------

Queue = Annotated[str, "The queue"]
TaskId = Annotated[str, "The task, by its id or key"]
Most = Annotated[int, "How many at most"]


@operation("tasks list", "id", "status", "priority", "user", "attempts", "due", "error")
def tasks_list(
    agent: Tenuto,
    queue: Queue,
    *,
    status: Annotated[Literal["waiting", "running", "dead"], "Which of them"] = "waiting",
    limit: Most = 100,
) -> list[TaskInfo]:
    """List the tasks of a queue: those that wait, are in hand, or were given up."""
    tasks = agent.tasks
    listed = {"waiting": tasks.pending, "running": tasks.running, "dead": tasks.dead}[status]
    return listed(queue, limit=limit)


@operation("tasks counts")
def tasks_counts(agent: Tenuto, queue: Queue) -> dict[str, int]:
    """Say how many tasks of a queue may be taken, come later, are in hand, were given up."""
    return agent.tasks.counts(queue)


@operation("tasks show")
def tasks_show(agent: Tenuto, task: TaskId) -> TaskInfo:
    """Show a task, with its result or its last error."""
    return agent.tasks.get(task)


@operation("tasks enqueue", writes=True)
def tasks_enqueue(
    agent: Tenuto,
    queue: Queue,
    payload: Value = None,
    *,
    key: Annotated[str | None, "Its id: the same key is the same task"] = None,
    delay: Annotated[str | None, "It may be taken after so long"] = None,
    priority: Annotated[int, "The higher the sooner"] = 0,
    user: Annotated[str | None, "Whose it is"] = None,
) -> TaskInfo:
    """Put a task into a queue."""
    return agent.tasks.enqueue(queue, payload, key=key, delay=delay, priority=priority, user=user)


@operation("tasks retry", writes=True)
def tasks_retry(agent: Tenuto, task: TaskId) -> TaskInfo:
    """Let a task that was given up or cancelled be done after all, with all its attempts."""
    agent.tasks.retry(task)
    return agent.tasks.get(task)


@operation("tasks cancel", asks="Let the task {task!r} not be done?")
def tasks_cancel(agent: Tenuto, task: TaskId) -> Done:
    """Let a task not be done; whoever has it in hand can end it no more. It may be retried later."""
    return Done(agent.tasks.cancel(task))


@operation("tasks recurring", "name", "cron", "interval", "next", "last", "fired")
def tasks_recurring(agent: Tenuto, queue: Queue) -> list[ScheduleInfo]:
    """List the recurring tasks of a queue, with when each comes next."""
    return agent.tasks.recurring(queue)


@operation("workflows list", "name", "status", "user", "progress", "next_step")
def workflows_list(
    agent: Tenuto,
    *,
    status: Annotated[WorkflowStatus | None, "Only those; active is all that is not completed"] = None,
    user: Annotated[str | None, "Only this user's"] = None,
    limit: Most = 100,
) -> list[WorkflowInfo]:
    """List workflows."""
    return [one.info() for one in agent.workflows.list(status, user, limit=limit)]


@operation("workflows show", "step", "action", "status", "attempts", "result", "error", "reason")
def workflows_show(agent: Tenuto, workflow: Annotated[str, "The workflow"]) -> list[WorkflowStep]:
    """Show the steps of a workflow, and what became of each."""
    return agent.workflows.get(workflow).steps


# -- the store ------------------------------------------------------------------------------------------------------


@operation("stats")
def stats(agent: Tenuto) -> dict[str, Any]:
    """Say what the store is, how durable as it is set up now, and how large."""
    return dict(agent.store.stats())


@operation("check", "kind", "detail")
def check(agent: Tenuto) -> list[Finding]:
    """Verify everything that is stored; exit 1 if anything is not as it was written."""
    return agent.store.check().findings


def groups() -> Mapping[str, list[Operation]]:
    """Return the operations by their first word; those of one word stand below ""."""
    found: dict[str, list[Operation]] = {}
    for one in OPERATIONS.values():
        first, _, rest = one.name.partition(" ")
        found.setdefault(first if rest else "", []).append(one)
    return found


def called(operation: Operation, agent: Tenuto, given: Mapping[str, Any]) -> Any:
    """Do it."""
    by_position = [given[one.name] for one in operation.parameters if one.positional]
    by_name = {one.name: given[one.name] for one in operation.parameters if not one.positional}
    found = operation.call(agent, *by_position, **by_name)
    return found if operation.streams or not isinstance(found, Iterable) or not operation.rows else list(found)
