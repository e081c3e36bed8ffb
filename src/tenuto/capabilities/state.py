"""State: named, versioned values in scopes, with their complete history.

Keys, below the tenant: `(scope, kind, key)` holds a value and its writer. The stream `(scope, kind)` is the scope's
journal. For a single change the record and the journal line are the same bytes, so a backend can send them once.
`kind` is "state" for `agent.state` and "user" for the views of `agent.user`. `(scope, "turn", kind, key)` exists
briefly while an update that lost repeatedly has priority.

Every change writes value and journal in one commit; a crash leaves both or neither.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, Concatenate, NamedTuple, ParamSpec, Self, TypeVar

from tenuto.capabilities._core import journal
from tenuto.capabilities._core.base import Context, Fence, Timed, commit, scan_all
from tenuto.capabilities._core.journal import Change, Noted
from tenuto.capabilities._core.values import MISSING
from tenuto.errors import Conflict, InvalidInput, NotFound, StateConflict
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Append, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import Duration, moment
from tenuto.kernel.durations import ttl as ttl_seconds
from tenuto.kernel.transact import backoff, chance, commit_once
from tenuto.kernel.work import Sleep, Stream, Work, kind_of, on_store, register, streamed

_TURN = keys.pack("turn")
_TURN_SECONDS = 2.0
_PATIENCE = 2
"""The number of conflicts after which an update asks for priority."""
P = ParamSpec("P")
R = TypeVar("R")


class Entry(NamedTuple):
    """A value with its version, times, writer and correlation id."""

    value: Any
    version: int
    updated_at: datetime
    expires_at: datetime | None
    writer: str
    correlation_id: str | None
    deleted: bool = False
    """True for a deletion in a history; the value is then None."""


class State(Timed):
    """Named values in scopes. Every method is atomic, durable when it returns, and thread-safe."""

    def __init__(self, context: Context, kind: str = "state") -> None:
        self._context = context
        self._kernel = context.kernel
        self._kind = kind
        self._kind_part = keys.pack(kind)
        self._enqueuing: Callable[..., Any] | None = None
        """Lets a transaction enqueue tasks in its own commit; set by the client, as tasks build on state."""

    def __getitem__(self, scope: str) -> ScopeView:
        """Return a view of one scope."""
        return ScopeView(self, scope)

    def get(self, scope: str, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default` if there is none."""
        where = keys.named(scope, "scope") + self._kind_part + keys.named(key, "key")
        record = self._kernel.read([where])[0]
        return default if record is None else _value(record)

    @on_store
    def set(
        self,
        scope: str,
        key: str,
        value: Any,
        *,
        ttl: Duration | None = None,
        expect: int | None = None,
        fence: Fence | None = None,
        gate: str | None = None,
    ) -> Work[int]:
        """Set a value atomically and durably; return its new version.

        Raise `StateConflict` unless the version is `expect` (0: no value), `StaleLease` unless the lease `fence` is
        held, and `Blocked` if an open question blocks the resource `gate`. The value expires after `ttl`.
        """
        stream = keys.named(scope, "scope") + self._kind_part
        where = stream + keys.named(key, "key")
        life = None if ttl is None else ttl_seconds(ttl)
        line = journal.line(self._context, ((key, codec.encode(value), life),))
        if expect is not None and expect < 0:
            raise InvalidInput(f"expect must be a version, 0 or more, not {expect}.")
        checks = () if expect is None else (Check(where, expect),)
        writes = (Put(where, line, life), Append(stream, line))
        done = yield from commit(self._context, checks, writes, fence, f"{scope}/{key}", None, gate)
        return done.versions[0]

    def entry(self, scope: str, key: str) -> Entry | None:
        """Return the value with its version, times and writer, or None if there is none."""
        record = self._kernel.read([self._key(scope, key)])[0]
        return None if record is None else _entry(record)

    @on_store
    def update(  # noqa: PLR0913 - the words of the API
        self,
        scope: str,
        key: str,
        fn: Callable[[Any], Any],
        *,
        default: Any = None,
        attempts: int = 10,
        ttl: Duration | None = None,
        fence: Fence | None = None,
        gate: str | None = None,
    ) -> Work[Any]:
        """Replace a value by `fn(value)`, atomically and durably; return the new value.

        `fn` gets `default` if there is no value. It is called again after a conflict, up to `attempts` times, so it
        must have no side effects. Raise `Blocked` if an open question blocks the resource `gate`.
        """
        if attempts < 1:
            raise InvalidInput("attempts must be at least 1.")
        stream = self._stream(scope)
        where = stream + keys.named(key, "key")
        life = ttl_seconds(ttl)
        turn = keys.named(scope, "scope") + _TURN + self._kind_part + keys.named(key, "key")
        mine, conflicts, delays = 0, 0, backoff(attempts, first=0.002)
        while True:
            record = self._kernel.read([where])[0]
            old = default if record is None else _value(record)
            value = fn(old)
            if hasattr(value, "__await__"):
                getattr(value, "close", lambda: None)()
                raise TypeError("update needs a function that returns the new value, not a coroutine function.")
            line = journal.line(self._context, ((key, codec.encode(value), life),))
            checks = [Check(where, record.version if record else 0), Check(turn, mine)]
            writes: list[Write] = [Put(where, line, life), Append(stream, line)]
            if mine:
                writes.append(Delete(turn))
            try:
                yield from commit(self._context, checks, writes, fence, f"{scope}/{key}", None, gate)
            except StateConflict as error:
                if turn in error.keys and not mine:
                    yield Sleep(0.002 + 0.004 * chance.random())  # another update has priority: no attempt of ours
                    continue
                conflicts += 1
                delay = next(delays, None)
                if delay is None:
                    raise
                yield Sleep(delay)
                mine = (yield from self._take_turn(turn)) if conflicts >= _PATIENCE else 0
            else:
                return value

    def _take_turn(self, turn: bytes) -> Work[int]:
        """Get priority over other updates of a value; return the version of the turn record, which expires.

        Without it the last winner is always ready first, and one of many writers may starve. `set` ignores it.
        """
        while True:
            try:
                taken = yield from commit_once(self._kernel, [Check(turn, 0)], [Put(turn, b"", _TURN_SECONDS)])
            except Conflict:
                yield Sleep(0.001 + 0.004 * chance.random())
            else:
                return taken.versions[0]

    @on_store
    def delete(
        self,
        scope: str,
        key: str,
        *,
        expect: int | None = None,
        fence: Fence | None = None,
        gate: str | None = None,
    ) -> Work[bool]:
        """Delete a value atomically and durably; return whether there was one. Its history stays.

        Raise `Blocked` if an open question blocks the resource `gate`.
        """
        where = self._key(scope, key)
        delays = backoff()
        while True:
            record = self._kernel.read([where])[0]
            version = record.version if record else 0
            if expect is not None and expect != version:
                raise StateConflict(
                    f"{scope}/{key} is at version {version}, not {expect}; nothing was written. "
                    "Read it again and retry.",
                    [where],
                )
            if record is None:
                return False
            writes: list[Write] = [
                Delete(where),
                Append(self._stream(scope), journal.line(self._context, ((key, None, None),))),
            ]
            try:
                yield from commit(self._context, [Check(where, version)], writes, fence, f"{scope}/{key}", None, gate)
            except StateConflict:
                if expect is not None:
                    raise
                yield Sleep(next(delays))
            else:
                return True

    def keys(self, scope: str) -> list[str]:
        """Return the keys of a scope, sorted."""
        return [_last_part(record) for record in self._records(scope)]

    def items(self, scope: str) -> dict[str, Any]:
        """Return all values of a scope, by key."""
        return {_last_part(record): _value(record) for record in self._records(scope)}

    def transaction(self, scope: str, *, fence: Fence | None = None, gate: str | None = None) -> Transaction:
        """Return a context manager that collects writes to a scope and commits them atomically at its end.

        The commit raises `Blocked` if an open question blocks the resource `gate`.
        """
        return Transaction(self, scope, fence, gate)

    def history(self, scope: str, key: str, *, limit: int = 100) -> list[Entry]:
        """Return the past values of a key, newest first, with deletions."""
        self._key(scope, key)
        if limit < 1:
            raise InvalidInput(f"limit must be at least 1, not {limit}.")
        return [_past(change) for change in itertools.islice(self._changes(scope, key), min(limit, sys.maxsize))]

    def at(
        self, scope: str, key: str, *, version: int | None = None, time: datetime | None = None, default: Any = None
    ) -> Any:
        """Return the value at a version or a time, `default` if there was none; `NotFound` for an unknown version."""
        if (version is None) == (time is None):
            raise InvalidInput("Pass either version or time.")
        self._key(scope, key)
        if time is not None and time.tzinfo is None:
            raise InvalidInput("time needs a time zone. Use datetime.now(UTC) or .replace(tzinfo=UTC).")
        for change in self._changes(scope, key):
            if version is not None and change.version == version:
                return default if change.deleted else change.value
            if time is not None and change.at <= time:
                over = change.expires_at is not None and change.expires_at <= time
                return default if change.deleted or over else change.value
        if version is not None:
            raise NotFound(
                f"{scope}/{key} never had version {version}, or it was pruned. List its versions with history()."
            )
        return journal.before_history(self._context, self._stream(scope), key, time, default)

    def last(self, scope: str) -> int:
        """Return the number of the newest change in a scope, 0 if there is none; pass it to `watch` as `after`."""
        return journal.last_number(self._context, self._stream(scope))

    @streamed
    def watch(self, scope: str, *, after: int | None = None, timeout: Duration | None = None) -> Stream[Change]:
        """Yield the changes of a scope as they are committed by any process; end after `timeout` without one.

        `after` is the number of the last change seen (0: from the beginning; None: only new changes).
        """
        if after is not None and after < 0:
            raise InvalidInput(f"after must be the number of a change, 0 or more, not {after}.")
        limit = None if timeout is None else ttl_seconds(timeout)
        return journal.following(self._context, self._stream(scope), after, limit, journal.changes)

    def _key(self, scope: str, key: str) -> bytes:
        return self._stream(scope) + keys.named(key, "key")

    def _stream(self, scope: str) -> bytes:
        return keys.named(scope, "scope") + self._kind_part

    def _records(self, scope: str) -> Iterator[Record]:
        return scan_all(self._kernel, self._stream(scope))

    def _changes(self, scope: str, key: str) -> Iterator[Change]:
        return (change for change in journal.backwards(self._context, self._stream(scope)) if change.key == key)


