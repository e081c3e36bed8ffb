"""Load exported rows into a Postgres store exactly unchanged, and trim streams.

Both run in one transaction that locks each key as a commit does. A stream's row has the number of its first entry, so
that a lost entry differs from a removed one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tenuto.backends.postgres import rows
from tenuto.backends.postgres.calls import fetch
from tenuto.backends.postgres.connections import Line
from tenuto.backends.postgres.schema import schema_name
from tenuto.errors import Conflict, Damaged, InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.contract import MAX_WRITES, NOT_BOTH, Entry, Record
from tenuto.kernel.loading import NOT_LINKED, OTHER_CONTENT, is_same_entry, is_same_record, place_of

_LOCK: Final = "SELECT pg_advisory_xact_lock(hashtextextended(%s::text || %s || encode(%s, 'hex'), 0))"


class Moving:
    """The statements of one schema."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._name = schema_name(schema)

    # -- load --------------------------------------------------------------------------------------

    def load(self, line: Line, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]], now: float) -> int:
        """Store what is new; return how many rows that is."""
        count = 0
        for key in sorted([*(record.key for record in records), *entries]):
            prefix, tenant = rows.tenant_of(key)
            if tenant is None:
                raise InvalidInput("A key must begin with a tenant and a scope, both text. Build it with keys.pack.")
            line.execute(_LOCK.encode(), (self._schema, tenant.decode(), key[len(prefix) :]))
        for record in records:
            count += self._record(line, record, now)
        for stream, given in entries.items():
            count += self._entries(line, stream, given)
        return count

    def _record(self, line: Line, record: Record, now: float) -> int:
        prefix, _ = rows.tenant_of(record.key)
        tenant, key = rows.tenant_text(prefix), record.key[len(prefix) :]
        if self._asked(line, "SELECT 1 FROM {}.streams WHERE tenant = %s AND key = %s", tenant, key):
            raise InvalidInput(NOT_BOTH)
        found = self._asked(
            line,
            "SELECT value, version, written, expires, digest, dead FROM {}.records WHERE tenant = %s AND key = %s FOR UPDATE",
            tenant,
            key,
        )
        scope = len(keys.scope_of(record.key)) - len(prefix)
        if found and not found[0][5] and (found[0][3] is None or found[0][3] > now):
            if not is_same_record(rows.verified(record.key, found[0][:5]), record):
                raise Conflict(OTHER_CONTENT, [record.key])
            return 0
        if record.expires_at is not None and record.expires_at <= now:
            return 0
        if found:
            base = found[0][1]
        else:
            floor = self._asked(
                line, "SELECT version FROM {}.floors WHERE tenant = %s AND scope = %s", tenant, key[:scope]
            )
            base = floor[0][0] if floor else 0
        self._run(
            line,
            "INSERT INTO {}.records (tenant, key, scope, version, dead, written, expires, digest, value) "
            "VALUES (%s, %s, %s, %s, false, %s, %s, %s, %s) ON CONFLICT (tenant, key) DO UPDATE SET "
            "version = excluded.version, dead = false, written = excluded.written, expires = excluded.expires, "
            "digest = excluded.digest, value = excluded.value",
            tenant,
            key,
            scope,
            max(record.version, base + 1),
            record.written_at,
            record.expires_at,
            rows.digest_of(record.key, record.value),
            record.value,
        )
        return 1

    def _entries(self, line: Line, stream: bytes, given: Sequence[Entry]) -> int:
        prefix, _ = rows.tenant_of(stream)
        tenant, key = rows.tenant_text(prefix), stream[len(prefix) :]
        if self._asked(line, "SELECT 1 FROM {}.records WHERE tenant = %s AND key = %s", tenant, key):
            raise InvalidInput(NOT_BOTH)
        head = self._asked(
            line, "SELECT first, number, digest FROM {}.streams WHERE tenant = %s AND key = %s FOR UPDATE", tenant, key
        )
        first, last, end = head[0] if head else (0, 0, given[0].previous)
        place = place_of(given, first, last)
        if place.there:
            stored = self._asked(
                line,
                "SELECT number, value, written, digest, previous, versions, forgotten FROM {}.entries "
                "WHERE tenant = %s AND stream = %s AND number BETWEEN %s AND %s ORDER BY number",
                tenant,
                key,
                place.there[0].number,
                place.there[-1].number,
            )
            found = [rows.verified_entry(stream, row) for row in stored]
            if len(found) != len(place.there) or not all(map(is_same_entry, found, place.there)):
                raise Conflict(OTHER_CONTENT, [stream])
        before = _made(stream, place.before, place.before[0].previous if place.before else b"")
        if before:
            link = self._asked(
                line,
                "SELECT previous FROM {}.entries WHERE tenant = %s AND stream = %s AND number = %s",
                tenant,
                key,
                first,
            )
            if not link or link[0][0] != before[-1][4]:
                raise Damaged(f"{rows.shown(stream)}: {NOT_LINKED}")
        after = _made(stream, place.after, end)
        self._insert(line, tenant, key, [*before, *after])
        if not head:
            self._run(
                line,
                "INSERT INTO {}.streams (tenant, key, number, written, digest, first) VALUES (%s, %s, %s, %s, %s, %s)",
                tenant,
                key,
                after[-1][0],
                after[-1][1],
                after[-1][4],
                after[0][0],
            )
        elif after:
            self._run(
                line,
                "UPDATE {}.streams SET number = %s, written = %s, digest = %s WHERE tenant = %s AND key = %s",
                after[-1][0],
                after[-1][1],
                after[-1][4],
                tenant,
                key,
            )
        if before:
            self._run(
                line, "UPDATE {}.streams SET first = %s WHERE tenant = %s AND key = %s", before[0][0], tenant, key
            )
        return len(before) + len(after)

    def _insert(self, line: Line, tenant: Any, key: bytes, made: Sequence[tuple[Any, ...]]) -> None:
        if not made:
            return
        sql = (
            f"INSERT INTO {self._name}.entries (tenant, stream, number, written, versions, previous, digest, value, forgotten) "  # noqa: S608 - validated
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)"
        )
        line.cursor().executemany(sql.encode(), [(tenant, key, *row) for row in made])

    # -- trim --------------------------------------------------------------------------------------

    def trim(self, line: Line, stream: bytes, first: int) -> int:
        """Remove up to 1,000 of the oldest entries."""
        prefix, column = rows.tenant_of(stream)
        if column is None:
            return 0
        tenant, key = rows.tenant_text(prefix), stream[len(prefix) :]
        head = self._asked(
            line, "SELECT first, number FROM {}.streams WHERE tenant = %s AND key = %s FOR NO KEY UPDATE", tenant, key
        )
        if not head:
            if self._asked(line, "SELECT 1 FROM {}.records WHERE tenant = %s AND key = %s", tenant, key):
                raise InvalidInput(NOT_BOTH)
            return 0
        begin, last = head[0]
        first = min(first, last, begin + MAX_WRITES)
        if first <= begin:
            return 0
        self._run(line, "DELETE FROM {}.entries WHERE tenant = %s AND stream = %s AND number < %s", tenant, key, first)
        self._run(line, "UPDATE {}.streams SET first = %s WHERE tenant = %s AND key = %s", first, tenant, key)
        return int(first - begin)

    def _asked(self, line: Line, sql: str, *arguments: Any) -> list[Any]:
        return fetch(line, sql.replace("{}", self._name), arguments)

    def _run(self, line: Line, sql: str, *arguments: Any) -> None:
        line.execute(sql.replace("{}", self._name).encode(), arguments, prepare=False)


def _made(stream: bytes, given: Sequence[Entry], previous: bytes) -> list[tuple[Any, ...]]:
    made: list[tuple[Any, ...]] = []
    for entry in given:
        own, gone = rows.digest_of(stream, entry.value), None
        total = rows.chained(previous, own, entry.number, entry.written_at, entry.versions)
        if entry.forgotten:
            gone = own + hashlib.sha256(b"forgotten" + own + total).digest()[:8]
        made.append((entry.number, entry.written_at, list(entry.versions), previous, total, entry.value, gone))
        previous = total
    return made
