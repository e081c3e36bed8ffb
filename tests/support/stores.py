"""The stores that tests run on: one server of each kind for the session, started when first asked for, and empty stores on it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.long import LONG

SERVERS = ("postgres", "valkey", "cluster", "http")


def kinds(*names: str) -> list[Any]:
    """Return parameters for a fixture: kinds of stores. `make check` leaves those on servers out."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in SERVERS else name for name in names]


def usual(*names: str) -> list[Any]:
    """Return `kinds` without those that have the contract, races and kills alone; with TENUTO_LONG=1 all."""
    return kinds(*(name for name in names if LONG or name not in ("valkey", "cluster", "http")))


def new_url(kind: str, request: pytest.FixtureRequest, path: Path) -> str:
    """Return the URL of an empty store: on the session's server of that kind, or in the file `path`."""
    if kind == "volatile":
        return "volatile:"
    if kind == "sqlite":
        return str(path)
    server = request.getfixturevalue(kind)
    if kind == "postgres":
        from support import pg_server

        return pg_server.with_options(server.url, schema=pg_server.new_schema())
    if kind == "http":
        name, token = server.store(path)
        request.getfixturevalue("monkeypatch").setenv(
            "TENUTO_API_KEY", token
        )  # also for the processes that a test starts
        return str(server.address(name))
    from support import redis_servers

    return server.url(prefix=redis_servers.fresh_prefix())


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    """The Postgres server that tests share; each has a schema of its own on it."""
    from support import pg_server

    server = pg_server.shared()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey() -> Iterator[Any]:
    """The Valkey server that tests share; each has a prefix of its own on it."""
    from support import redis_servers

    server = redis_servers.shared()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """The cluster of three that tests share."""
    from support import redis_servers

    nodes = redis_servers.Cluster()
    yield nodes
    nodes.stop()


@pytest.fixture(scope="session")
def http() -> Iterator[Any]:
    """The server process that tests share; each has a store of its own on it."""
    from support import http_server

    server = http_server.HttpServer()
    yield server
    server.stop()
