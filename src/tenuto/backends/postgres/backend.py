"""One schema of a Postgres database, shared by threads, processes and machines.

Durable by default: a commit is on the server's disk (and on its synchronous standbys) before it returns.
`durability="process"` commits without waiting for the disk: a commit survives the end of this process, but a
crash of the server loses the newest commits, each as a whole.

A commit is one round trip, a call of `commit_v1` (see `schema`); a read is one statement, so its result is one
snapshot. Time is the server's. If the reply to a commit is lost, its outcome is "unknown": commit again with
the same request id. After any other error nothing was applied.

The URL is libpq's, several hosts included, with additional options: `?schema=tenuto`, `?pool=10`
connections, `?timeout=30` seconds for a call, `?durability=full`. The first call opens the store.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import psycopg

from tenuto.backends._listener import Listener
from tenuto.backends._server_clock import ServerClock, moment
from tenuto.backends.postgres import commit as committing
from tenuto.backends.postgres import reading, rows, wire
from tenuto.backends.postgres import schema as schema_of
from tenuto.backends.postgres.bells import Notifier, listen, name_of
from tenuto.backends.postgres.calls import Calls, Refused, fetch
from tenuto.backends.postgres.check import check_rows, figures
from tenuto.backends.postgres.connections import Line, Pool
from tenuto.backends.postgres.moving import Moving
from tenuto.backends.postgres.url import conninfo, number, split
from tenuto.backends.postgres.wire import Parameter, statement
from tenuto.errors import Closed, InvalidInput, NewerFormat, RequestExpired, StorageUnavailable, TenutoError
from tenuto.kernel.bell import Bell
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import (
    REQUEST_LIFE,
    AnyCheck,
    Commit,
    Entry,
    Finding,
    Record,
    Write,
    fingerprint,
    validate,
    validate_limit,
    validate_read,
    validate_scan,
)
from tenuto.kernel.loading import validate_load
from tenuto.kernel.transact import is_first_use, new_request, request_time

Durability = Literal["full", "process"]

_SWEEP_SECONDS: Final = 30.0
_SWEEP_ROWS: Final = 500
_SWEEP_ROUNDS: Final = 20
_TIME: Final = "SELECT extract(epoch FROM clock_timestamp())::float8"
_FACTS: Final = """
SELECT pg_backend_pid(), extract(epoch FROM clock_timestamp())::float8, current_setting('server_encoding'),
    current_setting('fsync'), current_setting('server_version'), to_regclass(%s) IS NOT NULL
