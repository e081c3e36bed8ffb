"""Going through a whole Redis store, a page at a time: every seal, every digest, every link of every stream."""

from __future__ import annotations

from collections.abc import Iterator

from tenuto.backends import _redis_rows as rows
from tenuto.backends._redis_link import Link, Place
from tenuto.backends._redis_script import AUDIT, COUNT, ENTRIES, STRAY
from tenuto.errors import Damaged
from tenuto.kernel.contract import Finding

_PAGE = 200


def tenants(link: Link, prefix: bytes) -> Iterator[tuple[Place, bytes]]:
    """Yield every tenant of which anything is left in a store, and the node that holds it."""
    pattern = b"%s:{*}:*" % _escaped(prefix)
    for place in link.places():
        seen: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, names = link.ask(place, "SCAN", cursor, "MATCH", pattern, "COUNT", 1000)
            for tenant in map(rows.tenant_in, names):
                if tenant not in seen:
                    seen.add(tenant)
                    yield place, tenant
            if cursor in (b"0", 0):
                break


def sizes(link: Link, prefix: bytes) -> dict[str, int]:
    """Return how many tenants, records and entries there are; what expired and is not swept yet counts."""
    found = {"tenants": 0, "records": 0, "entries": 0}
    for _, tenant in tenants(link, prefix):
        values, _, entries, *_ = link.run(COUNT, rows.names(prefix, tenant), ())
        found["tenants"] += 1
        found["records"] += values
        found["entries"] += entries
    return found


def check(link: Link, prefix: bytes) -> list[Finding]:
    """Return what is wrong with a store."""
    findings: list[Finding] = []
    for place, tenant in tenants(link, prefix):
        findings += _check_heads(link, place, prefix, tenant)
        findings += _check_order(link, prefix, tenant)
        findings += _check_strays(link, prefix, tenant)
        findings += _check_rest(link, place, prefix, tenant)
    return findings


def _check_heads(link: Link, place: Place, prefix: bytes, tenant: bytes) -> list[Finding]:
    names = rows.names(prefix, tenant)
    findings: list[Finding] = []
    cursor = b"0"
    while True:
        cursor, flat = link.ask(place, "HSCAN", names[0], cursor, "COUNT", _PAGE)
        fields = [field for field in dict.fromkeys(flat[::2]) if field != b"clock"]
        found = link.run(AUDIT, names, fields) if fields else []
        for field, raw, value, score in zip(fields, found[::3], found[1::3], found[2::3], strict=True):
            if raw is None and value is None and score is None:
                continue  # let go since the page was read
            try:
                record = rows.record(field, raw, value, 0.0, tenant)
                if (record is None) is not (score is None):
                    findings.append(Finding("order", f"{rows.shown(tenant + field)} is not where scans look for it."))
                if raw is not None and (head := rows.head(field, raw, tenant)).kind == rows.STREAM:
                    findings += _check_stream(link, names, tenant, field, head)
            except Damaged as error:
                findings.append(Finding("damage", str(error)))
        if cursor in (b"0", 0):
            return findings


def _check_stream(link: Link, names: list[bytes], tenant: bytes, field: bytes, head: rows.Head) -> list[Finding]:
    findings: list[Finding] = []
    previous, number = b"", 0
    while number < head.version:
        _, *stored = link.run(ENTRIES, names, (field, number, _PAGE, "up"))
        if not stored:
            return [*findings, Finding("chain", f"The entries of {rows.shown(tenant + field)} are missing.")]
        for raw in stored:
            number += 1
            try:
                entry = rows.entry(field, number, raw, tenant)
            except Damaged as error:
                findings.append(Finding("damage", str(error)))
                continue
            broken = entry.previous != previous or (
                number == head.version and entry.digest.hex() != head.digest.decode()
            )
            if broken:
                where = f"Entry {number} of {rows.shown(tenant + field)}"
                findings.append(Finding("chain", f"{where} does not follow the one before."))
            previous = entry.digest
    return findings


def _check_order(link: Link, prefix: bytes, tenant: bytes) -> list[Finding]:
    values, ordered, *_ = link.run(COUNT, rows.names(prefix, tenant), ())
    if values == ordered:
        return []
    where = rows.shown(tenant)
    return [Finding("order", f"Of tenant {where} there are {values} values, but scans see {ordered}.")]


def _check_strays(link: Link, prefix: bytes, tenant: bytes) -> list[Finding]:
    """Return each stream of which there are entries that its head does not know of, or that has no head at all."""
    lost: dict[bytes, int] = {}
    cursor = b"0"
    while True:
        cursor, *fields = link.run(STRAY, rows.names(prefix, tenant), (cursor, _PAGE))
        for field in fields:
            lost[field[8:]] = lost.get(field[8:], 0) + 1
        if cursor in (b"0", 0):
            break
    return [
        Finding(
            "chain", f"{count} entries of {rows.shown(tenant + stream)} are beyond its end, or have lost their stream."
        )
        for stream, count in lost.items()
    ]


def _check_rest(link: Link, place: Place, prefix: bytes, tenant: bytes) -> list[Finding]:
    names = rows.names(prefix, tenant)
    findings: list[Finding] = []
    where = rows.shown(tenant)
    cursor = b"0"
    while True:
        cursor, flat = link.ask(place, "HSCAN", names[4], cursor, "COUNT", _PAGE)
        for scope, raw in zip(flat[::2], flat[1::2], strict=True):
            if not rows.floor_holds(scope, raw):
                findings.append(
                    Finding("damage", f"The floor of {rows.shown(tenant + scope)} is not what was written.")
                )
        if cursor in (b"0", 0):
            break
    while True:
        cursor, flat = link.ask(place, "ZSCAN", names[5], cursor, "COUNT", _PAGE)
        wrong = Finding("damage", f"The record of a request of tenant {where} is not what was written.")
        findings += [wrong for raw in flat[::2] if not rows.request_holds(raw)]
        if cursor in (b"0", 0):
            return findings


def _escaped(prefix: bytes) -> bytes:
    return b"".join(b"\\" + bytes([c]) if c in b"*?[]\\^-" else bytes([c]) for c in prefix)
