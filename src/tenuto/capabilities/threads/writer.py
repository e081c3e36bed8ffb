"""Writing to a thread: one line at a time, at the end that the writer knows, and again if it had moved.

Every change of a thread is one commit that adds a line under the check that the line before it is still the
last. Two writers therefore both land, in order: whoever was second reads the new end and tries again. A client
remembers the ends that it has seen, so the next line costs one commit and no reading.

A commit is more than its line only where it must be: the first one of a thread adds the line `BEGAN` and the
listing; one with a `key` the record that remembers it; one to a thread with a time to live renews the listing,
which expires, and checks that it has not: so nothing is ever added to a thread that is over. Ending takes the
listing away in the commit of the line `ENDED`. What a thread that is over leaves behind (records of keys, and
its lines) is taken away by commits of their own, `release`: a crash before or between them leaves things that
nobody reads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from tenuto.capabilities.blobs import changes, held_in, lifted
from tenuto.capabilities.context import Context, Fence, commit
from tenuto.capabilities.threadlog import (
    BEGAN,
    DECISION,
    ENDED,
    FORKED,
    MESSAGES,
    REPAIR,
    SUMMARY,
    TOOL_CALL,
    Line,
    Log,
    Place,
    began_with,
    parts_of,
)
from tenuto.errors import Conflict, InvalidInput, NotFound, StateConflict
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import AnyCheck, Append, Check, CheckEnd, Delete, Forget, Put, Record, Write
from tenuto.kernel.transact import Steps, backoff, settle
from tenuto.kernel.tree import LARGE

_KEPT: Final = 1_000
"""So many ends are remembered by a client."""
_KEY: Final = keys.pack("key")
_FORK: Final = keys.pack("fork")
_TRIM: Final = keys.pack("trim")
_SOME: Final = 200
_TRIMMED: Final = 7 * 86_400.0
"""For so many seconds it is remembered how far a thread was taken away."""
EVERY: Final = keys.pack("threads", "index", "every")
OF_USER: Final = keys.pack("threads", "index", "user")


Guard = Callable[[Line | None], None]
"""Raises `Conflict` if a line is not to be added behind the one given, or where the thread is not there: None."""


Along = Callable[[int, int], Sequence[Write]]
"""Returns what else a commit writes, given how many messages there are before and after it."""


class Info(NamedTuple):
    """What the listing of a thread says."""

    user: str | None
    created: float
    parent: str | None


class Known(NamedTuple):
    """The end of a thread as a writer knows it."""

    last: Line | None
    """Without its data; None where there never was a line."""
    info: Info | None = None
    """None until it is needed."""
    version: int = 0
    """Of the listing."""


class Ends:
    """The ends of threads that one client has seen: hints, which every commit checks."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}  # no lock: a child forked while it was held would wait for ever

    def get(self, thread: str) -> Known | None:
        """Return what is known of a thread's end."""
        return self._known.get(thread)

    def put(self, thread: str, known: Known) -> None:
        """Remember a thread's end; of too many, the one that is known longest is forgotten."""
        self._known[thread] = known
        if len(self._known) > _KEPT:
            with contextlib.suppress(KeyError, RuntimeError):  # another thread was at it
                del self._known[next(iter(self._known))]

    def forget(self, thread: str) -> None:
        """Forget a thread's end: it was written to otherwise."""
        self._known.pop(thread, None)


