"""LangChain on tenuto: `TenutoChatHistory` stores messages as a thread, `TenutoByteStore` stores bytes by key.

    history = TenutoChatHistory("user-123", agent)
    store = TenutoByteStore(agent, "embeddings")

The history owns no keys: it is the thread of the same id, and messages of other frameworks are read as LangChain
messages. A message is stored as a chat message; fields that only LangChain has (id, usage, metadata, artifacts,
content blocks) are stored with it under `kept`. Adding is one commit, all messages or none. Clearing deletes the
thread.

The byte store owns the records `(namespace, "bytes", key)`. `mset` and `mdelete` are one commit for up to 1,000 keys
and about 8 MB, and several in order beyond that: a crash then leaves the first ones done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tenuto import shapes
from tenuto.adapters.conversation import AsyncConversation, Conversation, bridged
from tenuto.aio import AsyncTenuto
from tenuto.aio.bridge import awaitable
from tenuto.client import Tenuto
from tenuto.errors import MissingDriver
from tenuto.kernel import codec, keys, transact
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Backend, Delete, Put, Write
from tenuto.kernel.durations import Duration
from tenuto.kernel.durations import ttl as ttl_seconds
from tenuto.kernel.work import Work, on_store
from tenuto.shapes import KEPT, Call, Message, Result, Said, Text

try:
    from langchain_core.chat_history import BaseChatMessageHistory
    from langchain_core.messages import BaseMessage, messages_from_dict
    from langchain_core.stores import BaseStore
except ImportError as error:
    raise MissingDriver('LangChain is not installed. Run: pip install "tenuto[langchain]".') from error

__all__ = ["TenutoByteStore", "TenutoChatHistory"]

# -- messages --------------------------------------------------------------------------------------------------

_ROLES: Final = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "system": "system", "tool": "tool"}
_CALL: Final = {"type": "tool_call"}


class _Form:
    """LangChain's messages as `{"type": …, "data": {…}}`, without fields at their default."""

    name = "langchain"

    def shown(self, message: Message) -> list[Message]:
        kept = shapes.kept_of(message)
        body = {key: value for key, value in message.items() if key != KEPT}
        if kept is not None and kept["by"] == self.name:
            base = _read(body, kept["type"])
            return [{"type": kept["type"], "data": {**base, **kept["data"]}}]
        said = shapes.said_in(body)
        return list(_written(said)) if said is not None else []

    def stored(self, message: Message) -> Message:
        kind, data = message["type"], message["data"]
        body = _body(kind, data)
        base = _read(body, kind)
        rest = {key: value for key, value in data.items() if key not in base or not _same(base[key], value)}
        return {**body, KEPT: {"by": self.name, "type": kind, "data": rest}}


def _body(kind: str, data: dict[str, Any]) -> Message:
    """Return the chat message for other frameworks; empty if the kind has no role."""
    role = _ROLES.get(kind)
    if role is None:
        return {}
    if role == "tool":
        parts = shapes.words(data.get("content"))
        return {"role": "tool", "tool_call_id": str(data.get("tool_call_id")), "content": shapes.plain_text(parts)}
    content = data.get("content")
    body: Message = {"role": role, "content": content if isinstance(content, str) else _content(content)}
    calls = [
        {
            "id": str(call.get("id")),
            "type": "function",
            "function": {"name": str(call.get("name")), "arguments": shapes.as_json(call.get("args"))},
        }
        for call in data.get("tool_calls") or ()
    ]
    return {**body, "tool_calls": calls} if calls else body


def _content(content: Any) -> str | list[Message]:
    """Return content blocks as the content of a chat message: texts and images."""
    return shapes.chat_content(shapes.words(content)) if content else ""


