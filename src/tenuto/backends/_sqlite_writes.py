"""One write transaction of a SQLite store: find what is there, decide everything, then write.

A commit is validated whole before anything of it is written, so several commits share a transaction and
one that fails leaves nothing behind.

The writer remembers the rows that it wrote last. They are used again only if the commit counter says
that nobody else has committed since, which is the common case: then a commit reads nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import apsw
import ormsgpack

from tenuto.backends import _sqlite_rows as rows
from tenuto.backends._group import Job
from tenuto.backends._sqlite_rows import FLOOR, RECORD, STREAM, TOMBSTONE, End, Head
from tenuto.backends._sqlite_schema import COUNTER
from tenuto.errors import Conflict, Damaged, InvalidInput, RequestExpired, RequestReused
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

_REMEMBERED: Final = 4_096
_EMPTY: Final = rows.digest_of(None)
_SWEEP_ROWS: Final = 500
_ADD_ENTRY: Final = (
    "INSERT INTO entries (id, written, versions, previous, digest, sum, value) VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_ADD_RECORD: Final = (
    "INSERT INTO records (key, kind, version, written, expires, digest, sum, value) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_SET_RECORD: Final = (
    "UPDATE records SET kind = ?, version = ?, written = ?, expires = ?, digest = ?, sum = ?, value = ? WHERE id = ?"
)


class CommitJob(Job):
    """One call of `commit`."""

    def __init__(self, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None) -> None:
        self.checks = checks
        self.writes = writes
        self.request = request
        self.digests = [content_of(write) for write in writes]
        self.content = fingerprint(checks, writes, self.digests) if request is not None else b""


class WorkJob(Job):
    """Upkeep that needs the write lock; it shares a transaction with whoever commits."""

    request: bytes | None = None

    def __init__(self, work: Callable[[Writer], bool]) -> None:
        self.work = work


class Counter(NamedTuple):
    """How many transactions were committed, and a digest of them all."""

    number: int
    chain: bytes


class Writer:
    """The connection that writes. One thread at a time uses it, holding the lock file."""

    def __init__(self, connection: apsw.Connection, now: Callable[[], float]) -> None:
        self.connection = connection
        self._run = connection.cursor().execute
        self._now = now
        self._counter = Counter(-1, b"")
        self._heads: dict[bytes, Head] = {}
        self._floorless: set[bytes] = set()  # scopes without a floor, as surely as what is in `_heads`
        self._ends: dict[bytes, End] = {}
        self._streams: dict[bytes, int] = {}  # a stream keeps its id for ever, whoever writes to it
        self._requests: dict[bytes, tuple[bytes, bytes]] = {}
        self._sums: list[bytes] = []

    def begin(self, batch: Sequence[Any], known: Counter | None) -> Counter:
        """Begin a transaction and return how far the store has come.

        `known` is the counter if nobody else has committed since this writer did; then what it wrote
        is still there, and request ids made in this process and never sent need no looking up.
        """
        self._run("BEGIN IMMEDIATE")
        self._sums = []
        self._requests.clear()
        wanted = [job.request for job in batch if job.request is not None and not is_first_use(job.request)]
        if known is None or wanted or known != self._counter:
            self._requests = _requests(self.connection, [COUNTER, *wanted])
            known = _counted(self._requests)
        if known != self._counter or len(self._heads) + len(self._ends) > _REMEMBERED:
            self._heads.clear()
            self._ends.clear()
            self._floorless.clear()
        return known

    def perform(self, job: Any) -> None:
        """Do one job; if it raises, nothing of it has been written."""
        if type(job) is WorkJob:
            if job.work(self):
                self._sums.append(b"")
            return
        now = self._now()
        request = job.request
        if request is not None and request in self._requests:
            job.outcome = _outcome(request, *self._requests[request], job.content)
            return
        if request is not None and now - request_time(request) > REQUEST_LIFE:
            raise RequestExpired(
                "This request id is too old for its outcome to be known. Read what is stored, then decide."
            )
        self._require(job.checks, now)
        plan = self._plan(job, now)
        versions = self._apply(plan, job, now)
        job.outcome = outcome = Commit(versions, now)
        if request is not None:
            body = ormsgpack.packb([outcome.at, *versions])
            record = (job.content, digest(request, job.content, body)[:8] + body)
            self._requests[request] = record
            self._sums.append(record[1])
            self._run("INSERT INTO requests VALUES (?, ?, ?)", (request, *record))

    def finish(self, counter: Counter) -> Counter | None:
        """Count the transaction, if it changed anything; COMMIT is the caller's next line."""
        if not self._sums:
            return None
        counter = Counter(counter.number + 1, digest(counter.chain, *self._sums))
        number = counter.number.to_bytes(8, "big")
        self._run(
            "INSERT OR REPLACE INTO requests VALUES (?, ?, ?)",
            (COUNTER, counter.chain, number + digest(COUNTER, counter.chain, number)[:8]),
        )
        return counter

    def committed(self, counter: Counter) -> None:
        """Keep what was written for the next transaction."""
        self._counter = counter

    # -- deciding ------------------------------------------------------------------------------

    def _head(self, key: bytes) -> Head | None:
        known = self._heads.get(key)
        return known if known is not None else rows.head(self.connection, key)

    def _end(self, stream: bytes) -> End | None:
        known = self._ends.get(stream)
        if known is not None:
            return known
        number = self._streams.get(stream)
        if number is None:
            row = rows.head(self.connection, stream)
            if row is None:
                return None
            if row.kind != STREAM:
                raise InvalidInput(NOT_BOTH)
            if len(self._streams) >= _REMEMBERED:
                self._streams.clear()
            self._streams[stream] = number = row.version
        return rows.last_entry(self.connection, stream, number)

    def _require(self, checks: Sequence[AnyCheck], now: float) -> None:
        different = []
        for check in checks:
            if type(check) is Check:
                row = self._head(check.key)
                actual = row.version if row is not None and _lives(row, now) else 0
            else:
                end = self._end(check[0])
                actual = end.number if end is not None else 0
            if actual != check[1]:
                different.append(check[0])
        if different:
            raise Conflict("Something else was written first; read again and decide anew.", different)

    def _plan(self, job: CommitJob, now: float) -> list[tuple[Head | End | None, int]]:
        """Decide the version of every write, and find what it follows; nothing is written here."""
        plan: list[tuple[Head | End | None, int]] = []
        numbers: dict[bytes, int] = {}
        for write in job.writes:
            if type(write) is Forget:
                plan.append((self._end(write.stream), write.last))
            elif type(write) is Append:
                stream = write.stream
                end = self._end(stream)
                if stream not in numbers:
                    numbers[stream] = end.number if end is not None else 0
                    if end is None:
                        keys.scope_of(stream)
                numbers[stream] += 1
                plan.append((end, numbers[stream]))
            else:
                row = self._head(write[0])
                if row is not None and row.kind in (STREAM, FLOOR):
                    raise InvalidInput(NOT_BOTH)
                plan.append((row, self._version(write, row, now)))
        return plan

    def _version(self, write: Put | Delete, row: Head | None, now: float) -> int:
        if type(write) is Delete:
            if row is None:
                return 0
            return row.version + 1 if _lives(row, now) else row.version
        if row is not None:
            return row.version + 1
        scope = keys.scope_of(write.key)
        if scope in self._floorless:
            return 1
        floor = self._head(rows.floor_key(scope))
        if floor is None:
            self._floorless.add(scope)
        return (floor.version if floor is not None else 0) + 1

    # -- writing -------------------------------------------------------------------------------

    def _apply(self, plan: list[tuple[Head | End | None, int]], job: CommitJob, now: float) -> tuple[int, ...]:
        versions = tuple([version for _, version in plan])
        stamps = b""
        for write, (end, _) in zip(job.writes, plan, strict=True):
            if type(write) is Forget and type(end) is End:
                self._forget(write, end)
        for write, (old, version), own in zip(job.writes, plan, job.digests, strict=True):
            if type(write) is Forget:
                continue
            if type(write) is Append:
                stamps = stamps or ormsgpack.packb(versions)
                self._append(write, version, stamps, own, now)
            elif type(write) is Put:
                expires = None if write.ttl is None else now + write.ttl
                self._set(old, write.key, RECORD, version, now, expires, own, write.value)
            elif old is not None and version > old[3]:  # type: ignore[operator]
                self._set(old, write[0], TOMBSTONE, version, now, now + REQUEST_LIFE, _EMPTY, None)
        return versions

    def _append(self, write: Append, number: int, stamps: bytes, own: bytes, now: float) -> None:
        end = self._end(write.stream)
        if end is None:
            new: list[Any] = self._run("SELECT coalesce(max(id), 0) + 1 FROM records").fetchall()
            stream = new[0][0]
            self._set(None, write.stream, STREAM, stream, now, None, _EMPTY, None)
            written, previous = now, b""
        else:
            stream, written, previous = end.stream, max(now, end.written), end.sum
        row_id = rows.entry_id(stream, number)
        total = rows.seal_entry(row_id, written, stamps, previous, own)
        self._run(_ADD_ENTRY, (row_id, written, stamps, previous, own, total, write.value))
        self._ends[write.stream] = End(stream, number, written, total)
        self._sums.append(total)

    def _forget(self, write: Forget, end: End) -> None:
        found = rows.forgettable(self.connection, write.stream, end.stream, write.first, min(write.last, end.number))
        for row_id, _, _, _, total, _, own in found:
            gone = rows.forgotten(own, total)
            self._run("UPDATE entries SET value = NULL, digest = ? WHERE id = ?", (gone, row_id))
            self._sums.append(gone)

    def _set(  # noqa: PLR0913 - a row has so many parts
        self,
        old: Any,
        key: bytes,
        kind: int,
        version: int,
        written: float,
        expires: float | None,
        own: bytes,
        value: bytes | None,
    ) -> None:
        total = rows.seal_record(key, kind, version, written, expires, own)
        if old is None:
            self._run(_ADD_RECORD, (key, kind, version, written, expires, own, total, value))
            row_id = self.connection.last_insert_rowid()
        else:
            row_id = old.id
            self._run(_SET_RECORD, (kind, version, written, expires, own, total, value, row_id))
        self._heads[key] = Head(row_id, key, kind, version, written, expires, own, total)
        self._sums.append(total)

    # -- upkeep --------------------------------------------------------------------------------

    def sweep(self) -> bool:
        """Turn what has expired into tombstones, and let go of old tombstones and requests."""
        now = self._now()
        run = self._run
        oldest = int(max(0, now - REQUEST_LIFE - 60) * 1000).to_bytes(6, "big")
        run("DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE id < ? LIMIT ?)", (oldest, _SWEEP_ROWS))
        changed = self.connection.changes() > 0
        due: list[Any] = run("SELECT key FROM records WHERE expires <= ? LIMIT ?", (now, _SWEEP_ROWS)).fetchall()
        self._heads.clear()
        self._floorless.clear()
        for (key,) in due:
            row = rows.head(self.connection, key)
            if row is None:
                continue
            if row.kind == RECORD:
                self._set(row, key, TOMBSTONE, row.version, row.written, now + REQUEST_LIFE, _EMPTY, None)
                continue
            # The floor first: a key made anew starts above every version that was ever seen.
            where = rows.floor_key(keys.scope_of(key))
            floor = self._head(where)
            if floor is None or floor.version < row.version:
                self._set(floor, where, FLOOR, row.version, now, None, _EMPTY, None)
            run("DELETE FROM records WHERE id = ?", (row.id,))
            self._heads.pop(key, None)
        return changed or bool(due)