@dataclass(slots=True)
class Draft:
    """A commit that adds a line, not yet made, and the end that it makes."""

    checks: list[AnyCheck]
    writes: list[Write]
    number: int
    place: Place
    info: Info | None
    over: int = 0
    """Where a thread begins again: the line with which it had begun before."""


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
        self._listing = EVERY + keys.pack(log.thread)

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
    ) -> Steps[Line]:
        """Add a line, atomically, behind whatever the last one is; return it, or the one that has this `key`.

        `count` is how many messages it holds; `along` is written in the same commit.
        """
        known, delays = self._ends.get(self._log.thread), _delays()
        while True:
            fresh = known is None
            known = known or self.known()
            try:
                draft = self._draft(known, kind, data, count, guard)
            except Conflict:
                since = known.last.place.since if known.last is not None and self._log.is_live(known.last) else 0
                known = None  # perhaps it is only that the end has moved
                if not fresh:
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
                yield next(delays)
            else:
                line = Line(draft.number, done.at, self._context.writer, None, kind, draft.place, None)
                self._ends.put(self._log.thread, Known(line, draft.info, done.versions[0]))
                if draft.over:
                    yield from self.release(draft.over)
                return line

    def _lighten(self, draft: Draft, kind: int, data: Any) -> Steps[None]:
        """Let the line of a draft refer to its large texts and bytes instead of holding them."""
        line = draft.writes[-1]
        if not isinstance(line, Append) or len(line.value) < LARGE:
            return
        light, contents = lifted(data)
        for delay in backoff(None):
            yield from self._log.blobs.ensure(contents)
            try:
                checks, writes = self._log.blobs.counted(changes(contents))
            except Conflict:  # a sweep took one away that had just been there: it is stored again
                yield delay
            else:
                draft.checks += checks
                draft.writes[-1] = self._log.pack(kind, draft.place, light)
                draft.writes += writes
                return

    def known(self) -> Known:
        """Return the end as it is stored."""
        last = self._log.last()
        return Known(None if last is None else last._replace(data=None))

    def _draft(self, known: Known, kind: int, data: Any, count: int = 0, guard: Guard | None = None) -> Draft:
        known = self._informed(known)
        last = known.last if self._log.is_live(known.last) else None
        if last is not None and last.place.ttl is not None and known.info is None:
            last = None  # its listing has expired: it is over
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

    def _after(self, place: Place, number: int, kind: int, count: int) -> Place:
        """Return what the thread amounts to after a line of a kind."""
        since, messages, calls, decisions, summary, repair, ttl = place
        if kind == MESSAGES:
            messages += count
        elif kind == TOOL_CALL:
            calls += 1
        elif kind == DECISION:
            decisions += 1
        elif kind == SUMMARY:
            summary = number
        elif kind == REPAIR:
            repair = number
        return Place(since, messages, calls, decisions, summary, repair, ttl if self._ttl is None else self._ttl)

    def _informed(self, known: Known, *, always: bool = False) -> Known:
        """Return what is known, with the listing where that is needed: for a user, or a time to live."""
        if known.info is not None or known.last is None:
            return known
        if not always and self._user is None and self._ttl is None and known.last.place.ttl is None:
            return known
        record = self._kernel.read([self._listing])[0]
        return known if record is None else known._replace(info=info_of(record), version=record.version)

    def _renewed(self, last: Line, known: Known) -> tuple[Info | None, list[Write]]:
        """Return what the listing should say, and the writes that make it so; mostly there are none."""
        info = known.info
        ttl = self._ttl if self._ttl is not None else last.place.ttl
        if info is None:
            return None, []
        owner = self._user if self._user is not None else info.user
        if info.user not in (None, owner):
            raise Conflict(
                f"{self._what} belongs to the user {info.user!r}, not to {owner!r}; nothing was written. "
                "Use the id of another thread."
            )
        if ttl is None and owner == info.user:
            return info, []
        info = info._replace(user=owner)
        return info, self._listings(info, ttl)

    def _listings(self, info: Info, ttl: float | None) -> list[Write]:
        """Return the writes of a thread's listing: among all, and among its user's."""
        value = codec.encode(list(info))
        found: list[Write] = [Put(self._listing, value, ttl)]
        if info.user is not None:
            found.append(Put(OF_USER + keys.pack(info.user, self._log.thread), value, ttl))
        return found

    def beginning(
        self, known: Known, began: dict[str, Any] | None = None, place: Place | None = None, parent: str | None = None
    ) -> Draft:
        """Return the commit with which the thread begins, with nothing in it or with the past of another."""
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
        writes = [*self._listings(info, self._ttl), self._log.pack(BEGAN, place, began)]
        over = last.place.since if last is not None and last.kind != ENDED else 0
        return Draft([CheckEnd(self._log.own, number - 1)], writes, number, place, info, over)

    # -- keys ------------------------------------------------------------------------------------------------

    def _remember(self, draft: Draft, key: str | None) -> bytes | None:
        """Let the commit remember that it was made with this key; return where."""
        if key is None:
            return None
        where = self._key_record(draft.place.since, key)
        draft.checks.append(Check(where, 0))
        draft.writes.append(Put(where, codec.encode(draft.number)))
        return where

    def _earlier(self, since: int, key: str | None, data: Any) -> Line | None:
        """Return the line that was added with this key before, or raise `Conflict` if it says something else."""
        record = self._kernel.read([self._key_record(since, key)])[0] if key is not None else None
        if record is None:
            return None
        line = self._log.line(codec.decode(record.value))
        if line.data != codec.decode(codec.encode(data)):
            raise Conflict(
                f"{self._what} has had an append with the key {key!r} before, of other messages (up to number "
                f"{line.place.messages}); nothing was written. Read those, or use another key."
            )
        return line

    def _key_record(self, since: int, key: str) -> bytes:
        return self._log.own + _KEY + keys.pack(since) + keys.named(key, "key")

    # -- forks -----------------------------------------------------------------------------------------------

    def fork(self, child: str, at: int | None, user: str | None, ttl: float | None) -> Steps[None]:
        """Let another thread begin with this one's past up to message `at`, atomically, copying no message.

        A record beside the part that it shares says so, and keeps that part when this thread is over.
        """
        delays = _delays()
        while True:
            view = self._log.view()
            if view is None:
                raise NotFound(f"{self._what} is not there, so nothing can be forked from it; append to it first.")
            upto = view.place.messages if at is None else at
            if not 0 <= upto <= view.place.messages:
                raise InvalidInput(f"{self._what} has {view.place.messages} messages; at={at} is none of them, nor 0.")
            known = self._informed(Known(view.head._replace(data=None)), always=True)
            owner = user if user is not None or known.info is None else known.info.user
            life = ttl if ttl is not None else view.place.ttl
            other = Writer(self._context, self._ends, Log(self._context, child), owner, life)
            there = other.known()
            if other._log.is_live(there.last):
                raise Conflict(f"{other._what} is there already; nothing was written. Fork into another id.")
            mine = self._draft(known, FORKED, {"thread": child, "at": upto})
            parts, place, summary, mended = view.cut(upto)
            begins = other.beginning(there, began_with(owner, parts, summary, mended), place, self._log.thread)
            shared = Log(self._context, parts[-1].thread)
            record = fork_record(shared, parts[-1].since, child, begins.number)
            self._ends.forget(self._log.thread)
            self._ends.forget(child)
            try:
                if mine.place.since != view.place.since:
                    raise StateConflict("It was over before this commit.")  # noqa: TRY301 - tried again like any other
                yield from commit(
                    self._context,
                    [*mine.checks, *begins.checks],
                    [*mine.writes, *begins.writes, Put(record, codec.encode(None))],
                    None,
                    self._what,
                )
            except StateConflict:
                yield next(delays)
            else:
                if begins.over:
                    yield from other.release(begins.over)
                return

    # -- the end ---------------------------------------------------------------------------------------------

    def end(self) -> Steps[bool]:
        """End the thread, atomically; tell whether it was there. Others that were forked from it keep their past."""
        self._ends.forget(self._log.thread)
        delays = _delays()
        while True:
            last = self._log.last()
            if last is not None and last.kind == ENDED:
                yield from self.release(last.place.since)  # whoever ended it may have been killed before it was done
                return False
            if last is None or not self._log.is_live(last):
                return False
            record = self._kernel.read([self._listing])[0]
            writes: list[Write] = [Delete(self._listing)]
            user = info_of(record).user if record is not None else None
            if user is not None:
                writes.append(Delete(OF_USER + keys.pack(user, self._log.thread)))
            writes.append(self._log.pack(ENDED, last.place, {}))
            try:
                yield from commit(self._context, [CheckEnd(self._log.own, last.number)], writes, None, self._what)
            except StateConflict:
                yield next(delays)
            else:
                yield from self.release(last.place.since)
                return True

    def release(self, since: int) -> Steps[None]:
        """Take away what a thread that is over has left, unless others have it as their past.

        `since` is the line with which it began: the thread of that name may have begun again. Whatever it had as
        its own past is let go with it, and that may be the last thing for which an older thread was kept.
        """
        log = self._log
        while True:
            while found := self._kernel.scan(log.own + _KEY + keys.pack(since), limit=500):
                yield from settle(self._kernel, [], [Delete(record.key) for record in found])
            if self._kernel.scan(log.own + _FORK + keys.pack(since), limit=1):
                return
            began = self._kernel.entries(log.own, after=since - 1, limit=1)
            parts = [] if began[0].forgotten else parts_of(log.unpack(began[0]))
            yield from self._trim(log, since)
            if not parts:
                return
            shared = Log(self._context, parts[-1].thread)
            gone = fork_record(shared, parts[-1].since, log.thread, since)
            yield from settle(self._kernel, [], [Delete(gone)])
            last, log, since = shared.last(), shared, parts[-1].since
            if last is None or (last.kind != ENDED and last.place.since == since):
                return

    def _trim(self, log: Log, since: int) -> Steps[None]:
        """Take away what the lines of a thread that is over say, and the large parts they refer to, some at a time.

        The last line of the stream stays, for whoever goes on behind it. A record notes how far this is, and each
        commit checks it: of two that are at it at once only one counts a reference down.
        """
        mark = log.own + _TRIM + keys.pack(since)
        while True:
            noted = self._kernel.read([mark])[0]
            found = _over(log, since, codec.decode(noted.value) if noted is not None else since)
            if not found:
                return
            by: dict[bytes, int] = {}
            for digest in (digest for _, held in found for digest in held):
                by[digest] = by.get(digest, 0) - 1
            checks, counted = log.blobs.counted(by)
            gone = Forget(log.own, found[0][0], found[-1][0])
            done = Put(mark, codec.encode(found[-1][0] + 1), _TRIMMED)
            try:
                yield from settle(
                    self._kernel, [Check(mark, noted.version if noted else 0), *checks], [gone, done, *counted]
                )
            except Conflict:
                yield 0.005  # another is at it, or a reference was counted meanwhile


def _over(log: Log, since: int, first: int) -> list[tuple[int, set[bytes]]]:
    """Return the next lines of a thread that is over, as their numbers and the large parts that they refer to."""
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
    """Yield how long to wait before each further attempt: mostly nothing, and there is always another.

    A writer that waits comes back in the middle of somebody's commit, and loses again; one that tries at once
    after it lost is as early as the one that won. So it tries a few times before it gives way.
    """
    for delay in backoff(None, most=0.02):
        yield from (0.0, 0.0, 0.0, delay)


def info_of(record: Record) -> Info:
    """Return what a listing says."""
    return Info(*codec.decode(record.value)[:3])


def fork_record(shared: Log, since: int, child: str, child_since: int) -> bytes:
    """Return the key of the record that keeps a part of a thread for one that has it as its past."""
    return shared.own + _FORK + keys.pack(since, child, child_since)
