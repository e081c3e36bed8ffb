"""One conversation as one framework sees it: the thread behind it, read and written in that framework's shape.

It owns no keys: everything is in the thread (`capabilities/threads.py`). Adding is one commit, all messages or none;
taking the last one back is one commit; clearing ends the thread, as `thread.delete()` does. A crash leaves each of
them done or not done.

What others wrote is read in this one's shape. A conversation that LangGraph keeps in its checkpoints, and that never was
a thread, is read too; the first commit here takes it over, and the two go on apart. What this one clears or takes back and then adds again, as frameworks
do to shorten a history, is stored as it was written first: so nothing is lost that this shape cannot say.

A client keeps what it has read of a thread, in this shape, and each time reads only what is new. What is given out
is always a copy.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import SequenceMatcher
from typing import Any, Final, NamedTuple, Protocol

from tenuto._offload import awaitable
from tenuto.adapters import shapes
from tenuto.adapters.shapes import Message, Shape
from tenuto.aio import AsyncTenuto
from tenuto.capabilities.messages import messages_of
from tenuto.capabilities.threads import Seen, Thread, Threads
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, StateConflict
from tenuto.kernel import codec
from tenuto.kernel.clock import Clock
from tenuto.kernel.durations import Duration
from tenuto.kernel.transact import Steps, paced

_MOST: Final = 64 * 2**20
"""So many bytes of conversations, by a rough count, are kept in memory by one client."""
_THREADS: Final = 16
_FLAT: Final = frozenset({str, int, float, bool, bytes, type(None)})


class Form(Protocol):
    """How one framework writes messages down."""

    name: str
    """What it is told apart by from others."""

    def shown(self, message: Message) -> list[Message]:
        """Return a stored message in this form; nothing where it has no counterpart."""
        ...

    def stored(self, message: Message) -> Message:
        """Return a message of this form as it is stored."""
        ...


class ProviderForm:
    """The form of a provider's wire: messages as they are sent."""

    def __init__(self, shape: Shape) -> None:
        if shape not in ("responses", "chat", "anthropic"):
            raise InvalidInput(f'A shape is "responses", "chat" or "anthropic", not {shape!r}.')
        self.name: str = shape
        self._shape = shape

    def shown(self, message: Message) -> list[Message]:
        """Return a stored message in this form."""
        return shapes.shown(self._shape, message)

    def stored(self, message: Message) -> Message:
        """Return a message of this form as it is stored."""
        return shapes.stored(self._shape, message)


# -- what is kept in memory --------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A stored message and how it is shown; both packed, so that whoever gets a copy changes nothing here."""

    shown: tuple[dict[str, Any] | bytes, ...]
    stored: bytes | None
    """None where the shown one is stored just so again."""


class Held(NamedTuple):
    """A thread as it was read in one form."""

    seen: Seen | None
    pairs: list[Pair]
    shown: list[dict[str, Any] | bytes]
    """Of all pairs: thousands are copied at each turn, in one loop without a call of Python's own."""
    flat: bool
    """Whether none of these is packed."""
    weight: int


