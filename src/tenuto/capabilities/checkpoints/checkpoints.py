"""Checkpoints: restorable snapshots of a whole state; each costs only what changed.

`storage` defines keys and stored form, `create` commits the next checkpoint, `retention` deletes old ones.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

from tenuto.capabilities._core.base import Context, Timed, must_limit, page_after, scan_all
from tenuto.capabilities._core.blobs import Blobs
from tenuto.capabilities._core.retention import Retention
from tenuto.capabilities._core.values import MISSING
from tenuto.capabilities.checkpoints.create import CheckpointWriter, Draft
from tenuto.capabilities.checkpoints.diff import Changes, compare
from tenuto.capabilities.checkpoints.retention import groups_of, remove, to_hide
from tenuto.capabilities.checkpoints.storage import NAME, THREAD, Checkpoint, Lineage, Placed, parse
from tenuto.errors import Conflict, Damaged, InvalidInput, NotFound
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Put, Write
from tenuto.kernel.durations import Duration
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work, on_store, work_of

T = TypeVar("T")
_OFTEN: Final = 32
"""A client with a retention rule prunes a lineage after this many checkpoints."""
_OFFERED: Final = 20
"""How many checkpoints to try when looking for an intact one."""


class Restored(dict[str, Any]):
    """A restored state: a new dict whose keys can also be read as attributes, unless dict has that name."""

    def __getattr__(self, name: str) -> Any:
        """Return the value of a key."""
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"The state has no key {name!r}. Its keys are {', '.join(map(repr, self))}.") from None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set the value of a key."""
        if hasattr(dict, name):
            raise AttributeError(f"{name!r} is an attribute of dict. Write state[{name!r}] = … instead.")
        self[name] = value


