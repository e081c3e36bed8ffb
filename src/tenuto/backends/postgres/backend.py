"""One schema of a Postgres database, shared by threads, processes and machines.

Durable by default: a commit is on the server's disk (and on its synchronous standbys) before it returns.
`durability="process"` commits without waiting for the disk: success survives the end of this process, and
a crash of the server takes the newest commits, never half of one.

A commit is one round trip, a call of `commit_v1` (see `_postgres_schema`), and a read is one statement:
all from one moment. Time is the server's. Whether a commit whose answer is missing was applied is
"unknown", and the same request id asks; in every other case of trouble nothing was applied.

The URL is libpq's, several hosts included, with a few options more: `?schema=tenuto`, `?pool=10`
connections, `?timeout=30` seconds for a call, `?durability=full`. Nothing is opened before the first call.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

from tenuto.errors import Closed, Conflict, InvalidInput, MissingDriver, NewerFormat, StorageUnavailable, TenutoError

try:
    import psycopg
except ImportError as missing:
    raise MissingDriver("The Postgres driver is not installed; run: pip install tenuto[postgres]") from missing

from tenuto.backends import _postgres_arguments as arguments_of
from tenuto.backends import _postgres_rows as rows
from tenuto.backends import _postgres_schema as schema_of
from tenuto.backends import _postgres_wire as wire
from tenuto.backends._listener import Listener
from tenuto.backends._postgres_bells import Ringer, listen, name_of
from tenuto.backends._postgres_check import check_rows, figures
from tenuto.backends._postgres_commit import any_commit, one_commit, outcome
from tenuto.backends._postgres_errors import AGAIN, READ_ONLY, lost, translated, unprepared
from tenuto.backends._postgres_pool import Line, Pool
from tenuto.backends._postgres_schema import migration_sql
from tenuto.backends._postgres_url import conninfo, number, split
from tenuto.backends._postgres_wire import Parameter, Statement, statement
from tenuto.kernel import keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.clock import Clock, Steady
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
from tenuto.kernel.transact import backoff, is_first_use, request_time

__all__ = ["PostgresBackend", "migration_sql"]

Durability = Literal["full", "process"]
T = TypeVar("T")

_SWEEP_SECONDS: Final = 30.0
_SWEEP_ROWS: Final = 500
_SWEEP_ROUNDS: Final = 20
_TRIES: Final = 12
_COLUMNS: Final = "value, version, written, expires, digest"
_ENTRY: Final = "number, value, written, digest, previous, versions, forgotten"
_FACTS: Final = """
SELECT pg_backend_pid(), extract(epoch FROM clock_timestamp())::float8, current_setting('server_encoding'),
    current_setting('fsync'), current_setting('server_version'), to_regclass(%s) IS NOT NULL
"""
_FAILURES: Final = (psycopg.Error, TenutoError)
_log = logging.getLogger("tenuto.postgres")


class _Statements(NamedTuple):
    """Every statement on a call's path, for one schema."""

    one: Statement
    many: Statement
    up: Statement
    down: Statement
    entries_up: Statement
    entries_down: Statement
    commit: Statement
    commit_one: Statement
    sweep: Statement


def _statements(schema: str) -> _Statements:
    name = schema_of.schema_name(schema)
    live = "NOT dead AND (expires IS NULL OR expires > coalesce($2, extract(epoch FROM statement_timestamp())::float8))"
    record = f"FROM {name}.records WHERE tenant = $1 AND {live} AND"
    within = f"SELECT key, {_COLUMNS} {record} key >= $3 AND key < $4 ORDER BY key"
    entry = f"SELECT {_ENTRY} FROM {name}.entries WHERE tenant = $1 AND stream = $2 AND number > $3 AND number < $4 ORDER BY number"  # noqa: S608
    scanned = ("text", "double", "bytea", "bytea", "integer")
    followed = ("text", "bytea", "bigint", "bigint", "integer")
    return _Statements(
        statement(f"SELECT {_COLUMNS} {record} key = $3", "text", "double", "bytea"),
        statement(f"SELECT key, {_COLUMNS} {record} key = ANY($3)", "text", "double", "bytea[]"),
        statement(f"{within} LIMIT $5", *scanned),
        statement(f"{within} DESC LIMIT $5", *scanned),
        statement(f"{entry} LIMIT $5", *followed),
        statement(f"{entry} DESC LIMIT $5", *followed),
        any_commit(name),
        one_commit(name),
        statement(f"SELECT {name}.sweep_v1($1, $2, $3)", "double", "bytea", "integer"),
    )


