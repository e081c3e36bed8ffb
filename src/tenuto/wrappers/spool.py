"""Keep commits in a local file while the store is away, and replay them in order when it is back. Opt-in.

The file is SQLite, synced at each commit and owned by one process. A commit is kept only if it can be decided later without
overwriting anything: each record that it writes has a check, its own or one of the version that this client saw last. So
another client's write in the meantime makes it a conflict, which is reported and stays in the file; later commits that
build on it are conflicts too. What expires, and what a lease fences, is never kept: it must not be decided later.

Versions returned for a kept commit are provisional. A later kept commit may check them: the replay puts the actual ones
in their place. The replay records the request id of each commit before it sends it and the outcome after it, so that one
that is killed anywhere applies nothing twice and skips nothing.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import apsw
import ormsgpack

from tenuto.errors import Closed, InvalidInput, RequestExpired, StorageFull, StorageUnavailable, TenutoError
from tenuto.kernel import keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import (
    AnyCheck,
    Append,
    Backend,
    Check,
    CheckEnd,
    Commit,
    Delete,
    Entry,
    Finding,
    Put,
    Record,
    Write,
    is_backend,
    validate,
)
from tenuto.kernel.transact import new_request

R = TypeVar("R")
_MANY: Final = 50_000
_PATIENCE: Final = 0.2
"""Seconds that a call waits for a replay by another thread before it fails."""
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS commits (
    number INTEGER PRIMARY KEY AUTOINCREMENT, request BLOB, sent BLOB, at REAL NOT NULL, body BLOB NOT NULL,
    provisional BLOB NOT NULL, state TEXT NOT NULL, actual BLOB, reason TEXT NOT NULL DEFAULT ''
) STRICT
"""


class SpoolConflict(NamedTuple):
    """A kept commit that the store rejected at its replay; nothing of it was applied."""

    number: int
    at: float
    """When it was kept, in seconds since 1970."""
    reason: str
    keys: tuple[bytes, ...]
    """The keys it would have written."""
    writes: tuple[Write, ...]


class Replayed(NamedTuple):
    """What a replay has done."""

    applied: int
    conflicts: int
    pending: int
    """Number of commits that are still kept, because the store is away."""


