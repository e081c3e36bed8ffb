"""Which task is next, and taking it.

Tasks that may be taken lie in the order of their keys: by priority, then by user, then by the time from which on they
may be taken. Of one priority the users have their turns one after the other, whoever has more: the next task is the
oldest of the user behind the one who was served last. Each process goes around this ring by itself.

Several processes meet at the same task. Taking it is a commit that checks that it is still there, so one of them has
it, and the others try another one: whoever has lost chooses at random among the first few for a while. Threads of one
process do not meet: what one of them tries, the others leave out.

Whoever takes tasks also does, now and then, what keeps a queue going: tasks whose time has come are moved to those
that may be taken, recurring ones are fired, and those whose holder was lost are taken over.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Final, NamedTuple

from tenuto.capabilities import schedules, taskbook
from tenuto.capabilities.context import Context
from tenuto.capabilities.task import Ending, Task, is_gone, owner
from tenuto.capabilities.taskbook import Hold, TaskRecord
from tenuto.errors import Conflict, Damaged
from tenuto.kernel import keys
from tenuto.kernel.contract import AnyCheck, Check, Delete, Record, Write
from tenuto.kernel.transact import Steps, chance, settle

log: Final = logging.getLogger("tenuto.tasks")
REDELIVERIES: Final = 10
"""So often in a row a task may be delivered again because its holder was lost, before it is given up."""
_OFTEN, _NOW_AND_THEN = 0.1, 0.5
_MATURED: Final = 100
_SPREAD: Final = 32
_ALONE: Final = 16
_PAGE: Final = 500


class _Found(NamedTuple):
    """A task that could be taken, and where it stands."""

    id: str
    place: Record
    hold: Hold | None = None
    """Whose it was, if it is taken over."""
    beat: int = 0


class Shelf:
    """One client's view of a queue: what it takes from, and what it remembers of it."""

    def __init__(self, context: Context, queue: str) -> None:
        self.queue = queue
        self.more = False
        """True where the last look has shown more than one task that could be taken."""
        self._context = context
        self._kernel = context.kernel
        self._lock = threading.Lock()
        self._trying: set[bytes] = set()
        self._ring: dict[int, str] = {}
        self._alone = 0
        self._spread = 1
        self._later = self._fired = self._lost = 0.0

    # -- taking ----------------------------------------------------------------------------------------------------

    def take(self, lease: float, ending: Ending | None = None, *, eager: bool = True) -> Steps[Task | None]:
        """Return the next task, taken under a lease, or None if there is none now.

        The end of another task is written in the same commit; `StaleLease` is raised if that one had passed on. Whoever
        is `eager` looks everywhere before he is told that there is none; others come again soon.
        """
        yield from self._upkeep()
        misses = 0
        while True:
            found = yield from self._next(eager=eager)
            if found is None:
                if ending is not None:
                    yield from ending.task.end(ending)
                return None
            try:
                task = yield from self._take(found, lease, ending)
            except Conflict as error:
                if ending is not None and any(check[0] in error.keys for check in ending.checks):
                    raise ending.task.ended(error) from error
                misses += 1
                self._spread = min(max(2, self._spread * 2), _SPREAD)
                if ending is not None and misses > 1:  # what is done is not kept waiting
                    yield from ending.task.end(ending)
                    ending = None
                if misses > 4:
                    yield 0.001 * chance.random() * misses
                continue
            finally:
                with self._lock:
                    self._trying.discard(found.place.key)
            if task is not None:
                self._spread = max(1, self._spread - 1)
                return task

    def _take(self, found: _Found, lease: float, ending: Ending | None) -> Steps[Task | None]:
        """Take what was found; None if there was nothing behind it, which is put in order then."""
        record = self._kernel.read([taskbook.task_key(found.id)])[0]
        task = taskbook.task_of(record) if record is not None else None
        checks: list[AnyCheck] = [Check(found.place.key, found.place.version)]
        if found.hold is not None:
            checks.append(Check(taskbook.beat_key(self.queue, found.id), found.beat))
        if record is None or task is None or task.status != "waiting" or task.queue != self.queue:
            yield from settle(self._kernel, checks, [Delete(found.place.key)])
            return None
        now = self._kernel.now()
        hold = self._hold(found, task, now, lease)
        if hold.redeliveries > REDELIVERIES:
            yield from self._give_up(found, task, record.version, checks)
            return None
        writes: list[Write] = [taskbook.held(self.queue, found.id, hold)]
        if found.hold is None:
            writes.append(Delete(found.place.key))
        before: list[Write] = [*(ending.writes if ending is not None else ())]
        guard = [*(ending.checks if ending is not None else ()), *checks]
        done = yield from settle(self._kernel, guard, [*before, *writes])
        if ending is not None:
            ending.task.ended()
        if found.hold is not None:
            log.warning(
                "The task %r of %r is delivered again (attempt %d): %s (process %s) had it and was lost. It may have "
                "been done.",
                found.id,
                self.queue,
                hold.attempt,
                found.hold.owner["writer"],
                found.hold.owner["pid"],
            )
        taken = Task(self._context, found.id, task, record.version, hold, lease)
        return taken.taken(done.versions[len(before)])

    def _hold(self, found: _Found, task: TaskRecord, now: float, lease: float) -> Hold:
        old = found.hold
        attempt = task.attempts + 1 if old is None else old.attempt + 1
        return Hold(now + lease, attempt, 0 if old is None else old.redeliveries + 1, owner(self._context.writer), now)

    def _give_up(self, found: _Found, task: TaskRecord, version: int, checks: list[AnyCheck]) -> Steps[None]:
        assert found.hold is not None
        message = (
            f"It was delivered {found.hold.redeliveries + 1} times in a row to somebody who was lost with it; whatever it "
            f"does ends its process. Find out why, then call tasks.retry({found.id!r})."
        )
        error = {"type": "Lost", "message": message}
        writes = taskbook.buried(found.id, task, found.hold, self._kernel.now(), error)
        place: list[Write] = [Delete(found.place.key), Delete(taskbook.beat_key(self.queue, found.id))]
        guard = [*checks, Check(taskbook.task_key(found.id), version)]
        yield from settle(self._kernel, guard, [*place, *writes])
        log.error("The task %r of %r is dead: %s", found.id, self.queue, message)

    # -- finding ---------------------------------------------------------------------------------------------------

    def _next(self, *, eager: bool) -> Steps[_Found | None]:
        """Return a task that could be taken, kept from other threads of this process until it is let go."""
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
        page = self._free(self._kernel.scan(taskbook.ready_prefix(self.queue), limit=wanted))
        self.more = len(page) > 1
        if not page:
            return None
        priority, user, name = _lane(page[0])
        last = self._ring.get(priority)
        if last is not None and self._alone <= 0:
            lane = taskbook.lane_prefix(self.queue, priority)
            behind = taskbook.lane_prefix(self.queue, priority, last) + b"\xff"
            others = self._free(self._kernel.scan(lane, after=behind, limit=wanted))
            if others:
                page, (_, user, name) = others, _lane(others[0])
            elif user == last:
                self._alone = _ALONE
        self._alone -= 1
        chosen = page[0]
        if self._spread > 1:
            own = taskbook.lane_prefix(self.queue, priority, user)
            same = [one for one in page[: self._spread] if one.key.startswith(own)]
            chosen = chance.choice(same)
        self._ring[priority] = user
        self._trying.add(chosen.key)
        return _Found(taskbook.id_of(chosen) if chosen is not page[0] else name, chosen)

    def _free(self, page: list[Record]) -> list[Record]:
        return [one for one in page if one.key not in self._trying]

    def _taken_over(self, now: float) -> _Found | None:
        """Return a task whose holder was lost, if there is one."""
        for page in _pages(self._context, taskbook.held_prefix(self.queue)):
            holds = [(one, taskbook.hold_of(one)) for one in page]
            over = [(one, hold) for one, hold in holds if hold.until <= now or is_gone(hold.owner)]
            beats = self._kernel.read([taskbook.beat_key(self.queue, taskbook.id_of(one)) for one, _ in over])
            with self._lock:
                found = self._first_lost(over, beats)
            if found is not None:
                return found
        return None

    def _first_lost(self, over: list[tuple[Record, Hold]], beats: list[Record | None]) -> _Found | None:
        for (one, hold), beat in zip(over, beats, strict=True):
            if one.key not in self._trying and (beat is None or is_gone(hold.owner)):
                self._trying.add(one.key)
                return _Found(taskbook.id_of(one), one, hold, beat.version if beat is not None else 0)
        return None

    # -- upkeep ----------------------------------------------------------------------------------------------------

    def sooner(self, due: float) -> None:
        """Know that a task comes whose time is then."""
        self._later = min(self._later, due)

    def _upkeep(self, *, at_once: bool = False) -> Steps[None]:
        """Move the tasks whose time has come to those that may be taken, and fire recurring ones, if it is time to look."""
        now = self._kernel.now()
        if at_once or now >= self._fired:
            self._fired = now + _OFTEN
            yield from schedules.fire(self._context, self.queue)
        if not at_once and now < self._later:
            return
        while True:
            self._later = now + _OFTEN
            page = self._kernel.scan(taskbook.later_prefix(self.queue), limit=_MATURED)
            ripe = [one for one in page if taskbook.due_of(one) <= now]
            if len(ripe) < len(page):
                self._later = min(self._later, taskbook.due_of(page[len(ripe)]))
            if not ripe:
                return
            moved = [taskbook.matured(self.queue, one) for one in ripe]
            writes = [write for _, pair in moved for write in pair]
            try:
                yield from settle(self._kernel, [check for check, _ in moved], writes)
            except Conflict:
                yield 0.001 * chance.random()  # somebody else does the same: look again


def _lane(record: Record) -> tuple[int, str, str]:
    """Return priority, user and id of a task that may be taken."""
    parts = keys.unpack(record.key)
    if len(parts) != 7 or not isinstance(parts[3], int) or not isinstance(parts[4], str):
        raise Damaged("A record of a queue is not what was written. Restore a backup.")
    return -parts[3], parts[4], str(parts[6])


def _pages(context: Context, prefix: bytes) -> Iterator[list[Record]]:
    after: bytes | None = None
    while page := context.kernel.scan(prefix, after=after, limit=_PAGE):
        yield page
        if len(page) < _PAGE:
            return
        after = page[-1].key
