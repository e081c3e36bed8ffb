"""Subjects: what the audit can do with a state manager, in its own words, whatever kind of object it is.

A subject reads and writes values, adds to a counter, and keeps a conversation. What else it can do is in `abilities`; the
rules that need an ability report "not offered" or "not tested" without it. `subject_of` recognises the object that a
factory returned: a tenuto client, anything with get and set, LangGraph's checkpointers and stores, OpenAI sessions.
"""

# ruff: noqa: D102 - the methods of the other subjects are described in Subject

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from typing import Any, Final

from tenuto.client import Tenuto
from tenuto.errors import Conflict, InvalidInput

ABILITIES: Final = ("update", "entry", "history", "ttl", "delete", "size", "backup", "outage", "close")


class Subject:
    """Anything with `get(key)` and `set(key, value)`, or a mapping."""

    kind = "state manager"
    conversations = False
    """True if it has messages of its own; else a conversation is a list under one key."""

    def __init__(self, target: Any) -> None:
        self.target = target
        found = {name for name in ABILITIES if callable(getattr(target, name, None))}
        if isinstance(target, dict):
            found -= {"update"}
        setter = getattr(target, "set", None)
        if setter is not None:
            found |= {"ttl"} & set(_parameters(setter)) | ({"expect"} if "expect" in _parameters(setter) else set())
        if not {"entry", "expect"} <= found:
            found -= {"entry", "expect"}
        self.abilities: set[str] = found

    def read(self, key: str) -> Any:
        """Return a value, or None if there is none."""
        try:
            return _awaited(self.target.get(key))
        except KeyError:
            return None

    def write(self, key: str, value: Any, *, seconds: float | None = None) -> None:
        """Set a value."""
        if seconds is not None:
            _awaited(self.target.set(key, value, ttl=seconds))
        elif hasattr(self.target, "set"):
            _awaited(self.target.set(key, value))
        else:
            self.target[key] = value

    def change(self, key: str, name: str, value: Any) -> None:
        """Set one field of a value that is a dict, in the best way that the target has."""
        if "update" in self.abilities:
            _awaited(self.target.update(key, lambda old: {**(old or {}), name: value}))
        else:
            self.write(key, {**(self.read(key) or {}), name: value})

    def add(self, key: str) -> None:
        """Add one to a counter, in the best way that the target has."""
        if "update" in self.abilities:
            _awaited(self.target.update(key, lambda old: {"count": (old or {"count": 0})["count"] + 1}))
        else:
            self.write(key, {"count": self.count(key) + 1})

    def count(self, key: str) -> int:
        """Return a counter."""
        found = self.read(key)
        return int(found["count"]) if isinstance(found, dict) and "count" in found else 0

    def say(self, key: str, text: str) -> None:
        """Add a message to a conversation."""
        self.write(key, [*(self.read(key) or []), {"role": "user", "content": text}])

    def said(self, key: str) -> list[str]:
        """Return the texts of a conversation."""
        return [str(one["content"]) for one in self.read(key) or []]

    def seen(self, key: str) -> tuple[Any, Any]:
        """Return a value and its version, or None if the target has no versions."""
        if "entry" not in self.abilities:
            return self.read(key), None
        found = _awaited(self.target.entry(key))
        if isinstance(found, tuple) and len(found) == 2:
            return found
        return (None, 0) if found is None else (found.value, found.version)

    def write_if(self, key: str, value: Any, version: Any) -> None:
        """Set a value if it is still at a version; without versions, just set it."""
        if version is None:
            self.write(key, value)
        else:
            _awaited(self.target.set(key, value, expect=version))

    def earlier(self, key: str) -> int:
        """Return how many earlier values of a key can be read."""
        return len(_awaited(self.target.history(key)))

    def delete(self, key: str) -> None:
        """Delete a value."""
        _awaited(self.target.delete(key))

    def size(self) -> int:
        """Return the bytes that the storage takes."""
        return int(_awaited(self.target.size()))

    def backup(self, folder: str) -> Subject:
        """Back up into a folder; return a subject on what was restored from there."""
        return subject_of(_awaited(self.target.backup(folder)))

    def outage(self) -> Subject:
        """Return a subject whose storage is not available."""
        return subject_of(_awaited(self.target.outage()))

    def close(self) -> None:
        """Close the target, if it can be closed."""
        if "close" in self.abilities:
            _awaited(self.target.close())


