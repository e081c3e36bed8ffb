"""A Redis or Valkey server (6.2 or newer, no modules), alone, behind Sentinel, or a cluster.

A commit is one script on one node: atomic, and durable when it returns if the server syncs its log at each
write, which `durability="full"` requires. With `durability="process"` a commit is as durable as the server
is set up to be: with `appendfsync everysec` a power loss, and also a kill of the server while it syncs,
takes the last second or two, acknowledged or not. `stats()["survives"]` says which it is. Replication is
asynchronous on these servers: a failover may lose the newest commits whatever the setting.

Reads are scripts too, so that several records are from one moment and expiry is decided by the server's
time. Native expiry is never used; what is over is let go a little at a time, by commits. Every record and
entry carries a digest, checked at every read; see `_redis_script` for what lies where.

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
from itertools import pairwise
from typing import Any, Final, Literal

from tenuto.backends._listener import Listener
from tenuto.errors import (
    Closed,
    Conflict,
    InvalidInput,
    MissingDriver,
    NewerFormat,
    RequestExpired,
    RequestReused,
    TenutoError,
    TooLarge,
)
from tenuto.kernel import keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.clock import Clock, Steady
from tenuto.kernel.contract import (
    NOT_BOTH,
    AnyCheck,
    Append,
    Check,
    Commit,
    Entry,
    Finding,
    Forget,
    Put,
    Record,
    Write,
    content_of,
    fingerprint,
    validate,
    validate_limit,
    validate_read,
    validate_scan,
)
from tenuto.kernel.transact import is_first_use, request_time

try:
    from tenuto.backends import _redis_bells as bells
    from tenuto.backends import _redis_check as checking
    from tenuto.backends import _redis_rows as rows
    from tenuto.backends import _redis_script as scripts
    from tenuto.backends._redis_link import Link, Place
    from tenuto.backends._redis_server import Facts, UncheckedServerWarning, inspect
    from tenuto.backends._redis_url import parsed, valid_prefix, valid_seconds
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "redis":
        raise
    raise MissingDriver("Redis and Valkey need the driver redis-py: pip install tenuto[redis]") from error

__all__ = ["RedisBackend", "UncheckedServerWarning"]

Durability = Literal["full", "process"]

_SWEEP_EVERY: Final = 16
_SWEEP_MOST: Final = 500
_REMEASURE: Final = 60.0
_NAMES_KEPT: Final = 1_000
_NOBODY: Final = b"\x02\x00"
"""The tenant without a name, which keeps the requests of commits that name no key."""


class RedisBackend:
    """Keeps everything on a Redis or Valkey server. Nothing is connected before the first call."""

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
            raise InvalidInput(f'durability is "full" or "process", not {self.durability!r}.')
        self._timeout = valid_seconds(options.get("timeout", timeout))
        self._prefix = valid_prefix(options.get("prefix", prefix))
        self.target = target
        self._given = Steady(clock) if clock is not None else None
        self._closed = False
        self._measured = (0.0, 0.0, 0.0)  # the server's time, and this machine's two clocks at that moment
        self._last = 0.0
        self._start_afresh()
        _living.add(self)

    def _start_afresh(self) -> None:
        self._opening = threading.Lock()
        self._ready = False
        link = self._link = Link(self.target, self._timeout, self._inspected)
        self._listener = Listener(lambda: bells.listen(link), (TenutoError, *bells.FAILURES))
        weakref.finalize(self, self._listener.close)
        self._names: dict[bytes, tuple[bytes, ...]] = {}
        self._commits = 0
        self._left_behind = 0

    def _inspected(self, connection: Any) -> Facts:
        return inspect(connection, str(self.target), self.durability)

    # -- the verbs ---------------------------------------------------------------------------

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live record at each key, all from one moment."""
        validate_read(keys)
        if not self._ready or self._closed:
            self.open()
        if not keys:
            return []
        tenant = _tenant(keys[0])
        if tenant is None:
            return [None] * len(keys)  # what has no tenant cannot have been written
        cut, count = len(tenant), len(keys)
        fields = [key[cut:] if key[cut : cut + 1] == b"\x02" else b"" for key in keys]  # what else is never written
        raw, *found = self._run(scripts.READ, tenant, (self._time(), *fields))
        now = self._heard(raw)
        return [
            rows.record(field, found[at], found[count + at], now, tenant) if found[at] or found[count + at] else None
            for at, field in enumerate(fields)
        ]

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Return up to `limit` live records below `prefix` in key order, all from one moment."""
        validate_scan(prefix, limit)
        self.open()
        tenant = _tenant(prefix)
        assert tenant is not None
        low, high = prefix, keys.after_prefix(prefix) if len(prefix) > len(tenant) else None
        begin = b"[" + low[len(tenant) :] if len(low) > len(tenant) else b"-"
        end = b"(" + high[len(tenant) :] if high is not None and high.startswith(tenant) else b"+"
        if after is not None and not after.startswith(tenant):
            if (after > tenant) is not reverse:
                return []
        elif after is not None and not reverse and after >= low:
            begin = b"(" + after[len(tenant) :]
        elif after is not None and reverse and (high is None or after < high):
            end = b"(" + after[len(tenant) :]
        direction = b"down" if reverse else b"up"
        raw, *flat = self._run(scripts.SCAN, tenant, (self._time(), begin, end, limit, direction))
        now = self._heard(raw)
        fields = flat[::3]
        inside = prefix[len(tenant) :]
        if not rows.in_order(fields, reverse=reverse) or not all(field.startswith(inside) for field in fields):
            raise rows.damaged(prefix)
        found = []
        for field, head, value in zip(fields, flat[1::3], flat[2::3], strict=True):
            record = rows.record(field, head, value, now, tenant) if head else None
            if record is None:  # the order names it, so there must be one
                raise rows.damaged(tenant + field)
            found.append(record)
        return found

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Return up to `limit` entries of a stream by number, all from one moment."""
        validate_limit(limit)
        self.open()
        tenant = _tenant(stream)
        if tenant is None:
            return []
        field = stream[len(tenant) :]
        if field[:1] != b"\x02":
            return []
        after = None if after is None else max(after, 0)
        behind = b"" if after is None else after
        head, *stored = self._run(scripts.ENTRIES, tenant, (field, behind, limit, b"down" if reverse else b"up"))
        if not head:
            return []
        known = rows.head(field, head, tenant)
        if known.kind != rows.STREAM:
            return []
        first = (after or 0) + 1 if not reverse else min(known.version, (after or known.version + 1) - 1)
        step = -1 if reverse else 1
        found = [rows.entry(field, first + step * at, raw, tenant) for at, raw in enumerate(stored)]
        for one, other in pairwise(found):
            newer, older = (one, other) if reverse else (other, one)
            if newer.previous != older.digest:
                raise rows.damaged(stream)
        return found

    def commit(  # noqa: C901 - one argument after the other
        self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None
    ) -> Commit:
        """Apply all writes if all checks hold, atomically, and durably before it returns."""
        validate(checks, writes, request)
        if not self._ready or self._closed:
            self.open()
        first = writes[0][0] if writes else checks[0][0] if checks else None
        if first is None and request is None:
            return Commit((), self.now())
        tenant = _NOBODY if first is None else _tenant(first)
        if tenant is None or any(check[0] == tenant + b"clock" for check in checks):
            raise InvalidInput("A key begins with a tenant and a scope, both text; build it with keys.pack.")
        cut = len(tenant)
        digests = [content_of(write) for write in writes]
        arguments: list[Any] = [self._time(), b"", b"", b"", self._budget(writes), b"0", b"0", len(checks)]
        if request is not None:
            arguments[1:4] = request, repr(request_time(request)), fingerprint(checks, writes, digests)
            arguments[6] = b"1" if is_first_use(request) else b"0"
        if self._link.waits:
            arguments[5] = b"1"
        for check in checks:
            arguments += (b"r" if type(check) is Check else b"s", check[0][cut:], check[1])
        for write, own in zip(writes, digests, strict=True):
            scope = len(keys.scope_of(write[0])) - cut
            if type(write) is Put:
                ttl = b"" if write.ttl is None else repr(float(write.ttl))
                arguments += (b"p", write.key[cut:], scope, own, ttl, write.value)
            elif type(write) is Append:
                arguments += (b"a", write.stream[cut:], scope, own, b"", write.value)
            elif type(write) is Forget:
                arguments += (b"f", write.stream[cut:], scope, write.first, write.last, b"")
            else:
                arguments += (b"d", write[0][cut:], scope, b"", b"", b"")
        reply = self._link.run(scripts.COMMIT, self._named(tenant), arguments, commit=True, request=request)
        if type(reply) is not bytes:
            raise _refused(reply[0], reply[1:], tenant)
        versions, repeated = rows.versions_in(reply[9:]), reply[:1] == b"r"
        return Commit(versions, rows.time_in(reply[1:9]) if repeated else self._heard(reply[1:9]), repeated)

    def bell(self, stream: bytes) -> Bell:
        """Return a bell that is live on a server and behind Sentinel; on a cluster watchers poll."""
        tenant = _tenant(stream)
        if tenant is None or self._closed or self.target.kind == "cluster":
            return Bell()
        return self._listener.bell(self._named(tenant)[0] + b":" + stream[len(tenant) :])

    def now(self) -> float:
        """Return the server's time, never less than before. It is measured now and then, not at each call."""
        if self._given is not None:
            return self._given.now()
        told, steady, wall = self._measured
        passed = time.monotonic() - steady
        # A machine that slept shows in the difference of its two clocks.
        if (passed > _REMEASURE or abs(time.time() - wall - passed) > 1.0) and not self._closed:
            self._measure()
            told, steady, wall = self._measured
            passed = time.monotonic() - steady
        self._last = max(self._last, told + passed)
        return self._last

    def check(self) -> list[Finding]:
        """Verify every head, value, entry and link, and that scans see what is stored; page by page."""
        self.open()
        return checking.check(self._link, self._prefix)

    def stats(self) -> Mapping[str, Any]:
        """Say which server this is, how durable as it is set up now, how large, and how many connections."""
        self.open()
        sizes = checking.sizes(self._link, self._prefix)
        used = 0
        for place in self._link.places():
            memory = self._link.ask(place, "INFO", "memory").decode(errors="replace")
            used += next((int(line[12:]) for line in memory.splitlines() if line.startswith("used_memory:")), 0)
        facts = next(iter(self._link.facts.values()))
        return {
            "backend": "redis",
            "server": facts.server,
            "version": facts.version,
            "kind": self.target.kind,
            "where": str(self.target),
            "nodes": len(self._link.places()),
            "prefix": self._prefix.decode(),
            "durability": self.durability,
            "survives": facts.survives,
            "appendonly": facts.appendonly or "unknown",
            "appendfsync": facts.appendfsync or "unknown",
            "maxmemory_policy": facts.policy or "unknown",
            "unchecked": list(facts.unchecked),
            **sizes,
            "bytes": used,
            "connections": self._link.made,
            "connections_idle": self._link.idle,
            "timeout": self._timeout,
        }

    def close(self) -> None:
        """Let go of every connection; a call in another thread ends first."""
        self._closed = True
        self._listener.close()
        self._link.close()

    # -- opening -----------------------------------------------------------------------------

    def open(self) -> None:
        """Connect, and refuse a server that would lose what it is given. Calling it again does nothing."""
        if self._ready and not self._closed:
            return
        if self._closed:
            raise Closed(f"The store at {self.target} was closed; open a new client.")
        with self._opening:
            if not self._ready:
                self._measure_all()
                self._ready = True

    def _measure_all(self) -> None:
        for place in self._link.places():
            self._measure(place)  # each node is connected to, and so inspected

    def _measure(self, place: Place | None = None) -> None:
        asked = place or self._link.places()[0]
        seconds, micros = self._link.ask(asked, "TIME")
        self._measured = (int(seconds) + int(micros) / 1e6, time.monotonic(), time.time())

    def _after_fork(self) -> None:
        """Start afresh in a forked child: the parent's connections and locks are not this process's."""
        _inherited.append(self._link)
        self._listener.forget()
        self._start_afresh()

    # -- one call ----------------------------------------------------------------------------

    def _run(self, script: scripts.Script, tenant: bytes, arguments: Sequence[Any]) -> Any:
        reply = self._link.run(script, self._named(tenant), arguments)
        if reply[0] == b"newer":
            raise _refused(b"newer", (), tenant)
        return reply

    def _named(self, tenant: bytes) -> tuple[bytes, ...]:
        names = self._names.get(tenant)
        if names is None:
            if len(self._names) >= _NAMES_KEPT:
                self._names = {}
            names = self._names[tenant] = tuple(rows.names(self._prefix, tenant))
        return names

    def _time(self) -> bytes | str:
        return b"" if self._given is None else repr(self._given.now())

    def _heard(self, raw: bytes) -> float:
        """Take the server's time from a reply: what it has said, `now` never falls behind."""
        told = rows.time_in(raw)
        if self._given is None and told > self._last:
            self._last = told
        return told

    def _budget(self, writes: Sequence[Write]) -> int:
        """Return how much this commit sweeps: now and then, a little more than was left behind since."""
        self._left_behind += len(writes)
        self._commits += 1
        if self._commits % _SWEEP_EVERY:
            return 0
        budget, self._left_behind = min(20 + self._left_behind, _SWEEP_MOST), 0
        return budget


