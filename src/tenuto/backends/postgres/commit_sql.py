"""The SQL functions of a commit.

`commit_v1` accepts any commit: it locks, then decides, then writes. `schema` explains the locking.

`commit_one_v1` is the fast path for the most common commits: one put, one append, or both, and no check except
of that record; or one append under a lease, with the check of the lease's record. If the stream exists, and the
record exists or never did, it needs no arrays, no loops and no lock before the update, which is half the work.
Otherwise it calls `commit_v1` before it has written anything. The locks that it holds by then are the first ones
that `commit_v1` acquires.

The time is read while the locks are held, and is never before that of the previous record, because an update may
have had to wait for its row.

Both return one value, since a row of several columns costs as much as an update: a byte (0 applied, 1 applied before by
this request), the time, the versions as text, and the streams with watchers; or the byte 2 and the failed checks.

A request id is applied once, in whatever order its sendings arrive: one that a client gave up may arrive late. The
commit inserts its row into `requests`, whose primary key admits only one. The client flags the first sending
(`p_first`), which needs no lookup. A later sending that is refused leaves a row too, with the versions {-1} and the
client's time of that sending. An earlier sending must then not be applied, because its failure was reported.
A later one is decided again.
"""

from __future__ import annotations

from typing import Final

_ANY: Final = """
CREATE FUNCTION {schema}.commit_v1(
    p_tenant text,
    p_now double precision,     -- NULL: the server's clock
    p_full boolean,             -- durable before it returns
    p_wait text,                -- how long to wait for a lock
    p_keys bytea[],             -- every key of the commit, once each, sorted
    p_uses integer[],           -- its uses: 1 check, 2 check the end, 4 write, 8 append
    p_scopes integer[],
    p_checks integer[],         -- for each check: the index of its key,
    p_ends boolean[],           -- whether it checks the end of a stream,
    p_expected bigint[],        -- and the expected version or number
    p_writes integer[],         -- for each write: the index of its key,
    p_kinds integer[],          -- 0 put, 1 delete, 2 append, 3 forget,
    p_ttls double precision[],
    p_digests bytea[],          -- of the whole key and the value; of a forget the first and the last number
    p_values bytea[],           -- of a forget the whole key
    p_request bytea,            -- NULL: none
    p_content bytea,
    p_made double precision,    -- when the request id was made
    p_first boolean,            -- the id's first sending, which needs no lookup
    p_sent double precision     -- when it was sent, by the client's clock
) RETURNS bytea LANGUAGE plpgsql AS $body$
DECLARE
    given bigint[];
    moment double precision;
    ignored text;
    life CONSTANT double precision := 3600;
    uses integer;
    slot integer;
    row_key bytea;
    known_content bytea;
    refused_before boolean := false;
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
    watched text := '';
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

    IF p_request IS NOT NULL THEN
        ignored := pg_advisory_xact_lock(hashtextextended('{schema}' || p_tenant || encode(p_request, 'hex'), 1));
        IF NOT p_first THEN
            SELECT r.content, r.versions, r.at INTO known_content, given, moment
                FROM {schema}.requests r WHERE r.tenant = p_tenant AND r.id = p_request;
            refused_before := FOUND AND given = ARRAY[-1]::bigint[];
            IF refused_before AND p_sent <= moment THEN
                RAISE EXCEPTION 'conflict' USING ERRCODE = 'TN001';
            END IF;
            IF FOUND AND NOT refused_before THEN
                IF known_content <> p_content THEN
                    RAISE EXCEPTION 'request reused' USING ERRCODE = 'TN002';
                END IF;
                RETURN decode('01', 'hex') || float8send(moment) || convert_to(array_to_string(given, ','), 'UTF8');
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
            -- No row to lock: lock the key itself and look again.
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

    -- With all locks held, the time is not before that of the previous lock holder.
    moment := coalesce(p_now, extract(epoch FROM clock_timestamp())::double precision);

    FOR i IN 1 .. coalesce(array_length(p_checks, 1), 0) LOOP
        slot := p_checks[i];
        IF p_ends[i] THEN
            found_number := end_numbers[slot];
        ELSIF alive[slot] AND (expiries[slot] IS NULL OR expiries[slot] > moment) THEN
            found_number := record_versions[slot];
        ELSE
            found_number := 0;
        END IF;
        IF found_number <> p_expected[i] THEN
            different := different || ',' || i;
        END IF;
    END LOOP;
    IF different <> '' THEN
        IF p_request IS NOT NULL AND NOT p_first THEN
            INSERT INTO {schema}.requests AS r (tenant, id, content, versions, at)
                VALUES (p_tenant, p_request, p_content, ARRAY[-1]::bigint[], p_sent)
                ON CONFLICT (tenant, id) DO UPDATE SET at = excluded.at;
            RETURN decode('02', 'hex') || convert_to(substr(different, 2), 'UTF8');
        END IF;
        RAISE EXCEPTION 'conflict' USING ERRCODE = 'TN001', DETAIL = substr(different, 2);
    END IF;
    IF mixed THEN
        RAISE EXCEPTION 'not both' USING ERRCODE = 'TN004';
    END IF;

    given := ARRAY[]::bigint[];
    FOR i IN 1 .. coalesce(array_length(p_writes, 1), 0) LOOP
        slot := p_writes[i];
        IF p_kinds[i] = 2 THEN
            end_numbers[slot] := end_numbers[slot] + 1;
            given[i] := end_numbers[slot];
        ELSIF p_kinds[i] = 3 THEN
            -- This commit's own entries do not exist yet. The digest of the value stays, with a seal.
            given[i] := ('x' || encode(substr(p_digests[i], 9, 8), 'hex'))::bit(64)::bigint;
            UPDATE {schema}.entries e
                SET value = ''::bytea,
                    forgotten = f.own || substr(sha256('forgotten'::bytea || f.own || e.digest), 1, 8)
                FROM (SELECT o.number, substr(sha256(p_values[i] || o.value), 1, 16) AS own
                      FROM {schema}.entries o
                      WHERE o.tenant = p_tenant AND o.stream = p_keys[slot] AND o.forgotten IS NULL
                          AND o.number BETWEEN ('x' || encode(substr(p_digests[i], 1, 8), 'hex'))::bit(64)::bigint
                                           AND given[i]) f
                WHERE e.tenant = p_tenant AND e.stream = p_keys[slot] AND e.number = f.number;
        ELSIF p_kinds[i] = 1 THEN
            IF alive[slot] AND (expiries[slot] IS NULL OR expiries[slot] > moment) THEN
                given[i] := record_versions[slot] + 1;
                UPDATE {schema}.records r
                    SET version = record_versions[slot] + 1, dead = true, written = moment, expires = moment + life,
                        digest = ''::bytea, value = ''::bytea
                    WHERE r.tenant = p_tenant AND r.key = p_keys[slot];
            ELSE
                given[i] := coalesce(record_versions[slot], 0);
            END IF;
        ELSIF record_versions[slot] IS NOT NULL THEN
            given[i] := record_versions[slot] + 1;
            UPDATE {schema}.records r
                SET version = record_versions[slot] + 1, dead = false, written = moment, expires = moment + p_ttls[i],
                    digest = p_digests[i], value = p_values[i]
                WHERE r.tenant = p_tenant AND r.key = p_keys[slot];
        ELSE
            -- The key is absent and locked. If it was purged before, the floor of its scope has its last version.
            SELECT f.version INTO found_version FROM {schema}.floors f
                WHERE f.tenant = p_tenant AND f.scope = substr(p_keys[slot], 1, p_scopes[slot]);
            given[i] := coalesce(found_version, 0) + 1;
            INSERT INTO {schema}.records (tenant, key, scope, version, written, expires, digest, value)
                VALUES (p_tenant, p_keys[slot], p_scopes[slot], given[i], moment, moment + p_ttls[i],
                        p_digests[i], p_values[i]);
        END IF;
    END LOOP;

    stamps := convert_to(array_to_string(given, ','), 'UTF8');
    IF 2 = ANY (p_kinds) THEN
        FOR i IN 1 .. array_length(p_writes, 1) LOOP
            CONTINUE WHEN p_kinds[i] <> 2;
            slot := p_writes[i];
            found_time := greatest(moment, end_times[slot]);
            found_digest := end_digests[slot];
            chained := substr(sha256(found_digest || p_digests[i] || int8send(given[i]) || float8send(found_time)
                                     || stamps), 1, 16);
            INSERT INTO {schema}.entries (tenant, stream, number, written, versions, previous, digest, value)
                VALUES (p_tenant, p_keys[slot], given[i], found_time, given, found_digest, chained, p_values[i]);
            end_digests[slot] := chained;
            -- The last of several entries of one stream sets its head.
            IF given[i] = end_numbers[slot] THEN
                -- A watcher has marked the stream with this lock, shared: see bells.
                found_number := hashtextextended('{schema}' || p_tenant || encode(p_keys[slot], 'hex'), 4);
                IF NOT pg_try_advisory_xact_lock(found_number) THEN
                    watched := watched || '|' || found_number;
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

    IF refused_before THEN
        UPDATE {schema}.requests r SET content = p_content, versions = given, at = moment
            WHERE r.tenant = p_tenant AND r.id = p_request;
    ELSIF p_request IS NOT NULL THEN
        INSERT INTO {schema}.requests (tenant, id, content, versions, at)
            VALUES (p_tenant, p_request, p_content, given, moment);
    END IF;
    IF watched <> '' THEN
        stamps := stamps || convert_to(watched, 'UTF8');
    END IF;
    RETURN decode('00', 'hex') || float8send(moment) || stamps;
END $body$;
"""

