"""What is inside a Postgres store, and how an older one becomes the newest.

Everything lives in one schema. Every primary key begins with the tenant, so that the tables can be
partitioned or distributed by it; a key is stored without its tenant. A commit is one call of `commit_v1`:

* It locks every key that is checked or written, in key order, each once and in its final mode, so that
  two commits cannot deadlock: written keys exclusively, merely checked ones shared. `FOR UPDATE` locks
  nothing where there is no row; there an advisory lock on the key stands in, and the key is looked for
  again once it is held. So nobody creates a key that another has just found absent.
* Then it decides everything, and only then writes. What it refuses it raises with a SQLSTATE of its own.
* A request id is locked before it is looked up: whoever sends it again waits for the first to end.

`MIGRATIONS` only ever grows at its end, and a function once published never changes: a new behaviour is a
new function (`commit_v2`) beside the old one, so that two versions of the library share a database while
a deploy rolls. `min_reader` and `min_writer` say which formats of the library may still open the store.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple
from zlib import crc32

from tenuto.errors import InvalidInput

CONFLICT: Final = "TN001"
REUSED: Final = "TN002"
EXPIRED: Final = "TN003"
BOTH: Final = "TN004"
NEWER: Final = "TN005"
"""Raised by what a later migration leaves in the place of a function that may no longer be called."""
ISOLATION: Final = "TN006"

MARKS: Final = 1414877780
"""What the locks of those who watch streams have in common, beside the number of a stream; `commit_v1` holds it too."""
CHECK_RECORD, CHECK_END, WRITE_RECORD, WRITE_STREAM = 1, 2, 4, 8
"""What a commit does with a key: the bits of `p_uses`."""


class Migration(NamedTuple):
    """One step of the store's format. `min_reader` and `min_writer` hold from then on."""

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
    dead boolean NOT NULL DEFAULT false, -- a tombstone, kept until `expires`
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
    number bigint NOT NULL,             -- of the last entry, and its time and digest
    written double precision NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (tenant, key)
) WITH (fillfactor = 70);
CREATE TABLE {schema}.entries (
    tenant text COLLATE "C" NOT NULL,
    stream bytea NOT NULL,
    number bigint NOT NULL,
    written double precision NOT NULL,
    versions bigint[] NOT NULL,         -- what the entry's commit gave to its writes
    previous bytea NOT NULL,            -- the digest of the entry before
    digest bytea NOT NULL,              -- of all of this and of the value
    value bytea NOT NULL,
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

_COMMIT: Final = """
CREATE FUNCTION {schema}.commit_v1(
    p_tenant text,
    p_now double precision,     -- NULL: the server's clock
    p_full boolean,             -- durable before it returns
    p_wait text,                -- how long to wait for a lock
    p_keys bytea[],             -- every key of the commit, once each, sorted
    p_uses integer[],           -- what is done with it: 1 check, 2 check the end, 4 write, 8 append
    p_scopes integer[],         -- of a record: how many bytes are its scope; of a stream: its mark
    p_checks integer[],         -- one check each: which key,
    p_ends boolean[],           -- whether it is a stream's end that is checked,
    p_expected bigint[],        -- and what it must be
    p_writes integer[],         -- one write each: which key,
    p_kinds integer[],          -- 0 put, 1 delete, 2 append,
    p_ttls double precision[],
    p_digests bytea[],          -- of the whole key and the value
    p_values bytea[],
    p_request bytea,            -- NULL: none
    p_content bytea,
    p_made double precision,    -- when the request id was made
    p_first boolean,            -- the id was never sent before: it need not be looked up
    OUT versions bigint[],
    OUT at double precision,
    OUT repeated boolean,
    OUT watched integer[]        -- the marks of streams whose watchers are to be told; mostly NULL
) LANGUAGE plpgsql AS $body$
DECLARE
    ignored text;
    life CONSTANT double precision := 3600;
    uses integer;
    slot integer;
    row_key bytea;
    known_content bytea;
    record_versions bigint[];   -- NULL where there is no row, not even a tombstone
    alive boolean[];            -- not dead; whether it has expired is decided once the time is known
    expiries double precision[];
    end_numbers bigint[];
    end_times double precision[];
    end_digests bytea[];
    found_version bigint;
    found_dead boolean;
    found_expires double precision;
    found_number bigint;
    found_time double precision;
    found_digest bytea;
    mixed boolean := false;
    different text := '';
    stamps bytea;
    chained bytea;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'transactions are % here, and must be read committed', current_setting('transaction_isolation')
            USING ERRCODE = 'TN006';
    END IF;
    IF p_full THEN
        IF current_setting('synchronous_commit') NOT IN ('on', 'remote_apply') THEN
            ignored := set_config('synchronous_commit', 'on', true);
        END IF;
    ELSE
        ignored := set_config('synchronous_commit', 'off', true);
    END IF;
    ignored := set_config('lock_timeout', p_wait, true);
    repeated := false;

    IF p_request IS NOT NULL THEN
        ignored := pg_advisory_xact_lock(hashtextextended('{schema}' || p_tenant || encode(p_request, 'hex'), 1));
        IF NOT p_first THEN
            SELECT r.content, r.versions, r.at INTO known_content, versions, at
                FROM {schema}.requests r WHERE r.tenant = p_tenant AND r.id = p_request;
            IF FOUND THEN
                IF known_content <> p_content THEN
                    RAISE EXCEPTION 'request reused' USING ERRCODE = 'TN002';
                END IF;
                repeated := true;
                RETURN;
            END IF;
        END IF;
        IF coalesce(p_now, extract(epoch FROM clock_timestamp())::double precision) - p_made > life THEN
            RAISE EXCEPTION 'request expired' USING ERRCODE = 'TN003';
        END IF;
    END IF;

    FOR i IN 1 .. coalesce(array_length(p_keys, 1), 0) LOOP
        uses := p_uses[i];
        row_key := p_keys[i];
        found_version := NULL;
        found_number := NULL;
        FOR attempt IN 1 .. 2 LOOP
            IF uses & 4 > 0 THEN
                SELECT r.version, r.dead, r.expires INTO found_version, found_dead, found_expires
                    FROM {schema}.records r WHERE r.tenant = p_tenant AND r.key = row_key FOR NO KEY UPDATE;
            ELSIF uses & 1 > 0 THEN
                SELECT r.version, r.dead, r.expires INTO found_version, found_dead, found_expires
                    FROM {schema}.records r WHERE r.tenant = p_tenant AND r.key = row_key FOR SHARE;
            END IF;
            IF uses & 8 > 0 THEN
                SELECT s.number, s.written, s.digest INTO found_number, found_time, found_digest
                    FROM {schema}.streams s WHERE s.tenant = p_tenant AND s.key = row_key FOR NO KEY UPDATE;
            ELSIF uses & 2 > 0 THEN
                SELECT s.number, s.written, s.digest INTO found_number, found_time, found_digest
                    FROM {schema}.streams s WHERE s.tenant = p_tenant AND s.key = row_key FOR SHARE;
            END IF;
            -- Nothing there to lock, of what is checked or written: lock the key itself and look again.
            EXIT WHEN attempt = 2 OR ((uses & 5 = 0 OR found_version IS NOT NULL)
                                  AND (uses & 10 = 0 OR found_number IS NOT NULL));
            IF uses & 12 > 0 THEN
                ignored := pg_advisory_xact_lock(hashtextextended('{schema}' || p_tenant || encode(row_key, 'hex'), 0));
            ELSE
                ignored := pg_advisory_xact_lock_shared(
                    hashtextextended('{schema}' || p_tenant || encode(row_key, 'hex'), 0));
            END IF;
        END LOOP;
        IF uses & 4 > 0 AND found_version IS NULL THEN
            mixed := mixed OR EXISTS (SELECT FROM {schema}.streams s WHERE s.tenant = p_tenant AND s.key = row_key);
        END IF;
        IF uses & 8 > 0 AND found_number IS NULL THEN
            mixed := mixed OR EXISTS (SELECT FROM {schema}.records r WHERE r.tenant = p_tenant AND r.key = row_key);
        END IF;
        record_versions[i] := found_version;
        alive[i] := found_version IS NOT NULL AND NOT found_dead;
        expiries[i] := found_expires;
        end_numbers[i] := coalesce(found_number, 0);
        end_times[i] := found_time;
        end_digests[i] := found_digest;
        IF found_number IS NULL THEN
            end_times[i] := NULL;
            end_digests[i] := ''::bytea;
        END IF;
    END LOOP;

    -- The time is taken with all locks held: it follows that of whoever held them before.
    at := coalesce(p_now, extract(epoch FROM clock_timestamp())::double precision);

    FOR i IN 1 .. coalesce(array_length(p_checks, 1), 0) LOOP
        slot := p_checks[i];
        IF p_ends[i] THEN
            found_number := end_numbers[slot];
        ELSIF alive[slot] AND (expiries[slot] IS NULL OR expiries[slot] > at) THEN
            found_number := record_versions[slot];
        ELSE
            found_number := 0;
        END IF;
        IF found_number <> p_expected[i] THEN
            different := different || ',' || i;
        END IF;
    END LOOP;
    IF different <> '' THEN
        RAISE EXCEPTION 'conflict' USING ERRCODE = 'TN001', DETAIL = substr(different, 2);
    END IF;
    IF mixed THEN
        RAISE EXCEPTION 'not both' USING ERRCODE = 'TN004';
    END IF;

    versions := ARRAY[]::bigint[];
    FOR i IN 1 .. coalesce(array_length(p_writes, 1), 0) LOOP
        slot := p_writes[i];
        IF p_kinds[i] = 2 THEN
            end_numbers[slot] := end_numbers[slot] + 1;
            versions[i] := end_numbers[slot];
        ELSIF p_kinds[i] = 1 THEN
            IF alive[slot] AND (expiries[slot] IS NULL OR expiries[slot] > at) THEN
                versions[i] := record_versions[slot] + 1;
                UPDATE {schema}.records r
                    SET version = record_versions[slot] + 1, dead = true, written = at, expires = at + life,
                        digest = ''::bytea, value = ''::bytea
                    WHERE r.tenant = p_tenant AND r.key = p_keys[slot];
            ELSE
                versions[i] := coalesce(record_versions[slot], 0);
            END IF;
        ELSIF record_versions[slot] IS NOT NULL THEN
            versions[i] := record_versions[slot] + 1;
            UPDATE {schema}.records r
                SET version = record_versions[slot] + 1, dead = false, written = at, expires = at + p_ttls[i],
                    digest = p_digests[i], value = p_values[i]
                WHERE r.tenant = p_tenant AND r.key = p_keys[slot];
        ELSE
            -- The key is absent and locked. If it was ever purged, the floor of its scope says how far it was.
            SELECT f.version INTO found_version FROM {schema}.floors f
                WHERE f.tenant = p_tenant AND f.scope = substr(p_keys[slot], 1, p_scopes[slot]);
            versions[i] := coalesce(found_version, 0) + 1;
            INSERT INTO {schema}.records (tenant, key, scope, version, written, expires, digest, value)
                VALUES (p_tenant, p_keys[slot], p_scopes[slot], versions[i], at, at + p_ttls[i],
                        p_digests[i], p_values[i]);
        END IF;
    END LOOP;

    IF 2 = ANY (p_kinds) THEN
        stamps := convert_to(array_to_string(versions, ','), 'UTF8');
        FOR i IN 1 .. array_length(p_writes, 1) LOOP
            CONTINUE WHEN p_kinds[i] <> 2;
            slot := p_writes[i];
            found_time := greatest(at, end_times[slot]);
            found_digest := end_digests[slot];
            chained := substr(sha256(found_digest || p_digests[i] || int8send(versions[i]) || float8send(found_time)
                                     || stamps), 1, 16);
            INSERT INTO {schema}.entries (tenant, stream, number, written, versions, previous, digest, value)
                VALUES (p_tenant, p_keys[slot], commit_v1.versions[i], found_time, commit_v1.versions,
                        found_digest, chained, p_values[i]);
            end_digests[slot] := chained;
            -- Of several entries of one stream the last one sets its head.
            IF versions[i] = end_numbers[slot] THEN
                -- Whoever watches the stream has marked it with this lock, shared: see _postgres_bells.
                IF NOT pg_try_advisory_xact_lock(1414877780, p_scopes[slot]) THEN
                    watched := array_append(watched, p_scopes[slot]);
                END IF;
                IF end_times[slot] IS NULL THEN
                    INSERT INTO {schema}.streams (tenant, key, number, written, digest)
                        VALUES (p_tenant, p_keys[slot], end_numbers[slot], found_time, chained);
                ELSE
                    UPDATE {schema}.streams s
                        SET number = end_numbers[slot], written = found_time, digest = chained
                        WHERE s.tenant = p_tenant AND s.key = p_keys[slot];
                END IF;
            END IF;
        END LOOP;
    END IF;

    IF p_request IS NOT NULL THEN
        INSERT INTO {schema}.requests (tenant, id, content, versions, at)
            VALUES (p_tenant, p_request, p_content, commit_v1.versions, commit_v1.at);
    END IF;
END $body$;
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
    -- One sweeper at a time is enough, and none waits for another.
    IF NOT pg_try_advisory_xact_lock(hashtextextended('{schema}', 2)) THEN
        RETURN 0;
    END IF;
    WITH old AS (
        SELECT q.tenant, q.id FROM {schema}.requests q WHERE q.id < p_oldest
            ORDER BY q.id LIMIT p_limit FOR UPDATE SKIP LOCKED
    )
    DELETE FROM {schema}.requests q USING old WHERE q.tenant = old.tenant AND q.id = old.id;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    -- The floor rises in the transaction in which the tombstone goes: a key made anew starts above it.
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
    Migration(1, "records, streams, floors, requests; commit_v1, sweep_v1", _TABLES + _COMMIT + _SWEEP, 1, 1),
]

_BOOK: Final = """
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
    """Return the newest format that this version reads and writes."""
    return max(migration.number for migration in MIGRATIONS)


def schema_name(name: str) -> str:
    """Return the name of a schema as it stands in SQL, or raise `InvalidInput`."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,47}", name) or name.startswith("pg_"):
        raise InvalidInput(
            f"A schema is named with up to 48 small letters, digits and _, not beginning with a digit or pg_; {name!r} is not."
        )
    return f'"{name}"'


def mark_of(schema: int, stream: bytes) -> int:
    """Return the number that stands for a stream in the lock of whoever watches it; the schema goes by its own sum."""
    return crc32(stream, schema) >> 1  # the lock's numbers have a sign


def book_sql(schema: str) -> str:
    """Return the SQL that makes the schema and its table of migrations where they are missing."""
    return _BOOK.replace("{schema}", schema_name(schema))


def step_sql(schema: str, migration: Migration) -> str:
    """Return the SQL of one migration and of the record of it."""
    quoted = schema_name(schema)
    name = migration.name.replace("'", "''")
    body = migration.sql.replace("'{schema}'", f"'{schema}'").replace("{schema}", quoted)
    values = f"{migration.number}, '{name}', {migration.min_reader}, {migration.min_writer}"
    book = f"{quoted}.migrations (number, name, min_reader, min_writer)"
    return f"{body}INSERT INTO {book} VALUES ({values});\n"  # noqa: S608 - the schema's name was validated


def migration_sql(schema: str = "tenuto", *, role: str | None = None, after: int = 0) -> str:
    """Return everything that makes a store as SQL, for somebody who may run it: one transaction.

    With `role` it also grants that role what a client needs. `after` leaves out what is applied already.
    """
    quoted = schema_name(schema)
    parts = ["BEGIN;", book_sql(schema), *(step_sql(schema, m) for m in MIGRATIONS if m.number > after)]
    if role is not None:
        to = '"' + role.replace('"', '""') + '"'
        parts.append(
            f"GRANT USAGE ON SCHEMA {quoted} TO {to};\n"
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {quoted} TO {to};\n"
            f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {quoted} TO {to};"
        )
    return "\n".join([*parts, "COMMIT;\n"])
