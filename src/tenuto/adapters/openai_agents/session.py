"""The OpenAI Agents SDK on tenuto: `TenutoSession` stores a session's items as a thread.

    session = TenutoSession("user-123", agent)               # or a path, as SQLiteSession takes it: "conversations.db"
    result = await Runner.run(assistant, "Where were we?", session=session)

It owns no keys: the session is the thread of the same id, with all features of threads (`thread.timeline()`, forks,
`repair`). Messages of other frameworks are read as items. Adding a turn is one commit, all items or none, durable when
it returns, and completed even if the run is cancelled meanwhile. Removing an item is one commit; the item stays in the
log until the session is cleared. Clearing deletes the thread. A crash leaves each of them done or not done. Earlier
items are cached, so each turn reads only new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from tenuto.adapters import _opened
from tenuto.adapters.conversation import AsyncConversation, Conversation, bridged
from tenuto.aio import AsyncTenuto
from tenuto.client import Tenuto
from tenuto.errors import Closed, InvalidInput, MissingDriver
from tenuto.kernel.durations import Duration

try:
    from agents import RunContextWrapper, SessionSettings, TResponseInputItem
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
except ImportError as error:
    raise MissingDriver('The OpenAI Agents SDK is not installed. Run: pip install "tenuto[openai-agents]".') from error

__all__ = ["TenutoSession"]

Context = Any
T = TypeVar("T")
_VIEWS: Final = 256


class TenutoSession:
    """A session of the OpenAI Agents SDK, stored as the thread `session_id` of an agent.

    `agent` is a `Tenuto`, an `AsyncTenuto`, or the URL or path of a store; sessions of one process share the client of
    a store, and the last one closes it. `user` and `tenant` are names, or functions of the context of the run
    (`user=lambda context: context.user_id`). With `ttl` the session expires that long after its last turn.
    """

    def __init__(
        self,
        session_id: str,
        agent: Tenuto | AsyncTenuto | str | os.PathLike[str],
        *,
        user: str | Callable[[Context], str] | None = None,
        tenant: str | Callable[[Context], str] | None = None,
        ttl: Duration | None = None,
        session_settings: SessionSettings | dict[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._own = _opened.take("openai-agents", agent) if isinstance(agent, str | os.PathLike) else None
        self._closed = False
        try:
            self._agent, self._pool = bridged(agent if self._own is None else self._own.client)  # type: ignore[arg-type]
            self._user, self._tenant, self._ttl = user, tenant, ttl
            self._views: dict[tuple[str | None, str | None], AsyncConversation] = {}
            if not callable(user) and not callable(tenant):
                self._of(None)  # rejects an invalid name here, not in the middle of a run
        except BaseException:
            self.close()
            raise

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """Return the items of the session, oldest first, or the last `limit` of them; default: the limit of the settings."""
        most = resolve_session_limit(limit, self.session_settings)
        last = most if most is not None and most >= 0 else None  # -1 means all, as in the SDK's sessions
        return cast("list[TResponseInputItem]", await self._of(wrapper).read(last))

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Append items atomically and durably, even if the run is cancelled meanwhile."""
        await self._of(wrapper).add(items)

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Remove and return the last item; None if there is none."""
        return cast("TResponseInputItem | None", await self._of(wrapper).pop())

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Delete the session and its items from the store."""
        await self._of(wrapper).clear()

    def close(self) -> None:
        """Close this object; the conversation stays. Later calls raise `Closed`. Safe to repeat.

        A store that was opened from a URL is closed with its last session; an agent that was passed in stays open.
        """
        if not self._closed:
            self._closed = True
            if self._own is not None:
                _opened.give_back(self._own)

    def _of(self, wrapper: RunContextWrapper[Any] | None) -> AsyncConversation:
        if self._closed:
            raise Closed(f"This {type(self).__name__} is closed. Create another one with the same id to continue.")
        whose = (_found(self._tenant, wrapper, "tenant"), _found(self._user, wrapper, "user"))
        known = self._views.get(whose)
        if known is None:
            tenant, user = whose
            agent = self._agent if tenant in (None, self._agent.tenant) else self._agent.for_tenant(tenant)
            conversation = Conversation(agent, self.session_id, "responses", user=user, ttl=self._ttl)
            while len(self._views) >= _VIEWS:
                self._views.pop(next(iter(self._views)))
            known = self._views.setdefault(whose, AsyncConversation(conversation, self._pool))
        return known

    def __repr__(self) -> str:
        """Return the session id, without reading the store."""
        return f"<TenutoSession {self.session_id!r}>"


def _found(
    given: str | Callable[[Context], str] | None, wrapper: RunContextWrapper[Any] | None, what: str
) -> str | None:
    if not callable(given):
        return given
    if wrapper is None:
        raise InvalidInput(
            f"This session reads its {what} from the context of a run, and this call has none. "
            f"To use the session outside a run, pass the {what} as a name."
        )
    return given(wrapper.context)
