"""One server for the session, a schema for each test."""

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support import pg_server, pgbouncer


@pytest.fixture(scope="session")
def server(postgres: Any) -> Any:
    pg_server.SHARED = postgres
    return postgres


@pytest.fixture(scope="module")
def own_server() -> Iterator[Any]:
    """A server that a test may kill, freeze and set up otherwise."""
    started = pg_server.Server()
    yield started
    started.stop()


@pytest.fixture
def schema(server: Any) -> Iterator[str]:
    name = pg_server.new_schema()
    yield name
    server.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def bouncer(server: Any) -> Any:
    binary = pgbouncer.found()
    if binary is None:
        missing = "PgBouncer is not here; `make servers` brings it where there is apt-get, else install it"
        if os.environ.get("TENUTO_REQUIRE_PGBOUNCER"):
            pytest.fail(missing)
        pytest.skip(missing)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    target = psycopg.conninfo.conninfo_to_dict(server.url)
    folder = Path(os.path.realpath(tempfile.mkdtemp(prefix="tenuto-bouncer-")))
    folder.chmod(0o755)
    binary, environment = pgbouncer.placed(binary, folder)
    (folder / "users.txt").write_text('"postgres" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\npostgres = host={target['host']} port={target.get('port') or 5432} user={target['user']} "
        f"password={target.get('password') or 'none'} dbname={target['dbname']} pool_size=3\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\nunix_socket_dir =\n"
        f"auth_file = {folder / 'users.txt'}\npool_mode = transaction\nmax_client_conn = 100\n"
    )
    user = "pgserver" if os.geteuid() == 0 else None
    process = subprocess.Popen(
        [binary, "-q", str(folder / "pgbouncer.ini")], user=user, env=environment, stderr=subprocess.DEVNULL
    )

    def reachable() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    pg_server.eventually(reachable)
    yield f"postgresql://postgres@127.0.0.1:{port}/postgres"
    process.terminate()
    process.wait(10)
    shutil.rmtree(folder, ignore_errors=True)
