"""The Claude Agent SDK on tenuto: `TenutoSessionStore` keeps the transcripts of sessions as threads.

    options = ClaudeAgentOptions(session_store=TenutoSessionStore(agent))

A transcript is the thread `<project>/<session>`, and a subagent's `<project>/<session>/<subpath>`; `thread_id(key)` says
which, and `thread=` chooses another, such as one that another framework has begun. An entry that says something is
stored as the message it is, the rest of the entry beside it as `kept`; one that says nothing (a title, a mode) is kept
alone. What other frameworks wrote is loaded as entries of a transcript.

Besides the thread it owns three kinds of records: `("claude", "session", project, session)` lists a session with its
summary, `("claude", "sub", project, session, subpath)` a subagent's transcript, and `(thread, "claude", since, uuid)`
remembers an entry, so that one that is sent again is not there twice. A batch is one commit of all of these (several
beyond 400 entries, in order); a crash leaves it there or not there. Deleting a session ends its subagents' threads
first and takes its listing away last, so that one that was cut off is done again.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, cast
from urllib.parse import quote

from tenuto._offload import awaitable
from tenuto.adapters import shapes
from tenuto.adapters.conversation import bridged
from tenuto.adapters.shapes import KEPT, Message
from tenuto.aio import AsyncTenuto
from tenuto.capabilities.threads import Thread
from tenuto.capabilities.threadwriter import EVERY, info_of
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, MissingDriver, StateConflict
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Delete, Put, Record, Write
from tenuto.kernel.durations import Duration
from tenuto.kernel.durations import ttl as ttl_seconds
from tenuto.kernel.transact import Steps, backoff, paced, settle

try:
    from claude_agent_sdk import SessionStore, fold_session_summary
    from claude_agent_sdk.types import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )
except ImportError as error:
    raise MissingDriver('The Claude Agent SDK is not installed; run: pip install "tenuto[claude-agent]".') from error

__all__ = ["TenutoSessionStore", "thread_id"]

Entry = dict[str, Any]
_BATCH: Final = 400
_SESSION: Final = keys.pack("claude", "session")
_SUB: Final = keys.pack("claude", "sub")
_MARK: Final = keys.pack("claude")
_OWN: Final = "tenuto"
"""Where an entry that was made of another framework's message says so."""
_NAMES: Final = uuid.UUID("5d5a4f4e-6c58-4b0e-9a0e-4c1f3d2b7a10")


def thread_id(key: SessionKey) -> str:
    """Return the id of the thread that a transcript is, unless another was chosen."""
    parts = [quote(key["project_key"], safe=_PLAIN), quote(key["session_id"], safe=_PLAIN)]
    if "subpath" in key:
        parts.append(key["subpath"])
    if not all(parts):
        raise InvalidInput(
            "A transcript needs a project_key and a session_id; a subpath is given or left out, not empty."
        )
    return "/".join(parts)


_PLAIN: Final = " !\"#$&'()*+,:;<=>?@[\\]^`{|}"
"""What stays as it is in the name of a project: all but the slash, which parts it from the session, and the percent."""


