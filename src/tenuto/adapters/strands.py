"""Strands on tenuto: `TenutoStorage` holds snapshots, `TenutoSessionRepository` sessions with their messages.

    manager = SnapshotSessionManager(session_id="trip-42", storage=TenutoStorage(agent))       # recommended by Strands
    manager = RepositorySessionManager("trip-42", TenutoSessionRepository(agent))              # messages are a thread

Keys: `("strands", "records", …)` (`adapters/records.py`). The messages of a session are the thread `SESSION` (of an agent with
another id than "default": `SESSION/AGENT`), which other frameworks read and continue. A message is one keyed append, so
it is stored once however often it is sent. A redacted message is a record that takes the place of the line; the thread
keeps the original: delete the thread to remove it there.
"""

from __future__ import annotations

import builtins
from typing import Any, Final

from tenuto import shapes
from tenuto.adapters.conversation import Conversation
from tenuto.adapters.forms import NativeForm
from tenuto.adapters.records import Records
from tenuto.aio import AsyncTenuto
from tenuto.client import Tenuto
from tenuto.errors import MissingDriver
from tenuto.kernel.durations import Duration
from tenuto.shapes import Call, Message, Part, Result, Said, Text

try:
    from strands.session.session_repository import SessionRepository
    from strands.storage import Storage
    from strands.types.exceptions import SessionException, StorageError
    from strands.types.session import Session, SessionAgent, SessionMessage, SessionType
except ImportError as error:
    raise MissingDriver('Strands is not installed. Run: pip install "tenuto[strands]".') from error

__all__ = ["TenutoSessionRepository", "TenutoStorage"]

_CHUNK: Final = 4 * 2**20
"""Bytes per record of a large value."""


class TenutoStorage(Storage[str, str]):
    """Strands' `Storage` in an agent's store: bytes by key, atomic and durable; a value may have any size.

    With `ttl` a value expires that long after it was written.
    """

    def __init__(self, agent: Tenuto | AsyncTenuto, namespace: str = "strands", *, ttl: Duration | None = None) -> None:
        self._records = Records(agent, namespace, ttl=ttl)

    async def write(self, key: str, data: bytes) -> None:
        """Set a value."""
        path, parts = _path(key), [data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)] or [b""]

        def put() -> None:
            for at, part in enumerate(parts[1:], start=1):
                self._records.put(part, "part", path, len(data), at)
            old = self._records.get("bytes", path)
            self._records.put([len(data), parts[0], len(parts)], "bytes", path)
            if old is not None and old[2] > 1 and old[0] != len(data):
                self._records.delete_under("part", path, old[0])

        await self._records.call(put)

    async def read(self, key: str) -> bytes | None:
        """Return a value, or None."""
        path = _path(key)

        def get() -> bytes | None:
            head = self._records.get("bytes", path)
            if head is None:
                return None
            size, first, count = head
            rest = [self._records.get("part", path, size, at) for at in range(1, count)]
            return bytes(first + b"".join(rest))

        return await self._records.call(get)

    async def delete(self, key: str) -> None:
        """Delete a value."""
        path = _path(key)

        def remove() -> None:
            self._records.delete("bytes", path)
            self._records.delete_under("part", path)

        await self._records.call(remove)

    async def list(self, query: str = "") -> builtins.list[str]:
        """Return the keys that begin with a text, in order."""
        begins = "/".join(part for part in query.split("/") if part) + "/" * (query.endswith("/") and len(query) > 1)
        found = await self._records.call(lambda: self._records.under("bytes", begins=begins))
        return sorted(str(one.path[0]) for one in found)


def _path(key: str) -> str:
    """Return a key in its normal form, by the rules of Strands' own storages."""
    path = "/".join(part for part in key.split("/") if part)
    if not path or "\\" in key or ".." in path.split("/"):
        raise StorageError(f"Invalid storage key {key!r}: it needs a name, and no backslash or '..'. Nothing was done.")
    return path


# -- messages ----------------------------------------------------------------------------------------------------


def _native(message: SessionMessage) -> Message:
    return {name: value for name, value in message.to_dict().items() if name != "message_id"}


def _said(native: Message) -> Said | None:
    message = native["message"]
    return Said(message["role"], tuple(part for block in message["content"] for part in _parts(block)))


def _parts(block: Message) -> list[Part]:
    if "text" in block:
        return [Text(block["text"])] if block["text"] else []
    if "toolUse" in block:
        use = block["toolUse"]
        return [Call(use["toolUseId"], use["name"], shapes.as_json(use["input"]))]
    if "toolResult" in block:
        result = block["toolResult"]
        texts = [
            one["text"] if "text" in one else shapes.as_json(one["json"])
            for one in result["content"]
            if "text" in one or "json" in one
        ]
        return [Result(result["toolUseId"], tuple(map(Text, texts)), result.get("status") == "error")]
    return []


def _written(said: Said) -> list[Message]:
    """Return the message that says the same; system messages have none."""
    if said.role == "system":
        return []
    return [{"message": {"role": said.role, "content": [_block(part) for part in said.parts]}}]


def _block(part: Part) -> Message:
    if isinstance(part, Call):
        return {"toolUse": {"toolUseId": part.id, "name": part.name, "input": shapes.arguments(part.arguments)}}
    if isinstance(part, Result):
        content = [{"text": shapes.plain_text([one])} for one in part.parts]
        status = "error" if part.failed else "success"
        return {"toolResult": {"toolUseId": part.id, "content": content, "status": status}}
    return {"text": shapes.plain_text([part])}


