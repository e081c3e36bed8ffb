"""One conversation in the message format of one framework, stored as a thread.

It owns no keys: everything is in the thread (`capabilities/threads/thread.py`). Adding messages is one commit, all or
none. Removing the last message is one commit. Clearing deletes the thread, as `thread.delete()` does. A crash leaves
each of them done or not done.

Messages of other frameworks are converted when they are read. A conversation in LangGraph's checkpoints that is not a
thread is read too; the first commit copies it into the thread, and the two are independent from then on. If messages
are cleared or removed and then added again, as frameworks do to shorten a history, they are stored in their original
form, so that a conversion loses nothing.

A client caches what it has read of a thread and then reads only new messages. Callers always get copies.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple, Protocol

from tenuto import shapes
from tenuto.aio import AsyncTenuto
from tenuto.aio.bridge import Pool, awaitable
from tenuto.capabilities.threads import Seen, Thread, Threads, messages_of
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, StateConflict
from tenuto.kernel import codec
from tenuto.kernel.clock import Clock
from tenuto.kernel.durations import Duration
from tenuto.kernel.work import Work, on_store, work_of
from tenuto.shapes import Message, Shape

_MOST: Final = 64 * 2**20
"""Approximate maximum size of a client's cache, in bytes."""
_THREADS: Final = 16
_FLAT: Final = frozenset({str, int, float, bool, bytes, type(None)})


class Form(Protocol):
    """The message format of one framework."""

    name: str
    """A unique name."""

    def shown(self, message: Message) -> list[Message]:
        """Return a stored message in this form; an empty list if it has no counterpart."""
        ...

    def stored(self, message: Message) -> Message:
        """Return the stored form of a message."""
        ...


class ProviderForm:
    """The wire format of a provider."""

    def __init__(self, shape: Shape) -> None:
        if shape not in ("responses", "chat", "anthropic"):
            raise InvalidInput(f'`shape` must be "responses", "chat" or "anthropic", not {shape!r}.')
        self.name: str = shape
        self._shape = shape

    def shown(self, message: Message) -> list[Message]:
        """Return a stored message in this form."""
        return shapes.shown(self._shape, message)

    def stored(self, message: Message) -> Message:
        """Return the stored form of a message."""
        return shapes.stored(self._shape, message)


# -- the cache ---------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A stored message and its converted form, both packed, so that callers cannot change the cache."""

    shown: tuple[dict[str, Any] | bytes, ...]
    stored: bytes | None
    """None if converting `shown` gives the stored message again."""


class Held(NamedTuple):
    """A cached thread in one form."""

    seen: Seen | None
    pairs: list[Pair]
    shown: list[dict[str, Any] | bytes]
    """The `shown` of all pairs, flat: a turn copies thousands of them in one fast loop."""
    flat: bool
    """Whether none of `shown` is packed."""
    weight: int


