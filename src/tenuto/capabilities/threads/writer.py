"""Writing to a thread: one line per commit, with optimistic concurrency.

Each commit adds a line and checks that the line before it is still the last. Of two concurrent writers the second
gets a conflict, reads the new end and retries, so both lines are written in order. A client caches the ends of
threads, so the next line costs one commit and no read.

The first commit of a thread also adds the line `BEGAN` and the listing; one with a `key` adds an idempotency record;
one to a thread with a ttl renews its listing and checks that it has not expired. Deleting removes the listing together
with the line `ENDED`. Later commits (`release`) remove the remaining records and lines; a crash before or between them
leaves only unreachable data.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, Fence, commit
from tenuto.capabilities._core.blobs import changes, held_in, lifted
from tenuto.capabilities.threads.log import Kind, Line, Log, Place, began_with, parts_of
from tenuto.errors import Conflict, InvalidInput, NotFound, StateConflict
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Append, Check, CheckEnd, Delete, Forget, Put, Record, Write
from tenuto.kernel.transact import backoff, commit_once
from tenuto.kernel.tree import LARGE
from tenuto.kernel.work import Sleep, Work

_CACHED: Final = 1_000
"""The size of a client's cache of ends."""
_KEY: Final = keys.pack("key")
_FORK: Final = keys.pack("fork")
DERIVED: Final = keys.pack("derived")
_TRIM: Final = keys.pack("trim")
_SOME: Final = 200
_TRIMMED: Final = 7 * 86_400.0
"""The ttl of the record of how much of a thread was removed, in seconds."""
INDEX: Final = keys.pack("threads", "index", "every")
USER_INDEX: Final = keys.pack("threads", "index", "user")
Guard = Callable[[Line | None], None]
"""Gets the last line, or None without a thread; raises `Conflict` to refuse the write."""
Along = Callable[[int, int], Sequence[Write]]
"""Returns further writes of a commit, given the numbers of messages before and after it."""


class Info(NamedTuple):
    """The content of a thread's listing."""

    user: str | None
    created: float
    parent: str | None


class Known(NamedTuple):
    """The cached end of a thread."""

    last: Line | None
    """Without its data; None if there never was a line."""
    info: Info | None = None
    """None until it is needed."""
    version: int = 0
    """Of the listing."""