class CheckpointerSubject(Subject):
    """A LangGraph checkpointer: a key is a thread, a value is its state, each write is a checkpoint."""

    kind = "LangGraph checkpointer"

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.abilities = {"history", *({"delete"} if hasattr(target, "delete_thread") else ())}
        if _size_of(target) is not None:
            self.abilities |= {"size"}
        if callable(getattr(target, "setup", None)):
            _awaited(target.setup())

    def _config(self, key: str) -> Any:
        return {"configurable": {"thread_id": key, "checkpoint_ns": ""}}

    def read(self, key: str) -> Any:
        found = self.target.get_tuple(self._config(key))
        return None if found is None else found.checkpoint["channel_values"].get("state")

    def write(self, key: str, value: Any, *, seconds: float | None = None) -> None:  # noqa: ARG002 - of those with a ttl
        from langgraph.checkpoint.base import empty_checkpoint  # noqa: PLC0415 - an extra

        found = self.target.get_tuple(self._config(key))
        config = self._config(key) if found is None else found.config
        before = None if found is None else found.checkpoint["channel_versions"].get("state")
        version = self.target.get_next_version(before, None)
        checkpoint = {
            **empty_checkpoint(),
            "channel_values": {"state": value},
            "channel_versions": {"state": version},
        }
        self.target.put(config, checkpoint, {"source": "loop", "step": 1, "parents": {}}, {"state": version})

    def earlier(self, key: str) -> int:
        return len(list(self.target.list(self._config(key))))

    def delete(self, key: str) -> None:
        self.target.delete_thread(key)

    def size(self) -> int:
        return _size_of(self.target) or 0

    def begun(self, key: str) -> None:
        """Record the finished work of one task of a step, as LangGraph does before the step's checkpoint."""
        found = self.target.get_tuple(self._config(key))
        self.target.put_writes(found.config, [("state", {"paid": True})], "task-1")

    def pending(self, key: str) -> list[Any]:
        """Return what finished tasks of an unfinished step have written."""
        return list(self.target.get_tuple(self._config(key)).pending_writes or [])


class StoreSubject(Subject):
    """A LangGraph store: a key is an item of one namespace."""

    kind = "LangGraph store"
    _place: Final = ("tenuto", "audit")

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.abilities = {"delete", *({"ttl"} if getattr(target, "supports_ttl", False) else ())}
        if _size_of(target) is not None:
            self.abilities |= {"size"}
        if callable(getattr(target, "setup", None)):
            _awaited(target.setup())

    def read(self, key: str) -> Any:
        found = self.target.get(self._place, key)
        return None if found is None else found.value["value"]

    def write(self, key: str, value: Any, *, seconds: float | None = None) -> None:
        if seconds is None:
            self.target.put(self._place, key, {"value": value})
        else:
            self.target.put(self._place, key, {"value": value}, ttl=seconds / 60)

    def delete(self, key: str) -> None:
        self.target.delete(self._place, key)


class SessionSubject(Subject):
    """An OpenAI session: one conversation. Its values are items that name their key, and its counters count items."""

    kind = "OpenAI session"
    conversations = True

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.abilities = set()

    def _items(self, key: str) -> list[Any]:
        found = _awaited(self.target.get_items())
        return [one["content"] for one in found if one.get("role") == "user" and one["content"]["key"] == key]

    def _put(self, key: str, value: Any) -> None:
        _awaited(self.target.add_items([{"role": "user", "content": {"key": key, "value": value}}]))

    def read(self, key: str) -> Any:
        found = self._items(key)
        return found[-1]["value"] if found else None

    def write(self, key: str, value: Any, *, seconds: float | None = None) -> None:  # noqa: ARG002 - of those with a ttl
        self._put(key, value)

    def add(self, key: str) -> None:
        self._put(key, 1)

    def count(self, key: str) -> int:
        return len(self._items(key))

    def say(self, key: str, text: str) -> None:
        self._put(key, text)

    def said(self, key: str) -> list[str]:
        return [str(one["value"]) for one in self._items(key)]


