"""Operations on threads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from tenuto.capabilities.context import Sign
from tenuto.capabilities.threads import Decision, Event, ThreadInfo, ToolCall
from tenuto.client import Tenuto
from tenuto.errors import NotFound
from tenuto.operations.table import Done, Number, operation

ThreadId = Annotated[str, "Thread id"]


@operation("thread list", "id", "user", "created_at", "forked_from")
def thread_list(
    agent: Tenuto,
    *,
    user: Annotated[str | None, "Only threads of this user"] = None,
    limit: Annotated[int, "Maximum number of threads"] = 100,
    after: Annotated[str | None, "Start after the thread with this id"] = None,
) -> list[ThreadInfo]:
    """List threads."""
    return agent.threads.list(user, limit=limit, after=after)


@operation("thread show", "role", "content")
def thread_show(
    agent: Tenuto, thread: ThreadId, *, last: Annotated[int | None, "Only the last N messages"] = None
) -> list[dict[str, Any]]:
    """Show the messages of a thread."""
    found = agent.thread(thread).messages(last=last)
    if not found and not agent.thread(thread).count():
        raise NotFound(f"There is no thread {thread!r}. List threads with: tenuto thread list")
    return found


@operation("thread append", writes=True)
def thread_append(
    agent: Tenuto,
    thread: ThreadId,
    content: Annotated[str, "Text of the message"],
    *,
    role: Annotated[str, "Role of the message"] = "user",
    key: Annotated[str | None, "Idempotency key: a message with the same key is appended once"] = None,
) -> Number:
    """Append a message to a thread durably."""
    return Number(agent.thread(thread).append({"role": role, "content": content}, key=key))


@operation("thread timeline", "number", "kind", "what", "at")
def thread_timeline(agent: Tenuto, thread: ThreadId) -> list[Event]:
    """Show all events of a thread in order."""
    return list(agent.thread(thread).timeline())


@operation("thread watch", "number", "kind", "what", "at")
def thread_watch(
    agent: Tenuto,
    thread: ThreadId,
    *,
    after: Annotated[int | None, "Start after this number"] = None,
    timeout: Annotated[str | None, "Stop after this long without an event"] = None,
) -> Iterator[Event]:
    """Print the events of a thread as they arrive."""
    return agent.thread(thread).watch(after=after, timeout=timeout)


@operation("thread decisions", "number", "text", "why", "at")
def thread_decisions(agent: Tenuto, thread: ThreadId) -> list[Decision]:
    """Show the decisions of a thread and their reasons."""
    return agent.thread(thread).decisions()


@operation("thread tools", "number", "name", "args", "result", "at")
def thread_tools(agent: Tenuto, thread: ThreadId) -> list[ToolCall]:
    """Show the tool calls of a thread."""
    return agent.thread(thread).tool_calls()


@operation("thread scan", "kind", "message", "text", "evidence")
def thread_scan(
    agent: Tenuto,
    thread: ThreadId,
    *,
    user: Annotated[str | None, "Also compare with the preferences and workflows of this user"] = None,
) -> list[Sign]:
    """Find signs of lost context: repeated calls and questions, contradictions, restarted work."""
    return agent.guard(thread, user=user).scan()


@operation("thread fork", writes=True)
def thread_fork(
    agent: Tenuto,
    thread: ThreadId,
    other: Annotated[str, "Id of the new thread"],
    *,
    at: Annotated[int | None, "Last message to include; default: all"] = None,
) -> Number:
    """Start another thread with the messages of this one. Nothing is copied."""
    return Number(agent.thread(thread).fork(other, at).count())


@operation("thread delete", asks="Delete the thread {thread!r} permanently?")
def thread_delete(agent: Tenuto, thread: ThreadId) -> Done:
    """Delete a thread permanently. Its forks keep their messages."""
    return Done(agent.thread(thread).delete())
