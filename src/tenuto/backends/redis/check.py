"""Verify a whole Redis store page by page: every seal, every digest, every link of every stream."""

from __future__ import annotations

from collections.abc import Iterator

from tenuto.backends.redis import rows
from tenuto.backends.redis.calls import Calls
from tenuto.backends.redis.scripts import AUDIT, COUNT, ENTRIES, STRAY
from tenuto.backends.redis.url import Place
from tenuto.errors import Damaged
from tenuto.kernel.contract import Finding

_PAGE = 200


def tenants(calls: Calls, prefix: bytes) -> Iterator[tuple[Place, bytes]]:
    """Yield every tenant with stored data, and the node that holds it."""
    pattern = b"%s:{*}:*" % _escaped(prefix)
    for place in calls.places():
        seen: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, names = calls.ask(place, "SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            for tenant in map(rows.tenant_in, names):
                if tenant not in seen:
                    seen.add(tenant)
                    yield place, tenant
            if cursor in (b"0", 0):
                break


def sizes(calls: Calls, prefix: bytes) -> dict[str, int]:
    """Return the number of tenants, records and entries, including expired ones that are not removed yet."""
    found = {"tenants": 0, "records": 0, "entries": 0}
    for _, tenant in tenants(calls, prefix):
        values, _, entries, *_ = calls.run(COUNT, rows.names(prefix, tenant), ())
        found["tenants"] += 1
        found["records"] += values
        found["entries"] += entries
    return found


def check(calls: Calls, prefix: bytes) -> list[Finding]:
    """Return all defects of a store."""
    findings: list[Finding] = []
    for place, tenant in tenants(calls, prefix):
        findings += _check_heads(calls, place, prefix, tenant)
        findings += _check_order(calls, prefix, tenant)
        findings += _check_strays(calls, prefix, tenant)
        findings += _check_rest(calls, place, prefix, tenant)
    return findings


def _check_heads(calls: Calls, place: Place, prefix: bytes, tenant: bytes) -> list[Finding]:
    names = rows.names(prefix, tenant)
    findings: list[Finding] = []
    cursor = b"0"
    while True:
        cursor, flat = calls.ask(place, "HSCAN", names[0], cursor, "COUNT", _PAGE)
        fields = [field for field in dict.fromkeys(flat[::2]) if field != b"clock"]
        found = calls.run(AUDIT, names, fields) if fields else []
        for field, raw, value, score in zip(fields, found[::3], found[1::3], found[2::3], strict=True):
            if raw is None and value is None and score is None:
                continue  # removed since the page was read
            try:
                record = rows.record(field, raw, value, 0.0, tenant)
                if (record is None) is not (score is None):
                    findings.append(Finding("order", f"{rows.shown(tenant + field)} is missing from the scan index."))
                if raw is not None and (head := rows.head(field, raw, tenant)).kind == rows.STREAM:
                    findings += _check_stream(calls, names, tenant, field, head)
            except Damaged as error:
                findings.append(Finding("damage", str(error)))
        if cursor in (b"0", 0):
            return findings


def _check_stream(calls: Calls, names: list[bytes], tenant: bytes, field: bytes, head: rows.Head) -> list[Finding]:
    findings: list[Finding] = []
    previous, number = b"", int(head.expires)  # so many entries were trimmed
    trimmed = number
    while number < head.version:
        _, *stored = calls.run(ENTRIES, names, (field, number, _PAGE, "up"))
        if not stored:
            return [*findings, Finding("chain", f"The entries of {rows.shown(tenant + field)} are missing.")]
        for raw in stored:
            number += 1
            try:
                entry = rows.entry(field, number, raw, tenant)
            except Damaged as error:
                findings.append(Finding("damage", str(error)))
                continue
            broken = (entry.previous != previous and number != trimmed + (trimmed > 0)) or (
                number == head.version and entry.digest.hex() != head.digest.decode()
            )
            if broken:
                where = f"Entry {number} of {rows.shown(tenant + field)}"
                findings.append(Finding("chain", f"{where} does not follow the entry before it."))
            previous = entry.digest
    return findings


def _check_order(calls: Calls, prefix: bytes, tenant: bytes) -> list[Finding]:
    values, ordered, *_ = calls.run(COUNT, rows.names(prefix, tenant), ())
    if values == ordered:
        return []
    where = rows.shown(tenant)
    return [Finding("order", f"Tenant {where} has {values} values, but scans see {ordered}.")]


def _check_strays(calls: Calls, prefix: bytes, tenant: bytes) -> list[Finding]:
    """Return a finding for each stream with entries after its last number, or without a head."""
    lost: dict[bytes, int] = {}
    cursor = b"0"
    while True:
        cursor, *fields = calls.run(STRAY, rows.names(prefix, tenant), (cursor, _PAGE))
        for field in fields:
            lost[field[8:]] = lost.get(field[8:], 0) + 1
        if cursor in (b"0", 0):
            break
    return [
        Finding(
            "chain", f"{count} entries of {rows.shown(tenant + stream)} are after its end, or their stream is missing."
        )
        for stream, count in lost.items()
    ]


def _check_rest(calls: Calls, place: Place, prefix: bytes, tenant: bytes) -> list[Finding]:
    names = rows.names(prefix, tenant)
    findings: list[Finding] = []
    where = rows.shown(tenant)
    cursor = b"0"
    while True:
        cursor, flat = calls.ask(place, "HSCAN", names[4], cursor, "COUNT", _PAGE)
        for scope, raw in zip(flat[::2], flat[1::2], strict=True):
            if not rows.floor_holds(scope, raw):
                findings.append(Finding("damage", f"The floor of {rows.shown(tenant + scope)} is damaged."))
        if cursor in (b"0", 0):
            break
    while True:
        cursor, flat = calls.ask(place, "ZSCAN", names[5], cursor, "COUNT", _PAGE)
        wrong = Finding("damage", f"The record of a request of tenant {where} is damaged.")
        findings += [wrong for raw in flat[::2] if not rows.request_holds(raw)]
        if cursor in (b"0", 0):
            return findings


def _escaped(prefix: bytes) -> bytes:
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in prefix)