class TenutoSubject(Subject):
    """A tenuto store. Values are state, conversations are threads."""

    kind = "tenuto store"
    conversations = True

    def __init__(self, target: Tenuto, url: str | None = None) -> None:
        super().__init__(target)
        self.url = url
        self.abilities = {"update", "entry", "expect", "history", "ttl", "delete", "runs"}
        if url is not None:
            self.abilities |= {"outage", "backup"}
        if "bytes" in target.store.stats():
            self.abilities |= {"size"}

    def _place(self, key: str) -> tuple[str, str]:
        return key, "value"

    def read(self, key: str) -> Any:
        return self.target.state.get(*self._place(key))

    def write(self, key: str, value: Any, *, seconds: float | None = None) -> None:
        self.target.state.set(*self._place(key), value, ttl=seconds)

    def change(self, key: str, name: str, value: Any) -> None:
        self.target.state.update(*self._place(key), lambda old: {**(old or {}), name: value}, attempts=1_000)

    def add(self, key: str) -> None:
        def more(old: Any) -> Any:
            return {"count": (old or {"count": 0})["count"] + 1}

        self.target.state.update(*self._place(key), more, attempts=1_000)

    def say(self, key: str, text: str) -> None:
        self.target.thread(key).append({"role": "user", "content": text})

    def said(self, key: str) -> list[str]:
        return [str(one["content"]) for one in self.target.thread(key).messages()]

    def seen(self, key: str) -> tuple[Any, Any]:
        found = self.target.state.entry(*self._place(key))
        return (None, 0) if found is None else (found.value, found.version)

    def write_if(self, key: str, value: Any, version: Any) -> None:
        self.target.state.set(*self._place(key), value, expect=version)

    def earlier(self, key: str) -> int:
        return len(self.target.state.history(*self._place(key)))

    def delete(self, key: str) -> None:
        self.target.state.delete(*self._place(key))

    def size(self) -> int:
        found = self.target.store.stats()
        return int(found.get("page_bytes", found["bytes"]))  # the length of a log says when it was last folded in

    def backup(self, folder: str) -> Subject:
        from tenuto.audit.scratch import restored  # noqa: PLC0415 - only here

        url = restored(self.target, str(self.url), folder)
        return TenutoSubject(Tenuto("audit", url, tenant=self.target.tenant), url)

    def outage(self) -> Subject:
        from tenuto.audit.scratch import unreachable  # noqa: PLC0415 - only here

        return Subject(_Away(Tenuto("audit", unreachable(str(self.url)))))


class _Away:
    """A tenuto client whose storage is not available, with get and set alone: nothing is asked of it before."""

    def __init__(self, agent: Tenuto) -> None:
        self._agent = agent

    def get(self, key: str) -> Any:
        """Read a value."""
        return self._agent.state.get(key, "value")

    def set(self, key: str, value: Any) -> None:
        """Set a value."""
        self._agent.state.set(key, "value", value)


_ENTERED: Final[list[Any]] = []


def subject_of(target: Any) -> Subject:
    """Return the subject of an object; `InvalidInput` that says what is missing."""
    if isinstance(target, Subject):
        return target
    if isinstance(target, AbstractContextManager) and not hasattr(target, "get") and not hasattr(target, "get_items"):
        _ENTERED.append(target)  # it would close what it gave when it is collected
        target = target.__enter__()
    if isinstance(target, Tenuto):
        return TenutoSubject(target)
    if all(callable(getattr(target, one, None)) for one in ("get_tuple", "put", "put_writes", "list")):
        return CheckpointerSubject(target)
    if all(callable(getattr(target, one, None)) for one in ("get_items", "add_items", "pop_item")):
        return SessionSubject(target)
    if all(callable(getattr(target, one, None)) for one in ("get", "put", "search", "list_namespaces")):
        return StoreSubject(target)
    if callable(getattr(target, "get", None)) and (callable(getattr(target, "set", None)) or isinstance(target, dict)):
        return Subject(target)
    raise InvalidInput(
        f"The audit cannot use an object of type {type(target).__name__}. Let the factory return an object with get(key) and "
        "set(key, value), or an adapter of a few lines that has them."
    )


def is_conflict(error: BaseException) -> bool:
    """Return whether an error says that another writer was first."""
    names = {one.__name__ for one in type(error).__mro__}
    return isinstance(error, Conflict) or any(
        "Conflict" in one or "Stale" in one or "Precondition" in one for one in names
    )


def _parameters(call: Any) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return ()


def _size_of(target: Any) -> int | None:
    """Return the bytes of a LangGraph saver's or store's database, or None if it is not in a known one."""
    connection = getattr(target, "conn", None)
    if connection is None:
        return None
    if type(connection).__module__.startswith("sqlite3"):
        pages, size = (connection.execute(f"PRAGMA {one}").fetchone()[0] for one in ("page_count", "page_size"))
        return int(pages) * int(size)
    if type(connection).__module__.startswith("psycopg") and hasattr(connection, "execute"):
        sql = (
            "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) AS size FROM pg_class c "
            "WHERE c.relname LIKE 'checkpoint%' OR c.relname LIKE 'store%'"
        )
        row = connection.execute(sql).fetchone()
        return int(row["size"] if isinstance(row, dict) else row[0])
    return None


class _Loop:
    """One event loop on a thread of its own, for targets whose methods are coroutines."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="tenuto-audit", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


_loop = _Loop()


def _awaited(value: Any) -> Any:
    return _loop.run(value) if inspect.iscoroutine(value) else value