_living: weakref.WeakSet[RedisBackend] = weakref.WeakSet()
_inherited: list[Any] = []


def _forget_parent() -> None:
    for backend in list(_living):
        backend._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


def _tenant(key: bytes) -> bytes | None:
    """Return the tenant that a key begins with, still encoded, or None if it begins with none."""
    tenant = keys.tenant_of(key)
    return tenant if tenant[:1] == b"\x02" and tenant[-1:] == b"\x00" and len(tenant) > 1 else None


def _refused(outcome: bytes, rest: Sequence[bytes], tenant: bytes) -> Exception:
    if outcome == b"conflict":
        return Conflict(
            "Something else was written first; read again and decide anew.", [tenant + field for field in rest]
        )
    if outcome == b"reused":
        return RequestReused("This request id was used for another commit; make a new one.")
    if outcome == b"old":
        return RequestExpired(
            "This request id is too old for its outcome to be known. Read what is stored, then decide."
        )
    if outcome == b"both":
        return InvalidInput(NOT_BOTH)
    if outcome == b"newer":
        return NewerFormat(
            f"Tenant {rows.shown(tenant)} was written by a newer version of tenuto; it was left untouched. Upgrade."
        )
    if outcome == b"range":
        return TooLarge("A version has reached 2^53, beyond which this store cannot count. Use another key.")
    return rows.damaged(tenant + (rest[0] if rest else b""))
