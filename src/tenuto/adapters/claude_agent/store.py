"""The Claude Agent SDK on tenuto: `TenutoSessionStore` stores the transcripts of sessions as threads.

    options = ClaudeAgentOptions(session_store=TenutoSessionStore(agent))

A transcript is the thread `<project>/<session>`, a subagent's is `<project>/<session>/<subpath>`. `thread_id(key)`
returns the name; `thread=` chooses another thread, for example one of another framework. An entry with a message is
stored as that message, with its other fields under `kept`. An entry without a message (a title, a mode) is stored
under `kept` alone. Messages of other frameworks are loaded as entries of a transcript.

It also owns three kinds of records: `("claude", "session", project, session)` lists a session with its summary,
`("claude", "sub", project, session, subpath)` lists a subagent's transcript, and `(thread, "claude", since, uuid)`
marks a stored entry, so that a repeated one is not stored twice. A batch is one commit (several beyond 400 entries,
in order): a crash leaves it stored or not stored. Deleting a session deletes its subagents' threads first and its
listing last, so that an interrupted deletion can be repeated.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, cast
from urllib.parse import quote

from tenuto import shapes
from tenuto.adapters.conversation import bridged
from tenuto.aio import AsyncTenuto
from tenuto.aio.bridge import awaitable
from tenuto.capabilities.threads import INDEX, Thread, info_of
from tenuto.client import Tenuto
from tenuto.errors import InvalidInput, MissingDriver, StateConflict
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Delete, Put, Record, Write
from tenuto.kernel.durations import Duration
from tenuto.kernel.durations import ttl as ttl_seconds
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work, on_store, work_of
from tenuto.shapes import KEPT, Message

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
    raise MissingDriver('The Claude Agent SDK is not installed. Run: pip install "tenuto[claude-agent]".') from error

__all__ = ["TenutoSessionStore", "thread_id"]

Entry = dict[str, Any]
_BATCH: Final = 400
_SESSION: Final = keys.pack("claude", "session")
_SUB: Final = keys.pack("claude", "sub")
_MARK: Final = keys.pack("claude")
_OWN: Final = "tenuto"
"""Marks an entry that was converted from another framework's message."""
_NAMES: Final = uuid.UUID("5d5a4f4e-6c58-4b0e-9a0e-4c1f3d2b7a10")


def thread_id(key: SessionKey) -> str:
    """Return the default thread id of a transcript."""
    parts = [quote(key["project_key"], safe=_PLAIN), quote(key["session_id"], safe=_PLAIN)]
    if "subpath" in key:
        parts.append(key["subpath"])
    if not all(parts):
        raise InvalidInput(
            "A transcript needs a project_key and a session_id. Leave out subpath instead of passing an empty one."
        )
    return "/".join(parts)


_PLAIN: Final = " !\"#$&'()*+,:;<=>?@[\\]^`{|}"
"""Characters that are not quoted: all but the slash, which separates project and session, and the percent sign."""


