"""Commits and reads of 1 KB on Postgres, one client and 16, against psycopg alone on the same server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import psycopg

from bench import servers
from bench.measure import Row, Table, folder, take_turns, text
from tenuto import Tenuto
from tenuto.backends.postgres import PostgresBackend
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Put
from tenuto.kernel.transact import own_request

KEYS = 50
COMMIT, READ = 2.3, 1.5
_SAME_ROWS = """
WITH record AS (UPDATE same_records SET value = %(value)b, sums = %(sums)b WHERE key = %(key)b RETURNING 1),
    entry AS (INSERT INTO same_entries (value, sums) VALUES (%(value)b, %(sums)b) RETURNING 1),
    head AS (UPDATE same_heads SET number = number + 1, sums = %(sums)b WHERE key = 1 RETURNING 1)
INSERT INTO same_requests (id, content) VALUES (%(request)b, %(sums)b)
"""


def run(*, quick: bool) -> Table:
    rows: list[Row] = []
    for cores in ("a core each", "one core"):
        with folder() as path, servers.postgres(path, cores) as server:
            _create(server.url)
            rows += _commits(server.url, cores, quick=quick)
            rows += _reads(server.url, cores, quick=quick)
    with folder() as path, servers.postgres(path) as server:
        _create(server.url)
        rows += _crowds(server.url, quick=quick)
        told = "SELECT current_setting('server_version'), current_setting('synchronous_commit')"
        ((version, durable),) = server.execute(told)
    return Table(
        "Postgres: commits and reads of 1 KB",
        rows,
        [
            (
                f"PostgreSQL {version} with synchronous_commit={durable}, by a Unix socket; psycopg {psycopg.__version__} "
                f"({psycopg.pq.__impl__}). Every statement is prepared, the raw ones too."
            ),
            (
                "One client: it and the server on a core each, as on two machines, or both on one. The ratio of a commit is to "
                "the raw insert, one row in one table without a key; that of a read is to the raw read by key."
            ),
            (
                "`backend.commit` is what `state.set` sends: the value under its key, a journal entry that holds it too, and a "
                "request id. `raw, same rows` writes as many rows in one statement: no sums, no checks, no locks on absent keys. "
                "`state.update` reads first, and checks two keys: two round trips."
            ),
            servers.ABOUT_CROWDS,
        ],
    )


def _create(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE log (id bigserial PRIMARY KEY, value bytea NOT NULL);"
            "CREATE TABLE kv (scope text, key text, value bytea NOT NULL, PRIMARY KEY (scope, key));"
            "CREATE TABLE same_records (key bytea PRIMARY KEY, sums bytea, value bytea);"
            "CREATE TABLE same_heads (key bigint PRIMARY KEY, number bigint, sums bytea);"
            "CREATE TABLE same_entries (id bigserial PRIMARY KEY, sums bytea, value bytea);"
            "CREATE TABLE same_requests (id bytea PRIMARY KEY, content bytea);"
            "INSERT INTO same_heads VALUES (1, 0)"
        )
        for number in range(KEYS):
            connection.execute("INSERT INTO same_records VALUES (%b, '', '')", (b"key-%d" % number,))


class Raw:
    """What psycopg does with nothing in between: a connection, a cursor that is kept, prepared statements."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._cursor = self.connection.cursor(binary=True)
        self._request = 0

    def insert(self, value: bytes) -> None:
        self._cursor.execute("INSERT INTO log (value) VALUES (%b)", (value,))

    def upsert(self, scope: str, key: str, value: bytes) -> None:
        self._cursor.execute(
            "INSERT INTO kv VALUES (%s, %s, %b) ON CONFLICT (scope, key) DO UPDATE SET value = excluded.value",
            (scope, key, value),
        )

    def same_rows(self, number: int, value: bytes) -> None:
        self._request += 1
        request = self._request.to_bytes(16, "big")
        self._cursor.execute(
            _SAME_ROWS, {"key": b"key-%d" % (number % KEYS), "value": value, "sums": bytes(16), "request": request}
        )

    def read(self, scope: str, key: str) -> bytes:
        self._cursor.execute("SELECT value FROM kv WHERE scope = %s AND key = %s", (scope, key))
        return self._cursor.fetchone()[0]