class Checkpoints(Timed):
    """Snapshots with time travel. `create` is atomic, and durable when it returns."""

    limit: int = 1 << 30
    """The largest state in bytes; above it, `create` raises `TooLarge` and names the large part."""

    def __init__(self, context: Context, retention: Retention | None = None) -> None:
        self._context = context
        self._kernel = context.kernel
        self._blobs = Blobs(context)
        self._retention = None if retention is None else retention.of_checkpoints
        self._writer = CheckpointWriter(context, self._blobs)

    @on_store
    def create(
        self, name: str, state: dict[str, Any], *, thread: str | None = None, user: str | None = None, meta: Any = None
    ) -> Work[Checkpoint]:
        """Save a state atomically and durably, writing only what changed since the last checkpoint.

        In-place edits are detected. The same name again creates a new version.
        """
        keys.name(name, "name")
        line = self._line(thread, name)
        if not isinstance(state, dict):
            raise InvalidInput(f"A state must be a dict, not {type(state).__name__}. Wrap it: {{'value': …}}.")
        plain = state if type(state) is dict else dict(state)
        codec.encode(meta)
        if user is not None:
            keys.name(user, "user")
        draft = Draft(name, plain, user, meta)
        delays = backoff()
        while True:
            made = yield from self._writer.add(line, self._writer.get(line), draft, self.limit)
            if made is not None:
                if self._retention is not None and int(made.id[len(line.scope) + 1 :]) % _OFTEN == 0:
                    yield from self._prune(line, self._retention)
                return made
            yield Sleep(next(delays))

    def restore(
        self, name: str | None = None, *, thread: str | None = None, id: str | None = None, default: Any = MISSING
    ) -> Any:
        """Return a saved state as a new dict: the newest of a name or thread, or the one with this id.

        Raise `NotFound` if there is none and no `default`. Raise `Damaged` rather than return a wrong state.
        """
        found = self._found(name, thread, id)
        if found is None:
            if default is not MISSING:
                return default
            raise NotFound(f"There is no checkpoint {_wanted(name, thread, id)}. See all with agent.checkpoint.list().")
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
                f"The checkpoint {_wanted(name, thread, id)} is not a valid {kind.__name__}: {error}. "
                "Read it with restore() and convert it."
            ) from error

    def get(self, name: str | None = None, *, thread: str | None = None, id: str | None = None) -> Checkpoint | None:
        """Return a checkpoint's description without reading its state, or None if there is none."""
        found = self._find(name, thread, id)
        return None if found is None else found[0].describe(found[1])

    def list(
        self, thread: str | None = None, *, name: str | None = None, limit: int = 100, after: str | None = None
    ) -> list[Checkpoint]:
        """Return up to `limit` descriptions of checkpoints, newest first: of a thread, of a name, or all.

        They start after the checkpoint with the id `after`; `NotFound` if it is not in the list.
        """
        must_limit(limit)
        most = min(limit, sys.maxsize) if after is None else None
        found: list[tuple[float, Checkpoint]] = []
        for line in self._lines(thread, name):
            named = (placed for placed in line.backwards() if name in (None, placed.item.name))
            found += [(placed.at, line.describe(placed)) for placed in itertools.islice(named, most)]
        found.sort(key=lambda pair: pair[0], reverse=True)
        return page_after((described for _, described in found), lambda one: one.id, after, limit)

    def diff(self, a: str | Checkpoint, b: str | Checkpoint, *, thread: str | None = None) -> Changes:
        """Return the changes from checkpoint `a` to `b`, each an id, a name or a `Checkpoint`."""
        return compare(self._given(a, thread), self._given(b, thread))

    @on_store
    def fork(self, id: str | Checkpoint, *, thread: str) -> Work[Checkpoint]:
        """Copy a checkpoint durably as the first one of another thread; return the copy, which is independent."""
        wanted = id.id if isinstance(id, Checkpoint) else id
        found = self._find(None, None, wanted)
        if found is None:
            raise NotFound(f"There is no checkpoint {wanted!r}. See all with agent.checkpoint.list().")
        line, placed = found
        item = placed.item
        other = self._line(thread, "")
        delays = backoff()
        while True:
            head = self._writer.load(other)
            if head is not None and head.shown:
                raise Conflict(
                    f"The thread {thread!r} already has checkpoints; nothing was written. Fork into another thread.",
                    [other.root],
                )
            draft = Draft(item.name, self._state(line, placed), item.user, item.meta, line.id(placed.number))
            made = yield from self._writer.add(other, head, draft, self.limit)
            if made is not None:
                return made
            yield Sleep(next(delays))

    @on_store
    def delete(self, name: str | None = None, *, thread: str | None = None, id: str | None = None) -> Work[int]:
        """Delete durably every version of a name, every checkpoint of a thread, or one id; return how many."""
        if id is not None:
            found = self._find(name, thread, id)
            return 0 if found is None else (yield from self._hide(found[0], [found[1].number]))
        if name is None and thread is None:
            raise InvalidInput("Pass a name, thread or id; nothing was changed.")
        line = self._line(thread, name or "")
        if thread is not None and name is not None:
            yield from self._context.archive.bring_back_all(line.kind, line.scope)
        else:
            yield from self._context.archive.end(line.kind, line.scope)
        gone = [placed.number for placed in line.backwards() if name in (None, placed.item.name)]
        return (yield from self._hide(line, gone))

    @on_store
    def prune(
        self,
        thread: str | None = None,
        *,
        name: str | None = None,
        keep_last: int | None = None,
        older_than: Duration | None = None,
        hourly: Duration | None = None,
        daily: Duration | None = None,
    ) -> Work[int]:
        """Delete old checkpoints durably, of a thread, a name or all; return how many. `Retention` has the rules.

        Every checkpoint that stays remains restorable.
        """
        rule = Retention(keep_last=keep_last, older_than=older_than, hourly=hourly, daily=daily)
        total = 0
        for line in self._lines(thread, name):
            total += yield from self._prune(line, rule)
        yield from self._blobs.sweep()
        return total

    def _prune_all(self, rule: Retention, *, dry: bool) -> Work[int]:
        """Prune every lineage by a rule; with `dry` only count."""
        total = 0
        for line in self._lines(None, None):
            if dry:
                shown = [(placed.number, placed.at) for placed in line.backwards()]
                total += len(to_hide(shown, rule, self._kernel.now()))
            else:
                total += yield from self._prune(line, rule)
        if not dry:
            yield from self._blobs.sweep()
        return total

    def _ids_of(self, user: str, without: Collection[str]) -> Iterator[str]:
        """Yield the ids of a user's checkpoints, without those of some threads."""
        for line in self._lines(None, None):
            if line.thread not in without:
                yield from (line.id(placed.number) for placed in line.all() if placed.item.user == user)

    def _remove_ids(self, ids: Iterable[str]) -> Work[None]:
        """Delete checkpoints, also if they are hidden already and an earlier call was interrupted."""
        by_line: dict[tuple[str, str], list[int]] = {}
        for kind, scope, number in filter(None, map(parse, ids)):
            by_line.setdefault((kind, scope), []).append(number)
        for (kind, scope), numbers in by_line.items():
            line = Lineage(self._context, self._blobs, kind, scope)
            there = self._kernel.read([line.key(number) for number in numbers])
            yield from self._hide(line, [number for number, one in zip(numbers, there, strict=True) if one is not None])

    def _old_groups(self, before: float) -> Iterator[tuple[Lineage, Sequence[Sequence[Placed]]]]:
        """Yield for each lineage the keyframes older than a time with their deltas, without the newest keyframe."""
        for line in self._lines(None, None):
            yield line, [group for group in groups_of(line)[:-1] if group[-1].at < before]

    def every(self, count: int, *, thread: str | None = None, name: str = "auto") -> Saver:
        """Return a saver that saves at every `count`-th tick. It continues the count of its last checkpoint."""
        if count < 1:
            raise InvalidInput(f"count must be at least 1, not {count}.")
        return Saver(self, count, thread, name)

    def _prune(self, line: Lineage, rule: Retention) -> Work[int]:
        shown = [(placed.number, placed.at) for placed in line.backwards()]
        return (yield from self._hide(line, to_hide(shown, rule, self._kernel.now())))

    def _hide(self, line: Lineage, numbers: Sequence[int]) -> Work[int]:
        for start in range(0, len(numbers), 100):
            some: list[Write] = [Put(line.hidden_key(number), b"") for number in numbers[start : start + 100]]
            yield from commit_once(self._kernel, [], some)
        if numbers or line.hidden():  # an earlier call may have been killed between hiding and deleting
            self._writer.forget(line)
            yield from remove(self._kernel, line, self._blobs)
        return len(numbers)

    def _line(self, thread: str | None, name: str) -> Lineage:
        return Lineage(self._context, self._blobs, *((THREAD, thread) if thread is not None else (NAME, name)))

    def _lines(self, thread: str | None, name: str | None) -> Iterator[Lineage]:
        if thread is not None:
            yield self._line(thread, "")
            return
        for record in scan_all(self._kernel, keys.pack("checkpoints")):
            _, kind, scope = keys.unpack(record.key)
            if name is None or (kind == NAME and scope == name):
                yield Lineage(self._context, self._blobs, str(kind), str(scope))

    def _find(self, name: str | None, thread: str | None, id: str | None) -> tuple[Lineage, Placed] | None:
        if id is not None:
            where = parse(id)
            if where is None:
                raise InvalidInput(f"{id!r} is not a checkpoint id. Ids look like 'thread@3' or 'name#3'.")
            line = Lineage(self._context, self._blobs, where[0], where[1])
            placed = line.at(where[2])
        elif name is not None:
            line = self._line(thread, name)
            placed = line.last_of(name)
        elif thread is not None:
            line = self._line(thread, "")
            placed = next(line.backwards(), None)
        else:
            raise InvalidInput("Pass the name, thread or id of a checkpoint.")
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
        """Return the error that names a damaged checkpoint and the newest intact one."""
        offer = "Restore a backup."
        with contextlib.suppress(Damaged):
            for other in itertools.islice(line.survivors(), _OFFERED):
                with contextlib.suppress(Damaged):
                    if other.number != number and line.state_of(other) is not None:
                        offer = f"The newest intact one is restore(id={line.id(other.number)!r})."
                        break
        return Damaged(f"The checkpoint {what} is damaged: {str(why).rstrip('.')}. {offer}")