class Spool:
    """Forward every call; while the store is away, keep commits in a file and fail everything else at once.

    `path` is the file. `most` bounds it in bytes: a commit that does not fit fails
    as without a spool. After a failure the store is left alone for `retry` seconds; then a call, or the background thread,
    tries again. `on_conflict` is called with each conflict of a replay.
    """

    def __init__(
        self,
        backend: Backend,
        path: str | os.PathLike[str],
        *,
        most: int = 64 * 1024 * 1024,
        retry: float = 1.0,
        on_conflict: Callable[[SpoolConflict], None] | None = None,
    ) -> None:
        if not is_backend(backend):
            raise InvalidInput('A spool needs a backend: Spool(connect("postgresql://…"), "spool.db").')
        self._backend = backend
        self._path, self._most, self._retry, self._on_conflict = Path(path), most, retry, on_conflict
        self._lock = threading.RLock()
        """Of the file; held for moments."""
        self._replaying = threading.Lock()
        """Held while commits are sent, which may take as long as the store's timeout."""
        self._away_until = 0.0
        self._seen: dict[bytes, int] = {}
        """The version of each record, or the last number of each stream, that this client saw last."""
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._file = self._opened()
        self._pid = os.getpid()
        self._size = int(self._one("SELECT coalesce(sum(length(body)), 0) FROM commits"))
        self._pending = int(self._one("SELECT count(*) FROM commits WHERE state = 'kept'"))
        self.now = self._backend.now
        if self._pending:
            self._wake()

    def _opened(self) -> apsw.Connection:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        file = apsw.Connection(str(self._path))
        try:
            for statement in ("locking_mode = EXCLUSIVE", "journal_mode = WAL", "synchronous = FULL", "fullfsync = ON"):
                file.execute(f"PRAGMA {statement}").fetchall()
            file.execute(_SCHEMA)
            file.execute("BEGIN EXCLUSIVE")
            file.execute("COMMIT")
        except apsw.BusyError:
            file.close()
            raise InvalidInput(
                f"The spool {self._path} is open in another process. Give each process a file of its own."
            ) from None
        return file

    def _one(self, sql: str, *given: Any) -> Any:
        return next(iter(self._file.execute(sql, given)))[0]

    # -- the verbs -----------------------------------------------------------------------------------

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read, after everything kept was replayed."""
        found = self._through(lambda: self._backend.read(keys))
        for key, one in zip(keys, found, strict=True):
            self._note(key, 0 if one is None else one.version)
        return found

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Scan, after everything kept was replayed."""
        found = self._through(lambda: self._backend.scan(prefix, after=after, limit=limit, reverse=reverse))
        for one in found:
            self._note(one.key, one.version)
        return found

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Read entries, after everything kept was replayed."""
        found = self._through(lambda: self._backend.entries(stream, after=after, limit=limit, reverse=reverse))
        if reverse and after is None:
            self._note(stream, found[0].number if found else 0)
        return found

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Commit; while the store is away, keep the commit in the file, durably, if it can be decided later.

        The versions of a kept commit are provisional, and its success means: it is on this machine's disk, and will be
        applied or reported as a conflict. What cannot be kept raises `StorageUnavailable`, as without a spool.
        """
        validate(checks, writes, request)
        try:
            done = self._through(lambda: self._backend.commit(checks, writes, request=request))
        except StorageFull:
            raise
        except StorageUnavailable as error:
            kept = self._keep(checks, writes, request, unknown=error.outcome == "unknown")
            if kept is None:
                raise
            return kept
        for write, version in zip(writes, done.versions, strict=True):
            self._note(write[0], version)
        return done

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """List streams, after everything kept was replayed."""
        return self._through(lambda: self._backend.streams(prefix, after=after, limit=limit))

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Load, after everything kept was replayed."""
        return self._through(lambda: self._backend.load(records, entries))

    def trim(self, stream: bytes, first: int) -> int:
        """Trim a stream, after everything kept was replayed."""
        return self._through(lambda: self._backend.trim(stream, first))

    def bell(self, stream: bytes) -> Bell:
        """Return the backend's bell."""
        return self._backend.bell(stream)

    def check(self) -> list[Finding]:
        """Check the store; each conflict of the file is a finding."""
        found = self._through(self._backend.check)
        return [*found, *(Finding("spool conflict", f"commit {one.number}: {one.reason}") for one in self.conflicts())]

    def stats(self) -> Mapping[str, Any]:
        """Return the store's figures, and how much is kept."""
        figures = self._through(self._backend.stats)
        return {**figures, "spool": str(self._path), "spooled": self.pending, "conflicts": len(self.conflicts())}

    def close(self) -> None:
        """Close store and file. What is kept stays, for the next client that opens the file."""
        self._closed.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._lock:
            self._file.close()
        self._backend.close()

    # -- the file ------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Return the number of commits that are kept and not replayed yet."""
        return self._pending

    def conflicts(self) -> list[SpoolConflict]:
        """Return the commits that the store rejected, oldest first. They stay in the file until `discard`."""
        self._must_be_open()
        with self._lock:
            rows = list(
                self._file.execute("SELECT number, at, reason, body FROM commits WHERE state = 'conflict' ORDER BY 1")
            )
        return [_conflict(*row) for row in rows]

    def discard(self, number: int) -> bool:
        """Remove a conflict from the file, durably; return False if there is none of this number."""
        self._must_be_open()
        with self._lock:
            self._file.execute("DELETE FROM commits WHERE number = ? AND state = 'conflict'", (number,))
            return bool(self._file.changes())

    def replay(self) -> Replayed:
        """Apply what is kept, in order; return what was applied, what conflicts, and what is still kept."""
        self._must_be_open()
        with self._replaying:
            self._away_until = 0.0
            return self._replayed()

    # -- the store is away, and back -----------------------------------------------------------------

    def _through(self, call: Callable[[], R]) -> R:
        self._must_be_open()
        if os.getpid() != self._pid:
            raise InvalidInput(
                "A spool belongs to one process. Open another one, with a file of its own, after a fork."
            )
        if self._pending or time.monotonic() < self._away_until:
            if time.monotonic() >= self._away_until and self._replaying.acquire(timeout=_PATIENCE):
                try:
                    self._replayed()
                finally:
                    self._replaying.release()
            if self._pending or time.monotonic() < self._away_until:
                raise StorageUnavailable("The store is away. Nothing was done; it is tried again in a moment.")
        try:
            return call()
        except StorageFull:
            raise
        except StorageUnavailable:
            self._away_until = time.monotonic() + self._retry
            raise

    def _must_be_open(self) -> None:
        if self._closed.is_set():
            raise Closed("The spool was closed. Open another one.")

    def _note(self, key: bytes, version: int) -> None:
        if len(self._seen) > _MANY:
            self._seen.clear()
        self._seen[key] = version

    def _keep(
        self, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None, *, unknown: bool
    ) -> Commit | None:
        with self._lock:
            before = None if request is None else self._kept_before(request)
            if before is not None:
                return before
            decided = self._decidable(checks, writes)
            if decided is None or (unknown and (request is None or decided[0])):
                return None  # with an unknown outcome the commX further checks
            more, versions = decided
            body = _packed([*checks, *more], writes)
            if self._size + len(body) > self._most:
                return None
            at = time.time()
            sent = request if unknown else None
            row = (request, sent, at, body, ormsgpack.packb(versions))
            self._file.execute(
                "INSERT INTO commits (request, sent, at, body, provisional, state) VALUES (?, ?, ?, ?, ?, 'kept')", row
            )
            self._size += len(body)
            self._pending += 1
            self._note_all(writes, versions)
            self._wake()
            return Commit(tuple(versions), at)

    def _kept_before(self, request: bytes) -> Commit | None:
        """Return the provisional outcome of a kept commit with this request id."""
        rows: list[Any] = self._file.execute(
            "SELECT provisional, at FROM commits WHERE request = ? AND state = 'kept'", (request,)
        ).fetchall()
        return Commit(tuple(ormsgpack.unpackb(rows[0][0])), rows[0][1], repeated=True) if rows else None

    def _note_all(self, writes: Sequence[Write], versions: Sequence[int]) -> None:
        for write, version in zip(writes, versions, strict=True):
            self._note(write[0], version)

    def _decidable(
        self, checks: Sequence[AnyCheck], writes: Sequence[Write]
    ) -> tuple[list[AnyCheck], list[int]] | None:
        """Return the checks to add and the provisional versions, or None if the commit cannot be decided later."""
        own = {one[0]: one[1] for one in checks}
        if any(type(one) is Check and _is_fence(one.key) for one in checks):
            return None
        more: list[AnyCheck] = []
        versions: list[int] = []
        ends: dict[bytes, int] = {}
        for write in writes:
            base = ends.get(write[0], own.get(write[0], self._seen.get(write[0])))
            if (
                base is None
                or type(write) not in (Put, Delete, Append)
                or (type(write) is Put and write.ttl is not None)
            ):
                return None
            if type(write) is not Append and write[0] not in own:
                more.append(Check(write[0], base))
            ends[write[0]] = base + (0 if type(write) is Delete and not base else 1)
            versions.append(ends[write[0]])
        return (more, versions) if writes else None

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._follow, name="tenuto spool", daemon=True)
            self._thread.start()

    def _follow(self) -> None:
        while self._pending and not self._closed.wait(self._retry):
            with self._replaying:
                if not self._closed.is_set() and time.monotonic() >= self._away_until:
                    self._replayed()

    # -- replay ----------------------------------------------------------------------------------------

    def _replayed(self) -> Replayed:
        applied = conflicts = 0
        actual = self._actual()
        while (row := self._next()) is not None:
            number, sent, at, body, provisional = row
            checks, writes = _unpacked(body)
            try:
                done = self._sent(number, sent, _placed(checks, actual), writes)
            except StorageUnavailable:
                self._away_until = time.monotonic() + self._retry
                break
            except TenutoError as error:
                conflicts += 1
                self._away_until = 0.0
                self._end(number, "conflict", None, _reason(error))
                _record(actual, writes, provisional, None)
                for write in writes:
                    self._seen.pop(write[0], None)
                if self._on_conflict is not None:
                    self._on_conflict(_conflict(number, at, _reason(error), body))
            else:
                applied += 1
                self._end(number, "applied", ormsgpack.packb(list(done.versions)), "")
                _record(actual, writes, provisional, done.versions)
                self._away_until = 0.0
                if not self._pending:  # else later kept commits have noted later provisional versions
                    for write, version in zip(writes, done.versions, strict=True):
                        self._note(write[0], version)
        return Replayed(applied, conflicts, self._pending)

    def _next(self) -> tuple[int, bytes | None, float, bytes, list[int]] | None:
        sql = "SELECT number, sent, at, body, provisional FROM commits WHERE state = 'kept' ORDER BY number LIMIT 1"
        with self._lock:
            rows: list[Any] = self._file.execute(sql).fetchall()
        if not rows:
            return None
        number, sent, at, body, provisional = rows[0]
        return number, sent, at, body, ormsgpack.unpackb(provisional)

    def _end(self, number: int, state: str, actual: bytes | None, reason: str) -> None:
        with self._lock:
            self._file.execute(
                "UPDATE commits SET state = ?, actual = ?, reason = ? WHERE number = ?", (state, actual, reason, number)
            )
            self._pending -= 1
            if not self._pending:
                self._file.execute("DELETE FROM commits WHERE state = 'applied'")
                self._size = int(self._one("SELECT coalesce(sum(length(body)), 0) FROM commits"))

    def _sent(self, number: int, sent: bytes | None, checks: Sequence[AnyCheck], writes: Sequence[Write]) -> Commit:
        if sent is None:  # the request id is on disk before it is used, so that a replay after a kill repeats it
            sent = new_request(self._backend.now())
            with self._lock:
                self._file.execute("UPDATE commits SET sent = ? WHERE number = ?", (sent, number))
        return self._backend.commit(checks, writes, request=sent)

    def _actual(self) -> dict[tuple[bytes, int], int | None]:
        """Return the actual version of each provisional one, None for those of conflicts."""
        found: dict[tuple[bytes, int], int | None] = {}
        with self._lock:
            return self._actual_of(found)

    def _actual_of(self, found: dict[tuple[bytes, int], int | None]) -> dict[tuple[bytes, int], int | None]:
        first = self._one("SELECT coalesce(min(number), 0) FROM commits WHERE state <> 'conflict'")
        for body, provisional, versions in self._file.execute(
            "SELECT body, provisional, actual FROM commits WHERE state <> 'kept' AND number >= ? ORDER BY number",
            (first,),
        ):
            given = None if versions is None else ormsgpack.unpackb(versions)
            _record(found, _unpacked(body)[1], ormsgpack.unpackb(provisional), given)
        return found