ONE_SQL: Final = """
CREATE OR REPLACE FUNCTION {schema}.commit_one_v1(
    p_tenant text,
    p_now double precision,     -- NULL: the server's clock
    p_full boolean,             -- durable before it returns
    p_wait text,                -- how long to wait for a lock
    p_key bytea,                -- NULL: no put and no check
    p_scope integer,            -- how many bytes of the key are its scope; NULL: no put
    p_expected bigint,          -- NULL: no check
    p_digest bytea,
    p_value bytea,              -- NULL: same as p_entry
    p_stream bytea,             -- NULL: no append; must sort before p_key
    p_entry_digest bytea,
    p_entry bytea,
    p_request bytea,            -- NULL: none
    p_content bytea,
    p_made double precision,
    p_first boolean,
    p_sent double precision
) RETURNS bytea LANGUAGE plpgsql AS $body$
DECLARE
    given bigint[];
    moment double precision;
    stamps bytea;
    ignored text;
    next_number bigint;
    found_time double precision;
    found_digest bytea;
    chained bytea;
    mark bigint;
    puts CONSTANT boolean := p_scope IS NOT NULL;
BEGIN
    IF puts AND p_value IS NULL THEN
        p_value := p_entry;
    END IF;
    <<hoped>>
    BEGIN
        EXIT hoped WHEN current_setting('transaction_isolation') <> 'read committed'
            OR (p_full AND current_setting('synchronous_commit') NOT IN ('on', 'remote_apply'))
            OR (p_request IS NOT NULL AND NOT p_first);
        IF NOT p_full THEN
            ignored := set_config('synchronous_commit', 'off', true);
        END IF;
        ignored := set_config('lock_timeout', p_wait, true);
        IF p_request IS NOT NULL THEN
            ignored := pg_advisory_xact_lock(hashtextextended('{schema}' || p_tenant || encode(p_request, 'hex'), 1));
        END IF;
        IF p_stream IS NOT NULL THEN
            SELECT s.number + 1, s.written, s.digest INTO next_number, found_time, found_digest
                FROM {schema}.streams s WHERE s.tenant = p_tenant AND s.key = p_stream FOR NO KEY UPDATE;
            EXIT hoped WHEN NOT FOUND;
        END IF;
        IF p_key IS NOT NULL AND NOT puts THEN
            PERFORM FROM {schema}.records r
                WHERE r.tenant = p_tenant AND r.key = p_key AND r.version = p_expected
                    AND NOT r.dead AND r.expires IS NULL
                FOR SHARE;
            EXIT hoped WHEN NOT FOUND;
        END IF;
        moment := coalesce(p_now, extract(epoch FROM clock_timestamp())::double precision);
        EXIT hoped WHEN moment - p_made > 3600;
        IF puts AND p_expected IS DISTINCT FROM 0 THEN
            UPDATE {schema}.records r
                SET version = r.version + 1, dead = false, expires = NULL, value = p_value,
                    written = coalesce(p_now, greatest(moment, r.written)),
                    digest = p_digest
                WHERE r.tenant = p_tenant AND r.key = p_key
                    AND (p_expected IS NULL OR (r.version = p_expected AND NOT r.dead AND r.expires IS NULL))
                RETURNING ARRAY[r.version], r.written INTO given, moment;
        END IF;
        IF puts AND given IS NULL THEN
            EXIT hoped WHEN p_expected > 0;
            -- No row to lock: lock the key itself, then look again with a new snapshot.
            ignored := pg_advisory_xact_lock(hashtextextended('{schema}' || p_tenant || encode(p_key, 'hex'), 0));
            moment := coalesce(p_now, extract(epoch FROM clock_timestamp())::double precision);
            INSERT INTO {schema}.records AS r (tenant, key, scope, version, written, digest, value)
                SELECT p_tenant, p_key, p_scope, n.version, moment, p_digest, p_value
                FROM (SELECT 1 + coalesce((SELECT f.version FROM {schema}.floors f
                        WHERE f.tenant = p_tenant AND f.scope = substr(p_key, 1, p_scope)), 0) AS version) n
                WHERE NOT EXISTS (SELECT FROM {schema}.records o WHERE o.tenant = p_tenant AND o.key = p_key)
                    AND NOT EXISTS (SELECT FROM {schema}.streams s WHERE s.tenant = p_tenant AND s.key = p_key)
                RETURNING ARRAY[r.version], r.written INTO given, moment;
            EXIT hoped WHEN NOT FOUND;
        END IF;
        -- Decided: write.
        IF p_stream IS NOT NULL THEN
            given := given || next_number;
            found_time := greatest(moment, found_time);
        END IF;
        stamps := convert_to(array_to_string(given, ','), 'UTF8');
        IF p_stream IS NOT NULL THEN
            chained := substr(sha256(found_digest || p_entry_digest || int8send(next_number) || float8send(found_time)
                                     || stamps), 1, 16);
            INSERT INTO {schema}.entries (tenant, stream, number, written, versions, previous, digest, value)
                VALUES (p_tenant, p_stream, next_number, found_time, given, found_digest, chained, p_entry);
            UPDATE {schema}.streams s SET number = next_number, written = found_time, digest = chained
                WHERE s.tenant = p_tenant AND s.key = p_stream;
            mark := hashtextextended('{schema}' || p_tenant || encode(p_stream, 'hex'), 4);
            IF NOT pg_try_advisory_xact_lock(mark) THEN
                stamps := stamps || convert_to('|' || mark, 'UTF8');
            END IF;
        END IF;
        IF p_request IS NOT NULL THEN
            INSERT INTO {schema}.requests (tenant, id, content, versions, at)
                VALUES (p_tenant, p_request, p_content, given, moment);
        END IF;
        RETURN decode('00', 'hex') || float8send(moment) || stamps;
    END;
    RETURN {schema}.commit_v1(
        p_tenant, p_now, p_full, p_wait,
        array_remove(ARRAY[p_stream, p_key], NULL),
        array_remove(ARRAY[CASE WHEN p_stream IS NOT NULL THEN 8 END,
                           CASE WHEN puts THEN CASE WHEN p_expected IS NULL THEN 4 ELSE 5 END
                                WHEN p_key IS NOT NULL THEN 1 END], NULL),
        array_remove(ARRAY[CASE WHEN p_stream IS NOT NULL THEN 0 END,
                           CASE WHEN p_key IS NOT NULL THEN coalesce(p_scope, 0) END], NULL),
        CASE WHEN p_expected IS NULL THEN '{}' ELSE ARRAY[CASE WHEN p_stream IS NULL THEN 1 ELSE 2 END] END,
        CASE WHEN p_expected IS NULL THEN '{}' ELSE ARRAY[false] END,
        CASE WHEN p_expected IS NULL THEN '{}' ELSE ARRAY[p_expected] END,
        CASE WHEN NOT puts OR p_stream IS NULL THEN ARRAY[1] ELSE ARRAY[2, 1] END,
        array_remove(ARRAY[CASE WHEN puts THEN 0 END, CASE WHEN p_stream IS NOT NULL THEN 2 END], NULL),
        ARRAY[NULL, NULL]::double precision[],
        array_remove(ARRAY[p_digest, p_entry_digest], NULL),
        array_remove(ARRAY[p_value, p_entry], NULL),
        p_request, p_content, p_made, p_first, p_sent);
END $body$;
"""

COMMIT_SQL: Final = _ANY + ONE_SQL