class Ends:
    """A client's cache of thread ends: hints, which every commit verifies."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}  # no lock: a child forked while it is held would deadlock

    def get(self, thread: str) -> Known | None:
        """Return the cached end of a thread."""
        return self._known.get(thread)

    def put(self, thread: str, known: Known) -> None:
        """Cache the end of a thread; evict the oldest beyond the limit."""
        self._known[thread] = known
        if len(self._known) > _CACHED:
            with contextlib.suppress(KeyError, RuntimeError):  # another thread evicts too
                del self._known[next(iter(self._known))]

    def forget(self, thread: str) -> None:
        """Evict the end of a thread."""
        self._known.pop(thread, None)


@dataclass(slots=True)
class Draft:
    """A commit that adds a line, and the end of the thread after it."""

    checks: list[AnyCheck]
    writes: list[Write]
    number: int
    place: Place
    info: Info | None
    over: int = 0
    """If a thread begins again: the first line of the earlier one."""


class Writer:
    """Adds lines to one thread."""

    def __init__(self, context: Context, ends: Ends, log: Log, user: str | None, ttl: float | None) -> None:
        self._context = context
        self._kernel = context.kernel
        self._ends = ends
        self._log = log
        self._user = user
        self._ttl = ttl
        self._what = f"The thread {log.thread!r}"
        self._listing = INDEX + keys.pack(log.thread)

    def add(
        self,
        kind: int,
        data: Any,
        *,
        count: int = 0,
        key: str | None = None,
        fence: Fence | None = None,
        guard: Guard | None = None,
        along: Along | None = None,
    ) -> Work[Line]:
        """Add a line at the end, atomically and durably; return it, or the earlier line with this `key`.

        `count` is the number of messages in it; `along` is written in the same commit.
        """
        known, delays = self._ends.get(self._log.thread), _delays()
        while True:
            fresh = known is None
            known = known or self.known()
            try:
                draft = self._draft(known, kind, data, count, guard)
            except Conflict:
                since, known = known.last.place.since if known.last is not None else 0, None
                if not fresh:  # the cached end may be stale: read it and try again
                    continue
                earlier = self._earlier(since, key, data)
                if earlier is None:
                    raise
                return earlier
            yield from self._lighten(draft, kind, data)
            remembered = self._remember(draft, key)
            if along is not None:
                draft.writes += along(draft.place.messages - count, draft.place.messages)
            try:
                done = yield from commit(self._context, draft.checks, draft.writes, fence, self._what)
            except StateConflict as error:
                earlier = self._earlier(draft.place.since, key, data) if remembered in error.keys else None
                if earlier is not None:
                    return earlier
                known = None
                yield Sleep(next(delays))
            else:
                line = Line(draft.number, done.at, self._context.writer, None, kind, draft.place, None)
                self._ends.put(self._log.thread, Known(line, draft.info, done.versions[0]))
                if draft.over:
                    yield from self.release(draft.over)
                return line

    def _lighten(self, draft: Draft, kind: int, data: Any) -> Work[None]:
        """Store the large texts and bytes of a draft's line as blobs."""
        line = draft.writes[-1]
        if not isinstance(line, Append) or len(line.value) < LARGE:
            return
        light, contents = lifted(data)
        delays = backoff()
        while True:
            yield from self._log.blobs.ensure(contents)
            try:
                checks, writes = self._log.blobs.counted(changes(contents))
            except Conflict:  # a sweep deleted one just now: store it again
                yield Sleep(next(delays))
            else:
                draft.checks += checks
                draft.writes[-1] = self._log.pack(kind, draft.place, light)
                draft.writes += writes
                return

    def known(self) -> Known:
        """Read the end from the store."""
        last = self._log.last()
        return Known(None if last is None else last._replace(data=None))

    def _draft(self, known: Known, kind: int, data: Any, count: int = 0, guard: Guard | None = None) -> Draft:
        known = self._informed(known)
        last = self._live(known)
        if guard is not None:
            guard(last)
        if last is None:
            draft = self.beginning(known)
        else:
            info, writes = self._renewed(last, known)
            draft = Draft([CheckEnd(self._log.own, last.number)], writes, last.number, last.place, info)
            if last.place.ttl is not None:
                draft.checks.append(Check(self._listing, known.version))
        draft.number += 1
        draft.place = self._after(draft.place, draft.number, kind, count)
        draft.writes.append(self._log.pack(kind, draft.place, data))
        return draft

    def _live(self, known: Known) -> Line | None:
        """Return the last line of the thread, given its end with its listing; None if the thread is over."""
        last = known.last if self._log.is_live(known.last) else None
        expired = last is not None and last.place.ttl is not None and known.info is None
        return None if expired else last

    def _after(self, place: Place, number: int, kind: int, count: int) -> Place:
        """Return the place of the thread after a line of a kind."""
        since, messages, calls, decisions, summary, repair, ttl = place
        if kind == Kind.MESSAGES:
            messages += count
        elif kind == Kind.TOOL_CALL:
            calls += 1
        elif kind == Kind.DECISION:
            decisions += 1
        elif kind == Kind.SUMMARY:
            summary = number
        elif kind == Kind.REPAIR:
            repair = number
        return Place(since, messages, calls, decisions, summary, repair, ttl if self._ttl is None else self._ttl)

    def _informed(self, known: Known, *, always: bool = False) -> Known:
        """Return the end with its listing, if a user or ttl needs it."""
        if known.info is not None or known.last is None:
            return known
        if not always and self._user is None and self._ttl is None and known.last.place.ttl is None:
            return known
        record = self._kernel.read([self._listing])[0]
        return known if record is None else known._replace(info=info_of(record), version=record.version)

    def _renewed(self, last: Line, known: Known) -> tuple[Info | None, list[Write]]:
        """Return the new content of the listing and its writes, usually none."""
        info = known.info
        ttl = self._ttl if self._ttl is not None else last.place.ttl
        if info is None:
            return None, []
        owner = self._user if self._user is not None else info.user
        if info.user not in (None, owner):
            raise Conflict(
                f"{self._what} belongs to the user {info.user!r}, not to {owner!r}; nothing was written. "
                "Use another thread id."
            )
        if ttl is None and owner == info.user:
            return info, []
        info = info._replace(user=owner)
        return info, self._listings(info, ttl)

    def _listings(self, info: Info, ttl: float | None) -> list[Write]:
        """Return the writes of a thread's listings, overall and for its user."""
        value = codec.encode(list(info))
        found: list[Write] = [Put(self._listing, value, ttl)]
        if info.user is not None:
            found.append(Put(USER_INDEX + keys.pack(info.user, self._log.thread), value, ttl))
        return found

    def beginning(
        self, known: Known, began: dict[str, Any] | None = None, place: Place | None = None, parent: str | None = None
    ) -> Draft:
        """Return the first commit of the thread, empty or with the past of another thread."""
        last, began = known.last, began or began_with(self._user)
        number = last.number + 1 if last is not None else 1
        place = Place(
            number,
            *((place.messages, place.calls, place.decisions) if place is not None else (0, 0, 0)),
            number if began["summary"] is not None else 0,
            number if began["repair"] is not None else 0,
            self._ttl,
        )
        info = Info(self._user, self._kernel.now(), parent)
        writes = [*self._listings(info, self._ttl), self._log.pack(Kind.BEGAN, place, began)]
        over = last.place.since if last is not None and last.kind != Kind.ENDED else 0
        return Draft([CheckEnd(self._log.own, number - 1)], writes, number, place, info, over)

    def _remember(self, draft: Draft, key: str | None) -> bytes | None:
        """Add the idempotency record of `key` to the commit; return the record's key."""
        if key is None:
            return None
        where = self._key_record(draft.place.since, key)
        draft.checks.append(Check(where, 0))
        draft.writes.append(Put(where, codec.encode(draft.number)))
        return where

    def _earlier(self, since: int, key: str | None, data: Any) -> Line | None:
        """Return the earlier line with this key, if any; raise `Conflict` if its messages differ.

        A key counts only in the thread that is there now, not in one that has expired or was deleted.
        """
        record = self._kernel.read([self._key_record(since, key)])[0] if key is not None else None
        if record is None:
            return None
        there = self._live(self._informed(self.known()))
        if there is None or there.place.since != since:
            return None
        line = self._log.line(codec.decode(record.value))
        if line.data != codec.decode(codec.encode(data)):
            raise Conflict(
                f"{self._what} already has an append with the key {key!r}, of other messages (up to number "
                f"{line.place.messages}); nothing was written. Read those, or use another key."
            )
        return line

    def _key_record(self, since: int, key: str) -> bytes:
        return self._log.own + _KEY + keys.pack(since) + keys.named(key, "key")

    def fork(self, child: str, at: int | None, user: str | None, ttl: float | None) -> Work[None]:
        """Create a thread that shares this one's messages up to number `at`, atomically.

        A record protects the shared part when this thread is deleted.
        """
        delays = _delays()
        while True:
            view = self._log.view()
            if view is None:
                raise NotFound(f"{self._what} does not exist, so it cannot be forked. Append to it first.")
            upto = view.place.messages if at is None else at
            if not 0 <= upto <= view.place.messages:
                raise InvalidInput(f"{self._what} has {view.place.messages} messages; at={at} is out of range.")
            known = self._informed(Known(view.head._replace(data=None)), always=True)
            owner = user if user is not None or known.info is None else known.info.user
            life = ttl if ttl is not None else view.place.ttl
            other = Writer(self._context, self._ends, Log(self._context, child), owner, life)
            there = other.known()
            if other._log.is_live(there.last):
                raise Conflict(f"{other._what} already exists; nothing was written. Fork into another id.")
            mine = self._draft(known, Kind.FORKED, {"thread": child, "at": upto})
            parts, place, summary, mended = view.cut(upto)
            begins = other.beginning(there, began_with(owner, parts, summary, mended), place, self._log.thread)
            shared = Log(self._context, parts[-1].thread)
            record = fork_record(shared, parts[-1].since, child, begins.number)
            self._ends.forget(self._log.thread)
            self._ends.forget(child)
            try:
                if mine.place.since != view.place.since:
                    raise StateConflict("The thread began again.")  # noqa: TRY301 - retried like any conflict
                yield from commit(
                    self._context,
                    [*mine.checks, *begins.checks],
                    [*mine.writes, *begins.writes, Put(record, codec.encode(None))],
                    None,
                    self._what,
                )
            except StateConflict:
                yield Sleep(next(delays))
            else:
                if begins.over:
                    yield from other.release(begins.over)
                return

    @property
    def is_over(self) -> bool:
        """Return whether the thread was deleted or has expired."""
        last = self._log.last()
        return last is not None and last.kind != Kind.GONE and not self._log.is_live(last)

    def end(self, *, expired: bool = False) -> Work[bool]:
        """Delete the thread, atomically and durably; return whether it existed. Forks keep their messages.

        With `expired` also end a thread that has expired, so that its contents are removed.
        """
        self._ends.forget(self._log.thread)
        delays = _delays()
        while True:
            last = self._log.last()
            if last is not None and last.kind == Kind.ENDED:
                yield from self.release(last.place.since)  # its deleter may have been killed before releasing
                return False
            if last is None or not (expired or self._log.is_live(last)):
                return False
            record = self._kernel.read([self._listing])[0]
            writes: list[Write] = [Delete(self._listing)]
            user = info_of(record).user if record is not None else None
            if user is not None:
                writes.append(Delete(USER_INDEX + keys.pack(user, self._log.thread)))
            writes.append(self._log.pack(Kind.ENDED, last.place, {}))
            try:
                yield from commit(self._context, [CheckEnd(self._log.own, last.number)], writes, None, self._what)
            except StateConflict:
                yield Sleep(next(delays))
            else:
                yield from self.release(last.place.since)
                return True

    def release(self, since: int) -> Work[None]:
        """Remove the data of an ended thread, unless forks share it; then of the ended threads that it shared.

        `since` is its first line: a thread of the same id may have begun again.
        """
        log = self._log
        while True:
            for part in (_KEY, DERIVED):
                while found := self._kernel.scan(log.own + part + keys.pack(since), limit=500):
                    yield from commit_once(self._kernel, [], [Delete(record.key) for record in found])
            if self._kernel.scan(log.own + _FORK + keys.pack(since), limit=1):
                return
            began = self._kernel.entries(log.own, after=since - 1, limit=1)
            trimmed = began[0].number != since  # it was released before
            parts = [] if trimmed or began[0].forgotten else parts_of(log.unpack(began[0]))
            yield from self._trim(log, since)
            if not parts:
                return
            shared = Log(self._context, parts[-1].thread)
            gone = fork_record(shared, parts[-1].since, log.thread, since)
            yield from commit_once(self._kernel, [], [Delete(gone)])
            last, log, since = shared.last(), shared, parts[-1].since
            if last is None or (last.kind != Kind.ENDED and last.place.since == since):
                return

    def _trim(self, log: Log, since: int) -> Work[None]:
        """Remove the lines of an ended thread, and their blob references, some per commit.

        The last line of the stream stays, because the next one continues its numbers. Each commit checks a progress
        record, so that two processes do not decrement a reference twice.
        """
        mark = log.own + _TRIM + keys.pack(since)
        while True:
            noted = self._kernel.read([mark])[0]
            found = _over(log, since, codec.decode(noted.value) if noted is not None else since)
            if not found:
                return
            checks, counted = log.blobs.counted(changes((), (digest for _, held in found for digest in held)))
            gone = Forget(log.own, found[0][0], found[-1][0])
            done = Put(mark, codec.encode(found[-1][0] + 1), _TRIMMED)
            try:
                yield from commit_once(
                    self._kernel, [Check(mark, noted.version if noted else 0), *checks], [gone, done, *counted]
                )
            except Conflict:
                yield Sleep(0.005)  # another process removes them too, or a reference count changed


