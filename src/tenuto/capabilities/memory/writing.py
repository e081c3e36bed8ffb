"""How memories are stored: one commit for a new one, a repeated one, or one that supersedes another.

A commit writes the memory, its journal line, and the records that find it again. It checks the record of the text, so
that two processes that remember the same text at once store it once. A crash leaves all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from tenuto.capabilities._core.base import Context, Fence, commit
from tenuto.capabilities.memory.records import (
    TRUST,
    Memory,
    New,
    bag_key,
    fact_key,
    home_of,
    item_key,
    made,
    memory_of,
    stored,
    text_key,
    trust_name,
    where_key,
    whereabouts,
)
from tenuto.errors import Conflict, NotFound, StaleLease, StateConflict
from tenuto.kernel import codec
from tenuto.kernel.contract import AnyCheck, Append, Check, Delete, Put, Record, Write
from tenuto.kernel.durations import moment
from tenuto.kernel.transact import backoff
from tenuto.kernel.work import Sleep, Work

Along = Callable[[Memory], tuple[Sequence[AnyCheck], Sequence[Write]]]
"""Returns what else to check and to write in the commit of a memory; it is called again after a conflict."""
_NEAR: Final = 20
_ATTEMPTS: Final = 50


class Prepared(NamedTuple):
    """A memory, and what its commit checks and writes."""

    memory: Memory
    checks: list[AnyCheck]
    writes: list[Write]


class Writer:
    """Stores the memories of one tenant."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kernel = context.kernel

    def found(self, memory_id: str) -> tuple[Memory, Record]:
        """Return a memory and its record; `NotFound` if there is none."""
        where = self._kernel.read([where_key(memory_id)])[0]
        home = None if where is None else home_of(codec.decode(where.value)[0])
        record = None if home is None else self._kernel.read([item_key(home, memory_id)])[0]
        if record is None:
            raise NotFound(f"There is no memory {memory_id!r}: it was forgotten, it expired, or it never was.")
        return memory_of(record), record

    def remember(self, given: New, *, fence: Fence | None = None, along: Along | None = None) -> Work[Memory]:
        """Store a memory atomically and durably, or count one that is known already; return it."""
        return (yield from self._committed(lambda: self.prepared(given), fence, along))

    def prepared(self, given: New) -> Prepared:
        """Return a memory and what its commit checks and writes, for a commit that does more."""
        home = home_of(given.user)
        now = self._kernel.now()
        bag = bag_key(home, given.text)
        own = text_key(home, given, bag)
        same = self._kernel.scan(bag, limit=_NEAR)
        ids = {record.key: str(codec.decode(record.value)) for record in same}
        known = next((record for record in same if record.key == own), None)
        record = None if known is None else self._kernel.read([item_key(home, ids[own])])[0]
        checks: list[AnyCheck] = [Check(own, 0 if known is None else known.version)]
        if record is not None and is_current(old := memory_of(record), now):
            return self._again(given, old, record, checks, now)
        memory = made(self._context, given, now)._replace(near=tuple(one for key, one in ids.items() if key != own))
        return self._added(memory, checks, given.ttl)

    def supersede(self, memory_id: str, change: Callable[[Memory], New]) -> Work[Memory]:
        """Store the memory that `change` makes of another one, which it supersedes, in one commit."""

        def prepare() -> Prepared:
            old, record = self.found(memory_id)
            if old.superseded_by is not None:
                raise Conflict(
                    f"The memory {memory_id!r} was superseded by {old.superseded_by!r}; nothing was written. "
                    "Supersede that one, or read agent.memory.history.",
                    [record.key],
                )
            given = change(old)
            now = self._kernel.now()
            own = text_key(home_of(given.user), given)
            known = self._kernel.read([own])[0]
            memory = made(self._context, given, now)
            checks: list[AnyCheck] = [Check(own, 0 if known is None else known.version)]
            return self._added(memory, checks, given.ttl, (old, record))

        return (yield from self._committed(prepare, None, None))

    def _again(self, given: New, old: Memory, record: Record, checks: list[AnyCheck], now: float) -> Prepared:
        """Count a memory that is known. A more trusted writer raises its trust; a later expiry counts."""
        raised = given.trust > TRUST[old.trust]
        expires = _later(old.expires_at, None if given.ttl is None else moment(now + given.ttl))
        memory = old._replace(seen=old.seen + 1, expires_at=expires)
        if raised:
            named = made(self._context, given, now)
            memory = memory._replace(trust=trust_name(given.trust), writer=named.writer, source=named.source)
        line = stored(self._context, memory)
        ttl = None if expires is None else max(expires.timestamp() - now, 0.001)
        writes: list[Write] = [Put(record.key, line, ttl)]
        if raised or expires != old.expires_at:
            home = home_of(memory.user)
            writes += [Append(home, line), Put(where_key(memory.id), whereabouts(memory), ttl)]
            writes.append(Put(checks[0][0], codec.encode(memory.id), ttl))
        return Prepared(memory._replace(duplicate=True), [*checks, Check(record.key, record.version)], writes)

    def _added(
        self, memory: Memory, checks: list[AnyCheck], ttl: float | None, replaced: tuple[Memory, Record] | None = None
    ) -> Prepared:
        home = home_of(memory.user)
        more: list[Write] = []
        if memory.about is not None and memory.predicate is not None:
            fact = fact_key(home, memory.about, memory.predicate)
            pointer = self._kernel.read([fact])[0]
            checks.append(Check(fact, 0 if pointer is None else pointer.version))
            held = None if pointer is None else self._kernel.read([item_key(home, codec.decode(pointer.value))])[0]
            rival = None if held is None else memory_of(held)
            if replaced is None and rival is not None and held is not None and rival.superseded_by is None:
                if TRUST[memory.trust] >= TRUST[rival.trust]:
                    replaced = rival, held
                else:  # a less trusted writer does not overrule: both stay, and the result names the other
                    memory = memory._replace(near=(*memory.near, rival.id))
            if replaced is not None or not memory.near or rival is None or rival.id not in memory.near:
                more.append(Put(fact, codec.encode(memory.id), ttl))
        changed = [memory]
        if replaced is not None:
            old, record = replaced
            memory = memory._replace(supersedes=old.id)
            old = old._replace(superseded_by=memory.id, superseded_at=memory.learned_at)
            changed = [old, memory]
            checks.append(Check(record.key, record.version))
            left = None if old.expires_at is None else max(old.expires_at.timestamp() - self._kernel.now(), 0.001)
            more.append(Put(record.key, stored(self._context, old), left))
            outdated = text_key(home_of(old.user), old)
            if outdated != checks[0][0]:
                more.append(Delete(outdated))
        line = stored(self._context, memory)
        writes: list[Write] = [
            Put(item_key(home, memory.id), line, ttl),
            Append(home, line if len(changed) == 1 else stored(self._context, *changed)),
            Put(where_key(memory.id), whereabouts(memory), ttl),
            Put(checks[0][0], codec.encode(memory.id), ttl),
            *more,
        ]
        return Prepared(memory, checks, writes)

    def _committed(self, prepare: Callable[[], Prepared], fence: Fence | None, along: Along | None) -> Work[Memory]:
        """Commit what `prepare` decides; decide again when another process was faster."""
        delays = backoff(_ATTEMPTS)
        while True:
            memory, checks, writes = prepare()
            if along is not None:
                more_checks, more = along(memory)
                checks, writes = [*checks, *more_checks], [*writes, *more]
            try:
                yield from commit(self._context, checks, writes, fence, "The memory")
            except StaleLease:
                raise
            except StateConflict:
                delay = next(delays, None)
                if delay is None:
                    raise
                yield Sleep(delay)
            else:
                return memory


def is_current(memory: Memory, now: float) -> bool:
    """Return whether a memory holds: not superseded, and not over."""
    return memory.superseded_by is None and (memory.valid_until is None or memory.valid_until.timestamp() > now)


def _later(one: datetime | None, other: datetime | None) -> datetime | None:
    return None if one is None or other is None else max(one, other)
