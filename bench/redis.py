"""Commits and reads of 1 KB on Valkey, one client and 16, against redis-py alone on the same server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bench import servers
from bench.measure import Row, Table, folder, take_turns, text
from tenuto import Tenuto
from tenuto.backends.redis import RedisBackend
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Check, Put
from tenuto.kernel.transact import own_request

KEYS = 50
COMMIT = 2.0
LEVELS = {"always": "full", "everysec": "process"}
"""The server's `appendfsync`, and the durability that asks for no more."""
_COMPARE_AND_SET = """
if (redis.call('HGET', KEYS[1], 'version') or '0') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[1] + 1, 'value', ARGV[2])
return 1
"""


def run(*, quick: bool) -> Table:
    rows: list[Row] = []
    version = ""
    for fsync in LEVELS:
        for cores in ("a core each", "one core"):
            with folder() as path, servers.valkey(path, fsync, cores) as server:
                rows += _commits(server, fsync, cores, quick=quick)
                if fsync == "everysec":
                    rows += _reads(server, cores, quick=quick)
        with folder() as path, servers.valkey(path, fsync) as server:
            rows += _crowds(server, fsync, quick=quick)
            version = server.raw().info("server").get("valkey_version", "unknown")
    return Table(
        "Valkey: commits and reads of 1 KB",
        rows,
        [
            f"Valkey {version}, by TCP on loopback; redis-py {redis.__version__}.",
            (
                "One client: it and the server on a core each, as on two machines, or both on one. The ratio of a commit is to "
                "the raw compare-and-set, a script of two calls on one hash; that of a read is to the raw HGET."
            ),
            (
                "`backend.commit` is the value under its key, whose version is checked, a journal entry that holds it too, and "
                "a request id. `state.set` is the same without the check; `state.update` reads first, and checks two keys: two "
                "round trips."
            ),
            servers.ABOUT_CROWDS,
        ],
    )


class Raw:
    """What redis-py does with nothing in between; its retries are off, as ours are."""

    def __init__(self, server: Any) -> None:
        self.client = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0))
        self._script = self.client.script_load(_COMPARE_AND_SET)
        self._versions: dict[str, int] = {}

    def set(self, key: str, value: bytes) -> None:
        self.client.set(key, value)

    def compare_and_set(self, key: str, value: bytes) -> None:
        held = self._versions.get(key, 0)
        assert self.client.evalsha(self._script, 1, key, held, value) == 1
        self._versions[key] = held + 1

    def hget(self, key: str) -> bytes:
        return self.client.hget(key, "value")


def _commits(server: Any, fsync: str, cores: str, *, quick: bool) -> list[Row]:
    names = [f"key-{number}" for number in range(KEYS)]
    texts = [text(number) for number in range(97)]
    blobs = [value.encode() for value in texts]
    places = [keys.pack("bench", "scope", "state", name) for name in names]
    stream = keys.pack("bench", "scope", "state")
    held = [0] * KEYS
    raw = Raw(server)
    url = server.url(durability=LEVELS[fsync])

    def create(number: int) -> None:
        value, place = blobs[number % 97], keys.pack("bench", "scope", "state", "new", number)
        backend.commit([], [Put(place, value), Append(stream, value)], request=own_request(backend.now()))

    def commit(number: int) -> None:
        at, value = number % KEYS, blobs[number % 97]
        writes = [Put(places[at], value), Append(stream, value)]
        done = backend.commit([Check(places[at], held[at])], writes, request=own_request(backend.now()))
        held[at] = done.versions[0]

    with contextlib.closing(RedisBackend(url, prefix="bench")) as backend, Tenuto("bench", url) as agent:
        contenders: dict[str, Callable[[int], Any]] = {
            "raw SET": lambda n: raw.set(f"set-{n % KEYS}", blobs[n % 97]),
            "raw compare-and-set": lambda n: raw.compare_and_set(names[n % KEYS], blobs[n % 97]),
            "backend.commit": commit,
            "state.set": lambda n: agent.state.set("scope", names[n % KEYS], texts[n % 97]),
            "backend.commit of a new key": create,
            "state.update": lambda n: agent.state.update("scope", names[n % KEYS], lambda _: texts[n % 97]),
        }
        found = take_turns(contenders, rounds=15 if quick else 60, calls=60, warmup=300)
    base = found["raw compare-and-set"]
    rows = [samples.row(f"{fsync}, {cores}: {name}") for name, samples in found.items()]
    for row, samples in zip(rows, found.values(), strict=True):
        row.ratio = str(samples.against(base)) if samples is not base else None
    ratio = found["backend.commit"].against(base)
    rows[2].target, rows[2].met = f"<= {COMMIT:g}x", ratio.value <= COMMIT
    return rows


def _reads(server: Any, cores: str, *, quick: bool) -> list[Row]:
    raw = Raw(server)
    names = [f"key-{number}" for number in range(KEYS)]
    places = [keys.pack("bench", "scope", "state", name) for name in names]
    url = server.url(durability="process")
    with contextlib.closing(RedisBackend(url, prefix="bench")) as backend, Tenuto("bench", url) as agent:
        sizes = {len(raw.hget(names[3])), len(agent.state.get("scope", names[3]))}
        assert {*sizes, len(backend.read([places[3]])[0].value)} == {1000}
        found = take_turns(
            {
                "raw HGET": lambda n: raw.hget(names[n % KEYS]),
                "backend.read": lambda n: backend.read([places[n % KEYS]]),
                "state.get": lambda n: agent.state.get("scope", names[n % KEYS]),
            },
            rounds=20 if quick else 60,
            calls=100,
            warmup=500,
        )
    rows = [samples.row(f"{cores}: {name}") for name, samples in found.items()]
    for row, samples in zip(rows[1:], list(found.values())[1:], strict=True):
        row.ratio = str(samples.against(found["raw HGET"]))
    return rows


def _crowds(server: Any, fsync: str, *, quick: bool) -> list[Row]:
    texts = [text(number) for number in range(97)]
    blobs = [value.encode() for value in texts]
    url = server.url(durability=LEVELS[fsync])
    clients = [Tenuto(f"client-{at}", url).open() for at in range(servers.CLIENTS)]
    raws = [Raw(server) for _ in range(servers.CLIENTS)]

    def raw_client(at: int) -> Callable[[], Callable[[int], Any]]:
        return lambda: lambda n: raws[at].compare_and_set(f"{at}-{n % 10}", blobs[n % 97])

    def client(at: int, scope: str) -> Callable[[], Callable[[int], Any]]:
        state = clients[at].state
        return lambda: lambda n: state.set(scope, f"{at}-{n % 10}", texts[n % 97])

    rows = []
    for where, scopes in (
        ("in own scopes", [f"scope-{at}" for at in range(servers.CLIENTS)]),
        ("in one scope", ["together"] * servers.CLIENTS),
    ):
        rows += servers.crowd(
            f"{where}, {fsync}",
            lambda: [raw_client(at) for at in range(servers.CLIENTS)],
            [client(at, scope) for at, scope in enumerate(scopes)],
            quick=quick,
        )
    for own in clients:
        own.close()
    return rows
