"""A store in this process's memory, for tests and throwaway work. It is lost when the process ends.

It is the simplest implementation of the contract, so tests compare other backends with it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tenuto.errors import Closed, Conflict, InvalidInput, RequestExpired, RequestReused
from tenuto.kernel import codec, keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.clock import Clock, Steady, SystemClock
from tenuto.kernel.contract import (
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
            if reverse:
                end = len(found) if after is None else max(0, min(after - 1, len(found)))
                return found[max(0, end - limit) : end][::-1]
            start = max(0, after or 0)
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
                actual = len(self._streams.get(check[0], ()))
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
                for at in range(write.first - 1, min(write.last, len(stream))):
                    stream[at] = stream[at]._replace(value=b"", forgotten=True)
        for write in writes:
            if type(write) is Forget:
                versions.append(write.last)
            elif type(write) is Append:
                stream = self._streams.setdefault(write.stream, [])
                number = len(stream) + 1
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
