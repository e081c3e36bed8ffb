"""Operations on threads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

from tenuto.capabilities.context import BuiltContext, Sign
from tenuto.capabilities.threads import Decision, Event, ThreadInfo, ToolCall
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, NotFound
from tenuto.operations.table import Done, Number, operation

ThreadId = Annotated[str, "Thread id"]
_LINE: Final = 200
"""Characters of a message in a row."""


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


class ThreadRow(NamedTuple):
    """A thread in the overview."""

    id: str
    user: str | None
    messages: int
    role: str | None
    """Who said the last message."""
    last: str | None
    """The beginning of its text."""
    created_at: datetime
    forked_from: str | None


@operation("thread overview", "id", "user", "messages", "role", "last", "created_at")
def thread_overview(
    agent: Tenuto,
    *,
    user: Annotated[str | None, "Only threads of this user"] = None,
    limit: Annotated[int, "Maximum number of threads"] = 50,
    after: Annotated[str | None, "Start after the thread with this id"] = None,
) -> list[ThreadRow]:
    """List threads with the number of their messages and the last one."""
    return [_row(agent, one) for one in agent.threads.list(user, limit=limit, after=after)]


def _row(agent: Tenuto, info: ThreadInfo) -> ThreadRow:
    thread = agent.thread(info.id)
    last = next(iter(thread.messages(last=1)), {})
    role = last.get("role")
    return ThreadRow(
        id=info.id,
        user=info.user,
        messages=thread.count(),
        role=role if isinstance(role, str) else None,
        last=_text(last.get("content")),
        created_at=info.created_at,
        forked_from=info.forked_from,
    )


def _text(content: Any) -> str | None:
    """Return the beginning of the text of a message, whatever shape its provider gave it."""
    parts = content if isinstance(content, list) else [content]
    texts = [one.get("text") if isinstance(one, dict) else one for one in parts]
    found = " ".join(one[:_LINE] for one in texts if isinstance(one, str))
    return found[:_LINE] or None


@operation("thread show", "role", "content")
def thread_show(
    agent: Tenuto, thread: ThreadId, *, last: Annotated[int | None, "Only the last N messages"] = None
) -> list[dict[str, Any]]:
    """Show the messages of a thread."""
    found = agent.thread(thread).messages(last=last)
    if not found and not agent.thread(thread).count():
        raise NotFound(f"There is no thread {thread!r}. List threads with: tenuto thread list")
    return found


class ThreadSummary(NamedTuple):
    """What a thread holds."""

    id: str
    messages: int
    decisions: int
    tool_calls: int


class Numbered(NamedTuple):
    """A message with its number."""

    number: int
    message: dict[str, Any]


@operation("thread info")
def thread_info(agent: Tenuto, thread: ThreadId) -> ThreadSummary:
    """Show how many messages, decisions and tool calls a thread has."""
    found = agent.thread(thread)
    return ThreadSummary(thread, found.count(), len(found.decisions()), len(found.tool_calls()))


@operation("thread read", "number", "message")
def thread_read(
    agent: Tenuto,
    thread: ThreadId,
    *,
    after: Annotated[int, "Start after the message with this number"] = 0,
    limit: Annotated[int, "Maximum number of messages"] = 100,
) -> list[Numbered]:
    """Read original messages of a thread with their numbers: summaries and repairs are not applied."""
    if limit < 1 or after < 0:
        raise InvalidInput("limit must be at least 1, and after at least 0.")
    found = agent.thread(thread).messages(after=after, before=after + limit + 1, original=True)
    return [Numbered(number, message) for number, message in enumerate(found, after + 1)]


@operation("thread context", "name", "tokens", "why")
def thread_context(
    agent: Tenuto,
    thread: ThreadId,
    *,
    user: Annotated[str | None, "Whose memories and preferences"] = None,
    query: Annotated[str | None, "What finds memories; default: the last message of the user"] = None,
    instructions: Annotated[str | None, "Instructions of the agent"] = None,
    budget: Annotated[int, "Maximum number of tokens"] = 8_000,
    model: Annotated[str | None, "Model whose learned correction of the estimate applies"] = None,
) -> BuiltContext:
    """Preview what a model sees next turn: its messages, the tokens of each part and why it is there, what is left out."""
    return agent.build_context(
        thread, user=user, query=query, instructions=instructions, budget=budget, model=model, keep=False
    )


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
