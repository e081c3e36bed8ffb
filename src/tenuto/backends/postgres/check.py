"""Verify a whole Postgres store: every record's digest, every stream's links. Also collects its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from tenuto.backends.postgres import rows
from tenuto.errors import Damaged
from tenuto.kernel.contract import Entry, Finding

Ask = Callable[[str, Sequence[Any]], list[Any]]
_PAGE: Final = 100
_COUNTED: Final = 100_000
_BEFORE_THE_FIRST: Final = Entry(0, b"", 0.0, b"", b"", ())


def check_rows(ask: Ask, schema: str) -> list[Finding]:
    """Return the defects of a store's rows, page by page, each page from one snapshot."""
    return [*_check_records(ask, schema), *_check_entries(ask, schema), *_check_heads(ask, schema)]


def _check_records(ask: Ask, schema: str) -> list[Finding]:
    findings: list[Finding] = []
    sql = (
        f"SELECT tenant, key, dead, value, version, written, expires, digest FROM {schema}.records "  # noqa: S608 - validated
        "WHERE (tenant, key) > (%s, %s) ORDER BY tenant, key LIMIT %s::int4"
    )
    last: tuple[str, bytes] = ("", b"")
    while page := ask(sql, (*last, _PAGE)):
        for tenant, key, dead, *row in page:
            whole = rows.tenant_prefix(tenant) + key
            try:
                if dead:
                    if row[0] or row[-1]:
                        raise rows.damaged(whole)
                else:
                    rows.verified(whole, row)
            except Damaged as error:
                findings.append(Finding("damage", str(error)))
        last = (page[-1][0], page[-1][1])
    return findings


def _check_entries(ask: Ask, schema: str) -> list[Finding]:
    findings: list[Finding] = []
    sql = (
        "SELECT tenant, stream, number, value, written, digest, previous, versions, forgotten "  # noqa: S608
        f"FROM {schema}.entries WHERE (tenant, stream, number) > (%s, %s, %s::int8) "
        "ORDER BY tenant, stream, number LIMIT %s::int4"
    )
    last: tuple[str, bytes, int] = ("", b"", 0)
    before, stream = _BEFORE_THE_FIRST, b""
    while page := ask(sql, (*last, _PAGE)):
        for tenant, key, *row in page:
            whole = rows.tenant_prefix(tenant) + key
            begins = whole != stream
            if begins:
                before, stream = _BEFORE_THE_FIRST, whole
            try:
                entry = rows.verified_entry(whole, row)
            except Damaged as error:
                findings.append(Finding("damage", str(error)))
                continue
            if begins and entry.number > 1:
                first = ask(f"SELECT first FROM {schema}.streams WHERE tenant = %s AND key = %s", (tenant, key))  # noqa: S608
                if first and first[0][0] == entry.number:  # it was trimmed
                    before = entry
            if entry is not before and (entry.number != before.number + 1 or entry.previous != before.digest):
                where = f"Entry {entry.number} of {rows.shown(whole)}"
                findings.append(Finding("chain", f"{where} does not follow the entry before it."))
            before = entry
        last = (page[-1][0], page[-1][1], page[-1][2])
    return findings


def _check_heads(ask: Ask, schema: str) -> list[Finding]:
    findings: list[Finding] = []
    sql = (
        f"SELECT s.tenant, s.key, e.number IS NOT NULL FROM {schema}.streams s LEFT JOIN {schema}.entries e "  # noqa: S608
        "ON e.tenant = s.tenant AND e.stream = s.key AND e.number = s.number AND e.digest = s.digest "
        f"AND NOT EXISTS (SELECT FROM {schema}.entries f WHERE f.tenant = s.tenant AND f.stream = s.key "
        "AND f.number > s.number) "
        "WHERE (s.tenant, s.key) > (%s, %s) ORDER BY s.tenant, s.key LIMIT %s::int4"
    )
    last: tuple[str, bytes] = ("", b"")
    while page := ask(sql, (*last, _PAGE)):
        for tenant, key, whole in page:
            if not whole:
                name = rows.shown(rows.tenant_prefix(tenant) + key)
                findings.append(Finding("chain", f"The end of {name} is not its last entry."))
        last = (page[-1][0], page[-1][1])
    lost = ask(
        f"SELECT DISTINCT tenant, stream FROM {schema}.entries e WHERE NOT EXISTS "  # noqa: S608
        f"(SELECT FROM {schema}.streams s WHERE s.tenant = e.tenant AND s.key = e.stream) LIMIT 100",
        (),
    )
    for tenant, key in lost:
        name = rows.shown(rows.tenant_prefix(tenant) + key)
        findings.append(Finding("chain", f"The stream of the entries of {name} is missing."))
    return findings


def figures(ask: Ask, schema: str, *, full: bool) -> dict[str, Any]:
    """Return the server's settings and the size of the store."""
    version, fsync, pages, commit, standbys, replica = ask(
        "SELECT current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'), "
        "current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), pg_is_in_recovery()",
        (),
    )[0]
    if not full:
        in_force, survives = "off", "the end of this process"
    else:
        in_force = commit if commit in ("on", "remote_apply") else "on"
        survives = "kill and power loss" if fsync == "on" == pages else "kill of the server, not power loss"
    sizes = {
        name: ask("SELECT pg_total_relation_size(%s::regclass)", (f"{schema}.{name}",))[0][0]
        for name in ("records", "streams", "entries", "floors", "requests")
    }
    return {
        "version": version,
        "survives": survives,
        "fsync": fsync,
        "synchronous_commit": in_force,
        "synchronous_standbys": standbys,
        "replica": replica,
        "records": _count(ask, f"{schema}.records", "NOT dead"),
        "entries": _count(ask, f"{schema}.entries", "true"),
        "bytes": sum(sizes.values()),
        "bytes_by_table": sizes,
    }


def _count(ask: Ask, table: str, where: str) -> int:
    """Count exactly up to 100,000; above that, return the server's estimate, which is free."""
    found = ask(f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {where} LIMIT %s::int4) t", (_COUNTED + 1,))[0][0]  # noqa: S608
    if found <= _COUNTED:
        return int(found)
    estimate = ask("SELECT reltuples::int8 FROM pg_class WHERE oid = %s::regclass", (table,))[0][0]
    return max(int(found), int(estimate))