class Cache:
    """The cache of one client; evicts the least recently used thread first."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Held] = {}  # no lock: a child forked while it is held would deadlock

    def get(self, key: tuple[str, str]) -> Held | None:
        """Return the cached thread, if any."""
        return self._held.get(key)

    def put(self, key: tuple[str, str], held: Held | None) -> None:
        """Replace or remove a cached thread."""
        self._held.pop(key, None)
        if held is None or held.weight > _MOST:
            return
        self._held[key] = held
        every = list(self._held.items())
        total = sum(one.weight for _, one in every)
        for old, one in every[:-1]:
            if total <= _MOST:
                break
            self._held.pop(old, None)
            total -= one.weight


_caches: weakref.WeakKeyDictionary[Threads, Cache] = weakref.WeakKeyDictionary()


def _packed(message: Message) -> dict[str, Any] | bytes:
    """Return a message in a form that is fast to copy: without lists or dicts as it is, else packed."""
    return message if all(type(value) in _FLAT for value in message.values()) else codec.pack(message)


def _copy(packed: dict[str, Any] | bytes) -> Message:
    return packed.copy() if type(packed) is dict else codec.unpack(packed)  # type: ignore[arg-type]


def _weight(packed: dict[str, Any] | bytes | None) -> int:
    if type(packed) is not dict:
        return 60 + (len(packed) if packed is not None else 0)
    return 300 + sum(len(value) for value in packed.values() if isinstance(value, str | bytes))


# -- the conversation ------------------------------------------------------------------------------------------------


class Conversation:
    """A thread in one message format: "responses", "chat" or "anthropic".

    `Conversation(agent, "trip-42", "chat")`. Every call is atomic, durable when it returns, and thread-safe.
    """

    def __init__(
        self,
        agent: Tenuto,
        thread_id: str,
        shape: Shape | Form,
        *,
        user: str | None = None,
        ttl: Duration | None = None,
    ) -> None:
        self.thread: Thread = agent.thread(thread_id, user=user, ttl=ttl)
        self._form: Form = ProviderForm(shape) if isinstance(shape, str) else shape
        self._cache = _caches.setdefault(agent.threads, Cache())
        self._key = (thread_id, self._form.name)
        self._seen: list[Pair] = []
        self._gone: list[Pair] = []

    @property
    def _clock(self) -> Clock:
        return self.thread._clock

    def read(self, last: int | None = None) -> list[Message]:
        """Return the messages, oldest first, or only the `last` N, in this format."""
        if last is not None and (type(last) is not int or last < 0):
            raise InvalidInput(f"`last` must be an integer of at least 0, not {last!r}.")
        held = self._read()
        self._seen, shown = held.pairs, held.shown
        if last is not None:
            shown = shown[max(0, len(shown) - last) :]
        if held.flat:
            return list(map(dict.copy, shown))  # type: ignore[arg-type]
        unpack = codec.unpack
        return [one.copy() if type(one) is dict else unpack(one) for one in shown]  # type: ignore[arg-type]

    def _read(self) -> Held:
        """Return the current thread; read only the messages that are not cached."""
        held = self._cache.get(self._key)
        news = self.thread._news(None if held is None else held.seen)
        if held is not None and news.goes_on and not news.messages:
            return held
        fresh = [self._pair(message) for message in news.messages]
        shown = [one for pair in fresh for one in pair.shown]
        weight = sum(_weight(pair.stored) + sum(map(_weight, pair.shown)) for pair in fresh)
        flat = all(type(one) is dict for one in shown)
        if held is not None and news.goes_on:
            held = Held(news.seen, held.pairs + fresh, held.shown + shown, held.flat and flat, held.weight + weight)
        else:
            held = Held(news.seen, fresh, shown, flat, weight)
        self._cache.put(self._key, held if held.seen is not None else None)
        return held

    def _pair(self, message: Message) -> Pair:
        found = self._form.shown(message)
        same = len(found) == 1 and (found[0] is message or _is(self._form.stored(found[0]), message))
        return Pair(tuple(map(_packed, found)), None if same else codec.pack(message))

    @on_store
    def add(self, messages: Sequence[Any]) -> Work[int]:
        """Append messages atomically and durably; return the number of the last one."""
        if not messages:
            return self.thread.count()
        given = messages_of(messages)
        found = _again(given, self._gone) if self._gone else [(message, None) for message in given]
        stored = [
            one
            for message, before in found
            for one in ([codec.unpack(one) for one in before] if before is not None else [self._form.stored(message)])
        ]
        while True:
            past = self.thread._unbegun()
            try:
                number = yield from self.thread._appending((*past, *stored), expect=0 if past else None)
            except StateConflict:
                if not past:
                    raise
            else:
                self._gone = []
                return number

    @on_store
    def pop(self) -> Work[Message | None]:
        """Remove the last message atomically and durably; return it, or None if there is none."""
        taken: list[Message] = []

        def instead(message: Message) -> list[Message] | None:
            taken[:] = self._form.shown(message)
            return [self._form.stored(one) for one in taken[:-1]] if taken else None

        message = yield from work_of(self.thread.take_back)(instead)
        if message is None:
            return None
        if len(taken) == 1:
            self._gone.insert(0, self._pair(message))
        return taken[-1]

    @on_store
    def clear(self) -> Work[bool]:
        """Delete the conversation atomically and durably; return whether there was one."""
        self._gone, self._seen = [*self._seen, *self._gone], []
        self._cache.put(self._key, None)
        return (yield from work_of(self.thread.delete)())

    def __repr__(self) -> str:
        """Return the thread id and the format, without reading the store."""
        return f"<conversation {self.thread.id!r} in the shape {self._form.name!r}>"


def _is(one: Message, other: Message) -> bool:
    """Return whether two messages are equal, types included."""
    return codec.pack(one) == codec.pack(other)


def _again(given: list[Message], gone: list[Pair]) -> list[tuple[Message, list[bytes] | None]]:
    """Return each message with its earlier stored form, if it was removed before and is added again in the same order.

    The longest equal stretches are matched first, and each removed message is matched once, so that a repeated text
    counts as new. A message that has no converted form belongs to the next one and is restored with it.
    """
    groups = list(_groups(gone))
    before = [one for shown, _ in groups for one in shown]
    alike = SequenceMatcher(None, before, [codec.pack(message) for message in given], autojunk=False)
    now = {block.a + at: block.b + at for block in alike.get_matching_blocks() for at in range(block.size)}
    stored_at: dict[int, tuple[int, list[bytes]]] = {}
    start = 0
    for shown, stored in groups:
        places = [now.get(at) for at in range(start, start + len(shown))]
        first = places[0]
        if first is not None and places == list(range(first, first + len(shown))):
            stored_at[first] = len(shown), stored
        start += len(shown)
    found: list[tuple[Message, list[bytes] | None]] = []
    at = 0
    while at < len(given):
        size, stored_before = stored_at.get(at, (1, None))
        found.append((given[at], stored_before))
        at += size
    return found


def _groups(gone: Sequence[Pair]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    waiting: list[bytes] = []
    last: tuple[list[bytes], list[bytes]] | None = None
    for pair in gone:
        shown = [codec.pack(_copy(one)) for one in pair.shown]
        waiting.append(pair.stored if pair.stored is not None else shown[0])
        if shown:
            if last is not None:
                yield last
            last, waiting = (shown, waiting), []
    if last is not None:
        yield last[0], [*last[1], *waiting]


# -- async -----------------------------------------------------------------------------------------------------------


class AsyncConversation:
    """`Conversation`, awaited. A cancelled call completes the commit that it has started."""

    def __init__(self, sync: Conversation, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    read = awaitable(Conversation.read)
    add = awaitable(Conversation.add)
    pop = awaitable(Conversation.pop)
    clear = awaitable(Conversation.clear)


_pools: weakref.WeakKeyDictionary[object, ThreadPoolExecutor] = weakref.WeakKeyDictionary()


def bridged(agent: Tenuto | AsyncTenuto) -> tuple[Tenuto, ThreadPoolExecutor]:
    """Return the blocking client of an agent and the thread pool for its async calls."""
    if isinstance(agent, AsyncTenuto):
        return agent._sync, agent._pool
    if not isinstance(agent, Tenuto):
        raise InvalidInput(f"`agent` must be a Tenuto or an AsyncTenuto, not {type(agent).__name__}.")
    pool = _pools.get(agent._renewer)  # shared by the views of one client
    if pool is None:
        pool = _pools.setdefault(agent._renewer, Pool(_THREADS, "tenuto-adapter"))
    return agent, pool