def _over(log: Log, since: int, first: int) -> list[tuple[int, set[bytes]]]:
    """Return the next lines of an ended thread: their numbers and the blobs to which they refer."""
    last = log.last()
    found: list[tuple[int, set[bytes]]] = []
    for entry in log.context.kernel.entries(log.own, after=first - 1, limit=_SOME):
        if last is None or entry.number >= last.number:
            break
        if entry.forgotten:
            found.append((entry.number, set()))
            continue
        _, _, _, place, data, *_ = codec.decode(entry.value)
        if place[0] != since:
            break  # it has begun again
        found.append((entry.number, held_in(data)))
    return found


def _delays() -> Iterator[float]:
    """Yield the delay before each retry, without end: three retries at once, then a back-off.

    A writer that waits wakes in the middle of another commit and loses again; one that retries at once has a chance.
    """
    delays = backoff(most=0.02)
    while True:
        yield from (0.0, 0.0, 0.0, next(delays))


def info_of(record: Record) -> Info:
    """Return the content of a listing."""
    return Info(*codec.decode(record.value)[:3])


def fork_record(shared: Log, since: int, child: str, child_since: int) -> bytes:
    """Return the key of the record that protects a part of a thread for a fork."""
    return shared.own + _FORK + keys.pack(since, child, child_since)
