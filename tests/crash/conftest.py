"""Makes the helpers of this folder importable, and gives every test a path for its store, or a store of each kind."""

import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
TESTS = Path(__file__).parent.parent


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


def _module(name, path):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def postgres_server():
    server = _module("pg_server", TESTS / "postgres" / "pg_server.py").Server()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey_server():
    servers = _module("servers", TESTS / "redis" / "servers.py")
    server = servers.Server(*servers.FULL)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cluster_servers():
    nodes = _module("servers", TESTS / "redis" / "servers.py").Cluster()
    yield nodes
    nodes.stop()


@pytest.fixture(params=["sqlite", "postgres", "valkey", "cluster"])
def url(request, tmp_path):
    """A store of each kind that several processes can share, empty."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        return _with(server.url, f"schema={sys.modules['pg_server'].new_schema()}")
    kind = {"valkey": "valkey_server", "cluster": "cluster_servers"}[request.param]
    server = request.getfixturevalue(kind)
    return _with(server.url(), f"prefix={sys.modules['servers'].fresh_prefix()}")


def _with(url, option):
    return f"{url}{'&' if '?' in url else '?'}{option}"
