"""Load exported rows into a Redis store exactly unchanged, trim streams, and list them.

The client prepares the writes from the heads that it read, and the script `MOVE` writes it only if those
heads are unchanged. A stream's head has the number of its trimmed entries in the place of the time of expiry.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tenuto.backends.redis import rows, scripts
from tenuto.errors import Conflict, Damaged, InvalidInput, StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.codec import digest
from tenuto.kernel.contract import MAX_WRITES, NOT_BOTH, Entry, Record
from tenuto.kernel.loading import NOT_LINKED, OTHER_CONTENT, is_same_entry, is_same_record, place_of

Run = Callable[[scripts.Script, bytes, Sequence[Any]], Any]
Read = Callable[..., list[Entry]]
_HEAD: Final = struct.Struct(">BdddH")
_ENTRY: Final = struct.Struct(">ddH")
_NUMBER: Final = struct.Struct(">d")
_TRIES: Final = 20
_MOST: Final = 1 << 53
_PAGE: Final = 1_000
_sha1 = hashlib.sha1


class Plan:
    """What one call of `MOVE` requires and writes."""

    def __init__(self, tenant: bytes) -> None:
        self.tenant = tenant
        self.format = 1
        self.count = 0
        self._parts: list[list[Any]] = [[] for _ in range(7)]
        self.expected, self.heads, self.values, self.entries, self.gone, self.due, self.endless = self._parts

    def arguments(self, given: bytes | str) -> list[Any]:
        """Return the arguments of the script."""
        out: list[Any] = [self.format, given]
        for part, width in zip(self._parts, (2, 2, 2, 2, 1, 2, 1), strict=True):
            out += (len(part) // width, *part)
        return out


class Moving:
    """Moves rows of one store; `run` runs a script that reads, `write` one that writes."""

    def __init__(self, run: Run, write: Run, read: Read) -> None:
        self._run = run
        self._write = write
        self._read = read

    def streams(self, prefix: bytes, after: bytes | None, limit: int) -> list[bytes]:
        """Return keys of streams with a prefix, in key order; every key of the tenant is looked at."""
        tenant = rows.tenant_of(prefix)
        assert tenant is not None
        found: set[bytes] = set()
        cursor: bytes = b"0"
        while True:
            cursor, *fields = self._run(scripts.STREAMS, tenant, (cursor, _PAGE, prefix[len(tenant) :]))
            found.update(tenant + field for field in fields)
            if cursor in (b"0", 0):
                return sorted(key for key in found if after is None or key > after)[:limit]

    def load(self, records: Sequence[Record], entries: Mapping[bytes, Sequence[Entry]], given: bytes | str) -> int:
        """Store what is new; return how many rows that is."""
        every = [*(record.key for record in records), *entries]
        tenant = rows.tenant_of(every[0]) if every else None
        if tenant is None:
            return 0
        cut = len(tenant)

        def plan() -> Plan:
            made = Plan(tenant)
            raw, *found = self._run(scripts.READ, tenant, (given, *(key[cut:] for key in every)))
            now, heads, values = rows.time_in(raw), found[: len(every)], found[len(every) :]
            for key, head in zip(every, heads, strict=True):
                made.expected += (key[cut:], head or b"")
            for at, record in enumerate(records):
                self._record(made, record, heads[at], values[at], now)
            for head, (stream, some) in zip(heads[len(records) :], entries.items(), strict=True):
                self._entries(made, stream, some, head)
            return made

        return self._moved(plan, given)

    def trim(self, stream: bytes, first: int, given: bytes | str) -> int:
        """Remove up to 1,000 of the oldest entries."""
        tenant = rows.tenant_of(stream)
        if tenant is None:
            return 0
        field = stream[len(tenant) :]

        def plan() -> Plan:
            made = Plan(tenant)
            raw = self._run(scripts.READ, tenant, (given, field))[1]
            if not raw:
                return made
            head = rows.head(field, raw, tenant)
            if head.kind != rows.STREAM:
                raise InvalidInput(NOT_BOTH)
            gone = int(head.expires)
            keep = min(first, head.version, gone + 1 + MAX_WRITES)
            if keep - 1 <= gone:
                return made
            made.format, made.count = 2, keep - 1 - gone
            made.expected += (field, raw)
            made.gone += [_NUMBER.pack(number) + field for number in range(gone + 1, keep)]
            scope = len(keys.scope_of(stream)) - len(tenant)
            made.heads += (field, _sealed(field, 2, head.version, head.written, keep - 1, scope, head.digest))
            return made

        return self._moved(plan, given)

    def _moved(self, plan: Callable[[], Plan], given: bytes | str) -> int:
        for _ in range(_TRIES):
            made = plan()
            if not made.count:
                return 0
            reply = self._write(scripts.MOVE, made.tenant, made.arguments(given))
            if reply == b"ok":
                return made.count
        raise StorageUnavailable("The store is written to constantly. Nothing was changed; try again.")

    def _record(self, made: Plan, record: Record, raw: bytes | None, value: bytes | None, now: float) -> None:
        tenant, field = made.tenant, record.key[len(made.tenant) :]
        scope = len(keys.scope_of(record.key)) - len(tenant)
        stored = rows.record(field, raw, value, now, tenant)
        base = 0
        if raw:
            head = rows.head(field, raw, tenant)
            if head.kind == rows.STREAM:
                raise InvalidInput(NOT_BOTH)
            base = head.version
        else:
            (floor,) = self._run(scripts.FLOORS, tenant, (field[:scope],))
            if floor and not rows.floor_holds(field[:scope], floor):
                raise rows.damaged(record.key)
            base = int(floor[16:]) if floor else 0
        if stored is not None:
            if not is_same_record(stored, record):
                raise Conflict(OTHER_CONTENT, [record.key])
            return
        if record.expires_at is not None and record.expires_at <= now:
            return
        version = max(record.version, base + 1)
        if version >= _MOST:
            raise InvalidInput(f"Redis counts versions up to 2^53; {version} is above. Use another store.")
        expires = record.expires_at or 0.0
        made.heads += (field, _sealed(field, 0, version, record.written_at, expires, scope, digest(record.value)))
        made.values += (field, record.value)
        if expires:
            made.due += (repr(expires), field)
        else:
            made.endless.append(field)
        made.count += 1

    def _entries(self, made: Plan, stream: bytes, given: Sequence[Entry], raw: bytes | None) -> None:
        tenant, field = made.tenant, stream[len(made.tenant) :]
        scope = len(keys.scope_of(stream)) - len(tenant)
        first, last, end, written = 0, 0, given[0].previous, 0.0
        if raw:
            head = rows.head(field, raw, tenant)
            if head.kind != rows.STREAM:
                raise InvalidInput(NOT_BOTH)
            first, last, written = int(head.expires) + 1, head.version, head.written
            end = bytes.fromhex(head.digest.decode())
        place = place_of(given, first, last)
        if place.there:
            stored = self._read(stream, after=place.there[0].number - 1, limit=len(place.there))
            if len(stored) != len(place.there) or not all(map(is_same_entry, stored, place.there)):
                raise Conflict(OTHER_CONTENT, [stream])
        before = _made(field, place.before, place.before[0].previous if place.before else b"")
        if before:
            (link,) = self._read(stream, after=first - 1, limit=1)
            if link.previous != before[-1][2]:
                raise Damaged(f"{rows.shown(stream)}: {NOT_LINKED}")
        after = _made(field, place.after, end)
        for number, entry, _ in (*before, *after):
            made.entries += (_NUMBER.pack(number) + field, entry)
        made.count += len(before) + len(after)
        if not before and not after:
            return
        begin = before[0][0] if before else (first or given[0].number)
        made.format = 2 if begin > 1 else made.format
        if after:
            last, written, end = after[-1][0], place.after[-1].written_at, after[-1][2]
        made.heads += (field, _sealed(field, 2, last, written, begin - 1, scope, end.hex().encode()))


def _sealed(field: bytes, kind: int, version: int, written: float, expires: float, scope: int, own: bytes) -> bytes:
    body = _HEAD.pack(kind, version, written, expires, scope) + own
    return body + _sha1(body + field).hexdigest()[:16].encode()


def _made(field: bytes, given: Sequence[Entry], previous: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return number, stored form and digest of each entry."""
    made: list[tuple[int, bytes, bytes]] = []
    for entry in given:
        assigned = ",".join(map(str, entry.versions)).encode()
        before = previous.hex().encode() if previous else b"0" * 32
        body = _ENTRY.pack(entry.number, entry.written_at, len(assigned)) + assigned + before + digest(entry.value)
        own = _sha1(body + field).hexdigest()[:32]
        value = entry.value
        if entry.forgotten:
            value = _sha1(b"forgotten" + body + own.encode() + field).hexdigest()[:32].encode()
        previous = bytes.fromhex(own)
        made.append((entry.number, body + own.encode() + value, previous))
    return made
