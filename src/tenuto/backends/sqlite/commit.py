"""One write transaction of a SQLite store: decide everything, then write it, as one row of the log.

A commit is decided whole before anything of it counts, so several share a transaction and one that fails
leaves nothing behind. What is decided rests on the newest form of each key, wherever that is: decided in this
very transaction, in the tail, remembered from the tables, or in the tables.

A `direct` transaction writes into the tables instead, after folding the log into them: for what is too large to
be written twice, for values that are taken away, and for upkeep.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import apsw
import ormsgpack

from tenuto.backends import _sqlite_fold as fold
from tenuto.backends import _sqlite_log as log
from tenuto.backends import _sqlite_rows as rows
from tenuto.backends._group import Job
from tenuto.backends._lockfile import LockFile, word_of
from tenuto.backends._sqlite_log import Counter, Decided
from tenuto.backends._sqlite_rows import FLOOR, RECORD, STREAM, TOMBSTONE
from tenuto.backends._sqlite_schema import COUNTER
from tenuto.backends._sqlite_tail import Memory, Row, Tail, read_tail
from tenuto.backends._sqlite_upkeep import make_room
from tenuto.errors import Conflict, Damaged, InvalidInput, RequestExpired, RequestReused, TenutoError, TooLarge
from tenuto.kernel import keys
from tenuto.kernel.codec import digest
from tenuto.kernel.contract import (
    NOT_BOTH,
    REQUEST_LIFE,
    AnyCheck,
    Append,
    Check,
    Commit,
    Delete,
    Forget,
    Put,
    Write,
    content_of,
    fingerprint,
)
from tenuto.kernel.transact import is_first_use, request_time

T = TypeVar("T")
R = TypeVar("R")
_REMEMBERED: Final = 4_096
_DIRECT_BYTES: Final = 64 * 1024
_SWEEP_ROWS: Final = 500
_MOST_STREAMS: Final = 1 << 23
_sha256 = hashlib.sha256
_log = logging.getLogger("tenuto.sqlite")
_made: Any = tuple.__new__  # without the type's own constructor, which takes three times as long


class CommitJob(Job):
    """One call of `commit`."""

    def __init__(self, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None) -> None:
        self.checks = checks
        self.writes = writes
        self.request = request
        self.blob, forgets = log.packed(checks, writes)
        self.content = _sha256(self.blob).digest()[:16]
        self.direct = forgets or len(self.blob) > _DIRECT_BYTES


class WorkJob(Job):
    """Upkeep that needs the write lock; it shares a transaction with whoever commits."""

    request: bytes | None = None
    direct = True

    def __init__(self, work: Callable[[Writer], bool]) -> None:
        self.work = work


class Known(NamedTuple):
    """What decides the next version of a key."""

    kind: int
    version: int
    expires: float | None


class Writer:
    """The connection that writes. One thread at a time uses it, holding the lock file."""

    def __init__(self, connection: apsw.Connection, now: Callable[[], float], memory: Memory) -> None:
        self.connection = connection
        self.committing = False
        """Whether a transaction has come so far that its outcome is not known until it ends; cleared before each."""
        self._run = connection.cursor().execute
        self._now = now
        self._memory = memory
        self._tail = memory.tail
        self._heads: dict[bytes, Known] = {}  # of the tables; the tail knows better
        self._floorless: set[bytes] = set()
        self._ends: dict[bytes, tuple[int, int]] = {}
        # what this transaction has decided, as far as somebody later in it may ask
        self._several = False
        self._new: dict[bytes, Known] = {}
        self._new_ends: dict[bytes, tuple[int, int]] = {}
        self._made: dict[bytes, Decided] = {}
        self._absent: set[bytes] = set()
        self._last_stream = 0  # the id given to one last, if one was

    def newest(self) -> Tail:
        """Return the tail as the store has it now."""
        tail, number = self._memory.view(self.connection)
        if number != tail.number:  # nobody can be ahead of who has the lock: the file is another one than it was
            tail = self._memory.tail = read_tail(self.connection)
        return tail

    def _start(self, tail: Tail, *, several: bool) -> None:
        """Forget what the transaction before has decided, and what may have changed since."""
        if tail is not self._tail or len(self._heads) + len(self._ends) > _REMEMBERED:
            self._tail = tail
            self._forget_heads()
        if self._several:
            self._new, self._new_ends, self._made = {}, {}, {}
        if self._absent:
            self._absent = set()
        self._last_stream, self._several = 0, several

    def _forget_heads(self) -> None:
        self._heads.clear()
        self._floorless.clear()
        self._ends.clear()
        self._absent.clear()

    # -- a row of the log ----------------------------------------------------------------------

    def add(self, batch: Sequence[CommitJob], tail: Tail, lock: LockFile) -> bool:
        """Decide a batch and add it to the log as one row; False, and nothing is written, if the log goes on behind the tail."""
        self._start(tail, several=len(batch) > 1)
        commits: list[Decided] = []
        blobs: list[bytes] = []
        for job in batch:
            try:
                decided = self._decided(job)
            except TenutoError as error:
                job.error = error
                continue
            if decided is not None:
                commits.append(decided)
                blobs.append(job.blob)
                if self._several:
                    self._overlay(decided)
        if not commits:
            return True
        number, before = tail.counter
        number += 1
        head, chain, word = log.chained(before, number, commits)
        self.committing = True
        lock.committing()
        self._run(log.ADD, (number, chain, head, blobs[0] if len(blobs) == 1 else b"".join(blobs), before))
        if self.connection.changes() != 1:
            self.committing = False
            return False
        lock.store(word)
        tail.extend(number, chain, commits, word)  # at hand for readers and for the next transaction
        return True

    def _overlay(self, decided: Decided) -> None:
        """Let a commit be seen by those who come later in the transaction."""
        for write, version, place in zip(decided.writes, decided.versions, decided.places, strict=True):
            if type(write) is Put:
                expires = None if write.ttl is None else decided.at + write.ttl
                self._new[write.key] = Known(RECORD, version, expires)
            elif type(write) is Append:
                self._new_ends[write.stream] = place, version
            elif type(write) is Delete and place:
                self._new[write.key] = Known(TOMBSTONE, version, decided.at + REQUEST_LIFE)
        if decided.request is not None:
            self._made[decided.request] = decided

    # -- rows of the tables --------------------------------------------------------------------

    def begin(self) -> Counter:
        """Begin a direct transaction, and return how far the store has come."""
        self._run("BEGIN IMMEDIATE")
        tail = self.newest()
        self._start(tail, several=True)
        return tail.counter

    def write(self, batch: Sequence[Any], counter: Counter, lock: LockFile) -> None:
        """Fold the log into the tables and do a batch there, in the transaction that was begun; end it."""
        folded, changed = self._fold(), False
        commits: list[Decided] = []
        for job in batch:
            try:
                if type(job) is WorkJob:
                    changed |= self._whole(job.work, self)
                elif (decided := self._whole(self._perform, job)) is not None:
                    commits.append(decided)
            except TenutoError as error:
                job.error = error
        number, chain = counter
        if commits or changed:
            number += 1
            _, chain, word = log.chained(chain, number, commits)
        elif folded:  # nothing is new, it only lies elsewhere
            word = word_of(number, chain)
        else:
            self._run("ROLLBACK")
            self._memory.renew(self._tail)  # others have folded what this process still held
            return
        log.count(self._run, Counter(number, chain))
        self.committing = True
        lock.committing()
        self._run("COMMIT")
        lock.store(word)
        self._heads.update(self._new)
        self._ends.update(self._new_ends)
        self._tail = Tail(Counter(number, chain))
        self._memory.renew(self._tail)

    def _whole(self, work: Callable[[T], R], given: T) -> R:
        """Do one thing; if it raises, nothing of it has been decided or written."""
        self._run("SAVEPOINT job")
        try:
            return work(given)
        except TenutoError:
            self._run("ROLLBACK TO job")
            self._forget_heads()
            raise
        finally:
            if self.connection.in_transaction:
                self._run("RELEASE job")

    def _perform(self, job: CommitJob) -> Decided | None:
        """Write one commit into the tables, its forgetting first: that is of what was there before."""
        decided = self._decided(job)
        if decided is not None:
            for write in decided.writes:
                if type(write) is Forget and (end := self._end(write.stream)) is not None:
                    fold.forget(self.connection, write, *end)
            tail = Tail(Counter(0, b""))
            tail.extend(1, b"", [decided])
            fold.write(self.connection, tail)
            self._overlay(decided)
        return decided

    def _fold(self) -> bool:
        """Move what is in the log into the tables, and tell whether there was anything; nothing is new by that."""
        known = self._tail
        tail = known if known.base == log.folded(self.connection) else read_tail(self.connection)
        behind = tail.number > tail.floor
        if behind:
            fold.write(self.connection, tail)
            self._run("DELETE FROM log")
        self._heads.update({key: Known(*row[1:3], row[4]) for key, row in known.records.items()})
        self._ends.update({stream: (pending.stream, pending.last) for stream, pending in known.streams.items()})
        self._tail = Tail(known.counter)
        return behind

    # -- deciding ------------------------------------------------------------------------------

    def _head(self, key: bytes) -> Known | Row | None:
        known: Known | Row | None = self._new.get(key) or self._tail.records.get(key) or self._heads.get(key)
        if known is None and key not in self._absent:
            row = rows.head(self.connection, key)
            if row is not None:
                known = self._heads[key] = Known(row.kind, row.version, row.expires)
            else:
                self._absent.add(key)  # what is checked to be absent is mostly written next
        return known

    def _record(self, key: bytes) -> Known | Row | None:
        """Return what is known of a record, or raise `InvalidInput` if the key is a stream's: the tables may not know of it yet."""
        known = self._head(key)
        if known.kind > TOMBSTONE if known is not None else key in self._tail.streams or key in self._new_ends:
            raise InvalidInput(NOT_BOTH)
        return known

    def _end(self, stream: bytes) -> tuple[int, int] | None:
        """Return a stream's id and the number of its last entry, or None if it has none."""
        known = self._new_ends.get(stream)
        if known is not None:
            return known
        pending = self._tail.streams.get(stream)
        if pending is not None:
            return pending.stream, pending.last
        known = self._ends.get(stream)
        if known is None:
            row = self._head(stream)
            if row is None:
                return None
            if row.kind != STREAM:
                raise InvalidInput(NOT_BOTH)
            known = row.version, rows.last_entry(self.connection, stream, row.version).number
            self._ends[stream] = known
        return known

    def _require(self, checks: Sequence[AnyCheck], now: float) -> None:
        different = []
        for check in checks:
            if type(check) is Check:
                row = self._head(check.key)
                actual = row.version if row is not None and _lives(row, now) else 0
            else:
                end = self._end(check[0])
                actual = end[1] if end is not None else 0
            if actual != check[1]:
                different.append(check[0])
        if different:
            raise Conflict("Something else was written first; read again and decide anew.", different)

    def _decided(self, job: CommitJob) -> Decided | None:  # noqa: C901 - one kind of write after the other
        """Decide the version of every write, or None if the commit is known already, or leaves no trace."""
        now = self._now()
        request = job.request
        if request is not None and not is_first_use(request):
            job.outcome = self._outcome(job, request, now)
            if job.outcome is not None:
                return None
        if job.checks:
            self._require(job.checks, now)
        several, tail = self._several, self._tail
        versions: list[int] = []
        places: list[int] = []
        ends: dict[bytes, tuple[int, int]] = {}
        traces = request is not None
        for write in job.writes:
            place, key = 0, write[0]
            if type(write) is Put:
                traces = True
                row = (None if several else tail.records.get(key)) or self._record(key)
                version = (row.version if row is not None else self._floor(key)) + 1
            elif type(write) is Append:
                traces = True
                pending = None if several or ends else tail.streams.get(key)
                if pending is not None:
                    place, number = pending.stream, pending.last
                else:
                    place, number = ends.get(key) or self._end(key) or (self._new_stream(key), 0)
                version = number + 1
                ends[key] = place, version
            elif type(write) is Forget:
                self._end(key)  # a record has no entries
                version, traces = write.last, True
            else:
                row = self._record(key)
                version = 0 if row is None else row.version
                if row is not None and _lives(row, now):
                    version, place, traces = version + 1, 1, True
            versions.append(version)
            places.append(place)
        outcome = tuple(versions)
        job.outcome = _made(Commit, (outcome, now, False))
        if not traces:
            return None
        return _made(Decided, (now, request, job.content, outcome, tuple(places), len(job.blob), job.writes))  # type: ignore[no-any-return]

    def _floor(self, key: bytes) -> int:
        """Return the version above which a new key starts."""
        scope = keys.scope_of(key)
        if scope in self._floorless:
            return 0
        floor = self._head(rows.floor_key(scope))
        if floor is None:
            self._floorless.add(scope)
            return 0
        return floor.version

    def _new_stream(self, stream: bytes) -> int:
        keys.scope_of(stream)
        if not self._last_stream:
            last: list[Any] = self._run("SELECT coalesce(max(id), 0) FROM entries").fetchall()
            self._last_stream = max(rows.stream_of(last[0][0]), self._tail.highest)
        self._last_stream += 1
        if self._last_stream >= _MOST_STREAMS:
            raise TooLarge(
                f"A SQLite store holds up to {_MOST_STREAMS:,} streams; begin another file, or use Postgres."
            )
        return self._last_stream

    def _outcome(self, job: CommitJob, request: bytes, now: float) -> Commit | None:
        """Return what became of a request, None if it was never made, or raise `RequestReused` or `RequestExpired`."""
        made = self._made.get(request) or self._tail.requests.get(request)
        if made is not None:
            if made.content != job.content:
                raise RequestReused("This request id was used for another commit; make a new one.")
            return Commit(made.versions, made.at, repeated=True)
        found: list[Any] = self._run("SELECT content, outcome FROM outcomes WHERE id = ?", (request,)).fetchall()
        if not found:
            _prove_unknown(self.connection, request)
            if now - request_time(request) > REQUEST_LIFE:
                raise RequestExpired(
                    "This request id is too old for its outcome to be known. Read what is stored, then decide."
                )
            return None
        known, outcome = found[0]
        if digest(request, known, outcome[8:])[:8] != outcome[:8]:
            raise Damaged(
                "The record of a request is not what was written. Stop writing to it, keep a copy, and restore a backup."
            )
        # Before format 3 a request was bound to another digest of the same commit.
        if known != job.content and known != fingerprint(job.checks, job.writes, [content_of(w) for w in job.writes]):
            raise RequestReused("This request id was used for another commit; make a new one.")
        at, *versions = ormsgpack.unpackb(outcome[8:])
        return Commit(tuple(versions), at, repeated=True)

    # -- upkeep ----------------------------------------------------------------------------------

    def _set(self, key: bytes, kind: int, version: int, written: float, expires: float | None) -> None:
        self._run(rows.SET_RECORD, rows.record_row(key, kind, version, written, expires, None))

    def sweep(self) -> bool:
        """Turn what has expired into tombstones, and let go of old tombstones and requests."""
        now = self._now()
        run = self._run
        oldest = int(max(0, now - REQUEST_LIFE - 60) * 1000).to_bytes(6, "big")
        run("DELETE FROM outcomes WHERE id IN (SELECT id FROM outcomes WHERE id < ? LIMIT ?)", (oldest, _SWEEP_ROWS))
        changed = self.connection.changes() > 0
        due: list[Any] = run("SELECT key FROM records WHERE expires <= ? LIMIT ?", (now, _SWEEP_ROWS)).fetchall()
        self._forget_heads()
        floors: dict[bytes, int] = {}
        damaged: Damaged | None = None
        for (key,) in due:
            try:
                row = rows.head(self.connection, key)
            except Damaged as error:
                damaged = error  # it stays, and is told; what else is due goes
                continue
            if row is None:
                continue
            if row.kind == RECORD:
                self._set(key, TOMBSTONE, row.version, row.written, now + REQUEST_LIFE)
                continue
            # The floor first: a key made anew starts above every version that was ever seen.
            where = rows.floor_key(keys.scope_of(key))
            if where not in floors:
                floor = rows.head(self.connection, where)
                floors[where] = floor.version if floor is not None else 0
            if floors[where] < row.version:
                floors[where] = row.version
                self._set(where, FLOOR, row.version, now, None)
            run("DELETE FROM records WHERE key = ?", (key,))
        if damaged is not None:
            _log.warning("what has expired could not be swept whole: %s", damaged)
        return changed or bool(due)

    def make_room(self) -> bool:
        """Fold, and let the write-ahead log be longer than it need be yet."""
        make_room(self.connection)
        return False

    def fold(self) -> bool:
        """Do nothing but what every direct transaction begins with: fold the log into the tables."""
        return False


def _prove_unknown(connection: apsw.Connection, request: bytes) -> None:
    """Believe that a request is unknown only if both of its neighbours are whole; see `prove_absent`."""
    for statement in (
        "SELECT id, content, outcome FROM outcomes WHERE id < ? ORDER BY id DESC LIMIT 1",
        "SELECT id, content, outcome FROM outcomes WHERE id > ? ORDER BY id LIMIT 1",
    ):
        neighbours: list[Any] = connection.execute(statement, (request,)).fetchall()
        for found, content, outcome in neighbours:
            if found == COUNTER:
                log.counted(content, outcome)
            elif digest(found, content, outcome[8:])[:8] != outcome[:8]:
                raise Damaged(
                    "The record of a request is not what was written. Stop writing to it, keep a copy, and restore a backup."
                )


def _lives(row: Known | Row, now: float) -> bool:
    return row.kind == RECORD and (row.expires is None or row.expires > now)
