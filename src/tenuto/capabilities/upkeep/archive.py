"""Archive by age: what is old of threads, finished runs and checkpoints moves to an archive, in small commits.

Of a thread and of a run the listing and the last line stay, so that they are listed, counted and appended to without the
archive. Of each lineage of checkpoints the newest keyframe stays with its deltas. A thread that was forked from another one
stays, as do LangGraph's checkpoints, and lines below which a deleted thread's lines are kept for a fork. `archive` also completes what an interrupted call
left, and removes the objects of what was deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tenuto.capabilities._core.base import Context
from tenuto.capabilities._core.blobs import Blobs, held_in
from tenuto.capabilities.archive import AWAY, COPYING, GONE, HERE, LEAVING, LOGS, Part, TenantArchive
from tenuto.capabilities.checkpoints import THREAD, Checkpoints, Placed
from tenuto.capabilities.runs import Runs
from tenuto.capabilities.store import ArchiveReport
from tenuto.capabilities.threads import Thread, Threads
from tenuto.capabilities.upkeep.prune import old_runs
from tenuto.errors import InvalidInput
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Entry
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.work import Work

KINDS: Final = ("threads", "runs", "checkpoints")
_LINES: Final = 1_000
_BYTES: Final = 8 * 1024 * 1024
_BLOBS: Final = 300
"""What one part holds at most, so that its return is a few commits and little memory."""
_GRACE: Final = 3_600.0
"""Seconds for which what was brought back stays: a reader's load may still be under way."""
_PAGE: Final = 500
_FORK: Final = keys.pack("fork")


class _Log(NamedTuple):
    """A thread or run of which the lines from `first` to `last` are old."""

    kind: str
    name: str
    user: str | None
    first: int
    last: int


