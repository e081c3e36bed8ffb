"""The search index of a conversation, in this process: fed by the thread's log, message by message.

A session is a part of the conversation without a long pause. A message says by `name`, or else by `role`, who speaks;
its time is its `timestamp` or `created_at`, if it has one, else the time of the append.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities.memory.records import Memory, Source, Trust
from tenuto.capabilities.memory.search.index import Index
from tenuto.capabilities.memory.search.vectors import Vectors
from tenuto.capabilities.threads import Message, Thread, Threads, Turn, turns_of
from tenuto.kernel.durations import moment

_PAUSE: Final = 3_600.0
"""Seconds of silence after which a new session begins."""
_TAIL: Final = 200
_MOST: Final = 200
"""Conversations whose indexes stay in memory."""
_TRUST: Final[dict[str, Trust]] = {
    "user": "person", "human": "person", "assistant": "model", "ai": "model", "tool": "tool", "function": "tool",
}  # fmt: skip


class Said(NamedTuple):
    """An indexed message."""

    number: int
    at: float | None
    role: str
    text: str


class ThreadIndex:
    """The index of one thread. Use it while holding its lock."""

    def __init__(self, thread: Thread) -> None:
        self.lock = threading.Lock()
        self._thread = thread
        self._start_over(None)

    def _start_over(self, frame: tuple[int, int] | None) -> None:
        self.index = Index()
        self.said: list[Said] = []
        self.near, self.alone = Vectors(), Vectors()
        self._frame = frame
        self._session = 0
        self._read = 0
        self._last_at: float | None = None

    def catch_up(self) -> None:
        """Read the messages that are new; all of them if the thread was repaired, taken back from, or begun again."""
        try:
            self._catch_up()
        except BaseException:  # an interrupt may have left a text half added
            self._start_over(None)
            raise

    def _catch_up(self) -> None:
        found = turns_of(self._thread, self._read if self._frame is not None else 0)
        if self._frame != found.frame or found.frame is None:
            after = self._read
            self._start_over(found.frame)
            if after and found.frame is not None:
                found = turns_of(self._thread)
        for turn in found.turns:
            self._add(turn)

    def _add(self, turn: Turn) -> None:
        self._read = turn.number
        text = text_of(turn.message)
        if not text.strip():
            return
        at = _time_of(turn)
        if at is not None and self._last_at is not None and at - self._last_at > _PAUSE:
            self._session += 1
        self._last_at = at if at is not None else self._last_at
        role = str(turn.message.get("role") or turn.message.get("type") or "")
        name = turn.message.get("name")
        speaker = name if isinstance(name, str) and name and role not in ("tool", "function") else role
        when = None if at is None else moment(at).date()
        self.index.add(turn.number, text, speaker=speaker, session=str(self._session), when=when)
        self.said.append(Said(turn.number, at, role, text))

    def with_context(self, number: int) -> str:
        """Return a message with the end of the one before it in its session."""
        before = self.index.previous[number]
        tail = self.said[before].text[-_TAIL:] if before >= 0 else ""
        return f"{tail} {self.said[number].text}".strip()

    def memory(self, number: int) -> Memory:
        """Return an indexed message as a memory."""
        one = self.said[number]
        thread = self._thread
        at = datetime.fromtimestamp(0.0, UTC) if one.at is None else moment(one.at)
        return Memory(
            f"{thread.id}#{one.number}", one.text, "turn", thread.user, None, None, Source(thread.id, one.number),
            trust_of(one.role), None, None, None, None, None, self.index.speakers[number], None, at,
        )  # fmt: skip


class ThreadIndexes:
    """The indexes of a client's conversations."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held: OrderedDict[str, ThreadIndex] = OrderedDict()

    def of(self, thread_id: str, user: str | None) -> ThreadIndex:
        """Return the index of a thread."""
        if self._pid != os.getpid():  # a fork: another thread of the parent may have held the locks
            ThreadIndexes.__init__(self, self._threads)
        with self._lock:
            found = self._held.pop(thread_id, None)
            if found is None:
                found = ThreadIndex(Thread(self._threads, thread_id, user=user, ttl=None))
            self._held[thread_id] = found
            if len(self._held) > _MOST:
                self._held.popitem(last=False)
            return found

    def drop(self, thread_id: str) -> None:
        """Remove an index from memory."""
        with self._lock:
            self._held.pop(thread_id, None)


def text_of(message: Message) -> str:
    """Return the text of a message of any provider; without its tool calls and images."""
    content = message.get("content", message.get("text"))
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part_text(part) for part in content if _part_text(part))
    return ""


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


def trust_of(role: str) -> Trust:
    """Return how far a message of this role is trusted."""
    return _TRUST.get(role, "unknown")


def _time_of(turn: Turn) -> float | None:
    given = turn.message.get("timestamp", turn.message.get("created_at"))
    if isinstance(given, int | float) and not isinstance(given, bool) and 0 < given < 1e11:
        return float(given)
    if isinstance(given, str):
        try:
            when = datetime.fromisoformat(given)
            when = (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).astimezone(UTC)
        except (ValueError, OverflowError):
            return turn.at
        return when.timestamp()
    return given.timestamp() if isinstance(given, datetime) and given.tzinfo is not None else turn.at
