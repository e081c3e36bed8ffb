"""A scratch store next to the audited one: the same kind, server, disk and settings, and none of its data.

SQLite: a file in the same folder. Postgres: a schema in the same database. Redis: a prefix on the same server. It is deleted
at the end; after a kill of the audit a leftover has a name that begins with `tenuto_audit_`. A server by https has no scratch
store: there the audit writes into scopes and threads whose names begin with `audit-`, and deletes their values.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from tenuto.audit.replicas import Target
from tenuto.backends import connect
from tenuto.client import Tenuto
from tenuto.errors import StorageUnavailable, TenutoError


@contextmanager
def scratch(url: str, tenant: str) -> Iterator[Target]:
    """Make a scratch store next to a store; delete it at the end."""
    name = f"tenuto_audit_{secrets.token_hex(4)}"
    kind = kind_of(url)
    if kind == "sqlite":
        folder = file_of(url).absolute().parent / name
        folder.mkdir(parents=True)
        try:
            yield Target(str(folder / "audit.db"))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    elif kind == "postgres":
        try:
            yield Target(_with(url, schema=name), preload=("tenuto.backends.postgres",))
        finally:
            _drop_schemas(url, name)
    elif kind == "redis":
        try:
            yield Target(_with(url, prefix=name), preload=("tenuto.backends.redis",))
        finally:
            _delete_keys(url, name)
    else:
        yield Target(url, tenant)


def kind_of(url: str) -> str:
    """Return sqlite, postgres, redis, http or volatile."""
    scheme = url.partition(":")[0]
    if scheme.startswith("postgres"):
        return "postgres"
    if scheme in ("http", "https", "volatile"):
        return "volatile" if scheme == "volatile" else "http"
    return "redis" if scheme.startswith(("redis", "unix")) else "sqlite"


def file_of(url: str) -> Path:
    """Return the file of a SQLite store."""
    path: Path = connect(url).path  # type: ignore[attr-defined]
    return path


def unreachable(url: str) -> str:
    """Return the URL of a store of the same kind that cannot be reached."""
    kind = kind_of(url)
    if kind == "sqlite":
        blocker = file_of(url).parent / "not-a-folder"
        blocker.write_text("")
        return str(blocker / "audit.db")
    if kind == "volatile":
        raise StorageUnavailable("A volatile store is in memory.")
    parts = urlsplit(url)
    login, at, _ = parts.netloc.rpartition("@")
    there = f"{login}{at}127.0.0.1:{_closed_port()}"
    query = dict(parse_qsl(parts.query))
    for option in ("host", "port", "hostaddr"):  # libpq's: they take precedence over the address
        query.pop(option, None)
    return urlunsplit(parts._replace(netloc=there, query=urlencode({**query, "timeout": "2"})))


def _closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def restored(agent: Tenuto, url: str, folder: str) -> str:
    """Back up a scratch store, restore it under another name, and return the URL of that.

    By the tools that its operators use: tenuto's own backup for SQLite, pg_dump and psql for Postgres, DUMP and RESTORE
    (what RDB files consist of) for Redis. Raise `StorageUnavailable` where there is no such tool.
    """
    kind = kind_of(url)
    if kind == "sqlite":
        copy = Path(folder) / "restored.db"
        agent.store.backup(copy)
        return str(copy)
    if kind == "postgres":
        return _pg_restored(url)
    if kind == "redis":
        return _redis_restored(url)
    raise StorageUnavailable("this store is backed up where its server runs")


def _pg_restored(url: str) -> str:
    base, schema = _split_schema(url)
    dump, psql = _tool("pg_dump", base), _tool("psql", base)
    made = subprocess.run(  # noqa: S603 - the tools of the database, with the user's own URL
        [dump, "--schema", schema, "--no-owner", "--dbname", base], capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise StorageUnavailable(f"pg_dump failed: {made.stderr.strip()[:200]}")
    copy = f"{schema}_restored"
    loaded = subprocess.run(  # noqa: S603 - as above
        [psql, "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", base],
        input=made.stdout.replace(schema, copy),
        capture_output=True,
        text=True,
        check=False,
    )
    if loaded.returncode:
        raise StorageUnavailable(f"psql could not restore the dump: {loaded.stderr.strip()[:200]}")
    return _with(url, schema=copy)


def _tool(name: str, base: str) -> str:
    """Return the newest version of a Postgres tool that is found on the PATH or in Debian's places, at least the server's."""
    import psycopg  # noqa: PLC0415 - an extra

    with psycopg.connect(base) as connection:
        server = connection.info.server_version // 10_000
    places = [*os.environ.get("PATH", "").split(os.pathsep), *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
    for place in places:
        tool = Path(place) / name
        if not os.access(tool, os.X_OK) or tool.is_dir():
            continue
        shown = subprocess.run([tool, "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
        digits = "".join(one if one.isdigit() else " " for one in shown).split()
        if digits and int(digits[0]) >= server:
            return str(tool)
    raise StorageUnavailable(f"there is no {name} of version {server} or later on this machine")


def _split_schema(url: str) -> tuple[str, str]:
    from tenuto.backends.postgres.url import split  # noqa: PLC0415 - an extra

    base, own = split(url)
    return base, own["schema"]


def _drop_schemas(url: str, name: str) -> None:
    import psycopg  # noqa: PLC0415 - an extra
    from psycopg import sql  # noqa: PLC0415

    base, _ = _split_schema(_with(url, schema=name))
    with suppress(psycopg.Error), psycopg.connect(base, autocommit=True) as connection:
        for one in (name, f"{name}_restored"):
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(one)))


def _redis_restored(url: str) -> str:
    name = dict(parse_qsl(urlsplit(url).query))["prefix"]
    copy = f"{name}_restored"
    with _redis(url) as calls:
        for place, key in _keys(calls, name):
            dumped = calls.ask(place, "DUMP", key)
            calls.ask(place, "RESTORE", copy.encode() + key[len(name) :], 0, dumped, "REPLACE")
    return _with(url, prefix=copy)


def _delete_keys(url: str, name: str) -> None:
    with suppress(TenutoError), _redis(url) as calls:
        for one in (name, f"{name}_restored"):
            for place, key in _keys(calls, one):
                calls.ask(place, "DEL", key)


@contextmanager
def _redis(url: str) -> Iterator[Any]:
    """Open a Redis store for commands of its own."""
    backend: Any = connect(url)
    try:
        backend.now()
        yield backend._calls
    finally:
        backend.close()


def _keys(calls: Any, prefix: str) -> list[tuple[Any, bytes]]:
    """Return the Redis keys of a prefix, and the server of each."""
    found = []
    for place in calls.places():
        cursor = b"0"
        while True:
            cursor, names = calls.ask(place, "SCAN", cursor, "MATCH", f"{prefix}:*", "COUNT", 1000)
            found += [(place, name) for name in names]
            if cursor in (b"0", 0):
                break
    return found


def _with(url: str, **options: str) -> str:
    """Return a URL with options set."""
    parts = urlsplit(url)
    query = {**dict(parse_qsl(parts.query, keep_blank_values=True)), **options}
    return urlunsplit(parts._replace(query=urlencode(query)))