class Saver(Timed):
    """Saves a state at every `count`-th tick: call `saver.tick(state)` after each tool call, for example."""

    def __init__(self, checkpoints: Checkpoints, count: int, thread: str | None, name: str) -> None:
        self._checkpoints = checkpoints
        self._context = checkpoints._context
        self._count = count
        self._thread = thread
        self._name = keys.name(name, "name")
        self._ticks: int | None = None

    def ticks(self) -> int:
        """Return the number of ticks, with those that the last checkpoint recorded."""
        if self._ticks is None:
            last = self._checkpoints.get(self._name, thread=self._thread)
            meta = last.meta if last is not None else None
            self._ticks = int(meta["ticks"]) if isinstance(meta, dict) and "ticks" in meta else 0
        return self._ticks

    @on_store
    def tick(self, state: dict[str, Any]) -> Work[Checkpoint | None]:
        """Count one tick; at every `count`-th, save the state durably and return the checkpoint."""
        self._ticks = self.ticks() + 1
        if self._ticks % self._count:
            return None
        meta = {"ticks": self._ticks}
        create = work_of(self._checkpoints.create)
        return (yield from create(self._name, state, thread=self._thread, meta=meta))


def _wanted(name: str | None, thread: str | None, id: str | None) -> str:
    if id is not None:
        return repr(id)
    where = f" in the thread {thread!r}" if thread is not None else ""
    return f"{name!r}{where}" if name is not None else f"in the thread {thread!r}"
