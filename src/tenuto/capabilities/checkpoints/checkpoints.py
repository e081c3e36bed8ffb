"""Checkpoints: snapshots of a whole state, at the price of what changed, each of them restorable.

`lineage` says how they are kept and which keys are theirs, `tips` how the next one is put behind the last, and
`retention` which ones go and when they are taken away.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from tenuto.capabilities.blobs import Blobs
from tenuto.capabilities.context import Context
from tenuto.capabilities.differences import Changes, compare
from tenuto.capabilities.lineage import NAME, THREAD, Checkpoint, Lineage, Placed, parse
from tenuto.capabilities.retention import Retention, remove, to_hide
from tenuto.capabilities.tips import Draft, Tips
from tenuto.errors import Conflict, Damaged, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Put, Write
from tenuto.kernel.durations import Duration
from tenuto.kernel.transact import Steps, backoff, paced, settle

T = TypeVar("T")
_NONE: Final = object()
_OFTEN: Final = 32
"""A client with a retention prunes a lineage at every so many checkpoints of it."""
_OFFERED: Final = 20
"""How far back an intact one is looked for when another is damaged."""


class Restored(dict[str, Any]):
    """A state that was restored: a fresh dict, whose keys can be read as attributes where dict has none of that name."""

    def __getattr__(self, name: str) -> Any:
        """Return the value of a key."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"The state has no {name!r}; it has {', '.join(map(repr, self))}.") from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the value of a key."""
        if hasattr(dict, name):
            raise AttributeError(f"{name!r} is a method of dict; write state[{name!r}] = … instead.")
        self[name] = value


