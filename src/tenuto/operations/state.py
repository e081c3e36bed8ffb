"""What is held: state, threads and checkpoints, as operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from tenuto.capabilities.differences import Difference
from tenuto.capabilities.journal import Change
from tenuto.capabilities.lineage import Checkpoint
from tenuto.capabilities.state import Entry
from tenuto.capabilities.threads import ThreadInfo
from tenuto.capabilities.timeline import Decision, Event, ToolCall
from tenuto.client import Tenuto
from tenuto.errors import NotFound
from tenuto.servers.table import Done, Number, Stored, Value, operation

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