class Transcripts:
    """The transcripts of one client."""

    def __init__(self, agent: Tenuto, thread: Callable[[SessionKey], str], ttl: Duration | None) -> None:
        self._agent = agent
        self._kernel = agent.kernel
        self._thread_id = thread
        self._given_ttl = ttl
        self._ttl = ttl_seconds(ttl)

    @property
    def _clock(self) -> Clock:
        return self._agent.clock

    def _thread(self, key: SessionKey) -> Thread:
        thread_id(key)  # rejects an invalid key, also for a chosen thread
        return self._agent.thread(self._thread_id(key), ttl=self._given_ttl)

    # -- writing ---------------------------------------------------------------------------------------------

    @on_store
    def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> Work[None]:
        """Append entries in order and durably; skip those whose uuid is already stored."""
        thread = self._thread(key)
        every = [cast("Entry", entry) for entry in entries]
        for at in range(0, len(every), _BATCH):
            yield from self._append(key, thread, every[at : at + _BATCH])

    def _append(self, key: SessionKey, thread: Thread, entries: list[Entry]) -> Work[None]:
        listing = _listing(key)
        delays = backoff(most=0.02)
        while True:
            last = thread._log.last()
            place = last.place if last is not None and thread._log.is_live(last) else None
            since = place.since if place is not None else (last.number if last is not None else 0) + 1
            marks = {entry["uuid"]: _mark(thread.id, since, entry["uuid"]) for entry in entries if _has_uuid(entry)}
            records = self._kernel.read([listing, *marks.values()])
            known = {name for name, record in zip(marks, records[1:], strict=True) if record is not None}
            fresh = list(_unknown(entries, known, [thread.id, since]))
            if not fresh:
                return
            marked: list[Write] = [Put(listing, self._listed(key, records[0], fresh, thread.id), self._ttl)]
            marked += [Put(marks[entry["uuid"]], b"", self._ttl) for entry in fresh if _has_uuid(entry)]
            past = thread._unbegun()  # the messages of a graph become the start of the thread
            stored = [*past, *(message for entry in fresh for message in _stored(entry))]
            try:
                yield from thread._appending(
                    tuple(stored),
                    expect=place.messages if place is not None else 0,
                    along=lambda _before, _after, marked=marked: marked,  # type: ignore[misc]
                )
            except StateConflict:
                yield Sleep(next(delays))  # another process was first, perhaps with the same entries
            else:
                return

    def _listed(self, key: SessionKey, record: Record | None, fresh: list[Entry], thread: str) -> bytes:
        now = int(self._kernel.now() * 1_000)
        if "subpath" in key:
            return codec.encode({"thread": thread, "mtime": now})
        before = codec.decode(record.value)["summary"] if record is not None else None
        summary = dict(fold_session_summary(before, key, cast("list[SessionStoreEntry]", fresh)))
        return codec.encode({"thread": thread, "mtime": now, "summary": {**summary, "mtime": now}})

    @on_store
    def delete(self, key: SessionKey) -> Work[None]:
        """Delete a transcript with its messages; for a session, also those of its subagents."""
        if "subpath" not in key:
            for subpath in self.list_subkeys(cast("SessionListSubkeysKey", key)):
                yield from self._end({**key, "subpath": subpath})
        yield from self._end(key)

    def _end(self, key: SessionKey) -> Work[None]:
        thread = self._thread(key)
        yield from work_of(thread.delete)()
        while found := self._kernel.scan(keys.named(thread.id, "thread id") + _MARK, limit=500):
            yield from commit_once(self._kernel, [], [Delete(record.key) for record in found])
        yield from commit_once(self._kernel, [], [Delete(_listing(key))])

    # -- reading ---------------------------------------------------------------------------------------------

    def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """Return the entries of a transcript in order, or None if there is none."""
        thread = self._thread(key)
        seen, messages, _ = thread._news(None)
        if seen is None and not messages:
            return None
        since = seen.place.since if seen is not None else 0
        listed = self._kernel.read([INDEX + keys.pack(thread.id)])[0]
        began = info_of(listed).created if listed is not None else self._kernel.now()
        return cast("list[SessionStoreEntry]", _entries(messages, key, [thread.id, since], began))

    def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """Return the sessions of a project and the time of their last write."""
        found = self._live(_SESSION + keys.named(project_key, "project key"))
        return [{"session_id": name, "mtime": listed["mtime"]} for name, listed in found]

    def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """Return the summaries of the sessions of a project, folded by the SDK."""
        found = self._live(_SESSION + keys.named(project_key, "project key"))
        return [cast("SessionSummaryEntry", listed["summary"]) for _, listed in found]

    def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """Return the subpaths of a session's subagents."""
        project, session = keys.named(key["project_key"], "project key"), keys.named(key["session_id"], "session id")
        return [name for name, _ in self._live(_SUB + project + session)]

    def _live(self, prefix: bytes) -> list[tuple[str, Any]]:
        """Return the listed names whose threads exist: threads may have been deleted through another API."""
        found: list[tuple[str, Any]] = []
        after: bytes | None = None
        while page := self._kernel.scan(prefix, after=after, limit=500):
            listed = [(str(keys.unpack(record.key)[-1]), codec.decode(record.value)) for record in page]
            there = self._kernel.read([INDEX + keys.pack(one["thread"]) for _, one in listed])
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
    """Yield the entries that are not in the thread, each uuid once."""
    for entry in entries:
        own = entry.get(_OWN)
        if isinstance(own, dict) and own.get("thread") in (thread, [thread[0], 0]):
            continue  # converted from a message of this thread
        if _has_uuid(entry):
            if entry["uuid"] in known:
                continue
            known.add(entry["uuid"])
        yield entry


# -- entries and messages ------------------------------------------------------------------------------------------


def _stored(entry: Entry) -> list[Message]:
    """Return the stored form of an entry: its message, with the other fields under `kept`."""
    own = entry.get(_OWN)
    if isinstance(own, dict) and isinstance(own.get("messages"), list):
        return list(own["messages"])  # converted from another framework: store the originals
    message = entry.get("message")
    says = isinstance(message, dict) and message.get("role") in ("user", "assistant") and "content" in message
    if not says:
        return [{KEPT: {"by": "claude", "entry": entry}}]
    outer = {name: value for name, value in entry.items() if name != "message"}
    inner = {name: value for name, value in entry["message"].items() if name not in ("role", "content")}
    body = {"role": entry["message"]["role"], "content": entry["message"]["content"]}
    return [{**body, KEPT: {"by": "claude", "entry": outer, "message": inner}}]


def _entries(messages: list[Message], key: SessionKey, thread: list[Any], began: float) -> list[Entry]:
    """Return messages as the entries of a transcript: Claude's own unchanged, others converted, each after its parent."""
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
        # Messages without a counterpart in a transcript, such as instructions, go with the next entry, or the last one.
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

    `thread` maps a key to a thread id, by default `thread_id(key)`. With `ttl` a transcript expires that long after
    its last write. A cancelled call completes the commit that it has started.
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