class Checkpoints:
    """Snapshots with time travel. Creating one is atomic, and durable when it returns."""

    limit: int = 1 << 30
    """The largest state, in bytes; beyond it `create` is `TooLarge` and names the large part."""

    def __init__(self, context: Context, retention: Retention | None = None) -> None:
        self._context = context
        self._kernel = context.kernel
        self._blobs = Blobs(context)
        self._retention = retention
        self._tips = Tips(context, self._blobs)

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._context.clock

    # -- creating ------------------------------------------------------------------------------------

    @paced
    def create(
        self, name: str, state: dict[str, Any], *, thread: str | None = None, user: str | None = None, meta: Any = None
    ) -> Steps[Checkpoint]:
        """Save a state, atomically and durably, at the price of what changed since the one before.

        Whatever changed is found, also what was edited in place. The same name again makes a new version.
        """
        keys.name(name, "name")
        line = self._line(thread, name)
        if not isinstance(state, dict):
            raise InvalidInput(f"A state is a dict, not {type(state).__name__}; wrap it: {{'value': …}}.")
        plain = state if type(state) is dict else dict(state)
        codec.encode(meta)
        if user is not None:
            keys.name(user, "user")
        draft = Draft(name, plain, user, meta)
        for delay in backoff(None):
            made = yield from self._tips.add(line, self._tips.get(line), draft, self.limit)
            if made is not None:
                if self._retention is not None and int(made.id[len(line.scope) + 1 :]) % _OFTEN == 0:
                    yield from self._prune(line, self._retention)
                return made
            yield delay
        raise AssertionError("the back-off never ends")

    # -- restoring -----------------------------------------------------------------------------------

    def restore(
        self, name: str | None = None, *, thread: str | None = None, id: str | None = None, default: Any = _NONE
    ) -> Any:
        """Return a saved state as a fresh dict: the newest of a name, the newest of a thread, or one exactly.

        `NotFound` if there is none, unless there is a `default`. A damaged one is `Damaged`, never a wrong state.
        """
        found = self._found(name, thread, id)
        if found is None:
            if default is not _NONE:
                return default
            raise NotFound(f"There is no checkpoint {_wanted(name, thread, id)}; list() shows those that there are.")
        return Restored(self._state(*found))

    def restore_as(
        self, kind: type[T], name: str | None = None, *, thread: str | None = None, id: str | None = None
    ) -> T:
        """Return a saved state as a dataclass, msgspec struct or pydantic model, validated."""
        state = dict(self.restore(name, thread=thread, id=id))
        try:
            if hasattr(kind, "model_validate"):
                return kind.model_validate(state)  # type: ignore[no-any-return,attr-defined]
            import msgspec  # noqa: PLC0415 - most programs never need it

            return msgspec.convert(state, kind, from_attributes=True)
        except (ValueError, TypeError) as error:
            raise InvalidInput(
                f"The checkpoint {_wanted(name, thread, id)} is no valid {kind.__name__}: {error}. "
                "Read it with restore() and bring it into shape."
            ) from error

    def get(self, name: str | None = None, *, thread: str | None = None, id: str | None = None) -> Checkpoint | None:
        """Return what is known of a checkpoint, without reading its state, or None if there is none."""
        found = self._find(name, thread, id)
        return None if found is None else found[0].told(found[1])

    def list(self, thread: str | None = None, *, name: str | None = None, limit: int = 100) -> list[Checkpoint]:
        """Return checkpoints, newest first, without reading their states: of a thread, of a name, or all."""
        if limit < 1:
            raise InvalidInput(f"A limit is 1 or more, not {limit}.")
        found: list[tuple[float, Checkpoint]] = []
        for line in self._lines(thread, name):
            count = 0
            for placed in line.backwards():
                if name is None or placed.item.name == name:
                    found.append((placed.at, line.told(placed)))
                    count += 1
                if count == limit:
                    break
        found.sort(key=lambda pair: pair[0], reverse=True)
        return [told for _, told in found[:limit]]

    def diff(self, a: str | Checkpoint, b: str | Checkpoint, *, thread: str | None = None) -> Changes:
        """Return what changed from one checkpoint to another, given as ids, names or as `list` returns them."""
        return compare(self._given(a, thread), self._given(b, thread))

    # -- forking, deleting, pruning --------------------------------------------------------------------

    @paced
    def fork(self, id: str | Checkpoint, *, thread: str) -> Steps[Checkpoint]:
        """Begin a thread's checkpoints with a copy of another checkpoint, which it then no longer depends on."""
        wanted = id.id if isinstance(id, Checkpoint) else id
        found = self._find(None, None, wanted)
        if found is None:
            raise NotFound(f"There is no checkpoint {wanted!r}; list() shows those that there are.")
        line, placed = found
        item = placed.item
        other = self._line(thread, "")
        for delay in backoff(None):
            tip = self._tips.load(other)
            if tip is not None and tip.shown:
                raise Conflict(f"The thread {thread!r} has checkpoints already; fork to another one.", [other.root])
            draft = Draft(item.name, self._state(line, placed), item.user, item.meta, line.id(placed.number))
            made = yield from self._tips.add(other, tip, draft, self.limit)
            if made is not None:
                return made
            yield delay
        raise AssertionError("the back-off never ends")

    @paced
    def delete(self, name: str | None = None, *, thread: str | None = None, id: str | None = None) -> Steps[int]:
        """Delete every version of a name, every checkpoint of a thread, or one exactly; return how many there were."""
        if id is not None:
            found = self._find(name, thread, id)
            return 0 if found is None else (yield from self._hide(found[0], [found[1].number]))
        if name is None and thread is None:
            raise InvalidInput("Say which checkpoints: those of a name, of a thread, or an id.")
        line = self._line(thread, name or "")
        gone = [placed.number for placed in line.backwards() if name is None or placed.item.name == name]
        return (yield from self._hide(line, gone))

    @paced
    def prune(
        self,
        thread: str | None = None,
        *,
        name: str | None = None,
        keep_last: int | None = None,
        older_than: Duration | None = None,
        hourly: Duration | None = None,
        daily: Duration | None = None,
    ) -> Steps[int]:
        """Delete old checkpoints of a thread, of a name, or of all; return how many. None that is kept is broken.

        Those beyond the newest `keep_last` go if they are `older_than`. With `hourly` or `daily`, of those as
        young as that one for each hour or day stays.
        """
        rule = Retention(keep_last=keep_last, older_than=older_than, hourly=hourly, daily=daily)
        total = 0
        for line in self._lines(thread, name):
            total += yield from self._prune(line, rule)
        yield from self._blobs.sweep()
        return total

    def every(self, count: int, *, thread: str | None = None, name: str = "auto") -> Saver:
        """Return a saver whose every `count`-th tick saves. It goes on counting where the last one saved."""
        if count < 1:
            raise InvalidInput(f"Save every 1 tick or more, not {count}.")
        return Saver(self, count, thread, name)

    def _prune(self, line: Lineage, rule: Retention) -> Steps[int]:
        shown = [(placed.number, placed.at) for placed in line.backwards()]
        return (yield from self._hide(line, to_hide(shown, rule, self._kernel.now())))

    def _hide(self, line: Lineage, numbers: Sequence[int]) -> Steps[int]:
        for start in range(0, len(numbers), 100):
            some: list[Write] = [Put(line.hidden_key(number), b"") for number in numbers[start : start + 100]]
            yield from settle(self._kernel, [], some)
        if numbers or line.hidden():  # what an earlier call hid and was killed before it took it away goes now
            self._tips.forget(line)
            yield from remove(self._kernel, line, self._blobs)
        return len(numbers)

    # -- below the surface -----------------------------------------------------------------------------

    def _line(self, thread: str | None, name: str) -> Lineage:
        return Lineage(self._context, self._blobs, *((THREAD, thread) if thread is not None else (NAME, name)))

    def _lines(self, thread: str | None, name: str | None) -> Iterator[Lineage]:
        if thread is not None:
            yield self._line(thread, "")
            return
        after: bytes | None = None
        root = keys.pack("checkpoints")
        while page := self._kernel.scan(root, after=after, limit=1_000):
            for record in page:
                _, kind, scope = keys.unpack(record.key)
                if name is None or (kind == NAME and scope == name):
                    yield Lineage(self._context, self._blobs, str(kind), str(scope))
            after = page[-1].key

    def _find(self, name: str | None, thread: str | None, id: str | None) -> tuple[Lineage, Placed] | None:
        if id is not None:
            where = parse(id)
            if where is None:
                raise InvalidInput(f"{id!r} is not a checkpoint's id; ids look like 'thread@3' and 'name#3'.")
            line = Lineage(self._context, self._blobs, where[0], where[1])
            placed = line.at(where[2])
        elif name is not None:
            line = self._line(thread, name)
            placed = line.last_of(name)
        elif thread is not None:
            line = self._line(thread, "")
            placed = next(line.backwards(), None)
        else:
            raise InvalidInput("Say which checkpoint: a name, a thread, or an id.")
        return None if placed is None else (line, placed)

    def _found(self, name: str | None, thread: str | None, id: str | None) -> tuple[Lineage, Placed] | None:
        try:
            return self._find(name, thread, id)
        except Damaged as error:
            where = parse(id) if id is not None else None
            kind, scope, number = where or (THREAD if thread is not None else NAME, thread or name or "", 0)
            line = Lineage(self._context, self._blobs, kind, scope)
            raise self._damaged(line, number, _wanted(name, thread, id), error) from error

    def _given(self, which: str | Checkpoint, thread: str | None) -> Any:
        if isinstance(which, Checkpoint):
            return dict(self.restore(id=which.id))
        if parse(which) is not None and (found := self._find(None, None, which)) is not None:
            return self._state(*found)
        return dict(self.restore(which, thread=thread))

    def _state(self, line: Lineage, placed: Placed) -> dict[str, Any]:
        try:
            return line.state_of(placed)  # type: ignore[no-any-return]
        except Damaged as error:
            raise self._damaged(line, placed.number, line.id(placed.number), error) from error

    def _damaged(self, line: Lineage, number: int, what: str, why: Damaged) -> Damaged:
        """Return the error that names a damaged checkpoint, and offers the newest intact one."""
        offer = "Restore a backup."
        with contextlib.suppress(Damaged):
            for other in itertools.islice(line.survivors(), _OFFERED):
                if other.number != number and _is_intact(line, other):
                    offer = f"The newest intact one is {line.id(other.number)}: restore(id={line.id(other.number)!r})."
                    break
        return Damaged(f"The checkpoint {what} is damaged: {str(why).rstrip('.')}. {offer}")