"""
_FAILURES: Final = (psycopg.Error, TenutoError)
_log = logging.getLogger("tenuto.postgres")


class PostgresBackend:
    """Store everything in one schema of a Postgres database. Nothing is opened before the first call."""

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "full",
        clock: Clock | None = None,
        schema: str = "tenuto",
        pool: int = 10,
        timeout: float = 30.0,
    ) -> None:
        base, chosen = split(url)
        self.schema = chosen.get("schema", schema)
        self.durability = chosen.get("durability", durability)
        self._size = number("pool", chosen.get("pool", pool), 1, 1_000)
        self._timeout = number("timeout", chosen.get("timeout", timeout), 0.05, 86_400)
        if self.durability not in ("full", "process"):
            raise InvalidInput(f'durability must be "full" or "process", not {self.durability!r}.')
        name = schema_of.schema_name(self.schema)
        self._sql = reading.statements(self.schema)
        self._commit_any, self._commit_one = committing.any_statement(name), committing.one_statement(name)
        self._moving = Moving(self.schema)
        self._sweep_sql = statement(f"SELECT {name}.sweep_v1($1, $2, $3)", "double", "bytea", "integer")
        self._conninfo, self.place = conninfo(base, self._timeout)
        self._wait = b"%dms" % max(1, int(self._timeout * 800))
        self._full = wire.TRUE if self.durability == "full" else wire.FALSE
        self._clock = ServerClock(clock)
        self._closed = False
        self._start_afresh()
        _living.add(self)

    def _start_afresh(self) -> None:
        self._opening = threading.Lock()
        self._pool = Pool(self._conninfo, self.place, int(self._size), self._timeout)
        calls = self._calls = Calls(self._pool, self.place, self._timeout)
        self._clock.start_afresh(lambda: float(calls.fetch(_TIME, ())[0][0]))
        pool, schema = self._pool, self.schema  # no reference to self: the listener must not keep the client alive
        self._listener, self._ringer = Listener(lambda: listen(pool, schema), _FAILURES), Notifier(pool, schema)
        for close in (pool.close, self._listener.close):
            weakref.finalize(self, close)  # close the connections of a client that was dropped without close()
        self._ready = False
        self._sweep_due = 0.0
        self._sweeping = threading.Lock()

    # -- the verbs ---------------------------------------------------------------------------

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live record at each key, all from one snapshot."""
        validate_read(keys)
        self.open()
        return reading.read(self._calls.ask, self._sql, self._given(), keys)

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Return up to `limit` live records with `prefix` in key order, all from one snapshot."""
        validate_scan(prefix, limit)
        self.open()
        return reading.scan(
            self._calls.ask, self._sql, self._given(), prefix, after=after, limit=limit, reverse=reverse
        )

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Return up to `limit` entries of a stream in number order, all from one snapshot."""
        validate_limit(limit)
        self.open()
        return reading.entries(self._calls.ask, self._sql, stream, after=after, limit=limit, reverse=reverse)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Apply all writes if all checks hold, atomically and durably, in one round trip."""
        validate(checks, writes, request)
        self.open()
        first = request is not None and is_first_use(request)
        try:
            done, watched = self._committed(checks, writes, request, first=first)
        except RequestExpired:
            self._clock.measure()
            if not first:
                raise
            # This client's clock was slow. The id was sent once and refused, so a new one is safe.
            done, watched = self._committed(checks, writes, new_request(self.now()), first=True)
        if watched:
            self._ringer.tell(watched)
        if not done.repeated and done.at >= self._sweep_due:
            self._sweep_due = done.at + _SWEEP_SECONDS
            threading.Thread(target=_sweep, args=(weakref.ref(self),), name="tenuto-sweep", daemon=True).start()
        return done

    def _committed(
        self, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None, *, first: bool
    ) -> tuple[Commit, list[int]]:
        """Send a commit; return its outcome and the streams whose watchers must be notified."""
        prefix, tenant = rows.tenant_of(checks[0][0] if checks else writes[0][0] if writes else b"")
        digests = [rows.content_of(write) for write in writes]
        sql = self._commit_one
        arguments = committing.one(len(prefix), checks, writes, digests) if tenant is not None else None
        if arguments is None:
            sql = self._commit_any
            if tenant is None:
                arguments = committing.nothing(checks, writes)
            else:
                arguments = committing.any_commit(len(prefix), checks, writes, digests)
        asked: tuple[Parameter, ...] = (None, None, None, wire.FALSE, None)
        if request is not None:
            made, is_first = wire.double(request_time(request)), wire.TRUE if first else wire.FALSE
            asked = request, fingerprint(checks, writes, digests), made, is_first, wire.double(time.time())
        call = (tenant or rows.NO_TENANT, self._given(), self._full, self._wait, *arguments, *asked)
        sent = moment()
        try:
            reply = self._calls.commit(sql, call, request)
        except Refused as refused:
            raise committing.conflict(str(refused), checks) from None
        done, watched = committing.outcome(reply, checks)
        if not done.repeated:
            self._clock.heard(done.at, sent)
        return done, watched

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """Return up to `limit` keys of streams with `prefix`, in key order."""
        validate_scan(prefix, limit)
        self.open()
        return reading.streams(self._calls.ask, self._sql, prefix, after=after, limit=limit)

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Store exported records and entries unchanged, in one transaction; return how many were new."""
        validate_load(records, entries)
        self.open()
        return self._moved(lambda line: self._moving.load(line, records, entries, self.now()))

    def trim(self, stream: bytes, first: int) -> int:
        """Remove up to 1,000 of the entries before `first`, never the last one; return how many."""
        self.open()
        return self._moved(lambda line: self._moving.trim(line, stream, first))

    def _moved(self, work: Callable[[Line], int]) -> int:
        """Run repeatable work in a transaction that is as durable as a commit."""

        def durably(line: Line) -> int:
            with line.transaction():
                mode = "on" if self.durability == "full" else "off"
                line.execute(f"SET LOCAL synchronous_commit = {mode}".encode())
                return work(line)

        return self._calls.run(durably)

    def bell(self, stream: bytes) -> Bell:
        """Return a bell, live unless a pooler prevents notifications."""
        prefix, tenant = rows.tenant_of(stream)
        if tenant is None or self._closed:
            return Bell()
        return self._listener.bell(name_of(self.schema, tenant, stream[len(prefix) :]))

    def now(self) -> float:
        """Return this client's estimate of the server's time, never less than before."""
        if not self._clock.is_set:
            self.open()
        return self._clock.now()

    def close(self) -> None:
        """Close every connection; calls in progress complete first."""
        self._closed = True
        self._ready = False
        self._listener.close()
        self._pool.close()
        if self._sweeping.acquire(timeout=min(self._timeout, 5.0)):  # a running sweep is short
            self._sweeping.release()

    def _given(self) -> bytes | None:
        """Return the time that the server must use, None for its own."""
        given = self._clock.given()
        return None if given is None else wire.double(given)

    # -- opening -----------------------------------------------------------------------------

    def open(self) -> None:
        """Connect, and create or upgrade the schema if needed. Opening twice is safe."""
        if self._ready:
            return
        if self._closed:
            raise Closed("This store was closed. Open a new client.")
        with self._opening:
            if not self._ready:
                self._calls.run(self._prepare)
                self._ready = True

    def _prepare(self, line: Line) -> None:
        sent = moment()
        pid, server_time, encoding, fsync, _version, there = fetch(line, _FACTS, (f"{self.schema}.migrations",))[0]
        self._clock.heard(server_time, sent)
        if pid != line.info.backend_pid:
            # Through a pooler, a statement prepared here may run on another server connection, or another client's
            # statement of the same name may run in its place.
            self._calls.without_prepared(line)
        if encoding != "UTF8":
            raise InvalidInput(f"The database of {self.place} has the encoding {encoding}. Use a database with UTF8.")
        if fsync != "on":
            _log.warning("%s runs with fsync=%s: a power loss can lose or damage committed data", self.place, fsync)
        if not there or self._applied(line) < schema_of.known():
            self._migrate(line)

    def _applied(self, line: Line) -> int:
        """Return the number of the newest applied migration, or raise `NewerFormat`."""
        table = f"{schema_of.schema_name(self.schema)}.migrations"
        sql = (
            f"SELECT coalesce(max(number), 0), coalesce(max(min_reader), 0), coalesce(max(min_writer), 0) FROM {table}"  # noqa: S608
        )
        number, reader, writer = fetch(line, sql, ())[0]
        if max(reader, writer) > schema_of.known():
            raise NewerFormat(
                f"{self.place} was written by a newer version of tenuto (format {number}, this version reads up to "
                f"{schema_of.known()}). Nothing was changed; upgrade tenuto to open it."
            )
        return int(number)

    def _migrate(self, line: Line) -> None:
        try:
            with line.transaction():
                # One process at a time; the next one finds it done.
                line.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 3))", (self.schema,))
                line.execute(schema_of.setup_sql(self.schema).encode())
                applied = self._applied(line)
                for migration in schema_of.MIGRATIONS:
                    if migration.number > applied:
                        line.execute(schema_of.step_sql(self.schema, migration).encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise StorageUnavailable(
                f"The schema {self.schema!r} of {self.place} is missing or older than this version of tenuto, and this "
                "role may not change it. Ask the owner to run the output of `tenuto migrate --sql` "
                "(tenuto.backends.postgres.migration_sql), then try again."
            ) from error

    def migrate(self) -> None:
        """Create or upgrade the schema now, in one transaction."""
        self.open()
        self._calls.run(self._migrate)

    def migrate_check(self) -> list[str]:
        """Return the names of the pending migrations, without applying them."""
        if self._closed:
            raise Closed("This store was closed. Open a new client.")

        def look(line: Line) -> int:
            there = fetch(line, "SELECT to_regclass(%s) IS NOT NULL", (f"{self.schema}.migrations",))[0][0]
            return self._applied(line) if there else 0

        applied = self._calls.run(look)
        return [migration.name for migration in schema_of.MIGRATIONS if migration.number > applied]

    # -- operations --------------------------------------------------------------------------

    def sweep(self) -> None:
        """Replace expired records by tombstones and delete old tombstones and requests, in small batches."""
        for _ in range(_SWEEP_ROUNDS):
            now = self.now()
            oldest = int(max(0, now - REQUEST_LIFE - 60) * 1000).to_bytes(6, "big")
            if self._calls.ask(self._sweep_sql, (self._given(), oldest, wire.integer(_SWEEP_ROWS)))[0][0] < _SWEEP_ROWS:
                return

    def check(self) -> list[Finding]:
        """Verify every record's digest, every stream's links and its head, page by page."""
        self.open()
        return check_rows(self._calls.fetch, schema_of.schema_name(self.schema))

    def stats(self) -> Mapping[str, Any]:
        """Return the server, its durability as configured now, and the size of the store."""
        self.open()
        found = figures(self._calls.fetch, schema_of.schema_name(self.schema), full=self.durability == "full")
        pool = {"size": self._pool.size, "idle": self._pool.idle, "in_use": self._pool.lent}
        return {
            "backend": "postgres",
            "place": self.place,
            "schema": self.schema,
            "durability": self.durability,
            **found,
            "pool": pool,
            "prepared_statements": self._pool.prepare,
        }

    def _after_fork(self) -> None:
        """Start over in a forked child: connections and locks belong to the parent."""
        self._pool.forget()
        self._listener.forget()
        self._start_afresh()

    def __repr__(self) -> str:
        """Show the address without the password, without opening the store."""
        return f"<PostgresBackend {self.place}, schema {self.schema}>"


def _sweep(ref: weakref.ref[PostgresBackend]) -> None:
    backend = ref()
    if backend is None or not backend._sweeping.acquire(blocking=False):
        return
    try:
        backend.sweep()
    except TenutoError as error:
        if not isinstance(error, Closed):
            _log.warning("the removal of expired data from %s failed and will be retried: %s", backend.place, error)
    finally:
        backend._sweeping.release()


_living: weakref.WeakSet[PostgresBackend] = weakref.WeakSet()


def _forget_parent() -> None:
    for backend in list(_living):
        backend._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