def _read(body: Message, kind: str) -> dict[str, Any]:
    """Return the fields of a LangChain message that follow from its chat message."""
    if not body:
        return {}
    found: dict[str, Any] = {"content": body.get("content")}
    if "tool_calls" in body:
        found["tool_calls"] = [
            {
                "name": call["function"]["name"],
                "args": shapes.arguments(call["function"]["arguments"]),
                "id": call["id"],
                **_CALL,
            }
            for call in body["tool_calls"]
        ]
    if kind == "tool":
        found["tool_call_id"] = body["tool_call_id"]
    return found


def _written(said: Said) -> Iterator[Message]:
    """Yield the LangChain messages for a message of another framework."""
    for part in (part for part in said.parts if isinstance(part, Result)):
        data = {"content": _content_of(part.parts), "tool_call_id": part.id}
        yield {"type": "tool", "data": {**data, "status": "error"} if part.failed else data}
    calls = [part for part in said.parts if isinstance(part, Call)]
    words = [part for part in said.parts if isinstance(part, Text | shapes.Image)]
    if not words and not calls:
        return
    data = {"content": _content_of(words)}
    if calls:
        data["tool_calls"] = [
            {"name": call.name, "args": shapes.arguments(call.arguments), "id": call.id, **_CALL} for call in calls
        ]
    yield {"type": {"user": "human", "assistant": "ai", "system": "system"}[said.role], "data": data}


def _content_of(words: Sequence[Text | shapes.Image]) -> Any:
    return shapes.chat_content(words) if words else ""


def _same(one: Any, other: Any) -> bool:
    return codec.pack(one) == codec.pack(other)


def _dumped(message: BaseMessage) -> Message:
    """Return a message as a dict, without fields at their default."""
    data = message.model_dump(exclude_defaults=True)
    return {"type": data.pop("type", None) or message.type, "data": {"content": message.content, **data}}


def stored(message: BaseMessage) -> Message:
    """Return the stored form of a message: a chat message, with LangChain's own fields under `kept`."""
    return _Form().stored(_dumped(message))


