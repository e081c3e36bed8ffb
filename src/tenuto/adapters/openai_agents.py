"""The OpenAI Agents SDK on tenuto: `TenutoSession` keeps a session's items as a thread.

    session = TenutoSession("user-123", agent)               # or a path, as SQLiteSession takes it: "conversations.db"
    result = await Runner.run(assistant, "Where were we?", session=session)

It owns no keys: the session is the thread of the same id, with everything a thread has (`thread.timeline()`, forks,
`repair`), and what other frameworks wrote to it is read as items. Adding a turn is one commit, all items or none,
durable when it returns, and brought to its end even if the run is cancelled meanwhile; a crash leaves the turn there
or not there. Taking an item back is one commit; it is no longer read, and stays in the log until the session is
cleared. Clearing ends the thread. Each turn reads only what is new: what was read before is held in memory.
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
    raise MissingDriver('The OpenAI Agents SDK is not installed; run: pip install "tenuto[openai-agents]".') from error

__all__ = ["TenutoSession"]

Context = Any
T = TypeVar("T")
_VIEWS: Final = 256


class TenutoSession:
    """A session of the OpenAI Agents SDK, kept as the thread `session_id` of an agent.

    `agent` is a `Tenuto` or an `AsyncTenuto`, or the URL or path of a store: sessions of one process that name the same
    one share its client, which is closed with the last of them. `user` is whose conversation it is, `tenant` whose part of the store: a name, or a function that finds it in the
    context of the run (`user=lambda context: context.user_id`). `ttl` ends the session so long after its last turn.
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
                self._of(None)  # what cannot be a name is refused here, not in the middle of a run
        except BaseException:
            self.close()
            raise

    async def get_items(
        self, limit: int | None = None, *, wrapper: RunContextWrapper[Any] | None = None
    ) -> list[TResponseInputItem]:
        """Return the items of the session, oldest first, or the last `limit` of them; the settings' limit if not given."""
        most = resolve_session_limit(limit, self.session_settings)
        last = most if most is not None and most >= 0 else None  # the SDK's own sessions take -1 for all
        return cast("list[TResponseInputItem]", await self._of(wrapper).read(last))

    async def add_items(
        self, items: list[TResponseInputItem], *, wrapper: RunContextWrapper[Any] | None = None
    ) -> None:
        """Add items, all or none of them, durably; a cancelled run does not leave half of them."""
        await self._of(wrapper).add(items)

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Take back the last item and return it; None where there is none."""
        return cast("TResponseInputItem | None", await self._of(wrapper).pop())

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """End the session: nothing of it is read any more, and what it said is taken out of the store."""
        await self._of(wrapper).clear()

    def close(self) -> None:
        """End this object, not the conversation: any other call is then `Closed`. Calling it again does nothing.

        A store that it opened itself is let go with the last session on it; an agent that was given stays open.
        """
        if not self._closed:
            self._closed = True
            if self._own is not None:
                _opened.give_back(self._own)

    def _of(self, wrapper: RunContextWrapper[Any] | None) -> AsyncConversation:
        if self._closed:
            raise Closed(f"This {type(self).__name__} is closed; make another one with the same id to go on.")
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
        """Say which one this is; nothing is read."""
        return f"<TenutoSession {self.session_id!r}>"


def _found(
    given: str | Callable[[Context], str] | None, wrapper: RunContextWrapper[Any] | None, what: str
) -> str | None:
    if not callable(given):
        return given
    if wrapper is None:
        raise InvalidInput(
            f"This session finds its {what} in the context of a run, and this call has none. "
            f"Give the {what} by name to use the session outside of a run."
        )
    return given(wrapper.context)
