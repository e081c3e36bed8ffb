"""State: named values with versions, in scopes, with their whole history.

Keys, below the tenant: `(scope, kind, key)` holds a value with who wrote it, as the journal tells it: where one
value changes, the record and the journal's line are the same bytes, and a store need not keep them twice on the
way. The stream `(scope, kind)` is the scope's journal. `kind` is "state" for `agent.state` and "user" for the views that `agent.user`
gives. `(scope, "turn", kind, key)` is there for moments, while an update that lost repeatedly has its
turn. Every change is one commit of both, so a value and its history never differ; a crash leaves
either both or neither.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator
from datetime import datetime
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Self, TypeVar, overload

from tenuto.capabilities import journal
from tenuto.capabilities.context import Context, Fence, commit
from tenuto.capabilities.journal import Change, Noted
from tenuto.errors import Conflict, InvalidInput, NotFound, StateConflict
from tenuto.kernel import codec, keys
from tenuto.kernel.bell import Pause
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Append, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import Duration, moment
from tenuto.kernel.durations import ttl as ttl_seconds
from tenuto.kernel.transact import Steps, backoff, chance, paced, settle

_PAGE = 1_000
_TURN = keys.pack("turn")
_TURN_SECONDS = 2.0
_PATIENCE = 2
"""After so many conflicts an update asks for its turn."""
P = ParamSpec("P")
R = TypeVar("R")


class Entry(NamedTuple):
    """A value with all that is known of it."""

    value: Any
    version: int
    updated_at: datetime
    expires_at: datetime | None
    writer: str
    correlation_id: str | None
    deleted: bool = False
    """True in a history, where the value was ended; it is None then."""


class State:
    """Named values in scopes. Everything here is atomic, durable when it returns, and safe to share."""

    def __init__(self, context: Context, kind: str = "state") -> None:
        self._context = context
        self._kernel = context.kernel
        self._kind = kind
        self._kind_part = keys.pack(kind)
        self.enqueuing: Callable[..., Any] | None = None
        """How a transaction puts tasks into queues, in its own commit; tasks stand above state."""

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._context.clock

    def __getitem__(self, scope: str) -> ScopeView:
        """Return a view of one scope."""
        return ScopeView(self, scope)

    def get(self, scope: str, key: str, default: Any = None) -> Any:
        """Return the value of `key`, or `default` where there is none."""
        where = keys.named(scope, "scope") + self._kind_part + keys.named(key, "key")
        record = self._kernel.read([where])[0]
        return default if record is None else _value(record)

    @paced
    def set(
        self,
        scope: str,
        key: str,
        value: Any,
        *,
        ttl: Duration | None = None,
        expect: int | None = None,
        fence: Fence | None = None,
    ) -> Steps[int]:
        """Set a value, atomically and durably, and return its new version.

        With `expect` it must be at that version (0: there must be none), else `StateConflict`. With
        `fence` the lease must still be held, else `StaleLease`. With `ttl` it expires.
        """
        stream = keys.named(scope, "scope") + self._kind_part
        where = stream + keys.named(key, "key")
        life = None if ttl is None else ttl_seconds(ttl)
        line = journal.line(self._context, ((key, codec.encode(value), life),))
        checks = () if expect is None else _expected(where, expect)
        writes = (Put(where, line, life), Append(stream, line))
        done = yield from commit(self._context, checks, writes, fence, f"{scope}/{key}")
        return done.versions[0]

    def entry(self, scope: str, key: str) -> Entry | None:
        """Return the value with its version, times and writer, or None where there is none."""
        record = self._kernel.read([self._key(scope, key)])[0]
        return None if record is None else _entry(record)

    @paced
    def update(
        self,
        scope: str,
        key: str,
        fn: Callable[[Any], Any],
        *,
        default: Any = None,
        attempts: int = 10,
        ttl: Duration | None = None,
        fence: Fence | None = None,
    ) -> Steps[Any]:
        """Change a value by a function of it, atomically, and return the new value.

        `fn` gets the value, or `default` where there is none, and may be called up to `attempts` times
        when others write in between: let it have no effects of its own.
        """
        if attempts < 1:
            raise InvalidInput("attempts is 1 or more.")
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
                raise TypeError("update takes a function that returns the new value, not a coroutine.")
            line = journal.line(self._context, ((key, codec.encode(value), life),))
            checks = [Check(where, record.version if record else 0), Check(turn, mine)]
            writes: list[Write] = [Put(where, line, life), Append(stream, line)]
            if mine:
                writes.append(Delete(turn))
            try:
                yield from commit(self._context, checks, writes, fence, f"{scope}/{key}")
            except StateConflict as error:
                if turn in error.keys and not mine:
                    yield 0.002 + 0.004 * chance.random()  # somebody has the turn: this was no attempt of ours
                    continue
                conflicts += 1
                delay = next(delays, None)
                if delay is None:
                    raise
                yield delay
                mine = (yield from self._take_turn(turn)) if conflicts >= _PATIENCE else 0
            else:
                return value

    def _take_turn(self, turn: bytes) -> Steps[int]:
        """Wait until other updates of a value wait for this one; return the turn's version.

        Without it, whoever has just won is ready again first, and one of many may lose every time. It
        expires by itself; a plain `set` does not look at it.
        """
        while True:
            try:
                taken = yield from settle(self._kernel, [Check(turn, 0)], [Put(turn, b"", _TURN_SECONDS)])
            except Conflict:
                yield 0.001 + 0.004 * chance.random()
            else:
                return taken.versions[0]

    @paced
    def delete(self, scope: str, key: str, *, expect: int | None = None, fence: Fence | None = None) -> Steps[bool]:
        """End a value, atomically and durably; tell whether there was one. Its history stays."""
        where = self._key(scope, key)
        for delay in backoff(None):
            record = self._kernel.read([where])[0]
            version = record.version if record else 0
            if expect is not None and expect != version:
                raise StateConflict(
                    f"{scope}/{key} is at version {version}, not {expect}; nothing was written. "
                    "Read it again and decide anew.",
                    [where],
                )
            if record is None:
                return False
            writes: list[Write] = [
                Delete(where),
                Append(self._stream(scope), journal.line(self._context, ((key, None, None),))),
            ]
            try:
                yield from commit(self._context, [Check(where, version)], writes, fence, f"{scope}/{key}")
            except StateConflict:
                if expect is not None:
                    raise
                yield delay
            else:
                return True
        raise AssertionError("the back-off never ends")

    def keys(self, scope: str) -> list[str]:
        """Return the names of all values in a scope, in order."""
        return [_last_part(record) for record in self._records(scope)]

    def items(self, scope: str) -> dict[str, Any]:
        """Return all values of a scope by name."""
        return {_last_part(record): _value(record) for record in self._records(scope)}

    def transaction(self, scope: str, *, fence: Fence | None = None) -> Transaction:
        """Return a context manager in which writes to a scope are gathered and committed at its end."""
        return Transaction(self, scope, fence)

    def history(self, scope: str, key: str, *, limit: int = 100) -> list[Entry]:
        """Return what a value was, newest first, deletions included."""
        self._key(scope, key)
        if limit < 1:
            raise InvalidInput(f"A limit is 1 or more, not {limit}.")
        found: list[Entry] = []
        for change in self._changes(scope, key):
            found.append(_told(change))
            if len(found) == limit:
                break
        return found

    def at(
        self,
        scope: str,
        key: str,
        *,
        version: int | None = None,
        time: datetime | None = None,
        default: Any = None,
    ) -> Any:
        """Return the value as it was at a version or at a time.

        A version that never was is `NotFound`; where there was no value, `default` is returned.
        """
        if (version is None) == (time is None):
            raise InvalidInput("Give either a version or a time.")
        self._key(scope, key)
        if time is not None and time.tzinfo is None:
            raise InvalidInput("A time needs its zone: use datetime.now(UTC) or .replace(tzinfo=UTC).")
        for change in self._changes(scope, key):
            if version is not None and change.version == version:
                return default if change.deleted else change.value
            if time is not None and change.at <= time:
                over = change.expires_at is not None and change.expires_at <= time
                return default if change.deleted or over else change.value
        if version is not None:
            raise NotFound(f"{scope}/{key} never had version {version}; history() lists the versions it had.")
        return default

    def last(self, scope: str) -> int:
        """Return the number of the newest change in a scope, 0 if there is none; `watch` goes on from it."""
        return journal.last_number(self._context, self._stream(scope))

    def watch(self, scope: str, *, after: int | None = None, timeout: Duration | None = None) -> Iterator[Change]:
        """Yield the changes of a scope as they land, across processes.

        `after` is the number of the last change seen (0: from the beginning); without it, only what
        comes from the first step on. It ends when nothing has come for `timeout`.
        """
        for step in self.watching(scope, after=after, timeout=timeout):
            if isinstance(step, Pause):
                step.sleep(self.clock)
            else:
                yield step

    def watching(
        self, scope: str, *, after: int | None = None, timeout: Duration | None = None
    ) -> Generator[Change | Pause]:
        """Yield changes, and pauses where there is none yet: what both faces drive."""
        if after is not None and after < 0:
            raise InvalidInput(f"after is the number of a change, 0 or more, not {after}.")
        limit = None if timeout is None else ttl_seconds(timeout)
        return journal.following(self._context, self._stream(scope), after, limit, journal.changes)

    # -- below the surface -----------------------------------------------------------------------

    def _key(self, scope: str, key: str) -> bytes:
        return self._stream(scope) + keys.named(key, "key")

    def _stream(self, scope: str) -> bytes:
        return keys.named(scope, "scope") + self._kind_part

    def _records(self, scope: str) -> Iterator[Record]:
        prefix = self._stream(scope)
        after: bytes | None = None
        while page := self._kernel.scan(prefix, after=after, limit=_PAGE):
            yield from page
            after = page[-1].key

    def _changes(self, scope: str, key: str) -> Iterator[Change]:
        return (change for change in journal.backwards(self._context, self._stream(scope)) if change.key == key)


class Transaction:
    """Writes to one scope that happen together or not at all.

    What was read through it must still be so when it commits, else `StateConflict`.
    """

    def __init__(self, state: State, scope: str, fence: Fence | None) -> None:
        self._state = state
        self._scope = keys.name(scope, "scope")
        self._fence = fence
        self._read: dict[bytes, int] = {}
        self._written: dict[str, bytes | None] = {}
        self._lives: dict[str, float | None] = {}
        self._entering: list[Any] = []

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._state.clock

    def __enter__(self) -> Self:
        """Begin gathering."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        """Commit what was gathered, unless the block failed."""
        if kind is None:
            self.commit()

    def __setitem__(self, key: str, value: Any) -> None:
        """Gather a write."""
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        """Gather the end of a value."""
        self._state._key(self._scope, key)
        self._written[key] = None

    def __getitem__(self, key: str) -> Any:
        """Return the value as this transaction sees it; `KeyError` where there is none."""
        found = self.get(key, _MISSING)
        if found is _MISSING:
            raise KeyError(key)
        return found

    def __contains__(self, key: str) -> bool:
        """Tell whether there is a value, as this transaction sees it."""
        return self.get(key, _MISSING) is not _MISSING

    def set(self, key: str, value: Any, *, ttl: Duration | None = None) -> None:
        """Gather a write, with a time to live if wanted."""
        self._state._key(self._scope, key)
        self._lives[key] = ttl_seconds(ttl)
        self._written[key] = codec.encode(value)

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value as this transaction sees it: its own writes first."""
        where = self._state._key(self._scope, key)
        if key in self._written:
            encoded = self._written[key]
            return default if encoded is None else codec.decode(encoded)
        record = self._state._kernel.read([where])[0]
        version = record.version if record else 0
        if self._read.setdefault(where, version) != version:
            raise StateConflict(
                f"{self._scope}/{key} was changed by somebody else during the transaction; nothing was written. "
                "Begin it again.",
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
        """Gather a task to be enqueued, and return it: it is there if and only if the writes are; see `Tasks.enqueue`."""
        if self._state.enqueuing is None:
            raise InvalidInput("There are no queues here; use a transaction of agent.state.")
        entering = self._state.enqueuing(queue, payload, key=key, delay=delay, priority=priority, user=user)
        if entering.writes and all(entering.info.id != one.info.id for one in self._entering):
            self._entering.append(entering)
        return entering.info

    @paced
    def commit(self) -> Steps[int]:
        """Write everything that was gathered, atomically and durably; return how much it was."""
        state, context = self._state, self._state._context
        if not self._written and not self._entering:
            return 0
        checks = [Check(where, version) for where, version in self._read.items()]
        writes: list[Write] = []
        noted: list[Noted] = []
        stream = state._stream(self._scope)
        for key, encoded in self._written.items():
            where = state._key(self._scope, key)
            life = None if encoded is None else self._lives.get(key)
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
        yield from commit(context, checks, writes, self._fence, f"The scope {self._scope}")
        for one in entering:
            one.entered()
        self._written.clear()
        self._read.clear()
        return len(noted) + len(entering)


class scoped(Generic[P, R]):  # noqa: N801 - used like a decorator
    """A method of `State` with its scope already given."""

    def __init__(self, method: Callable[Concatenate[State, str, P], R]) -> None:
        self.method = method
        functools.update_wrapper(self, method)
        steps = getattr(method, "steps", None)
        if steps is not None:
            self.steps = lambda view, *args, **kwargs: steps(view._state, view.scope, *args, **kwargs)

    def __call__(self, view: ScopeView, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the method in the view's scope."""
        return self.method(view._state, view.scope, *args, **kwargs)

    @overload
    def __get__(self, view: None, owner: type) -> Self: ...
    @overload
    def __get__(self, view: ScopeView, owner: type) -> Callable[P, R]: ...
    def __get__(self, view: ScopeView | None, owner: type) -> Self | Callable[P, R]:
        return self if view is None else functools.partial(self, view)


class ScopeView:
    """One scope of the state, used like a dict that lasts. `agent.user(id)` gives one of a user's."""

    def __init__(self, state: State, scope: str) -> None:
        self._state = state
        self.scope = keys.name(scope, "scope")

    @property
    def state(self) -> State:
        """Return the state of which this is a part."""
        return self._state

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._state.clock

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
        """Return a value; `KeyError` where there is none."""
        found = self.get(key, _MISSING)
        if found is _MISSING:
            raise KeyError(key)
        return found

    def __setitem__(self, key: str, value: Any) -> None:
        """Set a value, atomically and durably."""
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        """End a value; `KeyError` where there is none."""
        if not self.delete(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        """Tell whether there is a value."""
        return isinstance(key, str) and self.get(key, _MISSING) is not _MISSING

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self.keys())

    def __len__(self) -> int:
        """Return how many values there are."""
        return len(self.keys())

    def __repr__(self) -> str:
        """Say which scope this is; nothing is read."""
        return f"<{self._state._kind} {self.scope!r}>"


_MISSING: Any = object()


def _expected(where: bytes, expect: int) -> tuple[Check, ...]:
    if expect < 0:
        raise InvalidInput(f"A version is 0 or more, not {expect}.")
    return (Check(where, expect),)


def _value(record: Record) -> Any:
    """Return what a record holds: the journal's line of it, or in older stores the encoded value in its place."""
    told = codec.decode(record.value)[2]
    return codec.decode(told[0][1] if type(told) is list else told)


def _entry(record: Record) -> Entry:
    writer, correlation_id, _ = codec.decode(record.value)
    expires = None if record.expires_at is None else moment(record.expires_at)
    return Entry(_value(record), record.version, moment(record.written_at), expires, writer, correlation_id)


def _told(change: Change) -> Entry:
    return Entry(
        change.value,
        change.version,
        change.at,
        change.expires_at,
        change.writer,
        change.correlation_id,
        change.deleted,
    )


def _last_part(record: Record) -> str:
    return str(keys.unpack(record.key)[-1])