class Transcripts:
    """The transcripts of one client: what the store does, written once."""

    def __init__(self, agent: Tenuto, thread: Callable[[SessionKey], str], ttl: Duration | None) -> None:
        self._agent = agent
        self._kernel = agent.kernel
        self._thread_id = thread
        self._given_ttl = ttl
        self._ttl = ttl_seconds(ttl)

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._agent.clock

    def _thread(self, key: SessionKey) -> Thread:
        thread_id(key)  # refuses a key that is none, whatever is chosen
        return self._agent.thread(self._thread_id(key), ttl=self._given_ttl)

    # -- writing ---------------------------------------------------------------------------------------------

    @paced
    def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> Steps[None]:
        """Add entries, in order and durably; one whose uuid is there already is left out."""
        thread = self._thread(key)
        every = [cast("Entry", entry) for entry in entries]
        for at in range(0, len(every), _BATCH):
            yield from self._append(key, thread, every[at : at + _BATCH])

    def _append(self, key: SessionKey, thread: Thread, entries: list[Entry]) -> Steps[None]:
        listing = _listing(key)
        for delay in backoff(None, most=0.02):
            last = thread._log.last()
            place = last.place if last is not None and thread._log.is_live(last) else None
            since = place.since if place is not None else (last.number if last is not None else 0) + 1
            marks = {entry["uuid"]: _mark(thread.id, since, entry["uuid"]) for entry in entries if _has_uuid(entry)}
            records = self._kernel.read([listing, *marks.values()])
            known = {name for name, record in zip(marks, records[1:], strict=True) if record is not None}
            fresh = list(_unknown(entries, known, [thread.id, since]))
            if not fresh:
                return
            told: list[Write] = [Put(listing, self._listed(key, records[0], fresh, thread.id), self._ttl)]
            told += [Put(marks[entry["uuid"]], b"", self._ttl) for entry in fresh if _has_uuid(entry)]
            past = thread.unbegun()  # what a graph has said so far goes on here
            stored = [*past, *(message for entry in fresh for message in _stored(entry))]
            try:
                yield from thread.appending(
                    tuple(stored),
                    expect=place.messages if place is not None else 0,
                    along=lambda _before, _after, told=told: told,  # type: ignore[misc]
                )
            except StateConflict:
                yield delay  # somebody else was first: perhaps with the same entries
            else:
                return

    def _listed(self, key: SessionKey, record: Record | None, fresh: list[Entry], thread: str) -> bytes:
        now = int(self._kernel.now() * 1_000)
        if "subpath" in key:
            return codec.encode({"thread": thread, "mtime": now})
        before = codec.decode(record.value)["summary"] if record is not None else None
        summary = dict(fold_session_summary(before, key, cast("list[SessionStoreEntry]", fresh)))
        return codec.encode({"thread": thread, "mtime": now, "summary": {**summary, "mtime": now}})

    @paced
    def delete(self, key: SessionKey) -> Steps[None]:
        """End a transcript, and with a session those of its subagents; what they said is taken out of the store."""
        if "subpath" not in key:
            for subpath in self.list_subkeys(cast("SessionListSubkeysKey", key)):
                yield from self._end({**key, "subpath": subpath})
        yield from self._end(key)

    def _end(self, key: SessionKey) -> Steps[None]:
        thread = self._thread(key)
        yield from Thread.delete.steps(thread)  # type: ignore[attr-defined]
        while found := self._kernel.scan(keys.named(thread.id, "thread id") + _MARK, limit=500):
            yield from settle(self._kernel, [], [Delete(record.key) for record in found])
        yield from settle(self._kernel, [], [Delete(_listing(key))])

    # -- reading ---------------------------------------------------------------------------------------------

    def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript, in order; None where there is none."""
        thread = self._thread(key)
        seen, messages, _ = thread.news(None)
        if seen is None and not messages:
            return None
        since = seen.place.since if seen is not None else 0
        listed = self._kernel.read([EVERY + keys.pack(thread.id)])[0]
        began = info_of(listed).created if listed is not None else self._kernel.now()
        return cast("list[SessionStoreEntry]", _entries(messages, key, [thread.id, since], began))

    def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project, and when each was last written to."""
        found = self._live(_SESSION + keys.named(project_key, "project key"))
        return [{"session_id": name, "mtime": listed["mtime"]} for name, listed in found]

    def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of the sessions of a project, as the SDK has folded them."""
        found = self._live(_SESSION + keys.named(project_key, "project key"))
        return [cast("SessionSummaryEntry", listed["summary"]) for _, listed in found]

    def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session's subagents."""
        project, session = keys.named(key["project_key"], "project key"), keys.named(key["session_id"], "session id")
        return [name for name, _ in self._live(_SUB + project + session)]

    def _live(self, prefix: bytes) -> list[tuple[str, Any]]:
        """Return what is listed, by its name, as far as the threads are there: others may have ended them."""
        found: list[tuple[str, Any]] = []
        after: bytes | None = None
        while page := self._kernel.scan(prefix, after=after, limit=500):
            listed = [(str(keys.unpack(record.key)[-1]), codec.decode(record.value)) for record in page]
            there = self._kernel.read([EVERY + keys.pack(one["thread"]) for _, one in listed])
            found += [one for one, record in zip(listed, there, strict=True) if record is not None]
            after = page[-1].key
        return found


def _listing(key: SessionKey) -> bytes:
    of = keys.named(key["project_key"], "project key") + keys.named(key["session_id"], "session id")
    return _SUB + of + keys.named(key["subpath"], "subpath") if "subpath" in key else _SESSION + of


def _mark(thread: str, since: int, name: str) -> bytes:
    return keys.named(thread, "thread id") + _MARK + keys.pack(since) + keys.named(name, "uuid")