class Cache:
    """What one client holds of its threads; the one that was not read for longest is let go first."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, str], Held] = {}  # no lock: a child forked while it was held would wait for ever

    def get(self, key: tuple[str, str]) -> Held | None:
        """Return what is held."""
        return self._held.get(key)

    def put(self, key: tuple[str, str], held: Held | None) -> None:
        """Hold this from now on, or nothing."""
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
    """Return a message so that copying it is quick: one that holds no list or dict is copied as it is."""
    return message if all(type(value) in _FLAT for value in message.values()) else codec.pack(message)


def _copy(packed: dict[str, Any] | bytes) -> Message:
    return packed.copy() if type(packed) is dict else codec.unpack(packed)  # type: ignore[arg-type]


def _weight(packed: dict[str, Any] | bytes | None) -> int:
    if type(packed) is not dict:
        return 60 + (len(packed) if packed is not None else 0)
    return 300 + sum(len(value) for value in packed.values() if isinstance(value, str | bytes))


# -- the conversation ------------------------------------------------------------------------------------------------


class Conversation:
    """A thread as somebody sees it who speaks one shape: "responses", "chat" or "anthropic".

    `Conversation(agent, "trip-42", "chat")`. Everything here is atomic, durable when it returns, and safe to share.
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
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self.thread.clock

    def read(self, last: int | None = None) -> list[Message]:
        """Return the conversation, oldest first, or the `last` so many messages of it, in this shape."""
        if last is not None and (type(last) is not int or last < 0):
            raise InvalidInput(f"last is a number of messages, 0 or more, not {last!r}.")
        held = self._read()
        self._seen, shown = held.pairs, held.shown
        if last is not None:
            shown = shown[max(0, len(shown) - last) :]
        if held.flat:
            return list(map(dict.copy, shown))  # type: ignore[arg-type]
        unpack = codec.unpack
        return [one.copy() if type(one) is dict else unpack(one) for one in shown]  # type: ignore[arg-type]

    def _read(self) -> Held:
        """Return the thread as it is now, of which only what is new was read."""
        held = self._cache.get(self._key)
        news = self.thread.news(None if held is None else held.seen)
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

    @paced
    def add(self, messages: Sequence[Any]) -> Steps[int]:
        """Add messages at the end, all or none of them, durably; return the thread's number of the last one."""
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
            past = self.thread.unbegun()
            try:
                number = yield from self.thread.appending((*past, *stored), expect=0 if past else None)
            except StateConflict:
                if not past:
                    raise
            else:
                self._gone = []
                return number

    @paced
    def pop(self) -> Steps[Message | None]:
        """Take the last message back, atomically and durably; return it, None where there is none."""
        taken: list[Message] = []

        def instead(message: Message) -> list[Message] | None:
            taken[:] = self._form.shown(message)
            return [self._form.stored(one) for one in taken[:-1]] if taken else None

        message = yield from Thread.take_back.steps(self.thread, instead)  # type: ignore[attr-defined]
        if message is None:
            return None
        if len(taken) == 1:
            self._gone.insert(0, self._pair(message))
        return taken[-1]

    @paced
    def clear(self) -> Steps[bool]:
        """End the conversation, atomically and durably; tell whether there was one."""
        self._gone, self._seen = [*self._seen, *self._gone], []
        self._cache.put(self._key, None)
        return (yield from Thread.delete.steps(self.thread))  # type: ignore[attr-defined, no-any-return]

    def __repr__(self) -> str:
        """Say which one this is; nothing is read."""
        return f"<conversation {self.thread.id!r} in the shape {self._form.name!r}>"


def _is(one: Message, other: Message) -> bool:
    """Tell whether two messages are the same, types included."""
    return codec.pack(one) == codec.pack(other)


def _again(given: list[Message], gone: list[Pair]) -> list[tuple[Message, list[bytes] | None]]:
    """Return messages with what they were stored as before, where they are the same again and in the same order.

    The longest stretches that are alike are found first, and each of those that are gone is found once: so the same
    words said anew are new. What could not be shown at all stood with what came behind it, and comes back with that.
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
    """`Conversation`, awaited. What has begun when it is cancelled is brought to its end first."""

    def __init__(self, sync: Conversation, pool: ThreadPoolExecutor) -> None:
        self._sync = sync
        self._pool = pool

    read = awaitable(Conversation.read)
    add = awaitable(Conversation.add)
    pop = awaitable(Conversation.pop)
    clear = awaitable(Conversation.clear)


_pools: weakref.WeakKeyDictionary[object, ThreadPoolExecutor] = weakref.WeakKeyDictionary()


def bridged(agent: Tenuto | AsyncTenuto) -> tuple[Tenuto, ThreadPoolExecutor]:
    """Return the blocking client of an agent, and the threads for its async calls: its own, or one pool a client."""
    if isinstance(agent, AsyncTenuto):
        return agent._sync, agent._pool
    if not isinstance(agent, Tenuto):
        raise InvalidInput(f"An agent is a Tenuto or an AsyncTenuto, not {type(agent).__name__}.")
    pool = _pools.get(agent._keeper)  # shared by the views of one client
    if pool is None:
        pool = _pools.setdefault(agent._keeper, ThreadPoolExecutor(_THREADS, thread_name_prefix="tenuto-adapter"))
    return agent, pool