def _commits(url: str, cores: str, *, quick: bool) -> list[Row]:
    names = [f"key-{number}" for number in range(KEYS)]
    texts = [text(number) for number in range(97)]
    blobs = [value.encode() for value in texts]
    places = [keys.pack("bench", "scope", "state", name) for name in names]
    stream = keys.pack("bench", "scope", "state")
    raw = Raw(url)

    def create(number: int) -> None:
        value, place = blobs[number % 97], keys.pack("bench", "scope", "state", "new", number)
        backend.commit([], [Put(place, value), Append(stream, value)], request=own_request(backend.now()))

    def commit(number: int) -> None:
        value = blobs[number % 97]
        backend.commit(
            [], [Put(places[number % KEYS], value), Append(stream, value)], request=own_request(backend.now())
        )

    with contextlib.closing(PostgresBackend(url, schema="bench")) as backend, Tenuto("bench", url) as agent:
        contenders: dict[str, Callable[[int], Any]] = {
            "raw insert": lambda n: raw.insert(blobs[n % 97]),
            "raw upsert by key": lambda n: raw.upsert("scope", names[n % KEYS], blobs[n % 97]),
            "raw, same rows": lambda n: raw.same_rows(n, blobs[n % 97]),
            "backend.commit": commit,
            "state.set": lambda n: agent.state.set("scope", names[n % KEYS], texts[n % 97]),
            "backend.commit of a new key": create,
            "state.update": lambda n: agent.state.update("scope", names[n % KEYS], lambda _: texts[n % 97]),
        }
        found = take_turns(contenders, rounds=15 if quick else 60, calls=40, warmup=300)
    rows = [samples.row(f"{cores}: {name}") for name, samples in found.items()]
    for row, samples in zip(rows[1:], list(found.values())[1:], strict=True):
        row.ratio = str(samples.against(found["raw insert"]))
    ratio = found["backend.commit"].against(found["raw insert"])
    rows[3].target, rows[3].met = f"<= {COMMIT}x", ratio.value <= COMMIT
    rows += [
        Row(f"{cores}: backend.commit to {other}", ratio=str(found["backend.commit"].against(found[other])))
        for other in ("raw upsert by key", "raw, same rows")
    ]
    return rows


def _reads(url: str, cores: str, *, quick: bool) -> list[Row]:
    raw = Raw(url)
    names = [f"key-{number}" for number in range(KEYS)]
    places = [keys.pack("bench", "scope", "state", name) for name in names]
    with contextlib.closing(PostgresBackend(url, schema="bench")) as backend, Tenuto("bench", url) as agent:
        sizes = {len(raw.read("scope", names[3])), len(agent.state.get("scope", names[3]))}
        assert {*sizes, len(backend.read([places[3]])[0].value)} == {1000}
        found = take_turns(
            {
                "raw read by key": lambda n: raw.read("scope", names[n % KEYS]),
                "backend.read": lambda n: backend.read([places[n % KEYS]]),
                "state.get": lambda n: agent.state.get("scope", names[n % KEYS]),
            },
            rounds=20 if quick else 60,
            calls=100,
            warmup=500,
        )
    rows = [samples.row(f"{cores}: {name}") for name, samples in found.items()]
    for row, samples in zip(rows[1:], list(found.values())[1:], strict=True):
        row.ratio = str(samples.against(found["raw read by key"]))
    ratio = found["backend.read"].against(found["raw read by key"])
    rows[1].target, rows[1].met = f"<= {READ}x", ratio.value <= READ
    return rows


def _crowds(url: str, *, quick: bool) -> list[Row]:
    texts = [text(number) for number in range(97)]
    blobs = [value.encode() for value in texts]
    clients = [Tenuto(f"client-{at}", url).open() for at in range(servers.CLIENTS)]

    def raw_client(at: int, scope: str) -> Callable[[], Callable[[int], Any]]:
        def make() -> Callable[[int], Any]:
            own = Raw(url)
            return lambda n: own.upsert(scope, f"{at}-{n % 10}", blobs[n % 97])

        return make

    def client(at: int, scope: str) -> Callable[[], Callable[[int], Any]]:
        state = clients[at].state
        return lambda: lambda n: state.set(scope, f"{at}-{n % 10}", texts[n % 97])

    rows = []
    for where, scopes in (
        ("in own scopes", [f"scope-{at}" for at in range(servers.CLIENTS)]),
        ("in one scope", ["together"] * servers.CLIENTS),
    ):
        rows += servers.crowd(
            where,
            lambda: [raw_client(at, scope) for at, scope in enumerate(scopes)],
            [client(at, scope) for at, scope in enumerate(scopes)],
            quick=quick,
        )
    for own in clients:
        own.close()
    return rows
