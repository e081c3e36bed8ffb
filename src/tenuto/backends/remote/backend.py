"""A tenuto server as a store: each verb is one HTTP request, so a commit is one round trip.

The server confines every call to the tenant of the API key. A client of the tenant "default" (the default) works on
the key's tenant, whatever its name; a client that names another tenant is refused. A commit is as durable as the store of the
server: its reply comes after the commit. A lost reply is resolved by the request id, as on every store.

    Tenuto("researcher", "https://host", api_key="tk_…")         or $TENUTO_URL and $TENUTO_API_KEY
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenuto.backends._server_clock import ServerClock, moment
from tenuto.backends.remote import wire
from tenuto.backends.remote.bells import LongPoll
from tenuto.backends.remote.calls import Calls, Welcome
from tenuto.backends.remote.url import parsed
from tenuto.errors import AccessDenied, Closed, InvalidInput, RequestExpired
from tenuto.kernel import keys
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

_DEFAULT: Final = keys.pack("default")


class RemoteBackend:
    """Store everything on a tenuto server. Nothing is connected before the first call."""

    def __init__(
        self, url: str, *, api_key: str | None = None, clock: Clock | None = None, timeout: float = 30.0
    ) -> None:
        self.target = parsed(url, timeout)
        self._api_key = api_key or os.environ.get("TENUTO_API_KEY") or None
        self._clock = ServerClock(clock)
        self._closed = False
        self._start_afresh()
        _living.add(self)

    def _start_afresh(self) -> None:
        self._opening = threading.Lock()
        self._welcome: Welcome | None = None
        self._tenants: tuple[bytes, ...] = (_DEFAULT,)
        calls = self._calls = Calls(self.target, self._api_key)
        self._clock.start_afresh(lambda: calls.hello().now)
        self._listener = LongPoll(calls)
        for close in (calls.connections.close, self._listener.close):
            weakref.finalize(self, close)  # close the connections of a client that was dropped without close()

    # -- the verbs ---------------------------------------------------------------------------

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the live record at each key, all from one snapshot."""
        validate_read(keys)
        self.open()
        tenant = self._tenant_of(keys[0]) if keys else b""
        cut = len(tenant)
        found = self._called("read", [[key[cut:] for key in keys]], tenant)
        return [None if one is None else wire.record_of(one, tenant) for one in found]

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Return up to `limit` live records with `prefix` in key order, all from one snapshot."""
        validate_scan(prefix, limit)
        self.open()
        tenant = self._tenant_of(prefix)
        if after is not None and not after.startswith(tenant):
            # Any place outside the tenant is before or after all of its keys.
            if (after > tenant) is not reverse:
                return []
            after = None
        rest = None if after is None else after[len(tenant) :]
        found = self._called("scan", [prefix[len(tenant) :], rest, limit, reverse], tenant)
        return [wire.record_of(one, tenant) for one in found]

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Return up to `limit` entries of a stream in number order, all from one snapshot."""
        validate_limit(limit)
        self.open()
        tenant = self._tenant_of(stream)
        found = self._called("entries", [stream[len(tenant) :], after, limit, reverse], tenant)
        return [wire.entry_of(one) for one in found]

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Apply all writes if all checks hold, atomically, and as durably as the store of the server."""
        validate(checks, writes, request)
        self.open()
        tenant = self._tenant_of(writes[0][0] if writes else checks[0][0])
        first = request is not None and is_first_use(request)
        try:
            return self._committed(tenant, checks, writes, request)
        except RequestExpired:
            self._clock.measure()
            if not first:
                raise
            # This client's clock was slow. The id was sent once and refused, so a new one is safe.
            return self._committed(tenant, checks, writes, new_request(self.now()))

    def _committed(
        self, tenant: bytes, checks: Sequence[AnyCheck], writes: Sequence[Write], request: bytes | None
    ) -> Commit:
        body = wire.commit_body(checks, writes, request, len(tenant))
        sent = moment()
        now, result = self._calls.call("commit", body, tenant=tenant, commit=True, request=request)
        self._clock.heard(now, sent)
        return wire.outcome_of(result)

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """Return up to `limit` keys of streams with `prefix`, in key order."""
        validate_scan(prefix, limit)
        self.open()
        tenant = self._tenant_of(prefix)
        rest = None if after is None else after[len(tenant) :]
        return [tenant + key for key in self._called("streams", [prefix[len(tenant) :], rest, limit], tenant)]

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Store exported records and entries unchanged; return how many were new. Repeating it is safe."""
        validate_load(records, entries)
        first = next(iter([*(record.key for record in records), *entries]), None)
        if first is None:
            return 0
        self.open()
        tenant = self._tenant_of(first)
        return self._written("load", wire.load_body(records, entries, len(tenant)), tenant)

    def trim(self, stream: bytes, first: int) -> int:
        """Remove up to 1,000 of the entries before `first`, never the last one; return how many."""
        self.open()
        tenant = self._tenant_of(stream)
        return self._written("trim", wire.packed([stream[len(tenant) :], first]), tenant)

    def _written(self, verb: str, body: bytes, tenant: bytes) -> int:
        sent = moment()
        now, result = self._calls.call(verb, body, tenant=tenant, commit=True)
        self._clock.heard(now, sent)
        return int(result)

    def bell(self, stream: bytes) -> Bell:
        """Return the notification of a stream, by long poll."""
        tenant = keys.tenant_of(stream)
        if self._closed or tenant not in self._tenants:
            return Bell()
        return self._listener.bell(stream[len(tenant) :])

    def now(self) -> float:
        """Return this client's estimate of the store's time, never less than before."""
        if not self._clock.is_set:
            self.open()
        return self._clock.now()

    def check(self) -> list[Finding]:
        """Verify everything that is stored, of all tenants; this takes a key with the scope admin."""
        self.open()
        return [Finding(kind, detail) for kind, detail in self._called("check", [], b"")]

    def stats(self) -> Mapping[str, Any]:
        """Return the server, what the API key may do and, with the scope admin, the figures of its store."""
        self.open()
        fields = self._called("stats", [], b"")
        return {
            **fields,
            "backend": "remote",
            "where": str(self.target),
            "connections": self._calls.connections.made,
            "connections_idle": self._calls.connections.idle,
            "timeout": self.target.timeout,
        }

    def close(self) -> None:
        """Close every connection; calls in other threads complete first."""
        self._closed = True
        self._listener.close()
        self._calls.connections.close()

    # -- opening -----------------------------------------------------------------------------

    def open(self) -> None:
        """Ask the server who it is and which tenant the API key has. Opening twice is safe."""
        if self._closed:
            raise Closed(f"The client of {self.target} was closed. Open a new client.")
        if self._welcome is not None:
            return
        with self._opening:
            if self._welcome is None:
                sent = moment()
                welcome = self._calls.hello()
                self._clock.heard(welcome.now, sent)
                self._tenants = (_DEFAULT, keys.pack(welcome.tenant))
                self._welcome = welcome

    def _after_fork(self) -> None:
        """Start over in a forked child: connections and locks belong to the parent."""
        _inherited.append(self._calls)
        self._listener.forget()
        self._start_afresh()

    # -- one call ----------------------------------------------------------------------------

    def _called(self, verb: str, arguments: list[Any], tenant: bytes) -> Any:
        sent = moment()
        now, result = self._calls.call(verb, wire.packed(arguments), tenant=tenant)
        self._clock.heard(now, sent)
        return result

    def _tenant_of(self, key: bytes) -> bytes:
        """Return the encoded tenant of a key, or raise if the API key belongs to another tenant."""
        if not keys.has_tenant(key):
            raise InvalidInput("A key must begin with a tenant and a scope, both text. Build it with keys.pack.")
        tenant = keys.tenant_of(key)
        if tenant not in self._tenants:
            assert self._welcome is not None
            raise AccessDenied(
                f"This API key belongs to the tenant {self._welcome.tenant!r}, not to {keys.unpack(tenant)[0]!r}. "
                "Nothing was done; use a key of that tenant, or leave tenant= out."
            )
        return tenant


_living: weakref.WeakSet[RemoteBackend] = weakref.WeakSet()
_inherited: list[Any] = []


def _forget_parent() -> None:
    for backend in list(_living):
        backend._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
