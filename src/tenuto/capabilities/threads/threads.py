"""The list of a tenant's threads, by id or by user."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple, Protocol

from tenuto.capabilities._core.base import Context, scan_all
from tenuto.capabilities.threads.messages import Message
from tenuto.capabilities.threads.writer import INDEX, USER_INDEX, Ends, info_of
from tenuto.errors import InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.durations import moment


class Elsewhere(Protocol):
    """A framework's own storage of conversations, read for threads that have no log."""

    def __call__(self, thread: str, *, whole: bool) -> list[Message] | None:
        """Return a thread's messages, with `whole` every detail that their writer needs; None if it is absent."""
        ...


class ThreadInfo(NamedTuple):
    """A thread in a list."""

    id: str
    user: str | None
    created_at: datetime
    expires_at: datetime | None
    forked_from: str | None


class Threads:
    """The conversations of a tenant."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._ends = Ends()
        self._scratches: dict[str, dict[str, Any]] = {}
        self._elsewhere: dict[str, Elsewhere] = {}
        """Registered by adapters, whose frameworks store conversations themselves."""

    def list(self, user: str | None = None, *, after: str | None = None, limit: int | None = None) -> list[ThreadInfo]:
        """Return up to `limit` threads, of all users or one, ordered by id, from the id after `after`."""
        if limit is not None and limit < 1:
            raise InvalidInput(f"limit must be at least 1, not {limit}.")
        prefix = INDEX if user is None else USER_INDEX + keys.named(user, "user")
        seen = None if after is None else prefix + keys.named(after, "thread id")
        found: list[ThreadInfo] = []
        for record in scan_all(self._context.kernel, prefix, seen, limit):
            info = info_of(record)
            over = None if record.expires_at is None else moment(record.expires_at)
            name = str(keys.unpack(record.key)[-1])
            found.append(ThreadInfo(name, info.user, moment(info.created), over, info.parent))
        return found