_FORM: Final = NativeForm("strands", _said, _written)


class TenutoSessionRepository(SessionRepository):
    """Strands' `SessionRepository` in an agent's store, for `RepositorySessionManager`."""

    def __init__(self, agent: Tenuto | AsyncTenuto, namespace: str = "strands", *, ttl: Duration | None = None) -> None:
        self._records = Records(agent, namespace, ttl=ttl)
        self._ttl = ttl

    def create_session(self, session: Session, **_: Any) -> Session:
        """Create a session; raise `SessionException` if there is one of this id."""

        def act(change: Any) -> None:
            if change.get("session", session.session_id) is not None:
                raise SessionException(f"Session {session.session_id} already exists")
            data = {**session.to_dict(), "session_type": str(session.session_type.value)}
            change.put(data, "session", session.session_id)

        self._records.change(act)
        return session

    def read_session(self, session_id: str, **_: Any) -> Session | None:
        """Return a session, or None."""
        found = self._records.get("session", session_id)
        return None if found is None else Session(**{**found, "session_type": SessionType(found["session_type"])})

    def delete_session(self, session_id: str, **_: Any) -> None:
        """Delete a session with its agents and messages."""
        if not self._records.delete("session", session_id):
            raise SessionException(f"Session {session_id} does not exist")
        for agent in self._records.under("agent", session_id):
            self._conversation(session_id, str(agent.path[0])).clear()
        for kind in ("agent", "message", "multi"):
            self._records.delete_under(kind, session_id)

    def create_agent(self, session_id: str, session_agent: SessionAgent, **_: Any) -> None:
        """Store an agent of a session."""
        self._records.put(session_agent.to_dict(), "agent", session_id, session_agent.agent_id)

    def read_agent(self, session_id: str, agent_id: str, **_: Any) -> SessionAgent | None:
        """Return an agent, or None."""
        found = self._records.get("agent", session_id, agent_id)
        return None if found is None else SessionAgent.from_dict(found)

    def update_agent(self, session_id: str, session_agent: SessionAgent, **_: Any) -> None:
        """Store an agent again; it keeps the time of its creation."""
        self._updated(session_agent, "agent", session_id, session_agent.agent_id)

    def create_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **_: Any) -> None:
        """Append a message to the thread, once for its id."""
        line = _FORM.stored(_native(session_message))
        key = f"strands:{session_message.message_id}"
        self._conversation(session_id, agent_id).thread.append(line, key=key)

    def read_message(self, session_id: str, agent_id: str, message_id: int, **_: Any) -> SessionMessage | None:
        """Return a message, or None."""
        found = self.list_messages(session_id, agent_id, 1, message_id)
        return found[0] if found else None

    def update_message(self, session_id: str, agent_id: str, session_message: SessionMessage, **_: Any) -> None:
        """Store another version of a message, as a redaction does; it keeps the time of its creation."""
        number = session_message.message_id
        known = self.read_message(session_id, agent_id, number)
        if known is None:
            raise SessionException(f"Message {number} does not exist in session {session_id}")
        session_message.created_at = known.created_at
        self._records.put(_native(session_message), "message", session_id, agent_id, number)

    def list_messages(
        self, session_id: str, agent_id: str, limit: int | None = None, offset: int = 0, **_: Any
    ) -> list[SessionMessage]:
        """Return messages in order, those of other frameworks included."""
        natives = self._conversation(session_id, agent_id).read()
        changed = {int(one.path[0]): one.value for one in self._records.under("message", session_id, agent_id)}
        last = None if limit is None else offset + limit
        return [
            SessionMessage.from_dict({**changed.get(at, native), "message_id": at})
            for at, native in list(enumerate(natives))[offset:last]
        ]

    def _conversation(self, session_id: str, agent_id: str) -> Conversation:
        thread = session_id if agent_id == "default" else f"{session_id}/{agent_id}"
        return Conversation(self._records.agent, thread, _FORM, ttl=self._ttl)

    def create_multi_agent(self, session_id: str, multi_agent: Any, **_: Any) -> None:
        """Store the state of several agents."""
        self._records.put(multi_agent.serialize_state(), "multi", session_id, multi_agent.id)

    def read_multi_agent(self, session_id: str, multi_agent_id: str, **_: Any) -> dict[str, Any] | None:
        """Return the state of several agents, or None."""
        found: dict[str, Any] | None = self._records.get("multi", session_id, multi_agent_id)
        return found

    def update_multi_agent(self, session_id: str, multi_agent: Any, **_: Any) -> None:
        """Store the state of several agents again."""
        if self._records.get("multi", session_id, multi_agent.id) is None:
            raise SessionException(f"MultiAgent state {multi_agent.id} in session {session_id} does not exist")
        self.create_multi_agent(session_id, multi_agent)

    def _updated(self, given: Any, kind: str, *path: str | int) -> None:
        def act(change: Any) -> None:
            known = change.get(kind, *path)
            if known is None:
                raise SessionException(f"{kind.title()} {path[-1]} does not exist in session {path[0]}")
            given.created_at = known["created_at"]
            change.put(given.to_dict(), kind, *path)

        self._records.change(act)
