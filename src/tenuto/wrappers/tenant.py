"""Confine every call to one tenant: add its prefix to each key and remove it from each result.

A caller cannot escape the prefix: the encoding of keys prevents names from imitating one, and an empty
prefix scans the tenant, not the store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tenuto.errors import Conflict, Encrypted, InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.bell import Bell
from tenuto.kernel.contract import (
    EMPTY,
    AnyCheck,
    Backend,
    Commit,
    Entry,
    Finding,
    Record,
    Write,
)

_made: Any = tuple.__new__
"""Build a named tuple without its constructor, which takes twice as long; every call runs this."""


class Tenant:
    """Show a store as one tenant. Closing it closes the store."""

    def __init__(self, backend: Backend, tenant: str, unread: Backend | None = None) -> None:
        self._backend = backend
        self._prefix = keys.pack(keys.name(tenant, "tenant"))
        self._unread = unread
        """Where the first call looks whether the tenant is encrypted; None once it has."""
        self.now = backend.now

    def _look(self, store: Backend) -> None:
        if store.read([self._prefix + keys.ENCRYPTION])[0] is not None:
            raise Encrypted(
                "This tenant's data is encrypted and no key was given. Nothing was read or written. Pass "
                "encryption_key=, or set $TENUTO_ENCRYPTION_KEY."
            )
        self._unread = None

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Read the tenant's records."""
        if self._unread is not None:
            self._look(self._unread)
        prefix, cut = self._prefix, len(self._prefix)
        if len(keys) == 1:
            one = self._backend.read([prefix + keys[0]])[0]
            return [one and _made(Record, (one[0][cut:], *one[1:]))]
        found = self._backend.read([prefix + key for key in keys])
        return [record and _made(Record, (record[0][cut:], *record[1:])) for record in found]

    def scan(
        self, prefix: bytes, *, after: bytes | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Record]:
        """Scan the tenant's records."""
        if self._unread is not None:
            self._look(self._unread)
        start = None if after is None else self._prefix + after
        found = self._backend.scan(self._prefix + prefix, after=start, limit=limit, reverse=reverse)
        cut = len(self._prefix)
        return [_made(Record, (record[0][cut:], *record[1:])) for record in found]

    def entries(
        self, stream: bytes, *, after: int | None = None, limit: int = 100, reverse: bool = False
    ) -> list[Entry]:
        """Read entries of one of the tenant's streams."""
        if self._unread is not None:
            self._look(self._unread)
        return self._backend.entries(self._prefix + stream, after=after, limit=limit, reverse=reverse)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        """Commit to the tenant's records and streams."""
        if self._unread is not None:
            self._look(self._unread)
        prefix = self._prefix
        inner: list[Write] = []
        for write in writes:
            if not write[0]:
                raise InvalidInput(EMPTY)  # with the prefix the backend could not detect it
            inner.append(_made(type(write), (prefix + write[0], *write[1:])))
        guards: list[AnyCheck] = []
        for check in checks:
            if not check[0]:
                raise InvalidInput(EMPTY)
            guards.append(_made(type(check), (prefix + check[0], check[1])))
        try:
            return self._backend.commit(guards, inner, request=request)
        except Conflict as error:
            raise Conflict(str(error), [key[len(prefix) :] for key in error.keys]) from None

    def streams(self, prefix: bytes, *, after: bytes | None = None, limit: int = 100) -> list[bytes]:
        """List the tenant's streams."""
        if self._unread is not None:
            self._look(self._unread)
        cut, start = len(self._prefix), None if after is None else self._prefix + after
        return [key[cut:] for key in self._backend.streams(self._prefix + prefix, after=start, limit=limit)]

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]]) -> int:
        """Load records and entries into the tenant."""
        if self._unread is not None:
            self._look(self._unread)
        if not all(record.key for record in records) or not all(entries):
            raise InvalidInput(EMPTY)
        inner = [record._replace(key=self._prefix + record.key) for record in records]
        try:
            return self._backend.load(inner, {self._prefix + stream: given for stream, given in entries.items()})
        except Conflict as error:
            raise Conflict(str(error), [key[len(self._prefix) :] for key in error.keys]) from None

    def trim(self, stream: bytes, first: int) -> int:
        """Trim one of the tenant's streams."""
        if self._unread is not None:
            self._look(self._unread)
        return self._backend.trim(self._prefix + stream, first)

    def bell(self, stream: bytes) -> Bell:
        """Return a bell for one of the tenant's streams."""
        return self._backend.bell(self._prefix + stream)

    def check(self) -> list[Finding]:
        """Check the whole store, all tenants."""
        return self._backend.check()

    def stats(self) -> Mapping[str, Any]:
        """Return the whole store's figures."""
        return self._backend.stats()

    def close(self) -> None:
        """Close the store."""
        self._backend.close()