def _has_uuid(entry: Entry) -> bool:
    return isinstance(entry.get("uuid"), str) and bool(entry["uuid"])


def _unknown(entries: list[Entry], known: set[str], thread: list[Any]) -> Iterator[Entry]:
    """Yield the entries that are not in the thread yet, each uuid once."""
    for entry in entries:
        own = entry.get(_OWN)
        if isinstance(own, dict) and own.get("thread") in (thread, [thread[0], 0]):
            continue  # it was made of what is in this very thread
        if _has_uuid(entry):
            if entry["uuid"] in known:
                continue
            known.add(entry["uuid"])
        yield entry


# -- entries and messages ------------------------------------------------------------------------------------------


def _stored(entry: Entry) -> list[Message]:
    """Return an entry as it is stored: what it says as a message, the rest as kept."""
    own = entry.get(_OWN)
    if isinstance(own, dict) and isinstance(own.get("messages"), list):
        return list(own["messages"])  # made of another framework's: stored as that was
    message = entry.get("message")
    says = isinstance(message, dict) and message.get("role") in ("user", "assistant") and "content" in message
    if not says:
        return [{KEPT: {"by": "claude", "entry": entry}}]
    outer = {name: value for name, value in entry.items() if name != "message"}
    inner = {name: value for name, value in entry["message"].items() if name not in ("role", "content")}
    body = {"role": entry["message"]["role"], "content": entry["message"]["content"]}
    return [{**body, KEPT: {"by": "claude", "entry": outer, "message": inner}}]


def _entries(messages: list[Message], key: SessionKey, thread: list[Any], began: float) -> list[Entry]:
    """Return messages as the entries of a transcript: Claude's as they were, others as entries behind the one before."""
    found: list[Entry] = []
    parent: str | None = None
    stamp = datetime.fromtimestamp(began, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    made_of: list[Message] = []
    again: dict[bytes, int] = {}
    for message in messages:
        kept = shapes.kept_of(message)
        if kept is not None and kept["by"] == "claude":
            entry = _restored(message, kept)
            parent = entry["uuid"] if _has_uuid(entry) else parent
            stamp = entry.get("timestamp", stamp)
            found.append(entry)
            continue
        said = shapes.shown("anthropic", message)
        # What has no counterpart in a transcript, instructions too, belongs to the entry that follows, or precedes it.
        if not said or said[0]["role"] == "system":
            made_of.append(message)
            continue
        packed = codec.pack(message)
        again[packed] = again.get(packed, 0) + 1
        name = str(uuid.uuid5(_NAMES, f"{thread[0]}\n{again[packed]}\n{packed.hex()}"))
        made_of = [*made_of, message]
        found.append(
            {
                "type": said[0]["role"],
                "uuid": name,
                "parentUuid": parent,
                "sessionId": key["session_id"],
                "timestamp": stamp,
                "isSidechain": "subpath" in key,
                "userType": "external",
                "message": said[0],
                _OWN: {"thread": thread, "messages": made_of},
            }
        )
        parent, made_of = name, []
    if made_of and found and _OWN in found[-1]:
        found[-1][_OWN]["messages"] = [*found[-1][_OWN]["messages"], *made_of]
    return found


def _restored(message: Message, kept: dict[str, Any]) -> Entry:
    entry: Entry = dict(kept["entry"])
    if "message" in kept:
        entry["message"] = {"role": message["role"], "content": message["content"], **kept["message"]}
    return entry


# -- the store -----------------------------------------------------------------------------------------------------


class TenutoSessionStore(SessionStore):
    """A `SessionStore` of the Claude Agent SDK, with all its optional methods.

    `thread` says which thread a transcript is, where it is not `thread_id(key)`; `ttl` ends a transcript so long after
    it was last written to. What has begun when a call is cancelled is brought to its end.
    """

    def __init__(
        self,
        agent: Tenuto | AsyncTenuto,
        *,
        thread: Callable[[SessionKey], str] = thread_id,
        ttl: Duration | None = None,
    ) -> None:
        client, self._pool = bridged(agent)
        self._sync = Transcripts(client, thread, ttl)

    append = awaitable(Transcripts.append)
    load = awaitable(Transcripts.load)
    list_sessions = awaitable(Transcripts.list_sessions)
    list_session_summaries = awaitable(Transcripts.list_session_summaries)
    delete = awaitable(Transcripts.delete)
    list_subkeys = awaitable(Transcripts.list_subkeys)
