"""The storage verbs for clients of tenuto. The tenant comes from the API key and from nothing else."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import Any, Final

from tenuto.backends.remote import wire
from tenuto.errors import InvalidInput
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import MAX_WRITES, Backend
from tenuto.servers.auth import Access
from tenuto.servers.http.rights import must_operate

_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "read": ("read", "write"),
    "scan": ("read", "write"),
    "entries": ("read", "write"),
    "streams": ("read", "write"),
    "load": ("write",),
    "trim": ("write",),
    "watch": ("read", "write"),
    "stats": ("read", "write", "answer"),
    "commit": ("write",),
    "check": (),
}
VERSION: Final = version("tenuto")
_POLL: Final = 0.05
"""Seconds between two looks at a stream whose store does not notify."""
_RARELY: Final = 1.0
MOST_HELD: Final = 30.0
"""Seconds for which a long poll is held at most."""


def hello(access: Access, now: float) -> bytes:
    """Encode what a client learns when it connects."""
    return wire.packed(
        {
            "protocols": [wire.PROTOCOL],
            "version": VERSION,
            "tenant": access.tenant,
            "key": access.name,
            "scopes": list(access.scopes),
            "now": now,
        }
    )


def answer(verb: str, access: Access, store: Backend, body: bytes, *, operator: str) -> bytes:
    """Carry out one verb on the view of an API key; return the encoded result. It blocks.

    Admins of the tenant `operator` also see what covers all tenants.
    """
    access.must(*_NEEDS[verb])
    if verb == "check":
        must_operate(access, operator)
    elif verb == "stats":
        return wire.packed([store.now(), _stats(access, store, body, operator)])
    result = _CALLS[verb](access, store, body)
    return wire.packed([store.now(), result])


def _read(_: Access, store: Backend, body: bytes) -> Any:
    (asked,) = wire.arguments_of(body, (list,))
    return [None if one is None else tuple(one) for one in store.read(wire.keys_of(asked))]


def _scan(_: Access, store: Backend, body: bytes) -> Any:
    prefix, after, limit, reverse = wire.arguments_of(body, (bytes,), (bytes, type(None)), (int,), (bool,))
    return [tuple(one) for one in store.scan(prefix, after=after, limit=limit, reverse=reverse)]


def _entries(_: Access, store: Backend, body: bytes) -> Any:
    stream, after, limit, reverse = wire.arguments_of(body, (bytes,), (int, type(None)), (int,), (bool,))
    return [tuple(one) for one in store.entries(stream, after=after, limit=limit, reverse=reverse)]


def _commit(_: Access, store: Backend, body: bytes) -> Any:
    checks, writes, request = wire.commit_of(body)
    return tuple(store.commit(checks, writes, request=request))


def _streams(_: Access, store: Backend, body: bytes) -> Any:
    prefix, after, limit = wire.arguments_of(body, (bytes,), (bytes, type(None)), (int,))
    return store.streams(prefix, after=after, limit=limit)


def _load(_: Access, store: Backend, body: bytes) -> Any:
    return store.load(*wire.load_of(body))


def _trim(_: Access, store: Backend, body: bytes) -> Any:
    stream, first = wire.arguments_of(body, (bytes,), (int,))
    return store.trim(stream, first)


def _check(_: Access, store: Backend, body: bytes) -> Any:
    wire.arguments_of(body)
    return [tuple(one) for one in store.check()]


def _stats(access: Access, store: Backend, body: bytes, operator: str) -> Any:
    """Return the figures of the store to its operator; others learn what their key may do."""
    wire.arguments_of(body)
    fields = {"server": VERSION, "tenant": access.tenant, "key": access.name, "scopes": list(access.scopes)}
    if access.prefix:
        return {**fields, "durability": "of the server"}
    found = dict(store.stats())
    if "admin" not in access.scopes or access.tenant != operator:
        return {**fields, "durability": found["durability"]}
    return {**fields, "durability": found["durability"], "store": _plain(found)}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, str | int | float | bool | bytes) else str(value)


_CALLS: Final[dict[str, Callable[[Access, Backend, bytes], Any]]] = {
    "read": _read,
    "scan": _scan,
    "entries": _entries,
    "commit": _commit,
    "streams": _streams,
    "load": _load,
    "trim": _trim,
    "check": _check,
}


class Watch:
    """One long poll: it ends when a stream is beyond the number that the client knows, or after a time."""

    def __init__(self, access: Access, store: Backend, body: bytes) -> None:
        access.must(*_NEEDS["watch"])
        streams, seconds = wire.arguments_of(body, (list,), (int, float))
        self._known: dict[bytes, int] = {}
        for one in streams:
            if not (isinstance(one, list) and len(one) == 2 and type(one[0]) is bytes and type(one[1]) is int):
                raise InvalidInput("A long poll takes a list of streams and numbers. Nothing was done.")
            self._known[one[0]] = one[1]
        if len(self._known) > MAX_WRITES:
            raise InvalidInput(f"A long poll takes up to {MAX_WRITES:,} streams. Nothing was done.")
        self._store = store
        self.seconds = min(float(seconds), MOST_HELD)
        self._bells: list[Bell] = []
        self._rung: asyncio.Event | None = None

    def look(self) -> bytes | None:
        """Return the reply if a stream has grown, else None. It blocks; call it on a thread."""
        if not self._bells:
            self._bells = [self._store.bell(stream) for stream in self._known]
        for bell in self._bells:
            bell.hush()
        grown: list[tuple[bytes, int]] = []
        for stream, known in self._known.items():
            newest = self._store.entries(stream, limit=1, reverse=True)
            number = newest[0].number if newest else 0
            if number != known:
                grown.append((stream, number))
        return self.reply(grown) if grown else None

    def reply(self, grown: list[tuple[bytes, int]]) -> bytes:
        """Encode the streams that have grown."""
        return wire.packed([self._store.now(), grown])

    async def sleep(self, seconds: float) -> None:
        """Wait until a stream may have grown, at most `seconds`."""
        heard = asyncio.Event()
        ring = functools.partial(_wake, asyncio.get_running_loop(), heard)
        live = all(bell.live for bell in self._bells)
        for bell in self._bells:
            bell.tell(ring)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, _RARELY if live else _POLL)):
                    await heard.wait()
        finally:
            for bell in self._bells:
                bell.tell(None)

    def close(self) -> None:
        """Unregister from the store."""
        for bell in self._bells:
            bell.close()


def _wake(loop: asyncio.AbstractEventLoop, heard: asyncio.Event) -> None:
    with suppress(RuntimeError):  # the loop is closed already
        loop.call_soon_threadsafe(heard.set)
