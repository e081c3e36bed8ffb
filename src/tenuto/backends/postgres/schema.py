"""The schema of a Postgres store and its migrations.

All tables are in one schema. Every primary key begins with the tenant, so that the tables can be partitioned or
distributed by it; a key is stored without its tenant. A commit is one call of a function (see `commit_sql`):

* It locks every key that is checked or written, in key order, each once and in its final mode, so that
  two commits cannot deadlock: written keys exclusively, keys that are only checked shared. `FOR UPDATE`
  locks nothing if there is no row; then an advisory lock on the key is acquired and the row is looked up
  again. So no commit can create a key that another commit has just found absent.
* It decides everything before it writes. It rejects a commit by raising a SQLSTATE of its own.
* It locks a request id before looking it up, so a repeated request waits for the first one to end.

`MIGRATIONS` is append-only, and a published function never changes what it does for calls that it knows: another
behaviour is a new function (`commit_v2`) next to the old one, so that two versions of the library can share a database
during a rolling deploy. `min_reader` and `min_writer` are the oldest formats that may still open the store.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from tenuto.backends.postgres.commit_sql import COMMIT_SQL, ONE_SQL
from tenuto.errors import InvalidInput

CONFLICT: Final = "TN001"
REUSED: Final = "TN002"
EXPIRED: Final = "TN003"
BOTH: Final = "TN004"
NEWER: Final = "TN005"
"""Raised by the function that a later migration installs in place of a withdrawn one."""
ISOLATION: Final = "TN006"


class Migration(NamedTuple):
    """One step of the store's format. `min_reader` and `min_writer` apply from then on."""

    number: int
    name: str
    sql: str
    min_reader: int
    min_writer: int


_TABLES: Final = """
CREATE TABLE {schema}.records (
    tenant text COLLATE "C" NOT NULL,
    key bytea NOT NULL,                 -- without the tenant
    scope smallint NOT NULL,            -- how many bytes of the key are its scope
    version bigint NOT NULL,
    dead boolean NOT NULL DEFAULT false, -- a tombstone, retained until `expires`
    written double precision NOT NULL,
    expires double precision,
    digest bytea NOT NULL,              -- of the whole key and the value
    value bytea NOT NULL,
    PRIMARY KEY (tenant, key)
) WITH (fillfactor = 85);
CREATE INDEX records_expiring ON {schema}.records (expires) WHERE expires IS NOT NULL;
CREATE TABLE {schema}.streams (
    tenant text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    number bigint NOT NULL,             -- the last entry's number, time and digest
    written double precision NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (tenant, key)
) WITH (fillfactor = 70);
CREATE TABLE {schema}.entries (
    tenant text COLLATE "C" NOT NULL,
    stream bytea NOT NULL,
    number bigint NOT NULL,
    written double precision NOT NULL,
    versions bigint[] NOT NULL,         -- assigned by the entry's commit
    previous bytea NOT NULL,            -- digest of the previous entry
    digest bytea NOT NULL,              -- of all of this and of the value
    value bytea NOT NULL,
    forgotten bytea,                    -- if the value was erased: its digest, and a seal
    PRIMARY KEY (tenant, stream, number)
);
CREATE TABLE {schema}.floors (
    tenant text COLLATE "C" NOT NULL,
    scope bytea NOT NULL,
    version bigint NOT NULL,
    PRIMARY KEY (tenant, scope)
);
CREATE TABLE {schema}.requests (
    tenant text COLLATE "C" NOT NULL,
    id bytea NOT NULL,
    content bytea NOT NULL,
    versions bigint[] NOT NULL,
    at double precision NOT NULL,
    PRIMARY KEY (tenant, id)
);
CREATE INDEX requests_by_age ON {schema}.requests (id); -- an id begins with its time
"""