def count(connection: apsw.Connection) -> Counter:
    """Return how far a store has come."""
    return _counted(_requests(connection, [COUNTER]))


def _requests(connection: apsw.Connection, wanted: Sequence[bytes]) -> dict[bytes, tuple[bytes, bytes]]:
    marks = ",".join("?" * len(wanted))
    found = connection.execute(f"SELECT id, content, outcome FROM requests WHERE id IN ({marks})", wanted)  # noqa: S608
    stored: list[Any] = found.fetchall()
    known = {row[0]: (row[1], row[2]) for row in stored}
    for request in wanted:
        if request not in known and request != COUNTER:
            _prove_unknown(connection, request)
    return known


def _prove_unknown(connection: apsw.Connection, request: bytes) -> None:
    """Believe that a request is unknown only if both of its neighbours are whole; see `prove_absent`."""
    for statement in (
        "SELECT id, content, outcome FROM requests WHERE id < ? ORDER BY id DESC LIMIT 1",
        "SELECT id, content, outcome FROM requests WHERE id > ? ORDER BY id LIMIT 1",
    ):
        neighbours: list[Any] = connection.execute(statement, (request,)).fetchall()
        for found, content, outcome in neighbours:
            if found == COUNTER:
                _counted({COUNTER: (content, outcome)})
            elif digest(found, content, outcome[8:])[:8] != outcome[:8]:
                raise Damaged("The record of a request is not what was written. Restore a backup.")


def _counted(requests: dict[bytes, tuple[bytes, bytes]]) -> Counter:
    if COUNTER not in requests:
        return Counter(0, bytes(16))
    chain, outcome = requests[COUNTER]
    if digest(COUNTER, chain, outcome[:8])[:8] != outcome[8:]:
        raise Damaged("The commit counter is not what was written. Restore a backup.")
    return Counter(int.from_bytes(outcome[:8], "big"), chain)


def _outcome(request: bytes, known: bytes, outcome: bytes, content: bytes) -> Commit:
    if digest(request, known, outcome[8:])[:8] != outcome[:8]:
        raise Damaged("The record of a request is not what was written. Restore a backup.")
    if known != content:
        raise RequestReused("This request id was used for another commit; make a new one.")
    at, *versions = ormsgpack.unpackb(outcome[8:])
    return Commit(tuple(versions), at, repeated=True)


def _lives(row: Head, now: float) -> bool:
    return row.kind == RECORD and (row.expires is None or row.expires > now)
