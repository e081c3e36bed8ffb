"""Collect the notes of a context: what the model should know this turn, from outside of the conversation.

Reads only. In the order in which they are shown: preferences of the user, active workflows, open questions, decisions of
the thread, memories that fit the query. If the budget is full, the last ones are left out first; open questions never are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from tenuto.capabilities.context.builder import Note
from tenuto.capabilities.memory import Memories
from tenuto.capabilities.people import Inbox
from tenuto.capabilities.state import State
from tenuto.capabilities.threads import Thread, Threads
from tenuto.capabilities.workflows import Workflow, Workflows

DECISIONS = 20
"""The newest decisions that are shown."""
MEMORIES = 8
_QUESTIONS = 20
_WORKFLOWS = 5
_QUERY = 1_000
"""Memories are searched by the end of the query: a pasted file says little about what is wanted."""


class Sources(NamedTuple):
    """Where notes come from."""

    users: State
    workflows: Workflows
    inbox: Inbox
    threads: Threads
    memory: Memories

    def gather(self, thread: str, user: str | None, query: str | None, turns: bool = False) -> list[Note]:  # noqa: FBT001, FBT002
        """Return the notes for a thread, a user and a query, with earlier `turns` of the thread that fit it.

        Raise `NotFound` if the thread belongs to another user.
        """
        self.memory._must_be_theirs(thread, user)
        return [
            *(() if user is None else self._preferences(user)),
            *(() if user is None else self._active(user)),
            *self._open(thread, user),
            *self._decided(thread),
            *(() if not query or not query.strip() else self._recalled(user, query.strip()[-_QUERY:])),
            *(() if not turns or not query or not query.strip() else self._earlier(thread, query.strip()[-_QUERY:])),
        ]

    def _preferences(self, user: str) -> Iterator[Note]:
        for key, value in self.users[user].items().items():
            yield Note("Preferences of the user", f"{key}: {_plain(value)}", "set with agent.user")

    def _active(self, user: str) -> Iterator[Note]:
        for one in self.workflows.list("active", user, limit=_WORKFLOWS):
            yield Note("Active workflows", _progress(one), f"status {one.status}")

    def _open(self, thread: str, user: str | None) -> Iterator[Note]:
        """Yield the open questions to the user, and those of runs that belong to this thread."""
        found = [one for one in self.inbox.list() if (user is not None and one.to == user) or one.run == thread]
        for one in found[:_QUESTIONS]:
            choices = f" Choices: {', '.join(map(_plain, one.choices))}." if one.choices else ""
            yield Note(
                "Open questions", f"{one.text}{choices} (asked {one.asked_at:%Y-%m-%d})", "not answered yet", keep=True
            )

    def _decided(self, thread: str) -> Iterator[Note]:
        handle = Thread(self.threads, thread, user=None, ttl=None)
        for one in handle._newest_decisions(DECISIONS):
            why = f" (because {one.why})" if one.why else ""
            yield Note("Decisions", f"{one.text}{why}", f"decision {one.number} of this thread")

    def _recalled(self, user: str | None, query: str) -> Iterator[Note]:
        for found in self.memory.recall(query, MEMORIES, user=user, neighbours=0):
            memory = found.memory
            yield Note("Memories", f"{memory.text} ({memory.learned_at:%Y-%m-%d})", found.why)

    def _earlier(self, thread: str, query: str) -> Iterator[Note]:
        for found in self.memory.recall(query, MEMORIES, user=self.memory._owner(thread), thread=thread, neighbours=0):
            number = found.memory.source.message if found.memory.source else None
            yield Note("Earlier in this conversation", found.memory.text[:_QUERY], found.why, message=number)


def _progress(one: Workflow) -> str:
    following = one.next_incomplete_step()
    done = sum(step.status in ("completed", "skipped") for step in one.steps)
    at = "" if following is None else f"; next is step {following.step}, {following.action} ({following.status})"
    return f"{one.name}: {done} of {len(one.steps)} steps done{at}"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
