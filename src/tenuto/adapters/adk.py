"""Google ADK on tenuto: `TenutoSessionService` and `TenutoMemoryService`.

    runner = Runner(agent=root, app_name="travel", session_service=TenutoSessionService(store),
                    memory_service=TenutoMemoryService(store))

The events of a session are the thread `APP/USER/SESSION`, or what `thread=` returns, so other frameworks read them. Keys:
`("adk", "records", "session"` | `"app"` | `"user", …)` (`adapters/records.py`): the state of a session with the number of
events that are in it, and the states of apps and users. An event is one keyed append, then its state deltas are one
commit; a crash in between is completed by the next read or append. State with the prefix `temp:` is never stored.

Memories are `agent.memory` of the user `APP/USER`: one per text of an event, once for the event's id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tenuto import shapes
from tenuto.adapters.conversation import Conversation
from tenuto.adapters.forms import NativeForm
from tenuto.adapters.records import Change, Records
from tenuto.aio import AsyncTenuto
from tenuto.client import Tenuto
from tenuto.errors import Conflict, MissingDriver
from tenuto.kernel.durations import Duration
from tenuto.shapes import Call, Image, Message, Part, Result, Said, Text

try:
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events.event import Event
    from google.adk.memory.base_memory_service import BaseMemoryService, SearchMemoryResponse
    from google.adk.memory.memory_entry import MemoryEntry
    from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
    from google.adk.sessions.session import Session
    from google.genai import types
except ImportError as error:
    raise MissingDriver('Google ADK is not installed. Run: pip install "tenuto[adk]".') from error

__all__ = ["TenutoMemoryService", "TenutoSessionService"]

_SPACE: Final = "adk"
_APP, _USER, _TEMP = "app:", "user:", "temp:"

# -- events --------------------------------------------------------------------------------------------------------


def _said(event: Message) -> Said | None:
    content = event.get("content") or {}
    parts = [part for one in content.get("parts") or () for part in _parts(one)]
    role = "user" if event.get("author") == "user" or any(isinstance(one, Result) for one in parts) else "assistant"
    return Said(role, tuple(parts))  # type: ignore[arg-type]


def _parts(part: Message) -> list[Part]:
    if part.get("text"):
        return [] if part.get("thought") else [Text(part["text"])]
    if part.get("function_call"):
        call = part["function_call"]
        return [Call(str(call.get("id")), str(call.get("name")), shapes.as_json(call.get("args") or {}))]
    if part.get("function_response"):
        result = part["function_response"]
        return [Result(str(result.get("id")), (Text(shapes.as_json(result.get("response") or {})),))]
    return []


def _written(said: Said) -> list[Message]:
    """Return the event that says the same; system messages have none."""
    if said.role == "system":
        return []
    model = said.role == "assistant"
    content = {"role": "model" if model else "user", "parts": [_part(one) for one in said.parts]}
    return [{"author": "model" if model else "user", "content": content}]


def _part(part: Part) -> Message:
    if isinstance(part, Call):
        return {"function_call": {"id": part.id, "name": part.name, "args": shapes.arguments(part.arguments)}}
    if isinstance(part, Result):
        response = shapes.arguments(shapes.plain_text(part.parts))
        return {"function_response": {"id": part.id, "name": "", "response": response}}
    return {"text": shapes.plain_text([part])} if isinstance(part, Text | Image) else {}


_FORM: Final = NativeForm(_SPACE, _said, _written)


# -- sessions ------------------------------------------------------------------------------------------------------


class TenutoSessionService(BaseSessionService):
    """ADK's session service in an agent's store.

    `thread(app, user, session)` returns the id of the thread of a session. With `ttl` a session expires that long after
    its last event.
    """

    def __init__(
        self,
        agent: Tenuto | AsyncTenuto,
        *,
        thread: Callable[[str, str, str], str] = lambda *names: "/".join(names),
        ttl: Duration | None = None,
    ) -> None:
        self._records = Records(agent, _SPACE, ttl=ttl)
        self._thread, self._ttl = thread, ttl

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session; raise `AlreadyExistsError` if there is one of this id."""
        wanted = (session_id or "").strip() or str(uuid.uuid4())

        def act(change: Change) -> None:
            if change.get("session", app_name, user_id, wanted) is not None:
                raise AlreadyExistsError(f"Session with id {wanted} already exists.")
            own: dict[str, Any] = {}
            _merge(change, app_name, user_id, state or {}, own)
            now = self._records.kernel.now()
            change.put({"state": own, "time": now, "applied": 0}, "session", app_name, user_id, wanted)

        await self._records.call(self._records.change, act)
        found = await self.get_session(app_name=app_name, user_id=user_id, session_id=wanted)
        assert found is not None
        return found

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events and the states of its app and user, or None."""
        return await self._records.call(self._read, (app_name, user_id, session_id.strip()), config)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of an app, or of one user, without events; the one that was changed last comes last."""

        def read() -> list[Session]:
            above = ("session", app_name) if user_id is None else ("session", app_name, user_id)
            names = [(*above[1:], *one.path) for one in self._records.under(*above)]
            made = [self._read(one, GetSessionConfig(num_recent_events=0)) for one in names]
            found = [one for one in made if one is not None]
            return sorted(found, key=lambda one: (one.last_update_time, one.user_id, one.id))

        return ListSessionsResponse(sessions=await self._records.call(read))

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events; the states of its app and user stay."""
        names = app_name, user_id, session_id.strip()

        def remove() -> None:
            if self._records.delete("session", *names):
                self._conversation(names).clear()

        await self._records.call(remove)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user, without prefixes."""
        return dict(await self._records.call(self._records.get, "user", app_name, user_id) or {})

    async def append_event(self, session: Session, event: Event) -> Event:
        """Append an event durably and apply its state; an event that is sent again is stored once."""
        if event.partial:
            return event
        names = session.app_name, session.user_id, session.id
        if await self._records.call(self._records.get, "session", *names) is None:
            raise SessionNotFoundError(f"Session {session.id} not found.")
        if any(known == event for known in session.events if known.id == event.id):
            return event
        event = await super().append_event(session=session, event=event)
        session.last_update_time = event.timestamp

        def store() -> None:
            line = _FORM.stored(event.model_dump(mode="json", exclude_none=True, by_alias=False))
            thread = self._conversation(names).thread
            try:
                thread.append(line, key=f"adk:{event.id}")
            except Conflict:  # another event of the same id
                thread.append(line)
            self._apply(names)

        await self._records.call(store)
        return event

    def _read(self, names: tuple[Any, ...], config: GetSessionConfig | None = None) -> Session | None:
        if self._records.get("session", *names) is None:
            return None
        head, app, user = self._apply(names)
        events = [] if config is not None and config.num_recent_events == 0 else self._events(names)
        if config is not None and config.num_recent_events:
            events = events[-config.num_recent_events :]
        if config is not None and config.after_timestamp is not None:
            events = [event for event in events if event.timestamp >= config.after_timestamp]
        state = {
            **head["state"],
            **{_APP + key: value for key, value in app.items()},
            **{_USER + key: value for key, value in user.items()},
        }
        app_name, user_id, session_id = names
        return Session(
            id=session_id, app_name=app_name, user_id=user_id, state=state, events=events, last_update_time=head["time"]
        )

    def _events(self, names: tuple[Any, ...]) -> list[Event]:
        return [Event.model_validate(one) for one in self._conversation(names).read()]

    def _apply(self, names: tuple[Any, ...]) -> tuple[Any, Any, Any]:
        """Apply the state deltas of the events that are not in the state yet; return the three states."""
        thread = self._conversation(names).thread
        count = thread.count()

        def act(change: Change) -> tuple[Any, Any, Any]:
            head = change.get("session", *names) or {"state": {}, "time": 0.0, "applied": 0}
            app, user = change.get("app", names[0]) or {}, change.get("user", *names[:2]) or {}
            if head["applied"] < count:
                lines = thread.messages(after=head["applied"], before=count + 1, original=True)
                for event in (one for line in lines for one in _FORM.shown(line)):
                    delta = (event.get("actions") or {}).get("state_delta") or {}
                    _merge(change, names[0], names[1], delta, head["state"], (app, user))
                    head["time"] = event.get("timestamp", head["time"])
                head["applied"] = count
                change.put(head, "session", *names)
            return head, app, user

        return self._records.change(act)

    def _conversation(self, names: tuple[Any, ...]) -> Conversation:
        return Conversation(self._records.agent, self._thread(*names), _FORM, ttl=self._ttl)


