"""A Redis or Valkey server (6.2 or newer, no modules), alone, with Sentinel, or a cluster.

A commit is one script on one node. It is atomic, and durable when it returns if the server syncs its log at
each write, which `durability="full"` requires. With `durability="process"` a commit is as durable as the
server's settings: with `appendfsync everysec`, a power loss or a kill of the server during a sync loses the
last second or two of acknowledged commits. `stats()["survives"]` reports which applies. Replication is
asynchronous: with any setting, a failover may lose the newest commits.

Reads are scripts too, so that all records come from one snapshot and the server's time decides expiry. Native
expiry is never used; commits remove expired data in small amounts. Every record and entry carries a digest,
verified at every read. `scripts` describes the layout.

    redis://user:password@host:6379/0?prefix=agents&timeout=10       rediss:// with TLS
    redis+sentinel://s1:26379,s2:26379/service/0                     rediss+sentinel://
    redis+cluster://n1:7000,n2:7000                                  rediss+cluster://
    unix:///run/valkey.sock
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from tenuto.backends._listener import Listener
from tenuto.backends._server_clock import ServerClock, moment
from tenuto.backends.redis import bells, commit_lua, reading, rows, scripts
from tenuto.backends.redis import check as checking
from tenuto.backends.redis import commit as committing
from tenuto.backends.redis.calls import Calls
from tenuto.backends.redis.moving import Moving
from tenuto.backends.redis.server import inspect
from tenuto.backends.redis.url import parsed, valid_prefix, valid_seconds
from tenuto.errors import Closed, InvalidInput, RequestExpired, TenutoError
from tenuto.kernel.bell import Bell
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import (
    AnyCheck,
    Commit,
    Entry,
    Finding,
    Record,
    Write,
    validate,
    validate_limit,
    validate_read,
    validate_scan,
)
from tenuto.kernel.loading import validate_load
from tenuto.kernel.transact import is_first_use, new_request

Durability = Literal["full", "process"]

_SWEEP_EVERY: Final = 16
_SWEEP_MOST: Final = 500
_NAMES_KEPT: Final = 1_000
_NO_TENANT: Final = b"\x02\x00"
"""The tenant with an empty name, which holds the requests of commits without keys."""


class RedisBackend:
    """Store everything on a Redis or Valkey server. Nothing is connected before the first call."""

    def __init__(
        self,
        url: str,
        *,
        durability: Durability = "full",
        clock: Clock | None = None,
        timeout: float = 30.0,
        prefix: str = "tenuto",
    ) -> None:
        target, options = parsed(url)
        self.durability = options.get("durability", durability)
        if self.durability not in ("full", "process"):
            raise InvalidInput(f'durability must be "full" or "process", not {self.durability!r}.')
        self._timeout = valid_seconds(options.get("timeout", timeout))
        self._prefix = valid_prefix(options.get("prefix", prefix))
        self.target = target
        self._clock = ServerClock(clock)
        self._closed = False
        self._start_afresh()
        _living.add(self)

    def _start_afresh(self) -> None:
        self._opening = threading.Lock()
        self._ready = False
        where, durability = str(self.target), self.durability  # not self: the listener would keep the client alive
        calls = self._calls = Calls(self.target, self._timeout, lambda one: inspect(one, where, durability))
        self._clock.start_afresh(lambda: _server_time(calls))
        self._listener = Listener(lambda: bells.listen(calls), (TenutoError, *bells.FAILURES))
        for close in (calls.connections.close, self._listener.close):
            weakref.finalize(self, close)  # close the connections of a client that was dropped without close()
        self._names: dict[bytes, tuple[bytes, ...]] = {}
        self._moving = Moving(self._replied, self._written, self.entries)
        self._commits = 0
        self._left_behind = 0

    # -- the verbs ---------------------------------------------------------------------------

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live record at each key, all from one snapshot."""
        validate_read(keys)
        self.open()
        return reading.read(self._run, self._given(), keys)

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Return up to `limit` live records with `prefix` in key order, all from one snapshot."""
        validate_scan(prefix, limit)
        self.open()
        return reading.scan(self._run, self._given(), prefix, after=after, limit=limit, reverse=reverse)

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Return up to `limit` entries of a stream in number order, all from one snapshot."""
        validate_limit(limit)
        self.open()
        return reading.entries(self._replied, stream, after=after, limit=limit, reverse=reverse)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Apply all writes if all checks hold, atomically and durably."""
        validate(checks, writes, request)
        self.open()
        touched = writes[0][0] if writes else checks[0][0] if checks else None
        if touched is None and request is None:
            return Commit((), self.now())
        tenant = _NO_TENANT if touched is None else rows.tenant_of(touched)
        if tenant is None or any(check[0] == tenant + b"clock" for check in checks):
            raise InvalidInput("A key must begin with a tenant and a scope, both text. Build it with keys.pack.")
        first = request is not None and is_first_use(request)
        try:
            return self._committed(tenant, checks, writes, request, first=first)
        except RequestExpired:
            self._clock.measure()
            if not first:
                raise
            # This client's clock was slow. The id was sent once and refused, so a new one is safe.
            return self._committed(tenant, checks, writes, new_request(self.now()), first=True)

    def _committed(
        self,
        tenant: bytes,
        checks: Sequence[AnyCheck],
        writes: Sequence[Write],
        request: bytes | None,
        *,
        first: bool,
    ) -> Commit:
        """Send a commit and return its outcome."""
        arguments = committing.arguments(
            tenant,
            checks,
            writes,
            request,
            given=self._given(),
            sent="" if first else repr(time.time()),
            sweep=self._budget(writes),
            waits=self._calls.connections.waits,
        )
        sent = moment()
        done = committing.outcome(
            self._calls.commit(commit_lua.COMMIT, self._named(tenant), arguments, request), tenant
        )
        if not done.repeated:
            self._clock.heard(done.at, sent)
        return done

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """Return up to `limit` keys of streams with `prefix`, in key order. Each call reads all keys of the tenant."""
        validate_scan(prefix, limit)
        self.open()
        return self._moving.streams(prefix, after, limit)

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Store exported records and entries unchanged, atomically and durably; return how many were new."""
        validate_load(records, entries)
        self.open()
        return self._moving.load(records, entries, self._given())

    def trim(self, stream: bytes, first: int) -> int:
        """Remove up to 1,000 of the entries before `first`, never the last one; return how many."""
        self.open()
        return self._moving.trim(stream, first, self._given())

    def _written(self, script: scripts.Script, tenant: bytes, arguments: Sequence[Any]) -> Any:
        reply = self._calls.commit(script, self._named(tenant), arguments, None)
        if type(reply) is list and reply[0] == b"newer":
            raise committing.refused(b"newer", (), tenant)
        return reply

    def bell(self, stream: bytes) -> Bell:
        """Return a bell that is live on a server and with Sentinel; on a cluster, watchers poll."""
        tenant = rows.tenant_of(stream)
        if tenant is None or self._closed or self.target.kind == "cluster":
            return Bell()
        return self._listener.bell(self._named(tenant)[0] + b":" + stream[len(tenant) :])

    def now(self) -> float:
        """Return this client's estimate of the server's time, never less than before."""
        if not self._clock.is_set:
            self.open()
        return self._clock.now()

    def check(self) -> list[Finding]:
        """Verify every head, value, entry and link, and the index for scans, page by page."""
        self.open()
        return checking.check(self._calls, self._prefix)

    def stats(self) -> Mapping[str, Any]:
        """Return the server, its durability as configured now, the size of the store and the number of connections."""
        self.open()
        sizes = checking.sizes(self._calls, self._prefix)
        used = 0
        for place in self._calls.places():
            memory = self._calls.ask(place, "INFO", "memory").decode(errors="replace")
            used += next((int(line[12:]) for line in memory.splitlines() if line.startswith("used_memory:")), 0)
        facts = next(iter(self._calls.connections.facts.values()))
        return {
            "backend": "redis",
            "server": facts.server,
            "version": facts.version,
            "kind": self.target.kind,
            "where": str(self.target),
            "nodes": len(self._calls.places()),
            "prefix": self._prefix.decode(),
            "durability": self.durability,
            "survives": facts.survives,
            "appendonly": facts.appendonly or "unknown",
            "appendfsync": facts.appendfsync or "unknown",
            "maxmemory_policy": facts.policy or "unknown",
            "unchecked": list(facts.unchecked),
            **sizes,
            "bytes": used,
            "connections": self._calls.connections.made,
            "connections_idle": self._calls.connections.idle,
            "timeout": self._timeout,
        }

    def close(self) -> None:
        """Close every connection; calls in other threads complete first."""
        self._closed = True
        self._listener.close()
        self._calls.connections.close()

    # -- opening -----------------------------------------------------------------------------

    def open(self) -> None:
        """Connect, and refuse a server that could lose data. Opening twice is safe."""
        if self._ready and not self._closed:
            return
        if self._closed:
            raise Closed(f"The store at {self.target} was closed. Open a new client.")
        with self._opening:
            if not self._ready:
                self._connect_all()
                self._ready = True

    def _connect_all(self) -> None:
        for place in self._calls.places():
            self._calls.ask(place, "PING")  # connect to each node, and so inspect it
        self._clock.measure()

    def _after_fork(self) -> None:
        """Start over in a forked child: connections and locks belong to the parent."""
        _inherited.append(self._calls)
        self._listener.forget()
        self._start_afresh()

    # -- one call ----------------------------------------------------------------------------

    def _run(self, script: scripts.Script, tenant: bytes, arguments: Sequence[Any]) -> tuple[float, list[Any]]:
        """Run a script whose reply begins with the server's time; return the time and the rest."""
        sent = moment()
        raw, *rest = self._replied(script, tenant, arguments)
        server_time = rows.time_in(raw)
        self._clock.heard(server_time, sent)
        return server_time, rest

    def _replied(self, script: scripts.Script, tenant: bytes, arguments: Sequence[Any]) -> list[Any]:
        reply: list[Any] = self._calls.run(script, self._named(tenant), arguments)
        if reply[0] == b"newer":
            raise committing.refused(b"newer", (), tenant)
        return reply

    def _named(self, tenant: bytes) -> tuple[bytes, ...]:
        names = self._names.get(tenant)
        if names is None:
            if len(self._names) >= _NAMES_KEPT:
                self._names = {}
            names = self._names[tenant] = tuple(rows.names(self._prefix, tenant))
        return names

    def _given(self) -> bytes | str:
        """Return the time that the server must use, empty for its own."""
        given = self._clock.given()
        return b"" if given is None else repr(given)

    def _budget(self, writes: Sequence[Write]) -> int:
        """Return how much this commit removes: occasionally, slightly more than was left since the last time."""
        self._left_behind += len(writes)
        self._commits += 1
        if self._commits % _SWEEP_EVERY:
            return 0
        budget, self._left_behind = min(20 + self._left_behind, _SWEEP_MOST), 0
        return budget


def _server_time(calls: Calls) -> float:
    seconds, micros = calls.ask(calls.places()[0], "TIME")
    return int(seconds) + int(micros) / 1e6


_living: weakref.WeakSet[RedisBackend] = weakref.WeakSet()
_inherited: list[Any] = []


def _forget_parent() -> None:
    for backend in list(_living):
        backend._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
