"""Makes the helpers of this folder importable, and gives every test a path for its store, or one on each server."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tenuto.testing.crash import crash

__all__ = ["crash"]
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


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
def postgres():
    servers = _module("pg_server", HERE.parent / "postgres" / "pg_server.py")
    server = servers.shared()
    yield lambda: servers.with_options(server.url, schema=servers.new_schema())
    server.stop()


@pytest.fixture(scope="session")
def valkey():
    servers = _module("servers", HERE.parent / "redis" / "servers.py")
    server = servers.shared()
    yield lambda: server.url(prefix=servers.fresh_prefix())
    server.stop()


@pytest.fixture(params=["sqlite", *(pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "valkey"))])
def url(request):
    """The URL of an empty store of each kind that survives a process; None is a SQLite file."""
    return None if request.param == "sqlite" else request.getfixturevalue(request.param)()


@pytest.fixture(scope="session")
def cluster():
    servers = _module("servers", HERE.parent / "redis" / "servers.py")
    nodes = servers.Cluster()
    url = nodes.url()
    yield lambda: f"{url}{'&' if '?' in url else '?'}prefix={servers.fresh_prefix()}"
    nodes.stop()


@pytest.fixture(
    params=["sqlite", *(pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "valkey", "cluster"))]
)
def shared_url(request, path):
    """The URL of an empty store of each kind that several processes can share."""
    return str(path) if request.param == "sqlite" else request.getfixturevalue(request.param)()
