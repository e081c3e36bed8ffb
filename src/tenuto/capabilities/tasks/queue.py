"""Claiming the next task of a queue.

Ready tasks are ordered by their keys: priority, user, due time. Within a priority each worker process does its own
round-robin over users; fairness is not coordinated across processes.

A claim is a commit that checks the ready record, so of several processes one gets the task. The others try another,
chosen at random among the first few for a while. Threads of one process skip what another thread is trying.

Claiming also does the upkeep of a queue: it moves due tasks to the ready ones, enqueues recurring tasks, and takes
over tasks whose holder was lost.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

from tenuto.capabilities._core.base import Context
from tenuto.capabilities.tasks import records, recurring
from tenuto.capabilities.tasks.claimed import Ending, Task, is_gone, owner
from tenuto.capabilities.tasks.records import Hold, TaskRecord
from tenuto.errors import Conflict, Damaged
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Check, Delete, Record, Write
from tenuto.kernel.transact import chance, commit_once
from tenuto.kernel.work import Sleep, Work

log: Final = logging.getLogger("tenuto.tasks")
REDELIVERIES: Final = 10
"""A task whose holder is lost more often than this in a row becomes dead."""
_OFTEN, _NOW_AND_THEN = 0.1, 0.5
_MATURED: Final = 100
_SPREAD: Final = 32
_ALONE: Final = 16
_PAGE: Final = 500


class _Found(NamedTuple):
    """A task that could be claimed, and its place."""

    id: str
    place: Record
    hold: Hold | None = None
    """The lost holder, if it is taken over."""
    beat: int = 0


class TaskQueue:
    """One client's view of a queue."""

    def __init__(self, context: Context, queue: str) -> None:
        self.queue = queue
        self.more = False
        """True if the last scan found more than one ready task."""
        self._context = context
        self._kernel = context.kernel
        self._lock = threading.Lock()
        self._trying: set[bytes] = set()
        self._ring: dict[int, str] = {}
        self._alone = 0
        self._spread = 1
        self._later = self._fired = self._lost = 0.0
        self._next_due = math.inf

    def take(self, lease: float, ending: Ending | None = None, *, eager: bool = True) -> Work[Task | None]:
        """Claim and return the next task durably, or None if there is none now.

        `ending`, the end of another claim, is written in the same commit; `StaleLease` if that claim was lost. With
        `eager`, upkeep is done before None is returned.
        """
        own = None if ending is None else ending.task._held
        if own is not None:
            with self._lock:  # its lease may have run out meanwhile: it is not to be taken over while it ends
                self._trying.add(own)
        try:
            return (yield from self._take_next(lease, ending, eager=eager))
        finally:
            if own is not None:
                with self._lock:
                    self._trying.discard(own)

    def _take_next(self, lease: float, ending: Ending | None, *, eager: bool) -> Work[Task | None]:
        yield from self._upkeep()
        misses = 0
        while True:
            found = yield from self._next(eager=eager)
            if found is None:
                if ending is not None:
                    yield from ending.task._end(ending)
                return None
            try:
                task = yield from self._take(found, lease, ending)
            except Conflict as error:
                if ending is not None and any(check[0] in error.keys for check in ending.checks):
                    raise ending.task._mark_lost() from error
                misses += 1
                self._spread = min(max(2, self._spread * 2), _SPREAD)
                if ending is not None and misses > 1:  # do not delay the finished task
                    yield from ending.task._end(ending)
                    ending = None
                if misses > 4:
                    yield Sleep(0.001 * chance.random() * misses)
                continue
            finally:
                with self._lock:
                    self._trying.discard(found.place.key)
            if task is not None:
                self._spread = max(1, self._spread - 1)
                return task

    def _take(self, found: _Found, lease: float, ending: Ending | None) -> Work[Task | None]:
        """Claim a task that was found; return None if its place was stale, and clean that up."""
        record = self._kernel.read([records.task_key(found.id)])[0]
        task = records.task_of(record) if record is not None else None
        checks: list[AnyCheck] = [Check(found.place.key, found.place.version)]
        if found.hold is not None:
            checks.append(Check(records.beat_key(self.queue, found.id), found.beat))
        if record is None or task is None or task.status != "waiting" or task.queue != self.queue:
            yield from commit_once(self._kernel, checks, [Delete(found.place.key)])
            return None
        now = self._kernel.now()
        hold = self._hold(found, task, now, lease)
        if hold.redeliveries > REDELIVERIES:
            yield from self._give_up(found, task, record.version, checks)
            return None
        writes: list[Write] = [records.held(self.queue, found.id, hold)]
        if found.hold is None:
            writes.append(Delete(found.place.key))
        before: list[Write] = [*(ending.writes if ending is not None else ())]
        guard = [*(ending.checks if ending is not None else ()), *checks]
        done = yield from commit_once(self._kernel, guard, [*before, *writes])
        if ending is not None:
            ending.task._ended = True
        if found.hold is not None:
            log.warning(
                "The task %r of %r is delivered again (attempt %d): its holder %s (process %s) was lost. It may have "
                "been done.",
                found.id,
                self.queue,
                hold.attempt,
                found.hold.owner["writer"],
                found.hold.owner["pid"],
            )
        taken = Task(self._context, found.id, task, record.version, hold, lease)
        return taken._taken(done.versions[len(before)])

    def _hold(self, found: _Found, task: TaskRecord, now: float, lease: float) -> Hold:
        old = found.hold
        attempt = task.attempts + 1 if old is None else old.attempt + 1
        return Hold(now + lease, attempt, 0 if old is None else old.redeliveries + 1, owner(self._context.writer), now)

    def _give_up(self, found: _Found, task: TaskRecord, version: int, checks: list[AnyCheck]) -> Work[None]:
        assert found.hold is not None
        message = (
            f"Its worker was lost {found.hold.redeliveries + 1} times in a row; the task seems to kill the process. "
            f"Find the cause, then call tasks.retry({found.id!r})."
        )
        error = {"type": "Lost", "message": message}
        writes = records.buried(found.id, task, found.hold, self._kernel.now(), error)
        place: list[Write] = [Delete(found.place.key), Delete(records.beat_key(self.queue, found.id))]
        guard = [*checks, Check(records.task_key(found.id), version)]
        yield from commit_once(self._kernel, guard, [*place, *writes])
        log.error("The task %r of %r is dead: %s", found.id, self.queue, message)

    def _next(self, *, eager: bool) -> Work[_Found | None]:
        """Return a task to claim, reserved against other threads of this process."""
        now = self._kernel.now()
        if now >= self._lost:
            self._lost = now + _NOW_AND_THEN
            found = self._taken_over(now)
            if found is not None:
                return found
        found = self._ready()
        if found is None and eager:
            yield from self._upkeep(at_once=True)
            found = self._ready() or self._taken_over(now)
        return found

    def _ready(self) -> _Found | None:
        with self._lock:
            return self._chosen()

    def _chosen(self) -> _Found | None:
        wanted = 1 + len(self._trying) + self._spread
        page = self._free(self._kernel.scan(records.ready_prefix(self.queue), limit=wanted))
        self.more = len(page) > 1
        if not page:
            return None
        priority, user, name = _lane(page[0])
        last = self._ring.get(priority)
        if last is not None and self._alone <= 0:
            lane = records.lane_prefix(self.queue, priority)
            behind = records.lane_prefix(self.queue, priority, last) + b"\xff"
            others = self._free(self._kernel.scan(lane, after=behind, limit=wanted))
            if others:
                page, (_, user, name) = others, _lane(others[0])
            elif user == last:
                self._alone = _ALONE
        self._alone -= 1
        chosen = page[0]
        if self._spread > 1:
            own = records.lane_prefix(self.queue, priority, user)
            same = [one for one in page[: self._spread] if one.key.startswith(own)]
            chosen = chance.choice(same)
        self._ring[priority] = user
        self._trying.add(chosen.key)
        return _Found(records.id_of(chosen) if chosen is not page[0] else name, chosen)

    def _free(self, page: list[Record]) -> list[Record]:
        return [one for one in page if one.key not in self._trying]

    def _taken_over(self, now: float) -> _Found | None:
        """Return a task whose holder was lost, if there is one."""
        for page in _pages(self._context, records.held_prefix(self.queue)):
            holds = [(one, records.hold_of(one)) for one in page]
            over = [(one, hold) for one, hold in holds if hold.until <= now or is_gone(hold.owner)]
            beats = self._kernel.read([records.beat_key(self.queue, records.id_of(one)) for one, _ in over])
            with self._lock:
                found = self._first_lost(over, beats)
            if found is not None:
                return found
        return None

    def _first_lost(self, over: list[tuple[Record, Hold]], beats: list[Record | None]) -> _Found | None:
        for (one, hold), beat in zip(over, beats, strict=True):
            if one.key not in self._trying and (beat is None or is_gone(hold.owner)):
                self._trying.add(one.key)
                return _Found(records.id_of(one), one, hold, beat.version if beat is not None else 0)
        return None

    def sooner(self, due: float) -> None:
        """Note that a task becomes due at this time."""
        self._later = min(self._later, due)

    def seconds_left(self) -> float:
        """Return the seconds until the next delayed or recurring task may be due."""
        return max(self._next_due - self._kernel.now(), 0.0)

    def _upkeep(self, *, at_once: bool = False) -> Work[None]:
        """Move due tasks to the ready ones and enqueue recurring tasks, at most every 0.1 s unless `at_once`."""
        now = self._kernel.now()
        if at_once or now >= self._fired:
            self._fired = now + _OFTEN
            yield from recurring.fire(self._context, self.queue)
        if not at_once and now < self._later:
            return
        while True:
            self._later = now + _OFTEN
            page = self._kernel.scan(records.later_prefix(self.queue), limit=_MATURED)
            ripe = [one for one in page if records.due_of(one) <= now]
            if len(ripe) < len(page):
                self._next_due = records.due_of(page[len(ripe)])
                self._later = min(self._later, self._next_due)
            elif not page:
                self._next_due = math.inf
            if not ripe:
                return
            moved = [records.matured(self.queue, one) for one in ripe]
            writes = [write for _, pair in moved for write in pair]
            try:
                yield from commit_once(self._kernel, [check for check, _ in moved], writes)
            except Conflict:
                yield Sleep(0.001 * chance.random())  # another process moves them too: scan again


def _lane(record: Record) -> tuple[int, str, str]:
    """Return priority, user and id of a ready task."""
    parts = keys.unpack(record.key)
    if len(parts) != 7 or not isinstance(parts[3], int) or not isinstance(parts[4], str):
        raise Damaged("A record of a queue is damaged. Restore a backup.")
    return -parts[3], parts[4], str(parts[6])


def _pages(context: Context, prefix: bytes) -> Iterator[list[Record]]:
    after: bytes | None = None
    while page := context.kernel.scan(prefix, after=after, limit=_PAGE):
        yield page
        if len(page) < _PAGE:
            return
        after = page[-1].key