def _merge(
    change: Change,
    app_name: str,
    user_id: str,
    delta: Mapping[str, Any],
    own: dict[str, Any],
    known: tuple[dict[str, Any], dict[str, Any]] | None = None,
) -> None:
    """Apply a delta to the states of an app, a user and a session."""
    app, user = known or (change.get("app", app_name) or {}, change.get("user", app_name, user_id) or {})
    for key, value in delta.items():
        if key.startswith(_APP):
            app[key.removeprefix(_APP)] = value
        elif key.startswith(_USER):
            user[key.removeprefix(_USER)] = value
        elif not key.startswith(_TEMP):
            own[key] = value
    if any(key.startswith(_APP) for key in delta):
        change.put(app, "app", app_name)
    if any(key.startswith(_USER) for key in delta):
        change.put(user, "user", app_name, user_id)


# -- memory --------------------------------------------------------------------------------------------------------


class TenutoMemoryService(BaseMemoryService):
    """ADK's memory service on `agent.memory`: found by words, and by meaning if the agent embeds."""

    def __init__(self, agent: Tenuto | AsyncTenuto, *, k: int = 10) -> None:
        self._records = Records(agent, _SPACE)
        self._k = k

    async def add_session_to_memory(self, session: Session) -> None:
        """Remember the texts of a session's events, each once."""
        await self._remember(session.app_name, session.user_id, session.events)

    async def add_events_to_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        events: Sequence[Event],
        session_id: str | None = None,  # noqa: ARG002 - ADK's signature
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember the texts of events, each once."""
        await self._remember(app_name, user_id, events, dict(custom_metadata or {}))

    async def add_memory(
        self,
        *,
        app_name: str,
        user_id: str,
        memories: Sequence[MemoryEntry],
        custom_metadata: Mapping[str, object] | None = None,
    ) -> None:
        """Remember the texts of entries."""
        for entry in memories:
            meta = {**(custom_metadata or {}), **entry.custom_metadata, "author": entry.author}
            await self._store(_whose(app_name, user_id), _text_of(entry.content), meta)

    async def search_memory(self, *, app_name: str, user_id: str, query: str) -> SearchMemoryResponse:
        """Return what the user's memory has on a query, best first."""
        memory = self._records.agent.memory
        found = await self._records.call(lambda: memory.recall(query, k=self._k, user=_whose(app_name, user_id)))
        entries = []
        for one in found:
            meta = dict(one.memory.meta or {})
            content = types.Content(role="user", parts=[types.Part(text=one.memory.text)])
            author, at = meta.pop("author", None), meta.pop("at", None)
            timestamp = at or one.memory.learned_at.isoformat()
            entries.append(
                MemoryEntry(id=one.memory.id, content=content, author=author, timestamp=timestamp, custom_metadata=meta)
            )
        return SearchMemoryResponse(memories=entries)

    async def delete_memory(self, *, app_name: str, user_id: str, memory_id: str | None = None) -> None:
        """Forget a memory of this user."""
        memory = self._records.agent.memory

        def forget() -> None:
            found = None if memory_id is None else memory.get(memory_id)
            if found is not None and found.user == _whose(app_name, user_id):
                memory.forget(found.id, reason="deleted in ADK")

        await self._records.call(forget)

    async def _remember(
        self, app_name: str, user_id: str, events: Sequence[Event], more: dict[str, Any] | None = None
    ) -> None:
        whose = _whose(app_name, user_id)
        for event in events:
            text = _text_of(event.content)
            if not text or await self._records.call(self._records.get, "remembered", whose, event.id):
                continue
            at = datetime.fromtimestamp(event.timestamp, UTC).isoformat()
            await self._store(whose, text, {**(more or {}), "author": event.author, "at": at})
            await self._records.call(self._records.put, True, "remembered", whose, event.id)

    async def _store(self, whose: str, text: str, meta: dict[str, Any]) -> None:
        memory = self._records.agent.memory
        given = {key: value for key, value in meta.items() if value is not None}
        await self._records.call(lambda: memory.remember(text, user=whose, meta=given))


def _whose(app_name: str, user_id: str) -> str:
    return f"{app_name}/{user_id}"


def _text_of(content: Any) -> str:
    parts = [] if content is None else content.parts or []
    return "\n".join(part.text for part in parts if part.text and not part.thought)