class Saver:
    """Saves at every so many ticks: `saver.tick(state)` after each tool call, say."""

    def __init__(self, checkpoints: Checkpoints, count: int, thread: str | None, name: str) -> None:
        self._checkpoints = checkpoints
        self._count = count
        self._thread = thread
        self._name = keys.name(name, "name")
        self._ticks: int | None = None

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._checkpoints.clock

    def ticks(self) -> int:
        """Return how many ticks there were, those before the last checkpoint in an earlier process included."""
        if self._ticks is None:
            last = self._checkpoints.get(self._name, thread=self._thread)
            meta = last.meta if last is not None else None
            self._ticks = int(meta["ticks"]) if isinstance(meta, dict) and "ticks" in meta else 0
        return self._ticks

    @paced
    def tick(self, state: dict[str, Any]) -> Steps[Checkpoint | None]:
        """Count one tick; save the state if it is time, and return the checkpoint."""
        self._ticks = self.ticks() + 1
        if self._ticks % self._count:
            return None
        create: Callable[..., Steps[Checkpoint]] = Checkpoints.create.steps  # type: ignore[attr-defined]
        meta = {"ticks": self._ticks}
        return (yield from create(self._checkpoints, self._name, state, thread=self._thread, meta=meta))


def _is_intact(line: Lineage, placed: Placed) -> bool:
    try:
        line.state_of(placed)
    except Damaged:
        return False
    return True


def _wanted(name: str | None, thread: str | None, id: str | None) -> str:
    if id is not None:
        return repr(id)
    where = f" in the thread {thread!r}" if thread is not None else ""
    return f"{name!r}{where}" if name is not None else f"in the thread {thread!r}"
