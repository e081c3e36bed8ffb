"""One write transaction of a SQLite store: decide every commit whole, then write it.

A transaction holds the commits of a batch, in order. Each is decided before anything of it is written, so a rejected
commit leaves nothing and does not affect the others. Each increments the number of the last commit, and so does upkeep
that changes anything; so the number shows whether the tables changed.

The writer caches keys and streams. The cache is valid only if the last commit, read inside the
transaction, is the writer's own; otherwise another process has written, and the cache is cleared.

Where a commit puts and appends the same value in one scope, as state does with its journal, the value is stored once, in the
entry, and the record points to it. Forgetting the entry first gives the record a copy of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import apsw
import ormsgpack

from tenuto.backends.sqlite import reading, rows, schema
from tenuto.backends.sqlite.cache import Cache, Known
from tenuto.backends.sqlite.group import Job
from tenuto.backends.sqlite.requests import NO_LAST, find_last, find_outcome
from tenuto.backends.sqlite.rows import FLOOR, NO_VALUE, RECORD, SHIFT, STREAM, TOMBSTONE, End, Last
from tenuto.errors import Conflict, Damaged, InvalidInput, NewerFormat, RequestExpired
from tenuto.kernel import keys
from tenuto.kernel.contract import (
    REQUEST_LIFE,
    AnyCheck,
    Append,
    Check,
    Commit,
    Delete,
    Forget,
    Put,
    Write,
    digests_of,
    fingerprint,
)
from tenuto.kernel.transact import is_first_use

_BEGIN: Final = (
    "BEGIN IMMEDIATE; SELECT content, versions, (SELECT value FROM meta WHERE name = 'min_writer'), "  # noqa: S608
    f"(SELECT value FROM meta WHERE name = 'in_use') FROM requests WHERE id = x'{rows.LAST.hex()}'"
)
_SET_LAST: Final = "UPDATE requests SET at = ?2, content = ?3, versions = ?4, sum = ?5 WHERE id = ?1"
_ADD_ENTRY: Final = "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)"
_ADD_RECORD: Final = "INSERT INTO records VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_SET_VALUE: Final = (  # touches no index
    "UPDATE records SET version = ?, written = ?, entry = ?, digest = ?, sum = ?, value = ? WHERE id = ?"
)
_SET_RECORD: Final = (
    "UPDATE records SET kind = ?, version = ?, written = ?, expires = ?, entry = ?, digest = ?, sum = ?, value = ? "
    "WHERE id = ?"
)
_SHARED_BYTES: Final = 64
"""Shorter values are stored twice, because following a pointer costs more."""
_SWEPT: Final = 500
_NO_VERSIONS: Final = b"\x90"  # an empty list
_NONE: Final = Last(0, b"")
_log = logging.getLogger("tenuto.sqlite")


class CommitJob(Job):
    """One call of `commit`."""

    def __init__(self, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None) -> None:
        self.checks = checks
        self.writes = writes
        self.request = request
        self.digests = digests_of(writes)
        self.content = None if request is None else fingerprint(checks, writes, self.digests)

    def run(self, writer: Writer) -> Commit:
        """Apply the commit, or raise the reason why not; then nothing of it is written."""
        return writer.apply(self)


class WorkJob(Job):
    """Upkeep that needs the write lock; it shares a transaction with commits."""

    request: bytes | None = None

    def __init__(self, work: Callable[[Writer], object]) -> None:
        self._work = work

    def run(self, writer: Writer) -> object:
        """Do the work."""
        return self._work(writer)


class Writer:
    """The connection that writes. One thread at a time uses it, while it holds the lock file."""

    def __init__(self, connection: apsw.Connection, now: Callable[[], float], verify: Callable[[Last], None]) -> None:
        self.connection = connection
        self.committing = False
        """Whether COMMIT has begun in the latest transaction: then the outcome is unknown until it ends."""
        self.repeated = False
        """Whether the latest transaction answered a request from an earlier commit."""
        self.in_use = False
        """Whether the store is marked as in use: then it is incomplete without its write-ahead log."""
        self.declared = False
        """Whether the latest transaction has marked the store as in use."""
        self.last = _NONE
        self._run = connection.cursor().execute
        self._now = now
        self._verify = verify
        self._writing = False
        self._cache = Cache(connection)

    # -- the transaction -----------------------------------------------------------------------

    def transact(self, batch: Sequence[CommitJob | WorkJob], noted: Callable[[int, bytes], None]) -> bool:
        """Run a batch in one transaction; return whether anything was written, and pass the last commit to `noted`."""
        self.committing = self.repeated = self.declared = False
        self._begin()
        before, in_use = self.last, self.in_use
        for job in batch:
            self._one(job)
        if self.last is before:
            self._run("ROLLBACK")
            return False
        self._run(_SET_LAST, rows.last_row(self.last))
        if not in_use:
            self._run(schema.SET_IN_USE, (1,))
            self.in_use = self.declared = True
        self.committing = True
        self._run("COMMIT")
        noted(*self.last)
        return True

    def _begin(self) -> None:
        found: list[Any] = self._run(_BEGIN).fetchall()
        if not found:
            raise Damaged(NO_LAST)
        total, number, min_writer, in_use = found[0]
        if type(min_writer) is not int:
            raise Damaged("The store's format number is damaged. Stop writing to it and restore a backup.")
        if min_writer > schema.MIGRATIONS[-1].number:
            raise NewerFormat(
                f"A newer version of tenuto has upgraded this store to format {min_writer}. Nothing was written. "
                "Upgrade tenuto in this process and start it again."
            )
        self.in_use = in_use == 1
        if total != self.last.sum or number != self.last.number.to_bytes(8, "big") or self._cache.is_full:
            self._cache.clear()
            self.last = find_last(self.connection)
            self._verify(self.last)

    def _one(self, job: CommitJob | WorkJob) -> None:
        self._writing = False
        try:
            job.outcome = job.run(self)
        except (Conflict, Damaged, InvalidInput, RequestExpired) as error:
            if self._writing:  # partly written: roll back the whole transaction
                raise
            job.error = error

    def abandon(self) -> None:
        """Roll back and discard the cache."""
        self.last = _NONE
        self._cache.clear()
        if self.connection.in_transaction:
            self._run("ROLLBACK")

    # -- deciding ------------------------------------------------------------------------------

    def apply(self, job: CommitJob) -> Commit:
        """Decide a commit and write it; return its outcome, or the recorded one if it was applied before."""
        now, request = self._now(), job.request
        if request is not None and not is_first_use(request):
            made = find_outcome(self._run, request, job.content, now)
            if made is not None:
                self.repeated = True
                return made
        if job.checks:
            self._require(job.checks, now)
        versions, states, changes = self._decide(job.writes, now)
        if changes or request is not None:
            self._writing = True
            self._write(job, now, versions, states)
        return Commit(tuple(versions), now)

    def _decide(self, writes: Sequence[Write], now: float) -> tuple[list[int], list[Any], bool]:
        """Return the version of every write, the data that `_write` needs for it, and whether anything changes."""
        versions: list[int] = []
        states: list[Any] = []
        ends: dict[bytes, End] = {}
        changes = False
        for write in writes:
            key = write[0]
            if type(write) is Put:
                state: Any = self._cache.record(key)
                versions.append((state.version if state is not None else self._cache.floor(key)) + 1)
                changes = True
            elif type(write) is Append:
                end = ends.get(key) or self._cache.end(key) or End(self._cache.new_stream(key, ends), 0, 0.0, b"")
                ends[key] = End(end.stream, end.number + 1, end.written, end.sum)
                state = end.stream
                versions.append(end.number + 1)
                changes = True
            elif type(write) is Delete:
                state = self._cache.record(key)
                version = state.version if state is not None else 0
                if state is None or not state.is_live(now):
                    state = None
                else:
                    version, changes = version + 1, True
                versions.append(version)
            else:
                state = self._forgettable(write)
                versions.append(write.last)
                changes = True
            states.append(state)
        return versions, states, changes

    def _require(self, checks: Sequence[AnyCheck], now: float) -> None:
        different = []
        for check in checks:
            if type(check) is Check:
                head = self._cache.head(check.key)
                actual = head.version if head is not None and head.is_live(now) else 0
            else:
                end = self._cache.end(check[0])
                actual = end.number if end is not None else 0
            if actual != check[1]:
                different.append(check[0])
        if different:
            raise Conflict("Another commit came first. Nothing was written; read again and retry.", different)

    def _forgettable(self, write: Forget) -> list[Any]:
        """Return the verified rows whose values `write` erases."""
        end = self._cache.end(write.stream)
        if end is None:
            return []
        found = reading.find_range(self.connection, end.stream, write.first, write.last)
        for row in found:
            rows.verified_end(row, write.stream)
        return found

    # -- writing -------------------------------------------------------------------------------

    def _write(self, job: CommitJob, now: float, versions: list[int], states: list[Any]) -> None:
        """Write a decided commit; forget first, because `Forget` applies to what existed before."""
        packed = ormsgpack.packb(versions)
        shared: dict[bytes, tuple[bytes, int]] = {}
        for write, state in zip(job.writes, states, strict=True):
            if type(write) is Forget and state:
                self._forget_values(write, state)
        for write, state, digest in zip(job.writes, states, job.digests, strict=True):
            if type(write) is Append:
                shared[digest] = write.stream, self._append(write, state, now, packed, digest)
        for write, state, version, digest in zip(job.writes, states, versions, job.digests, strict=True):
            if type(write) is Put:
                stream, entry = shared.get(digest, (b"", None))
                if entry is not None and len(write.value) > _SHARED_BYTES and write.key.startswith(stream):
                    self._put(write, state, version, now, digest, entry)
                else:
                    self._put(write, state, version, now, digest, None)
            elif type(write) is Delete and state is not None:
                self._set(write.key, state, TOMBSTONE, version, now, now + REQUEST_LIFE)
        self._add_commit(now, job.request, job.content, packed)

    def _append(self, write: Append, stream_id: int, now: float, packed: bytes, digest: bytes) -> int:
        stream = write.stream
        last = self._cache.ends.get(stream)
        if last is None:
            last = End(stream_id, 0, 0.0, b"")
            self._set(stream, self._cache.head(stream), STREAM, stream_id, now, None)
            self._cache.last_stream = max(self._cache.last_stream, stream_id)
        number, written = last.number + 1, max(now, last.written)
        row_id = stream_id << SHIFT | number
        total = rows.entry_sum(row_id, written, packed, last.sum, digest)
        self._run(_ADD_ENTRY, (row_id, written, packed, last.sum, digest, total, write.value))
        self._cache.ends[stream] = End(stream_id, number, written, total)
        return row_id

    def _put(self, write: Put, head: Known | None, version: int, now: float, digest: bytes, entry: int | None) -> None:
        key, value, ttl = write
        if ttl is not None or head is None or head.kind != RECORD or head.expires is not None:
            expires = None if ttl is None else now + ttl
            self._set(key, head, RECORD, version, now, expires, digest=digest, entry=entry, value=value)
            return
        total = rows.record_sum(key, RECORD, version, now, None, digest)
        self._run(_SET_VALUE, (version, now, entry, digest, total, None if entry is not None else value, head.id))
        self._must_have_changed(key)
        self._cache.heads[key] = Known(head.id, RECORD, version, None)

    def _set(  # noqa: PLR0913 - the columns of a row
        self,
        key: bytes,
        head: Known | None,
        kind: int,
        version: int,
        written: float,
        expires: float | None,
        *,
        digest: bytes = NO_VALUE,
        entry: int | None = None,
        value: bytes | None = None,
    ) -> None:
        total = rows.record_sum(key, kind, version, written, expires, digest)
        values = (kind, version, written, expires, entry, digest, total, None if entry is not None else value)
        if head is None:
            self._run(_ADD_RECORD, (key, *values))
            row_id = self.connection.last_insert_rowid()
        else:
            row_id = head.id
            self._run(_SET_RECORD, (*values, row_id))
            self._must_have_changed(key)
        self._cache.heads[key] = Known(row_id, kind, version, expires)

    def _must_have_changed(self, key: bytes) -> None:
        if self.connection.changes() != 1:
            raise rows.damaged(key)

    def _forget_values(self, write: Forget, found: list[Any]) -> None:
        """Erase the values of entries; a record that shares one of them gets a copy first."""
        self._run(
            "UPDATE records SET value = (SELECT e.value FROM entries e WHERE e.id = records.entry), entry = NULL "
            "WHERE key >= ? AND key < ? AND entry BETWEEN ? AND ?",
            (write.stream, keys.after_prefix(write.stream), found[0][0], found[-1][0]),
        )
        self.connection.executemany(
            "UPDATE entries SET value = NULL, digest = ? WHERE id = ?",
            [(rows.forgotten_digest(digest[:16], total), row_id) for row_id, _, _, _, digest, total in found],
        )

    def _add_commit(self, at: float, request: bytes | None, content: bytes | None, versions: bytes) -> None:
        if request is not None and content is not None:
            self._run(schema.ADD_REQUEST, rows.request_row(request, at, content, versions))
        self.last = self.last.next(at, request, content, versions)

    # -- upkeep --------------------------------------------------------------------------------

    def sweep(self) -> bool:
        """Replace expired records by tombstones, and delete old tombstones and requests; return whether more is due."""
        now, run = self._now(), self._run
        self._writing = True
        oldest = int(max(0, now - REQUEST_LIFE - 60) * 1000).to_bytes(6, "big")
        run("DELETE FROM requests WHERE id IN (SELECT id FROM requests WHERE id < ? LIMIT ?)", (oldest, _SWEPT))
        removed = self.connection.changes()
        due: list[Any] = run("SELECT key FROM records WHERE expires <= ? LIMIT ?", (now, _SWEPT)).fetchall()
        ended = 0
        for (key,) in due:
            try:
                head = reading.find_head(self.connection, key)
            except Damaged as error:  # skip it; remove the others that are due
                _log.warning("an expired record could not be removed: %s", error)
                continue
            if head is not None:
                self._end_record(Known(head.id, head.kind, head.version, head.expires), key, head.written, now)
                ended += 1
        if removed or ended:
            self._add_commit(now, None, None, _NO_VERSIONS)
        # The number of due records alone would not do: damaged records stay due for ever.
        return removed >= _SWEPT or (ended > 0 and len(due) >= _SWEPT)

    def _end_record(self, head: Known, key: bytes, written: float, now: float) -> None:
        if head.kind == RECORD:
            self._set(key, head, TOMBSTONE, head.version, written, now + REQUEST_LIFE)
            return
        # The floor first: a key that is created again starts above every version that was ever seen.
        where = rows.floor_key(keys.scope_of(key))
        floor = self._cache.head(where)
        if floor is None or floor.version < head.version:
            self._set(where, floor, FLOOR, head.version, now, None)
        self._run("DELETE FROM records WHERE id = ?", (head.id,))
        self._cache.heads[key] = None
