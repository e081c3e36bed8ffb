"""LlamaIndex on tenuto: `TenutoChatStore` holds chats as threads, `TenutoWorkflowStore` the runs of a workflow server.

    memory = ChatMemoryBuffer.from_defaults(chat_store=TenutoChatStore(agent), chat_store_key="trip-42")
    server = WorkflowServer(workflow_store=TenutoWorkflowStore(agent))        # needs llama-agents-server

A chat is the thread of its key (`adapters/conversation.py`); its name in the list of keys is `("llama-index", "records",
"chat", key)`, written before the thread, so a crash between leaves an empty chat. The workflow store owns the keys
`("llama-index", "records", …)` (`adapters/records.py`): handlers, and the events, ticks and state of a run. An event or a
tick is one commit. A run killed between two ticks is replayed from its ticks by the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tenuto import shapes
from tenuto.adapters.conversation import Conversation, bridged
from tenuto.adapters.forms import NativeForm, calls_in, results_in, words_in
from tenuto.adapters.records import Records
from tenuto.aio import AsyncTenuto
from tenuto.client import Tenuto
from tenuto.errors import MissingDriver
from tenuto.shapes import Call, Image, Message, Part, Result, Said, Text

try:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.bridge.pydantic import PrivateAttr
    from llama_index.core.storage.chat_store.base import BaseChatStore
except ImportError as error:
    raise MissingDriver('LlamaIndex is not installed. Run: pip install "tenuto[llama-index]".') from error

__all__ = ["TenutoChatStore"]

_SPACE: Final = "llama-index"


def _said(message: Message) -> Said | None:
    role, more = message["role"], message.get("additional_kwargs") or {}
    parts = [part for block in message.get("blocks") or () for part in _parts(block)]
    if role in ("tool", "function"):
        words = tuple(part for part in parts if isinstance(part, Text | Image))
        return Said("user", (Result(str(more.get("tool_call_id")), words),))
    if not any(isinstance(part, Call) for part in parts):
        parts += [part for call in more.get("tool_calls") or () for part in _openai_call(call)]
    name = {"user": "user", "assistant": "assistant", "chatbot": "assistant", "model": "assistant"}.get(role, "system")
    return Said(name, tuple(parts))  # type: ignore[arg-type]


def _parts(block: Message) -> list[Part]:
    kind = block.get("block_type")
    if kind == "text":
        return [Text(block["text"])] if block["text"] else []
    if kind == "tool_call":
        given = block.get("tool_kwargs") or {}
        found = given if isinstance(given, str) else shapes.as_json(given)
        return [Call(str(block.get("tool_call_id")), str(block.get("tool_name")), found)]
    if kind == "image" and block.get("url"):
        return [Image(str(block["url"]))]
    return []


def _openai_call(call: Any) -> list[Part]:
    function = call.get("function") or {} if isinstance(call, dict) else {}
    if "name" not in function:
        return []
    return [Call(str(call.get("id")), str(function["name"]), function.get("arguments") or "{}")]


def _written(said: Said) -> list[Message]:
    """Return the messages that say the same: results have messages of their own."""
    found: list[Message] = [
        {"role": "tool", "blocks": _blocks(result.parts), "additional_kwargs": {"tool_call_id": result.id}}
        for result in results_in(said)
    ]
    blocks = _blocks(words_in(said))
    blocks += [
        {
            "block_type": "tool_call",
            "tool_call_id": call.id,
            "tool_name": call.name,
            "tool_kwargs": shapes.arguments(call.arguments),
        }
        for call in calls_in(said)
    ]
    return [*found, {"role": said.role, "blocks": blocks, "additional_kwargs": {}}] if blocks else found


def _blocks(words: Sequence[Text | Image]) -> list[Message]:
    return [
        {"block_type": "text", "text": one.text} if isinstance(one, Text) else {"block_type": "image", "url": one.url}
        for one in words
    ]


_FORM: Final = NativeForm(_SPACE, _said, _written)


class TenutoChatStore(BaseChatStore):
    """LlamaIndex's chat store: each key is a thread. Sync and async."""

    _records: Any = PrivateAttr()
    _agent: Any = PrivateAttr()

    def __init__(self, agent: Tenuto | AsyncTenuto) -> None:
        super().__init__()
        self._agent, _ = bridged(agent)
        self._records = Records(agent, _SPACE)

    @classmethod
    def class_name(cls) -> str:
        """Return the name of the class in LlamaIndex."""
        return "TenutoChatStore"

    def get_messages(self, key: str) -> list[ChatMessage]:
        """Return the messages of a chat, oldest first."""
        return [ChatMessage.model_validate(one) for one in self._chat(key).read()]

    def add_message(self, key: str, message: ChatMessage, idx: int | None = None) -> None:
        """Append a message durably, or insert it before `idx`, which stores the chat again."""
        if idx is not None:
            messages = self.get_messages(key)
            messages.insert(idx, message)
            self.set_messages(key, messages)
            return
        self._listed(key)
        self._chat(key).add([message.model_dump(mode="json")])

    def set_messages(self, key: str, messages: list[ChatMessage]) -> None:
        """Replace the messages of a chat; a crash in between leaves none, or the new ones."""
        self._listed(key)
        chat = self._chat(key)
        given = [message.model_dump(mode="json") for message in messages]
        before = chat.read()
        if given[: len(before)] == before:  # the usual case: some were added
            chat.add(given[len(before) :])
            return
        chat.clear()
        if given:
            chat.add(given)

    def delete_messages(self, key: str) -> list[ChatMessage] | None:
        """Delete a chat; return its messages, or None if there is none."""
        if not self._records.delete("chat", key):
            return None
        messages = self.get_messages(key)
        self._chat(key).clear()
        return messages

    def delete_message(self, key: str, idx: int) -> ChatMessage | None:
        """Delete a message by its index; return it, or None if there is none."""
        messages = self.get_messages(key)
        if not -len(messages) <= idx < len(messages):
            return None
        if idx in (-1, len(messages) - 1):
            return self.delete_last_message(key)
        deleted = messages.pop(idx)
        self.set_messages(key, messages)
        return deleted

    def delete_last_message(self, key: str) -> ChatMessage | None:
        """Delete the last message durably; return it, or None if there is none."""
        found = self._chat(key).pop()
        return None if found is None else ChatMessage.model_validate(found)

    def get_keys(self) -> list[str]:
        """Return the keys of the chats that this store began, in order."""
        return [str(one.path[0]) for one in self._records.under("chat")]

    def _chat(self, key: str) -> Conversation:
        return Conversation(self._agent, key, _FORM)

    def _listed(self, key: str) -> None:
        if self._records.get("chat", key) is None:
            self._records.put(True, "chat", key)


def __getattr__(name: str) -> Any:
    """Return `TenutoWorkflowStore`, whose package is another one."""
    if name == "TenutoWorkflowStore":
        from tenuto.adapters.llama_workflows import TenutoWorkflowStore  # noqa: PLC0415

        return TenutoWorkflowStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
