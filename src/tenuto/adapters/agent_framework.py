"""Microsoft Agent Framework on tenuto: history, checkpoints of workflows, and sessions.

    agent = ChatAgent(client, context_providers=[TenutoHistoryProvider(store)])
    workflow = WorkflowBuilder(..., checkpoint_storage=TenutoCheckpointStorage(store)).build()
    sessions = TenutoSessionStore(store)

A history is the thread of its session's id (`adapters/conversation.py`). Checkpoints and sessions own the keys
`("agent-framework", "records", …)` (`adapters/records.py`); each is one commit. Values in a checkpoint are encoded by the
framework's own encoding, which pickles objects; it restores only types that it knows or that `allowed_types` names.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from tenuto import shapes
from tenuto.adapters.conversation import AsyncConversation, Conversation, bridged
from tenuto.adapters.forms import NativeForm
from tenuto.adapters.records import Records
from tenuto.aio import AsyncTenuto
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, MissingDriver
from tenuto.kernel.durations import Duration
from tenuto.shapes import Call, Image, Part, Result, Said, Text

try:
    from agent_framework import (
        AgentSession,
        HistoryProvider,
        Message,
        WorkflowCheckpoint,
        WorkflowCheckpointException,
    )
    from agent_framework._workflows._checkpoint_encoding import decode_checkpoint_value, encode_checkpoint_value
except ImportError as error:
    raise MissingDriver(
        'Microsoft Agent Framework is not installed. Run: pip install "tenuto[agent-framework]".'
    ) from error

__all__ = ["TenutoCheckpointStorage", "TenutoHistoryProvider", "TenutoSessionStore"]

_SPACE: Final = "agent-framework"


def _said(message: dict[str, Any]) -> Said | None:
    role = message["role"]
    parts = tuple(part for one in message.get("contents") or () for part in _parts(one))
    return Said("user" if role in ("user", "tool") else "assistant" if role == "assistant" else "system", parts)


def _parts(content: dict[str, Any]) -> list[Part]:
    kind = content.get("type")
    if kind == "text":
        return [Text(content["text"])] if content.get("text") else []
    if kind == "function_call":
        given = content.get("arguments") or {}
        found = given if isinstance(given, str) else shapes.as_json(given)
        return [Call(str(content.get("call_id")), str(content.get("name")), found)]
    if kind == "function_result":
        result = content.get("result")
        said = result if isinstance(result, str) else shapes.as_json(result)
        return [Result(str(content.get("call_id")), (Text(said),), bool(content.get("exception")))]
    if kind in ("uri", "data") and str(content.get("media_type")).startswith("image/"):
        return [Image(content["uri"])]
    return []


def _written(said: Said) -> list[dict[str, Any]]:
    """Return the messages that say the same: results have a message of their own."""
    results = [_content(part) for part in said.parts if isinstance(part, Result)]
    others = [_content(part) for part in said.parts if not isinstance(part, Result)]
    found = [{"role": "tool", "contents": results}] if results else []
    return [*found, {"role": said.role, "contents": others}] if others else found


def _content(part: Part) -> dict[str, Any]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    if isinstance(part, Call):
        return {"type": "function_call", "call_id": part.id, "name": part.name, "arguments": part.arguments}
    if isinstance(part, Result):
        return {"type": "function_result", "call_id": part.id, "result": shapes.plain_text(part.parts)}
    media = part.url[5:].partition(";")[0] if part.url.startswith("data:") else "image/*"
    return {"type": "data" if part.url.startswith("data:") else "uri", "uri": part.url, "media_type": media}


_FORM: Final = NativeForm(_SPACE, _said, _written)


class TenutoHistoryProvider(HistoryProvider):
    """The messages of a session, stored as the thread of the session's id.

    `options` are those of `HistoryProvider`. With `ttl` a history expires that long after its last message.
    """

    def __init__(
        self,
        agent: Tenuto | AsyncTenuto,
        source_id: str = "tenuto",
        *,
        user: str | None = None,
        ttl: Duration | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source_id, **options)
        self._agent, self._pool = bridged(agent)
        self._user, self._ttl = user, ttl

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002 - the framework's signature
        **_: Any,
    ) -> list[Message]:
        """Return the messages of a session, oldest first."""
        found = await self._conversation(session_id).read()
        return [Message.from_dict({"type": "message", **message}) for message in found]

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,  # noqa: ARG002 - the framework's signature
        **_: Any,
    ) -> None:
        """Append messages atomically and durably, even if cancelled meanwhile."""
        await self._conversation(session_id).add([message.to_dict() for message in messages])

    def _conversation(self, session_id: str | None) -> AsyncConversation:
        sync = Conversation(self._agent, session_id or self.source_id, _FORM, user=self._user, ttl=self._ttl)
        return AsyncConversation(sync, self._pool)


class TenutoCheckpointStorage:
    """The framework's `CheckpointStorage` in an agent's store; a checkpoint is one commit."""

    def __init__(
        self,
        agent: Tenuto | AsyncTenuto,
        *,
        allowed_types: Sequence[str] = (),
        ttl: Duration | None = None,
    ) -> None:
        self._records = Records(agent, _SPACE, ttl=ttl)
        self._allowed = frozenset(allowed_types)

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a checkpoint; return its id."""
        data = {name: encode_checkpoint_value(value) for name, value in checkpoint.to_dict().items()}

        def act(change: Any) -> None:
            known = change.get("checkpoint", checkpoint.checkpoint_id)
            number = known[0] if known is not None else change.append([], "order") + 1
            if known is None:
                change.put(number, "order", "count")
            change.put([number, data], "checkpoint", checkpoint.checkpoint_id)
            change.put(checkpoint.checkpoint_id, "workflow", checkpoint.workflow_name, number)

        await self._records.call(self._records.change, act)
        return str(checkpoint.checkpoint_id)

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a checkpoint; raise `WorkflowCheckpointException` if there is none."""
        found = await self._records.call(self._records.get, "checkpoint", checkpoint_id)
        if found is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return self._made(found[1])

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return the checkpoints of a workflow in the order in which they were first saved."""
        return [await self.load(one) for one in await self.list_checkpoint_ids(workflow_name=workflow_name)]

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete a checkpoint; return whether there was one."""

        def act(change: Any) -> bool:
            found = change.get("checkpoint", checkpoint_id)
            if found is not None:
                change.delete("checkpoint", checkpoint_id)
                change.delete("workflow", found[1]["workflow_name"], found[0])
            return found is not None

        return await self._records.call(self._records.change, act)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return the checkpoint of a workflow with the latest time, or None."""
        found = await self.list_checkpoints(workflow_name=workflow_name)
        return max(found, key=lambda one: datetime.fromisoformat(one.timestamp)) if found else None

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of the checkpoints of a workflow in the order in which they were first saved."""
        found = await self._records.call(self._records.under, "workflow", workflow_name)
        return [str(one.value) for one in found]

    def _made(self, data: dict[str, Any]) -> WorkflowCheckpoint:
        decoded = {name: decode_checkpoint_value(value, allowed_types=self._allowed) for name, value in data.items()}
        return WorkflowCheckpoint.from_dict(decoded)


class TenutoSessionStore:
    """What the framework's `SessionStore` does, in an agent's store: snapshots of sessions by id."""

    def __init__(self, agent: Tenuto | AsyncTenuto, *, ttl: Duration | None = None) -> None:
        self._records = Records(agent, _SPACE, ttl=ttl)

    async def get(self, session_id: str) -> AgentSession | None:
        """Return a session, or None."""
        _must_be_id(session_id)
        found = await self._records.call(self._records.get, "session", session_id)
        return None if found is None else AgentSession.from_dict(found)

    async def set(self, session_id: str, session: AgentSession) -> None:
        """Store a session."""
        _must_be_id(session_id)
        await self._records.call(self._records.put, session.to_dict(), "session", session_id)

    async def delete(self, session_id: str) -> None:
        """Delete a session."""
        _must_be_id(session_id)
        await self._records.call(self._records.delete, "session", session_id)


def _must_be_id(session_id: str) -> None:
    if not isinstance(session_id, str) or not session_id:
        raise InvalidInput(f"session_id must be a non-empty string, not {session_id!r:.80}; nothing was done.")