_SWEEP: Final = """
CREATE FUNCTION {schema}.sweep_v1(p_now double precision, p_oldest bytea, p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $body$
DECLARE
    life CONSTANT double precision := 3600;
    moment double precision := coalesce(p_now, extract(epoch FROM clock_timestamp())::double precision);
    swept integer;
    purged integer;
    forgotten integer;
BEGIN
    -- One sweep at a time is enough; do not wait for another.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('{schema}', 2)) THEN
        RETURN 0;
    END IF;
    WITH old AS (
        SELECT q.tenant, q.id FROM {schema}.requests q WHERE q.id < p_oldest
            ORDER BY q.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    )
    DELETE FROM {schema}.requests q USING old WHERE q.tenant = old.tenant AND q.id = old.id;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    -- Raise the floor in the transaction that deletes the tombstone: a key created again starts above it.
    WITH due AS (
        SELECT r.tenant, r.key, r.scope, r.version FROM {schema}.records r WHERE r.expires <= moment AND r.dead
            ORDER BY r.expires LIMIT p_limit FOR UPDATE SKIP LOCKED
    ), raised AS (
        INSERT INTO {schema}.floors AS f (tenant, scope, version)
            SELECT due.tenant, substr(due.key, 1, due.scope), max(due.version) FROM due GROUP BY 1, 2 ORDER BY 1, 2
            ON CONFLICT (tenant, scope) DO UPDATE SET version = greatest(f.version, excluded.version)
    )
    DELETE FROM {schema}.records r USING due WHERE r.tenant = due.tenant AND r.key = due.key;
    GET DIAGNOSTICS purged = ROW_COUNT;
    WITH due AS (
        SELECT r.tenant, r.key FROM {schema}.records r WHERE r.expires <= moment AND NOT r.dead
            ORDER BY r.expires LIMIT p_limit FOR UPDATE SKIP LOCKED
    )
    UPDATE {schema}.records r SET dead = true, expires = moment + life, digest = ''::bytea, value = ''::bytea
        FROM due WHERE r.tenant = due.tenant AND r.key = due.key;
    GET DIAGNOSTICS swept = ROW_COUNT;
    RETURN greatest(swept, purged, forgotten);
END $body$;
"""

MIGRATIONS: list[Migration] = [
    Migration(1, "records, streams, floors, requests; commits, sweep", _TABLES + COMMIT_SQL + _SWEEP, 1, 1),
    # Scans skip tombstones: a queue leaves one for each task.
    Migration(
        2,
        "an index of live records",
        "CREATE INDEX records_live ON {schema}.records (tenant, key) WHERE NOT dead;\n",
        1,
        1,
    ),
    Migration(
        3,
        "trimmed streams",
        "ALTER TABLE {schema}.streams ADD COLUMN first bigint NOT NULL DEFAULT 1; -- the first entry's number\n",
        1,
        1,
    ),
    # The same function, and it can append under a lease: clients that never ask for that see no difference.
    Migration(4, "append under a lease", ONE_SQL, 1, 1),
]

_SETUP: Final = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    min_reader integer NOT NULL,
    min_writer integer NOT NULL,
    applied timestamptz NOT NULL DEFAULT now()
);
"""


def known() -> int:
    """Return the newest format that this version can read and write."""
    return max(migration.number for migration in MIGRATIONS)


def schema_name(name: str) -> str:
    """Return a schema's name quoted for SQL, or raise `InvalidInput`."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,47}", name) or name.startswith("pg_"):
        raise InvalidInput(
            f"A schema name must have up to 48 of a-z, 0-9 and _, and not begin with a digit or pg_; {name!r} does not fit."
        )
    return f'"{name}"'


def setup_sql(schema: str) -> str:
    """Return the SQL that creates the schema and its table of migrations if they are missing."""
    return _SETUP.replace("{schema}", schema_name(schema))


def step_sql(schema: str, migration: Migration) -> str:
    """Return the SQL of one migration, including the row that records it."""
    quoted = schema_name(schema)
    name = migration.name.replace("'", "''")
    body = migration.sql.replace("'{schema}'", f"'{schema}'").replace("{schema}", quoted)
    values = f"{migration.number}, '{name}', {migration.min_reader}, {migration.min_writer}"
    book = f"{quoted}.migrations (number, name, min_reader, min_writer)"
    return f"{body}INSERT INTO {book} VALUES ({values});\n"  # noqa: S608 - the schema's name was validated


def migration_sql(schema: str = "tenuto", *, role: str | None = None, after: int = 0) -> str:
    """Return the SQL that creates a store, in one transaction, for a role that may run DDL.

    With `role` it also grants that role what a client needs. With `after`, earlier migrations are left out.
    """
    quoted = schema_name(schema)
    parts = ["BEGIN;", setup_sql(schema), *(step_sql(schema, m) for m in MIGRATIONS if m.number > after)]
    if role is not None:
        to = '"' + role.replace('"', '""') + '"'
        parts.append(
            f"GRANT USAGE ON SCHEMA {quoted} TO {to};\n"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {quoted} TO {to};\n"
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {quoted} TO {to};"
        )
    return "\n".join([*parts, "COMMIT;\n"])
