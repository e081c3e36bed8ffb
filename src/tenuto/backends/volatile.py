"""A store in this process's memory, for tests and throwaway work. It is lost when the process ends.

It is the simplest implementation of the contract, so tests compare other backends with it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tenuto.errors import Closed, Conflict, Damaged, InvalidInput, RequestExpired, RequestReused
from tenuto.kernel import codec, keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.clock import Clock, Steady, SystemClock
from tenuto.kernel.contract import (
    MAX_WRITES,
    NOT_BOTH,
    REQUEST_LIFE,
    AnyCheck,
    Append,
    Check,
    Commit,
    Delete,
    Entry,
    Finding,
    Forget,
    Put,
    Record,
    Write,
    digests_of,
    fingerprint,
    validate,
    validate_limit,
    validate_read,
    validate_scan,
)
from tenuto.kernel.loading import (
    NOT_LINKED,
    OTHER_CONTENT,
    is_same_entry,
    is_same_record,
    place_of,
    validate_load,
)
from tenuto.kernel.transact import request_time

_SWEEP_EVERY = 256


class _Done(NamedTuple):
    content: bytes
    outcome: Commit


class VolatileBackend:
    """Hold everything in dicts protected by one lock."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._steady = Steady(clock or SystemClock())
        self._lock = threading.RLock()
        self._rows: dict[bytes, Record] = {}  # including tombstones: see _dead
        self._order: list[bytes] = []  # keys of records that are not tombstones
        self._dead: dict[bytes, float] = {}  # key of a tombstone -> time of deletion
        self._floors: dict[bytes, int] = {}
        self._streams: dict[bytes, list[Entry]] = {}
        self._requests: dict[bytes, _Done] = {}
        self._bells: dict[bytes, list[Bell]] = {}
        self._commits = 0
        self._closed = False

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live record at each key, all from one snapshot."""
        validate_read(keys)
        with self._lock:
            return self._read(keys, self._now())

    def _read(self, keys: Sequence[bytes], now: float) -> list[Record | None]:
        return [self._live(key, now) for key in keys]

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Return up to `limit` live records with `prefix` in key order, all from one snapshot."""
        validate_scan(prefix, limit)
        with self._lock:
            return self._scan(prefix, after, limit, reverse, self._now())

    def _scan(self, prefix: bytes, after: bytes | None, limit: int, reverse: bool, now: float) -> list[Record]:  # noqa: FBT001 - as in `scan`
        end = keys.after_prefix(prefix)
        low = bisect_left(self._order, prefix)
        high = len(self._order) if end is None else bisect_left(self._order, end)
        if after is not None:
            if reverse:
                high = min(high, bisect_left(self._order, after))
            else:
                low = max(low, bisect_right(self._order, after))
        found: list[Record] = []
        for at in range(high - 1, low - 1, -1) if reverse else range(low, high):
            row = self._live(self._order[at], now)
            if row is not None:
                found.append(row)
                if len(found) == limit:
                    break
        return found

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Return up to `limit` entries of a stream in number order, all from one snapshot."""
        validate_limit(limit)
        with self._lock:
            self._now()
            found = self._streams.get(stream, [])
            gone = found[0].number - 1 if found else 0
            if reverse:
                end = len(found) if after is None else max(0, min(after - 1 - gone, len(found)))
                return found[max(0, end - limit) : end][::-1]
            start = max(0, (after or 0) - gone)
            return found[start : start + limit]

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Apply all writes if all checks hold, atomically."""
        validate(checks, writes, request)
        with self._lock:
            return self._commit(checks, writes, request, self._now())

    def _commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None, now: float) -> Commit:
        content = fingerprint(checks, writes, digests_of(writes))
        if request is not None:
            done = self._requests.get(request)
            if done is not None:
                if done.content != content:
                    raise RequestReused(
                        "This request id was used for another commit. Nothing was written; use a new id."
                    )
                return done.outcome._replace(repeated=True)
            if now - request_time(request) > REQUEST_LIFE:
                raise RequestExpired(
                    "This request id is too old for its outcome to be known. Nothing was written; read what is stored first."
                )
        self._require(checks, now)
        for write in writes:
            keys.scope_of(write[0])
            if write[0] in (self._rows if type(write) in (Append, Forget) else self._streams):
                raise InvalidInput(NOT_BOTH)
        outcome = Commit(self._apply(writes, now), now)
        if request is not None:
            self._requests[request] = _Done(content, outcome)
        self._commits += 1
        if self._commits % _SWEEP_EVERY == 0:
            self._sweep(now)
        self._ring(writes)
        return outcome

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """Return up to `limit` keys of streams with `prefix`, in key order."""
        validate_scan(prefix, limit)
        with self._lock:
            self._now()
            found = sorted(key for key in self._streams if key.startswith(prefix) and (after is None or key > after))
            return found[:limit]

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Store exported records and entries as they are, atomically; return how many were new."""
        validate_load(records, entries)
        with self._lock:
            return self._load(records, entries)

    def _load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        now = self._now()
        new = [record for record in records if self._is_new(record, now)]
        placed = [self._placed(stream, given) for stream, given in entries.items()]
        for record in new:
            old = self._rows.get(record.key)
            base = old.version if old else self._floors.get(keys.scope_of(record.key), 0)
            if old is None or self._dead.pop(record.key, None) is not None:
                insort(self._order, record.key)
            self._set(record._replace(version=max(record.version, base + 1)))
        for (stream, _), found in zip(entries.items(), placed, strict=True):
            self._streams[stream] = found[1]
        return len(new) + sum(count for count, _ in placed)

    def _is_new(self, record: Record, now: float) -> bool:
        if record.key in self._streams:
            raise InvalidInput(NOT_BOTH)
        live = self._live(record.key, now)
        if live is not None and not is_same_record(live, record):
            raise Conflict(OTHER_CONTENT, [record.key])
        return live is None and (record.expires_at is None or record.expires_at > now)

    def _placed(self, stream: bytes, given: Sequence[Entry]) -> tuple[int, list[Entry]]:
        if stream in self._rows:
            raise InvalidInput(NOT_BOTH)
        stored = self._streams.get(stream, [])
        place = place_of(given, stored[0].number, stored[-1].number) if stored else place_of(given, 0, 0)
        for entry in place.there:
            if not is_same_entry(stored[entry.number - stored[0].number], entry):
                raise Conflict(OTHER_CONTENT, [stream])
        before = self._chained(stream, place.before, place.before[0].previous if place.before else b"")
        if before and before[-1].digest != stored[0].previous:
            raise Damaged(NOT_LINKED)
        start = stored[-1].digest if stored else given[0].previous
        return len(place.before) + len(place.after), [*before, *stored, *self._chained(stream, place.after, start)]

    def _chained(self, stream: bytes, given: Sequence[Entry], previous: bytes) -> list[Entry]:
        made: list[Entry] = []
        for entry in given:
            own = codec.digest(stream, previous, codec.digest(entry.value))
            made.append(entry._replace(digest=own, previous=previous, versions=tuple(entry.versions)))
            previous = own
        return made

    def trim(self, stream: bytes, first: int) -> int:
        """Remove the entries before number `first`, the oldest 1,000 at most, never the last; return how many."""
        with self._lock:
            self._now()
            if stream in self._rows:
                raise InvalidInput(NOT_BOTH)
            found = self._streams.get(stream, [])
            count = max(0, min(first - found[0].number, len(found) - 1, MAX_WRITES)) if found else 0
            del found[:count]
            return count

    def bell(self, stream: bytes) -> Bell:
        """Return a bell that is set by every commit to the stream."""
        with self._lock:
            bells = self._bells.setdefault(stream, [])
            bells.append(bell := Bell(bells.remove))
        bell.live = True
        return bell

    def now(self) -> float:
        """Return the clock's time, never less than before."""
        return self._steady.now()

    def check(self) -> list[Finding]:
        """Return no findings: nothing is stored outside of this process's memory."""
        with self._lock:
            self._now()
            return []

    def stats(self) -> Mapping[str, Any]:
        """Return the number of records and the durability: none survives the process."""
        with self._lock:
            now = self._now()
            return {
                "backend": "volatile",
                "durability": "none",
                "records": sum(self._live(key, now) is not None for key in self._order),
                "entries": sum(len(stream) for stream in self._streams.values()),
            }

    def close(self) -> None:
        """Discard everything."""
        with self._lock:
            self._closed = True
            self._rows.clear()
            self._order.clear()
            self._streams.clear()

    def _ring(self, writes: Sequence[Write]) -> None:
        for write in writes:
            for bell in list(self._bells.get(write[0], ())):
                bell.ring()

    def _now(self) -> float:
        if self._closed:
            raise Closed("This store was closed. Open a new client.")
        return self._steady.now()

    def _live(self, key: bytes, now: float) -> Record | None:
        row = self._rows.get(key)
        if row is None or key in self._dead or (row.expires_at is not None and row.expires_at <= now):
            return None
        return row

    def _require(self, checks: Sequence[AnyCheck], now: float) -> None:
        different = []
        for check in checks:
            if type(check) is Check:
                row = self._live(check.key, now)
                actual = row.version if row else 0
            else:
                actual = stream[-1].number if (stream := self._streams.get(check[0])) else 0
            if actual != check[1]:
                different.append(check[0])
        if different:
            raise Conflict("Another commit came first. Nothing was written; read again and retry.", different)

    def _apply(self, writes: Sequence[Write], now: float) -> tuple[int, ...]:
        versions: list[int] = []
        appended: list[list[Entry]] = []
        for write in writes:
            if type(write) is Forget:
                stream = self._streams.get(write.stream, [])
                gone = stream[0].number - 1 if stream else 0
                for at in range(max(0, write.first - 1 - gone), min(write.last - gone, len(stream))):
                    stream[at] = stream[at]._replace(value=b"", forgotten=True)
        for write in writes:
            if type(write) is Forget:
                versions.append(write.last)
            elif type(write) is Append:
                stream = self._streams.setdefault(write.stream, [])
                number = stream[-1].number + 1 if stream else 1
                previous = stream[-1].digest if stream else b""
                own = codec.digest(write.stream, previous, codec.digest(write.value))
                written = max(now, stream[-1].written_at) if stream else now
                stream.append(Entry(number, write.value, written, own, previous, ()))
                appended.append(stream)
                versions.append(number)
            else:
                versions.append(self._apply_record(write, now))
        for stream in appended:
            for at in range(len(stream) - 1, -1, -1):
                if stream[at].versions:
                    break
                stream[at] = stream[at]._replace(versions=tuple(versions))
        return tuple(versions)

    def _apply_record(self, write: Put | Delete, now: float) -> int:
        old = self._rows.get(write.key)
        if type(write) is Delete:
            if self._live(write.key, now) is None or old is None:
                return old.version if old else 0
            self._end(write.key, now)
            self._set(Record(write.key, b"", old.version + 1, now))
            return old.version + 1
        base = old.version if old else self._floors.get(keys.scope_of(write.key), 0)
        ttl = write.ttl
        expires = None if ttl is None else now + ttl
        if old is None or self._dead.pop(write.key, None) is not None:
            insort(self._order, write.key)
        self._set(Record(write.key, write.value, base + 1, now, expires))
        return base + 1

    def _set(self, row: Record) -> None:
        self._rows[row.key] = row

    def _end(self, key: bytes, since: float) -> None:
        self._dead[key] = since
        del self._order[bisect_left(self._order, key)]

    def _sweep(self, now: float) -> None:
        for request in [r for r in self._requests if now - request_time(r) > REQUEST_LIFE]:
            del self._requests[request]
        for key, row in list(self._rows.items()):
            if row.expires_at is not None and row.expires_at <= now and key not in self._dead:
                self._end(key, row.expires_at)
        for key, since in list(self._dead.items()):
            if now - since > REQUEST_LIFE:
                scope = keys.scope_of(key)
                self._floors[scope] = max(self._floors.get(scope, 0), self._rows.pop(key).version)
                del self._dead[key]