class PostgresBackend:
    """Keeps everything in one schema of a Postgres database. Nothing is opened before the first call."""

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
            raise InvalidInput(f'durability is "full" or "process", not {self.durability!r}.')
        self._sql = _statements(self.schema)
        self._conninfo, self.place = conninfo(base, self._timeout)
        self._wait = b"%dms" % max(1, int(self._timeout * 800))
        self._full = wire.TRUE if self.durability == "full" else wire.FALSE
        self._steady = Steady(clock) if clock is not None else None
        self._closed = False
        self._start_afresh()
        _living.add(self)

    def _start_afresh(self) -> None:
        self._opening = threading.Lock()
        self._timing = threading.Lock()
        self._pool = Pool(self._conninfo, self.place, int(self._size), self._timeout)
        pool, schema = self._pool, self.schema  # not this object: what listens must not keep it
        self._listener, self._ringer = Listener(lambda: listen(pool, schema), _FAILURES), Ringer(pool, schema)
        for close in (pool.close, self._listener.close):
            weakref.finalize(self, close)  # a client that is dropped unclosed leaves no connection behind
        self._ready = False
        self._offset: float | None = None  # what to add to the monotonic clock to have the server's
        self._latest = 0.0
        self._sweep_due = 0.0
        self._sweeping = threading.Lock()

    # -- the verbs ---------------------------------------------------------------------------

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live record at each key, all from one moment."""
        validate_read(keys)
        self.open()
        prefix, tenant = _tenant(keys[0]) if keys else (b"", None)
        if tenant is None:
            return [None] * len(keys)
        cut = len(prefix)
        if len(keys) == 1:
            found = self._ask(self._sql.one, (tenant, self._held(), keys[0][cut:]))
            return [rows.believed(keys[0], found[0]) if found else None]
        stored = self._ask(self._sql.many, (tenant, self._held(), wire.many_bytes([key[cut:] for key in keys])))
        records = {(key := prefix + row[0]): rows.believed(key, row[1:]) for row in stored}
        return [records.get(key) for key in keys]

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Return up to `limit` live records below `prefix` in key order, all from one moment."""
        validate_scan(prefix, limit)
        self.open()
        whole, tenant = _tenant(prefix)
        assert tenant is not None
        low, high = prefix, keys.after_prefix(prefix)
        if after is not None and reverse:
            high = after if high is None else min(high, after)
        elif after is not None:
            low = max(low, after + b"\x00")
        if not low.startswith(whole) or (high is not None and high <= low):
            return []
        cut = len(whole)
        end = high[cut:] if high is not None and high.startswith(whole) else rows.END
        sql = self._sql.down if reverse else self._sql.up
        found = self._ask(sql, (tenant, self._held(), low[cut:], end, wire.integer(limit)))
        return [rows.believed(whole + row[0], row[1:]) for row in found]

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Return up to `limit` entries of a stream by number, all from one moment."""
        validate_limit(limit)
        self.open()
        prefix, tenant = _tenant(stream)
        if tenant is None:
            return []
        low, high = 0, (1 << 63) - 1
        if after is not None:
            low, high = (0, max(0, min(after, high))) if reverse else (max(0, min(after, high)), high)
        sql = self._sql.entries_down if reverse else self._sql.entries_up
        bounds = wire.bigint(low), wire.bigint(high), wire.integer(limit)
        stored = self._ask(sql, (tenant, stream[len(prefix) :], *bounds))
        found = [rows.believed_entry(stream, row) for row in stored]
        return rows.in_a_row(stream, found, None if reverse else low + 1, reverse=reverse)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Apply all writes if all checks hold, atomically, and durably before it returns: one round trip."""
        validate(checks, writes, request)
        self.open()
        touched = checks[0][0] if checks else writes[0][0] if writes else b""
        prefix, tenant = _tenant(touched)
        digests = [rows.content_of(write) for write in writes]
        sql = self._sql.commit_one
        arguments = arguments_of.one(len(prefix), checks, writes, digests) if tenant is not None else None
        if arguments is None:
            sql = self._sql.commit
            if tenant is None:
                arguments = arguments_of.nothing(checks, writes)
            else:
                arguments = arguments_of.any_commit(len(prefix), checks, writes, digests)
        asked: tuple[Parameter, ...] = (None, None, None, wire.FALSE)
        if request is not None:
            made, first = wire.double(request_time(request)), wire.TRUE if is_first_use(request) else wire.FALSE
            asked = request, fingerprint(checks, writes, digests), made, first
        done, watched = self._send(sql, tenant or rows.NO_TENANT, (*arguments, *asked), checks, request)
        if watched:
            self._ringer.tell(watched)
        if not done.repeated and done.at >= self._sweep_due:
            self._sweep_due = done.at + _SWEEP_SECONDS
            threading.Thread(target=_sweep, args=(weakref.ref(self),), name="tenuto-sweep", daemon=True).start()
        return done

    def bell(self, stream: bytes) -> Bell:
        """Return a bell that is live where notifications come through, which they do not behind a pooler."""
        prefix, tenant = _tenant(stream)
        if tenant is None or self._closed:
            return Bell()
        return self._listener.bell(name_of(self.schema, tenant, stream[len(prefix) :]))

    def now(self) -> float:
        """Return the server's time as this client last measured it, never less than before."""
        if self._steady is not None:
            return self._steady.now()
        if self._offset is None:
            self.open()
        with self._timing:
            self._latest = max(self._latest, time.monotonic() + (self._offset or 0.0))
            return self._latest

    def close(self) -> None:
        """Let go of every connection; a call that is under way comes to its end."""
        self._closed = True
        self._ready = False
        self._listener.close()
        self._pool.close()
        if self._sweeping.acquire(timeout=min(self._timeout, 5.0)):  # a sweep under way is short
            self._sweeping.release()

    # -- calling the server --------------------------------------------------------------------

    def _held(self) -> bytes | None:
        return wire.double(self._steady.now()) if self._steady is not None else None

    def _ask(self, sql: Statement, arguments: Sequence[Parameter]) -> list[Any]:
        """Run one statement that changes nothing; a connection that broke is replaced once."""
        return self._call(lambda line: line.ask(sql, arguments))

    def _ask_rarely(self, sql: str, arguments: Sequence[Any]) -> list[Any]:
        return self._call(lambda line: _fetch(line, sql, arguments))

    def _call(self, work: Callable[[Line], T]) -> T:
        for final in (False, True):
            try:
                return self._once(work)
            except psycopg.Error as error:
                if final or not lost(error) or isinstance(error, psycopg.errors.ConnectionTimeout):
                    raise translated(error, self.place) from error
                if type(error) is not psycopg.OperationalError and error.sqlstate is None:
                    raise translated(error, self.place) from error
        raise AssertionError("unreachable")

    def _once(self, work: Callable[[Line], T]) -> T:
        pool = self._pool
        line = pool.take()
        try:
            return work(line)
        except psycopg.Error as error:
            if not unprepared(error) or not line.prepares:
                raise
            # Nothing was executed: a pooler gave this call another server than the one that was prepared.
            self._without_prepared(line)
            return work(line)
        finally:
            pool.give_back(line)

    def _without_prepared(self, line: Line) -> None:
        self._pool.prepare = line.prepares = False

    def _send(
        self,
        sql: Statement,
        tenant: bytes,
        arguments: tuple[Parameter, ...],
        checks: Sequence[AnyCheck],
        request: bytes | None,
    ) -> tuple[Commit, list[int]]:
        """Commit, and do so again when the server rolled it back because of another transaction."""
        pool = self._pool
        deadline = time.monotonic() + self._timeout
        pauses = backoff(_TRIES, first=0.002)
        while True:
            sent = False
            try:
                line = pool.take(max(0.001, deadline - time.monotonic()))
                try:
                    sent = True
                    begun = time.monotonic()
                    call = (tenant, self._held(), self._full, self._wait, *arguments)
                    try:
                        told = line.ask(sql, call)[0][0]
                    except psycopg.Error as error:
                        if not unprepared(error) or not line.prepares:
                            raise
                        self._without_prepared(line)
                        told = line.ask(sql, call)[0][0]
                finally:
                    pool.give_back(line)
            except psycopg.Error as error:
                if error.sqlstate == schema_of.CONFLICT:
                    at = [int(n) - 1 for n in (error.diag.message_detail or "").split(",")]
                    different = list(dict.fromkeys(checks[n][0] for n in at))
                    raise Conflict("Something else was written first; read again and decide anew.", different) from None
                if error.sqlstate == READ_ONLY:
                    pool.drop_idle()  # another host of the URL may be the primary now
                pause = next(pauses, None) if error.sqlstate in AGAIN else None
                if pause is None or time.monotonic() + pause > deadline:
                    raise translated(error, self.place, sent=sent, request=request) from error
                time.sleep(pause)
            else:
                done, watched = outcome(told)
                if self._steady is None and not done.repeated:
                    self._measured(done.at, begun, time.monotonic())
                return done, watched

    def _measured(self, server: float, sent: float, received: float) -> None:
        """Keep the offset where it agrees with this answer, else move it as little as will do."""
        with self._timing:
            least, most = server - received, server - sent
            known = self._offset
            self._offset = (least + most) / 2 if known is None else min(max(known, least), most)

    # -- opening -----------------------------------------------------------------------------

    def open(self) -> None:
        """Connect, and create or upgrade the schema where needed. Calling it again does nothing."""
        if self._ready:
            return
        if self._closed:
            raise Closed("This store was closed; open a new client.")
        with self._opening:
            if not self._ready:
                self._call(self._prepare)
                self._ready = True

    def _prepare(self, line: Line) -> None:
        begun = time.monotonic()
        pid, moment, encoding, fsync, _version, there = _fetch(line, _FACTS, (f"{self.schema}.migrations",))[0]
        if pid != line.info.backend_pid:
            # A pooler stands in between: a statement prepared here may run on another server, or, worse,
            # another client's of the same name may run in its place.
            self._without_prepared(line)
        if encoding != "UTF8":
            raise InvalidInput(f"The database of {self.place} has the encoding {encoding}; use one made with UTF8.")
        if fsync != "on":
            _log.warning("%s runs with fsync=%s: a power loss can take or damage what was committed", self.place, fsync)
        if not there or self._applied(line) < schema_of.known():
            self._migrate(line)
        self._measured(moment, begun, time.monotonic())

    def _applied(self, line: Line) -> int:
        """Return the number of the newest migration, or raise `NewerFormat`."""
        table = f"{schema_of.schema_name(self.schema)}.migrations"
        sql = (
            f"SELECT coalesce(max(number), 0), coalesce(max(min_reader), 0), coalesce(max(min_writer), 0) FROM {table}"  # noqa: S608
        )
        number, reader, writer = _fetch(line, sql, ())[0]
        if max(reader, writer) > schema_of.known():
            raise NewerFormat(
                f"{self.place} was written by a newer version of tenuto (format {number}, this one knows "
                f"{schema_of.known()}). It was left untouched; upgrade tenuto to open it."
            )
        return int(number)

    def _migrate(self, line: Line) -> None:
        try:
            with line.transaction():
                # One at a time; whoever comes second finds it done.
                line.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 3))", (self.schema,))
                line.execute(schema_of.book_sql(self.schema).encode())
                applied = self._applied(line)
                for migration in schema_of.MIGRATIONS:
                    if migration.number > applied:
                        line.execute(schema_of.step_sql(self.schema, migration).encode())
        except psycopg.errors.InsufficientPrivilege as error:
            raise StorageUnavailable(
                f"The schema {self.schema!r} of {self.place} is missing or older than this version of tenuto, and this "
                "role may not change it. Have somebody who may run what `tenuto migrate --sql` prints "
                "(tenuto.backends.postgres.migration_sql), then try again."
            ) from error

    def migrate(self) -> None:
        """Create or upgrade the schema now: all of it in one transaction, or nothing."""
        self.open()
        self._call(self._migrate)

    def migrate_check(self) -> list[str]:
        """Return the names of the migrations that are not applied yet; nothing is changed."""
        if self._closed:
            raise Closed("This store was closed; open a new client.")

        def look(line: Line) -> int:
            there = _fetch(line, "SELECT to_regclass(%s) IS NOT NULL", (f"{self.schema}.migrations",))[0][0]
            return self._applied(line) if there else 0

        applied = self._call(look)
        return [migration.name for migration in schema_of.MIGRATIONS if migration.number > applied]

    # -- operations --------------------------------------------------------------------------

    def sweep(self) -> None:
        """Turn what has expired into tombstones, and let go of old tombstones and requests, a few at a time."""
        for _ in range(_SWEEP_ROUNDS):
            now = self.now()
            oldest = int(max(0, now - REQUEST_LIFE - 60) * 1000).to_bytes(6, "big")
            if self._ask(self._sql.sweep, (self._held(), oldest, wire.integer(_SWEEP_ROWS)))[0][0] < _SWEEP_ROWS:
                return

    def check(self) -> list[Finding]:
        """Verify every record's digest, every stream's links and its head, a page at a time."""
        self.open()
        return check_rows(self._ask_rarely, schema_of.schema_name(self.schema))

    def stats(self) -> Mapping[str, Any]:
        """Say which server it is, how durable it is as it is set up now, and how large."""
        self.open()
        found = figures(self._ask_rarely, schema_of.schema_name(self.schema), full=self.durability == "full")
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
        """Start afresh in a forked child: the parent's connections and locks are not this process's."""
        self._pool.forget()
        self._listener.forget()
        self._start_afresh()

    def __repr__(self) -> str:
        """Say where, without the password; nothing is opened."""
        return f"<PostgresBackend {self.place}, schema {self.schema}>"


def _tenant(key: bytes) -> tuple[bytes, bytes | None]:
    prefix = keys.tenant_of(key)
    return prefix, rows.tenant_column(prefix)


def _fetch(line: Line, sql: str, arguments: Sequence[Any]) -> list[Any]:
    """Run a statement that is rarely used, through the driver's own cursor."""
    return line.cursor(binary=True).execute(sql.encode(), arguments, prepare=False).fetchall()


def _sweep(ref: weakref.ref[PostgresBackend]) -> None:
    backend = ref()
    if backend is None or not backend._sweeping.acquire(blocking=False):
        return
    try:
        backend.sweep()
    except TenutoError as error:
        if not isinstance(error, Closed):
            _log.warning("the sweep of %s failed and will be tried again: %s", backend.place, error)
    finally:
        backend._sweeping.release()


_living: weakref.WeakSet[PostgresBackend] = weakref.WeakSet()


def _forget_parent() -> None:
    for backend in list(_living):
        backend._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