def _reason(error: TenutoError) -> str:
    if isinstance(error, RequestExpired):
        return "It was sent more than an hour ago and the reply was lost: it may have been applied. Compare before you repeat it."
    return str(error)


def _record(
    found: dict[tuple[bytes, int], int | None], writes: Sequence[Write], provisional: Sequence[int],
    actual: Sequence[int] | None,
) -> None:  # fmt: skip
    for number, write in enumerate(writes):
        found[write[0], provisional[number]] = None if actual is None else actual[number]


def _placed(checks: Sequence[AnyCheck], actual: dict[tuple[bytes, int], int | None]) -> list[AnyCheck]:
    """Return checks with actual versions in the place of provisional ones."""
    placed: list[AnyCheck] = []
    for one in checks:
        version = actual.get((one[0], one[1]), one[1])
        if version is None:
            raise InvalidInput("It builds on a kept commit that the store rejected. Nothing was applied.")
        placed.append(type(one)(one[0], version))
    return placed


def _is_fence(key: bytes) -> bool:
    return key.endswith(keys.pack("token"))


def _packed(checks: Sequence[AnyCheck], writes: Sequence[Write]) -> bytes:
    kinds = {Put: 0, Delete: 1, Append: 2}
    return ormsgpack.packb(
        [[[type(one) is Check, *one] for one in checks], [[kinds[type(one)], *one] for one in writes]]
    )


def _unpacked(body: bytes) -> tuple[list[AnyCheck], list[Write]]:
    checks, writes = ormsgpack.unpackb(body)
    kinds: tuple[Any, ...] = (Put, Delete, Append)
    return (
        [Check(*rest) if record else CheckEnd(*rest) for record, *rest in checks],
        [kinds[kind](*rest) for kind, *rest in writes],
    )


def _conflict(number: int, at: float, reason: str, body: bytes) -> SpoolConflict:
    writes = tuple(_unpacked(body)[1])
    return SpoolConflict(number, at, reason, tuple(one[0] for one in writes), writes)