class Archiver:
    """Archives one client's tenant."""

    def __init__(
        self, context: Context, archive: TenantArchive, runs: Runs, checkpoints: Checkpoints, threads: Threads
    ) -> None:
        self._context = context
        self._kernel = context.kernel
        self._archive = archive
        self._runs = runs
        self._checkpoints = checkpoints
        self._threads = threads

    def archive(
        self, older_than: Duration, to: str | os.PathLike[str] | None, kinds: tuple[str, ...], *, dry: bool
    ) -> Work[ArchiveReport]:
        """Archive what is older than a duration; with `dry` only count."""
        unknown = sorted(set(kinds) - set(KINDS))
        if unknown:
            raise InvalidInput(f"An archive takes {', '.join(KINDS)}, not {unknown[0]!r}. Nothing was archived.")
        place = self._archive.target(to)
        before = self._kernel.now() - seconds(older_than, "minimum age")
        moved: list[Part] = []
        removed = 0 if dry else (yield from self._remove_ended())
        for part in self._archive.parts():
            if self._is_left(part) and not self._is_over(part):  # an earlier call was interrupted
                moved += yield from self._move(part, dry=dry)
        logs = [*self._old_threads(before)] if "threads" in kinds else []
        logs += self._old_finished(before) if "runs" in kinds else []
        for log in logs:
            moved += yield from self._log(log, place, dry=dry)
        if "checkpoints" in kinds:
            for part in [*self._old_checkpoints(before, place)]:
                moved += yield from self._move(part, dry=dry)
        if not dry:
            yield from Blobs(self._context).sweep(limit=1 << 62)
        threads, runs = (len({one.name for one in moved if one.kind == kind}) for kind in LOGS)
        checkpoints = sum(len(one.numbers) for one in moved if one.kind not in LOGS)
        size = sum(one.size for one in moved)
        return ArchiveReport(threads, runs, checkpoints, 0 if dry else len(moved), size, removed, place)

    # -- threads and runs ------------------------------------------------------------------------------

    def _log(self, log: _Log, place: str, *, dry: bool) -> Work[list[Part]]:
        """Archive the old lines of a log, oldest first; return the parts that moved."""
        at, moved = log.first, list[Part]()
        for part in self._archive.parts(log.kind, log.name):
            if part.last < log.first or part.state == GONE:
                continue
            if part.state == HERE and part.at <= self._kernel.now() - _GRACE:
                more = yield from self._move(part, dry=dry)
                if not more:
                    return moved
                moved += more
            elif part.state != AWAY or part.first != at:
                return moved  # a part before it stays, so nothing may be trimmed
            at = part.last + 1
        for first, last in [*self._cut(log, at)]:
            part = Part(log.kind, log.name, first, last, COPYING, place, "", 0, "", log.user, ())
            more = yield from self._move(part, dry=dry)
            if not more:
                break
            moved += more
        return moved

    def _move(self, part: Part, *, dry: bool) -> Work[list[Part]]:
        """Move a part out, from whichever state it is in; return it, or nothing if it stays."""
        if dry:
            return [part]
        moving = yield from (self._archive.copy(part) if part.state == COPYING else self._archive.leave(part))
        return [moving] if moving is not None and (yield from self._archive.depart(moving)) else []

    def _cut(self, log: _Log, first: int) -> Iterator[tuple[int, int]]:
        """Yield the first and last lines of the parts into which old lines are divided."""
        begin, size, blobs = first, 0, set[bytes]()
        for entry in self._entries(log, first):
            own, held = len(entry.value), _held(entry)
            full = entry.number - begin >= _LINES or size + own > _BYTES or len(blobs | held) > _BLOBS
            if full and entry.number > begin:
                yield begin, entry.number - 1
                begin, size, blobs = entry.number, 0, set()
            size, blobs = size + own, blobs | held
        if log.last >= begin:
            yield begin, log.last

    def _entries(self, log: _Log, first: int) -> Iterator[Entry]:
        stream, after = keys.pack(log.name, log.kind), first - 1
        while after < log.last and (page := self._kernel.entries(stream, after=after, limit=_PAGE)):
            yield from (entry for entry in page if entry.number <= log.last)
            after = page[-1].number

    def _old_threads(self, before: float) -> Iterator[_Log]:
        for info in self._threads.list():
            if info.forked_from is not None:
                continue
            last = Thread(self._threads, info.id, user=None, ttl=None)._log.last()
            if last is None or last.at >= before or not last.place.since:
                continue
            yield from self._worth(_Log("thread", info.id, info.user, last.place.since, last.number - 1))

    def _old_finished(self, before: float) -> Iterator[_Log]:
        for run in old_runs(self._runs, before):
            span = self._runs._span(run.id)
            if span is not None:
                yield from self._worth(_Log("run", run.id, run.user, span[0], span[1] - 1))

    def _worth(self, log: _Log) -> Iterator[_Log]:
        """Yield a log of which something is in the store, and below which nothing is kept."""
        stream = keys.pack(log.name, log.kind)
        found = self._kernel.entries(stream, limit=1)
        if log.last < log.first or not found or found[0].number > log.last:
            return
        after = 0
        while page := self._kernel.entries(stream, after=after, limit=_PAGE):
            if any(entry.number < log.first and not entry.forgotten for entry in page):
                return  # lines of a deleted thread that a fork shares
            after = page[-1].number
            if after >= log.first:
                break
        yield log

    # -- checkpoints -----------------------------------------------------------------------------------

    def _old_checkpoints(self, before: float, place: str) -> Iterator[Part]:
        owners = {info.id: info.user for info in self._threads.list()}
        known = {part.key for part in self._archive.parts()}
        for line, groups in self._checkpoints._old_groups(before):
            for some in _joined(group for group in groups if not any(map(_is_graph, group))):
                user = some[0].item.user
                if user is None and line.kind == THREAD:
                    user = owners.get(line.scope)
                part = Part(line.kind, line.scope, some[0].number, some[-1].number, COPYING, place, "", 0, "", user, ())
                few = len({digest for one in some for digest in one.item.references}) <= _BLOBS
                of_one = len({one.item.user for one in some}) == 1
                if few and of_one and part.key not in known:
                    yield part

    def _is_left(self, part: Part) -> bool:
        old = part.at <= self._kernel.now() - _GRACE
        return part.state in (COPYING, LEAVING) or (part.state == HERE and part.kind not in LOGS and old)

    # -- what was deleted ------------------------------------------------------------------------------

    def _remove_ended(self) -> Work[int]:
        """Remove the objects of what was deleted; return how many."""
        removed = 0
        for part in self._archive.parts():
            if self._is_over(part):
                yield from self._archive.drop(part)
                removed += 1
        return removed

    def _is_over(self, part: Part) -> bool:
        if part.state == GONE:
            return True
        if part.kind == "run":
            span = self._runs._span(part.name)
            return span is None or span[0] > part.last
        if part.kind != "thread":
            return False
        log = Thread(self._threads, part.name, user=None, ttl=None)._log
        last = log.last()
        if log.is_live(last) and last is not None and last.place.since <= part.last:
            return False
        return not self._kernel.scan(part.stream + _FORK, limit=1)


def _is_graph(placed: Placed) -> bool:
    """Return whether LangGraph wrote a checkpoint: it lists them all, and delta channels read old ones."""
    return isinstance(placed.item.meta, dict) and "langgraph" in placed.item.meta


def _joined(groups: Iterable[Sequence[Placed]]) -> Iterator[list[Placed]]:
    """Yield keyframes with their deltas, as many together as one part may hold."""
    some: list[Placed] = []
    size, blobs = 0, set[bytes]()
    for group in groups:
        own, held = sum(one.item.stored for one in group), {d for one in group for d in one.item.references}
        full = len(some) + len(group) > _LINES or size + own > _BYTES or len(blobs | held) > _BLOBS
        other = bool(some) and group[0].item.user != some[-1].item.user
        if some and (full or other or group[0].number != some[-1].number + 1):
            yield some
            some, size, blobs = [], 0, set()
        some, size, blobs = [*some, *group], size + own, blobs | held
    if some:
        yield some


def _held(entry: Entry) -> set[bytes]:
    return set() if entry.forgotten else held_in(codec.decode(entry.value)[4])
