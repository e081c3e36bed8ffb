"""Forgetting: memories removed from every layer, with a receipt.

First the journal lines that hold the memories are erased, then one commit for up to 100 memories deletes their records
and adds a line with their ids. That commit checks that none of them has changed since the journal was read; else both
are repeated. A crash in between leaves memories that are still listed: the same call removes the rest. Every process
that has an index of them starts it over when it reads the line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from tenuto.capabilities._core.base import Context, scan_all
from tenuto.capabilities.memory.embedding import erased_vectors, models_of
from tenuto.capabilities.memory.records import (
    FORGOT,
    WHERE,
    Memory,
    fact_key,
    forgot,
    home_of,
    item_key,
    memory_of,
    stored,
    text_key,
    where_key,
)
from tenuto.errors import Conflict
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Append, Backend, Check, Delete, Forget, Put, Record, Write
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.work import Sleep, Work

_BATCH: Final = 100
_RANGES: Final = 500
_PAGE: Final = 1_000
_LONGEST: Final = 1_000


class Receipt(NamedTuple):
    """What was forgotten, by layer."""

    ids: tuple[str, ...]
    records: int
    """Memories."""
    derived: int
    """Of these, memories that were made from others."""
    journal: int
    """Journal entries whose content was erased."""
    vectors: int
    indexed: int
    """Texts that left this process's search index."""
    restored: tuple[str, ...]
    """Memories that a forgotten one had superseded and that hold again."""
    reason: str


class Chosen(NamedTuple):
    """What to forget: memories for which all of these hold that are given."""

    id: str | None
    user: str | None
    thread: str | None
    about: str | None
    writer: str | None


class Found(NamedTuple):
    """A memory to forget, and whose it is."""

    id: str
    user: str | None
    derived: bool


def chosen_memories(kernel: Backend, chosen: Chosen) -> list[Found]:
    """Return the memories to forget, with all that were made from them."""
    found: dict[str, Found] = {}
    children: dict[str, list[tuple[str, str | None]]] = {}
    for record in scan_all(kernel, WHERE):
        memory_id = str(keys.unpack(record.key)[-1])
        user, writer, thread, about, parent = codec.decode(record.value)
        if parent is not None:
            children.setdefault(parent, []).append((memory_id, user))
        known = Chosen(memory_id, user, thread, about, writer)
        if all(wanted in (None, has) for wanted, has in zip(chosen, known, strict=True)):
            found[memory_id] = Found(memory_id, user, derived=False)
    waiting = list(found)
    while waiting:
        for child, user in children.get(waiting.pop(), []):
            if child not in found:
                found[child] = Found(child, user, derived=True)
                waiting.append(child)
    return list(found.values())


def forget_vectors(context: Context, user: str | None, ids: Sequence[str]) -> Work[int]:
    """Erase the vectors of memories, of every model; return how many. The vectors next to them are stored again."""
    home, total = home_of(user), 0
    for model in models_of(context, home):
        found, erase, keep = erased_vectors(context, home, model, set(ids))
        for at in range(0, len(erase), _BATCH):
            yield from commit_once(context.kernel, [], [*erase[at : at + _BATCH], *keep[at : at + _BATCH]])
        total += found
    return total


def forget_in(
    context: Context, user: str | None, ids: Sequence[str], reason: str, *, restore: bool
) -> Work[tuple[int, list[str]]]:
    """Forget memories of one user or of the tenant; return the number of erased entries, and what holds again."""
    erased, back = 0, []
    for at in range(0, len(ids), _BATCH):
        batch = ids[at : at + _BATCH]
        delays = backoff()
        while True:
            try:
                count, again = yield from _forget_batch(context, home_of(user), batch, reason, restore=restore)
            except Conflict:  # one of them was changed meanwhile: its new line is in the journal
                yield Sleep(next(delays))
            else:
                erased += count
                back += again
                break
    return erased, back


def _forget_batch(
    context: Context, home: bytes, ids: Sequence[str], reason: str, *, restore: bool
) -> Work[tuple[int, list[str]]]:
    kernel = context.kernel
    records = {
        memory_id: record
        for memory_id, record in zip(ids, kernel.read([item_key(home, one) for one in ids]), strict=True)
        if record is not None
    }
    lines = list(_lines_with(kernel, home, set(ids)))
    ranges = list(_ranges(lines))
    for at in range(0, len(ranges), _RANGES):
        erase: list[Write] = [Forget(home, first, last) for first, last in ranges[at : at + _RANGES]]
        yield from commit_once(kernel, [], erase)
    checks: list[AnyCheck] = [Check(item_key(home, one), records[one].version if one in records else 0) for one in ids]
    gone: dict[bytes, None] = {}
    for memory_id in ids:
        gone[where_key(memory_id)] = None
        if memory_id in records:
            gone[records[memory_id].key] = None
            for pointer in _pointers(kernel, home, memory_of(records[memory_id])):
                gone[pointer] = None
    writes: list[Write] = [Append(home, forgot(context, list(ids), reason))]
    restored = _restored(kernel, home, records) if restore else []
    for old, record in restored:
        checks.append(Check(record.key, record.version))
        held = old._replace(superseded_by=None, superseded_at=None)
        line = stored(context, held)
        left = None if old.expires_at is None else max(old.expires_at.timestamp() - kernel.now(), 0.001)
        pointers = [text_key(home, held)]
        if held.about is not None and held.predicate is not None:
            pointers.append(fact_key(home, held.about, held.predicate))
        for pointer in pointers:
            gone.pop(pointer, None)
            writes.append(Put(pointer, codec.encode(held.id), left))
        writes += [Put(record.key, line, left), Append(home, line)]
    yield from commit_once(kernel, checks, [*writes, *(Delete(key) for key in gone)])
    return len(lines), [old.id for old, _ in restored]


def _lines_with(kernel: Backend, home: bytes, ids: set[str]) -> Iterator[int]:
    """Yield the numbers of the journal lines that hold one of the memories."""
    after = 0
    while page := kernel.entries(home, after=after, limit=_PAGE):
        for entry in page:
            line = None if entry.forgotten else codec.decode(entry.value)
            if line is not None and line[2] != FORGOT and any(fields[0] in ids for fields in line[3]):
                yield entry.number
        after = page[-1].number


def _ranges(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield runs of consecutive numbers."""
    first = last = 0
    for number in numbers:
        if first and number == last + 1 and number - first < _LONGEST:
            last = number
            continue
        if first:
            yield first, last
        first = last = number
    if first:
        yield first, last


def _pointers(kernel: Backend, home: bytes, memory: Memory) -> list[bytes]:
    """Return the keys that lead to a memory."""
    wanted = [text_key(home, memory)]
    if memory.about is not None and memory.predicate is not None:
        wanted.append(fact_key(home, memory.about, memory.predicate))
    found = kernel.read(wanted)
    return [one.key for one in found if one is not None and codec.decode(one.value) == memory.id]


def _restored(kernel: Backend, home: bytes, records: dict[str, Record]) -> list[tuple[Memory, Record]]:
    """Return the memories that the forgotten ones superseded, and that are not forgotten themselves."""
    wanted = [one.supersedes for one in map(memory_of, records.values()) if one.supersedes not in (None, *records)]
    found = kernel.read([item_key(home, one) for one in wanted if one is not None]) if wanted else []
    return [(memory_of(record), record) for record in found if record is not None]