class TenutoChatHistory(BaseChatMessageHistory):
    """The messages of one conversation, stored as the thread `session_id` of an agent; sync and async.

    `user` owns the conversation. With `ttl` it expires that long after its last message.
    """

    def __init__(
        self,
        session_id: str,
        agent: Tenuto | AsyncTenuto,
        *,
        user: str | None = None,
        ttl: Duration | None = None,
    ) -> None:
        self.session_id = session_id
        sync, pool = bridged(agent)
        self._sync = Conversation(sync, session_id, _Form(), user=user, ttl=ttl)
        self._async = AsyncConversation(self._sync, pool)

    @property
    def messages(self) -> list[BaseMessage]:  # type: ignore[override]
        """Return the messages, oldest first."""
        return messages_from_dict(self._sync.read())

    def add_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages atomically and durably."""
        self._sync.add([_dumped(message) for message in messages])

    def clear(self) -> None:
        """Delete the conversation and its messages from the store."""
        self._sync.clear()

    async def aget_messages(self) -> list[BaseMessage]:
        """Return the messages, oldest first."""
        return messages_from_dict(await self._async.read())

    async def aadd_messages(self, messages: Sequence[BaseMessage]) -> None:
        """Append messages atomically and durably, even if cancelled meanwhile."""
        await self._async.add([_dumped(message) for message in messages])

    async def aclear(self) -> None:
        """Delete the conversation and its messages from the store."""
        await self._async.clear()


# -- bytes -----------------------------------------------------------------------------------------------------

_BYTES: Final = keys.pack("bytes")
_WRITES: Final = 1_000
_SIZE: Final = 8_000_000
_PAGE: Final = 1_000


class _Bytes:
    """Bytes by key, in one namespace."""

    def __init__(self, kernel: Backend, clock: Clock, namespace: str, ttl: float | None) -> None:
        self._kernel = kernel
        self._clock = clock
        self._prefix = keys.named(namespace, "namespace") + _BYTES
        self._ttl = ttl

    def mget(self, wanted: Sequence[str]) -> list[bytes | None]:
        records = self._kernel.read([self._key(key) for key in wanted]) if wanted else []
        return [None if record is None else record.value for record in records]

    @on_store
    def mset(self, pairs: Sequence[tuple[str, bytes]]) -> Work[None]:
        writes: dict[bytes, Write] = {}
        size = 0
        for key, value in pairs:
            if type(value) is not bytes:
                raise TypeError(f"A byte store holds bytes; the value of {key!r:.80} is {type(value).__name__}.")
            if len(writes) == _WRITES or (writes and size + len(value) > _SIZE):
                yield from transact.commit_once(self._kernel, [], list(writes.values()))
                writes, size = {}, 0
            where = self._key(key)
            writes[where] = Put(where, value, self._ttl)
            size += len(value)
        if writes:
            yield from transact.commit_once(self._kernel, [], list(writes.values()))

    @on_store
    def mdelete(self, unwanted: Sequence[str]) -> Work[None]:
        writes: list[Write] = [Delete(where) for where in dict.fromkeys(map(self._key, unwanted))]
        for at in range(0, len(writes), _WRITES):
            yield from transact.commit_once(self._kernel, [], writes[at : at + _WRITES])

    def page(self, prefix: str, after: str | None) -> list[str]:
        """Return the next page of keys with a prefix, after a given key."""
        # An encoded text ends with NUL: without it, the scan finds every text with this prefix.
        begins = self._prefix + (keys.named(prefix, "prefix")[:-1] if prefix else b"")
        seen = None if after is None else self._key(after)
        return [str(keys.unpack(r.key)[-1]) for r in self._kernel.scan(begins, after=seen, limit=_PAGE)]

    def _key(self, key: str) -> bytes:
        return self._prefix + keys.named(key, "key")


class _AsyncBytes:
    def __init__(self, sync: _Bytes, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    mget = awaitable(_Bytes.mget)
    mset = awaitable(_Bytes.mset)
    mdelete = awaitable(_Bytes.mdelete)
    page = awaitable(_Bytes.page)


class TenutoByteStore(BaseStore[str, bytes]):
    """A `ByteStore` in a namespace of an agent's store, for documents, embeddings and the like; sync and async.

    A write is durable when it returns. With `ttl` a value expires that long after it was set.
    """

    def __init__(
        self, agent: Tenuto | AsyncTenuto, namespace: str = "langchain", *, ttl: Duration | None = None
    ) -> None:
        sync, pool = bridged(agent)
        self._sync = _Bytes(sync.kernel, sync.clock, namespace, ttl_seconds(ttl))
        self._async = _AsyncBytes(self._sync, pool)

    def mget(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of keys, None for a missing key."""
        return self._sync.mget(keys)

    def mset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> None:
        """Set values durably; atomically up to 1,000 keys and 8 MB."""
        self._sync.mset(key_value_pairs)

    def mdelete(self, keys: Sequence[str]) -> None:
        """Delete values durably; atomically up to 1,000 keys."""
        self._sync.mdelete(keys)

    def yield_keys(self, *, prefix: str | None = None) -> Iterator[str]:
        """Yield the keys in order, or only those with a prefix."""
        after: str | None = None
        while page := self._sync.page(prefix or "", after):
            yield from page
            after = page[-1]

    async def amget(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return the values of keys, None for a missing key."""
        return await self._async.mget(keys)

    async def amset(self, key_value_pairs: Sequence[tuple[str, bytes]]) -> None:
        """Set values durably, even if cancelled meanwhile."""
        await self._async.mset(key_value_pairs)

    async def amdelete(self, keys: Sequence[str]) -> None:
        """Delete values durably, even if cancelled meanwhile."""
        await self._async.mdelete(keys)

    async def ayield_keys(self, *, prefix: str | None = None) -> AsyncIterator[str]:
        """Yield the keys in order, or only those with a prefix."""
        after: str | None = None
        while page := await self._async.page(prefix or "", after):
            for key in page:
                yield key
            after = page[-1]
