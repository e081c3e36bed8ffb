"""Read a Postgres store: one statement for each verb, so that each result is from one snapshot. Every row is verified.

Expired records are absent, by the server's clock unless the client supplies the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from tenuto.backends.postgres import rows, wire
from tenuto.backends.postgres.schema import schema_name
from tenuto.backends.postgres.wire import Parameter, Statement, statement
from tenuto.kernel import keys
from tenuto.kernel.contract import Entry, Record

Ask = Callable[[Statement, Sequence[Parameter]], list[Any]]
_COLUMNS: Final = "value, version, written, expires, digest"
_ENTRY: Final = "number, value, written, digest, previous, versions, forgotten"
_LAST: Final = (1 << 63) - 1


class Statements(NamedTuple):
    """The statements that read one schema."""

    one: Statement
    many: Statement
    up: Statement
    down: Statement
    entries_up: Statement
    entries_down: Statement
    first: Statement
    streams: Statement


def statements(schema: str) -> Statements:
    """Return the statements that read a schema."""
    name = schema_name(schema)
    live = "NOT dead AND (expires IS NULL OR expires > coalesce($2, extract(epoch FROM statement_timestamp())::float8))"
    record = f"FROM {name}.records WHERE tenant = $1 AND {live} AND"
    within = f"SELECT key, {_COLUMNS} {record} key >= $3 AND key < $4 ORDER BY key"
    entry = f"SELECT {_ENTRY} FROM {name}.entries WHERE tenant = $1 AND stream = $2 AND number > $3 AND number < $4 ORDER BY number"  # noqa: S608
    scanned = ("text", "double", "bytea", "bytea", "integer")
    followed = ("text", "bytea", "bigint", "bigint", "integer")
    return Statements(
        statement(f"SELECT {_COLUMNS} {record} key = $3", "text", "double", "bytea"),
        statement(f"SELECT key, {_COLUMNS} {record} key = ANY($3)", "text", "double", "bytea[]"),
        statement(f"{within} LIMIT $5", *scanned),
        statement(f"{within} DESC LIMIT $5", *scanned),
        statement(f"{entry} LIMIT $5", *followed),
        statement(f"{entry} DESC LIMIT $5", *followed),
        statement(f"SELECT first FROM {name}.streams WHERE tenant = $1 AND key = $2", "text", "bytea"),  # noqa: S608
        statement(
            f"SELECT key FROM {name}.streams WHERE tenant = $1 AND key >= $2 AND key < $3 ORDER BY key LIMIT $4",  # noqa: S608
            "text",
            "bytea",
            "bytea",
            "integer",
        ),
    )


def read(ask: Ask, sql: Statements, given: Parameter, wanted: Sequence[bytes]) -> list[Record | None]:
    """Return the live record at each key; `given` is the time to use, None for the server's."""
    prefix, tenant = rows.tenant_of(wanted[0]) if wanted else (b"", None)
    if tenant is None:
        return [None] * len(wanted)
    cut = len(prefix)
    if len(wanted) == 1:
        found = ask(sql.one, (tenant, given, wanted[0][cut:]))
        return [rows.verified(wanted[0], found[0]) if found else None]
    stored = ask(sql.many, (tenant, given, wire.many_bytes([key[cut:] for key in wanted])))
    records = {(key := prefix + row[0]): rows.verified(key, row[1:]) for row in stored}
    return [records.get(key) for key in wanted]


def scan(
    ask: Ask, sql: Statements, given: Parameter, prefix: bytes, *, after: bytes | None, limit: int, reverse: bool
) -> list[Record]:
    """Return live records with a prefix in key order."""
    whole, tenant = rows.tenant_of(prefix)
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
    found = ask(sql.down if reverse else sql.up, (tenant, given, low[cut:], end, wire.integer(limit)))
    return [rows.verified(whole + row[0], row[1:]) for row in found]


def entries(ask: Ask, sql: Statements, stream: bytes, *, after: int | None, limit: int, reverse: bool) -> list[Entry]:
    """Return entries of a stream in number order, with verified links."""
    prefix, tenant = rows.tenant_of(stream)
    if tenant is None:
        return []
    low, high = 0, _LAST
    if after is not None:
        low, high = (0, max(0, min(after, high))) if reverse else (max(0, min(after, high)), high)
    bounds = wire.bigint(low), wire.bigint(high), wire.integer(limit)
    seen: tuple[int, int] | None = None
    while True:
        stored = ask(sql.entries_down if reverse else sql.entries_up, (tenant, stream[len(prefix) :], *bounds))
        found = [rows.verified_entry(stream, row) for row in stored]
        first = None if reverse else low + 1
        if found and first is not None and found[0].number > first:
            trimmed = ask(sql.first, (tenant, stream[len(prefix) :]))
            begin = trimmed[0][0] if trimmed else 1
            # Another client may trim between the two statements: then the entries read are from before. Or it may load what
            # was trimmed: then they are read again. A gap that is there twice is damage.
            if begin < found[0].number and first < found[0].number and seen != (begin, found[0].number):
                seen = (begin, found[0].number)
                continue
            first = max(first, min(found[0].number, begin))
        return rows.consecutive(stream, found, first, reverse=reverse)


def streams(ask: Ask, sql: Statements, prefix: bytes, *, after: bytes | None, limit: int) -> list[bytes]:
    """Return keys of streams with a prefix, in key order."""
    whole, tenant = rows.tenant_of(prefix)
    assert tenant is not None
    high = keys.after_prefix(prefix)
    low = prefix if after is None else max(prefix, after + b"\x00")
    if not low.startswith(whole) or (high is not None and high <= low):
        return []
    cut = len(whole)
    end = high[cut:] if high is not None and high.startswith(whole) else rows.END
    return [whole + row[0] for row in ask(sql.streams, (tenant, low[cut:], end, wire.integer(limit)))]