class Transaction(Timed):
    """Writes to one scope, committed together or not at all; `StateConflict` if a value read in it has changed."""

    def __init__(self, state: State, scope: str, fence: Fence | None, gate: str | None = None) -> None:
        self._state = state
        self._gate = gate
        self._scope = keys.name(scope, "scope")
        self._fence = fence
        self._read: dict[bytes, int] = {}
        self._written: dict[str, bytes | None] = {}
        self._ttls: dict[str, float | None] = {}
        self._entering: list[Any] = []
        self._context = state._context

    def __enter__(self) -> Self:
        """Start the transaction."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Commit the writes, unless the block raised."""
        if kind is None:
            self.commit()

    def __setitem__(self, key: str, value: Any) -> None:
        """Add a write."""
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        """Add a deletion."""
        self._state._key(self._scope, key)
        self._written[key] = None

    def __getitem__(self, key: str) -> Any:
        """Return the value as this transaction sees it; `KeyError` if there is none."""
        found = self.get(key, MISSING)
        if found is MISSING:
            raise KeyError(key)
        return found

    def __contains__(self, key: str) -> bool:
        """Return whether there is a value, as this transaction sees it."""
        return self.get(key, MISSING) is not MISSING

    def set(self, key: str, value: Any, *, ttl: Duration | None = None) -> None:
        """Add a write; the value expires after `ttl`."""
        self._state._key(self._scope, key)
        self._ttls[key] = ttl_seconds(ttl)
        self._written[key] = codec.encode(value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value as this transaction sees it, its own writes included."""
        where = self._state._key(self._scope, key)
        if key in self._written:
            encoded = self._written[key]
            return default if encoded is None else codec.decode(encoded)
        record = self._state._kernel.read([where])[0]
        version = record.version if record else 0
        if self._read.setdefault(where, version) != version:
            raise StateConflict(
                f"{self._scope}/{key} was changed by another writer during the transaction; nothing was written. "
                "Retry the transaction.",
                [where],
            )
        return default if record is None else _value(record)

    def enqueue(
        self,
        queue: str,
        payload: Any = None,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        priority: int = 0,
        user: str | None = None,
    ) -> Any:
        """Enqueue a task in the transaction's commit, together with its writes; return it. See `Tasks.enqueue`."""
        if self._state._enqueuing is None:
            raise InvalidInput("This transaction cannot enqueue tasks. Use a transaction of agent.state.")
        entering = self._state._enqueuing(queue, payload, key=key, delay=delay, priority=priority, user=user)
        if entering.writes and all(entering.info.id != one.info.id for one in self._entering):
            self._entering.append(entering)
        return entering.info

    @on_store
    def commit(self) -> Work[int]:
        """Commit all writes and tasks atomically and durably; return how many."""
        state, context = self._state, self._state._context
        if not self._written and not self._entering:
            return 0
        checks = [Check(where, version) for where, version in self._read.items()]
        writes: list[Write] = []
        noted: list[Noted] = []
        stream = state._stream(self._scope)
        for key, encoded in self._written.items():
            where = state._key(self._scope, key)
            life = None if encoded is None else self._ttls.get(key)
            note = key, encoded, life
            noted.append(note)
            if encoded is None:
                writes.append(Delete(where))
            else:
                writes.append(Put(where, journal.line(context, (note,)), life))
        if noted:
            writes.append(Append(stream, journal.line(context, noted)))
        entering, self._entering = self._entering, []
        rung: set[bytes] = set()
        for one in entering:
            checks += one.checks
            writes += [write for write in one.writes if type(write) is not Append or write.stream not in rung]
            rung.update(write.stream for write in one.writes if type(write) is Append)
        yield from commit(context, checks, writes, self._fence, f"The scope {self._scope}", None, self._gate)
        for one in entering:
            one.entered()
        self._written.clear()
        self._read.clear()
        return len(noted) + len(entering)


def scoped(method: Callable[Concatenate[State, str, P], R]) -> Callable[Concatenate[ScopeView, P], R]:
    """Return a method of `State` as a method of `ScopeView`, with the scope bound."""

    def bound(view: ScopeView, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(view._state, view.scope, *args, **kwargs)

    kind = kind_of(method)
    if kind is not None:
        register(
            bound, kind._replace(make=lambda view, *args, **kwargs: kind.make(view._state, view.scope, *args, **kwargs))
        )
    shown = inspect.signature(method)
    own, _, *rest = shown.parameters.values()
    bound.__name__, bound.__qualname__ = method.__name__, f"ScopeView.{method.__name__}"
    bound.__doc__ = method.__doc__
    bound.__signature__ = shown.replace(parameters=[own, *rest])  # type: ignore[attr-defined]
    return bound


class ScopeView(Timed):
    """One scope of the state, used like a durable dict. `agent.user(id)` returns the one of a user."""

    def __init__(self, state: State, scope: str) -> None:
        self._state = state
        self._context = state._context
        self.scope = keys.name(scope, "scope")

    get = scoped(State.get)
    set = scoped(State.set)
    entry = scoped(State.entry)
    update = scoped(State.update)
    delete = scoped(State.delete)
    keys = scoped(State.keys)
    items = scoped(State.items)
    transaction = scoped(State.transaction)
    history = scoped(State.history)
    at = scoped(State.at)
    last = scoped(State.last)
    watch = scoped(State.watch)

    def __getitem__(self, key: str) -> Any:
        """Return a value; `KeyError` if there is none."""
        found = self.get(key, MISSING)
        if found is MISSING:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, value: Any) -> None:
        """Set a value atomically and durably."""
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        """Delete a value; `KeyError` if there is none."""
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        """Return whether there is a value."""
        return isinstance(key, str) and self.get(key, MISSING) is not MISSING

    def __iter__(self) -> Iterator[str]:
        """Iterate over the keys."""
        return iter(self.keys())

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.keys())

    def __repr__(self) -> str:
        """Name the scope, without reading the store."""
        return f"<{self._state._kind} {self.scope!r}>"


def _value(record: Record) -> Any:
    """Return the value of a record, whose bytes are the journal line of one change."""
    return codec.decode(codec.decode(record.value)[2][0][1])


def _entry(record: Record) -> Entry:
    writer, correlation_id, _ = codec.decode(record.value)
    expires = None if record.expires_at is None else moment(record.expires_at)
    return Entry(_value(record), record.version, moment(record.written_at), expires, writer, correlation_id)


def _past(change: Change) -> Entry:
    _, _, value, version, deleted, at, expires, writer, correlation_id = change
    return Entry(value, version, at, expires, writer, correlation_id, deleted)


def _last_part(record: Record) -> str:
    return str(keys.unpack(record.key)[-1])
