"""What a capability promises, it promises on every backend: here `backend` is each of them, on real servers."""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.backends import connect
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Backend
from tenuto.testing import HeldClock

TESTS = Path(__file__).parent.parent


def _module(name: str, path: Path) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


pg_server = _module("pg_server", TESTS / "postgres" / "pg_server.py")
servers = _module("servers", TESTS / "redis" / "servers.py")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Any]:
    server = pg_server.shared()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def valkey() -> Iterator[str]:
    server = servers.shared()
    yield server.url()
    server.stop()


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    nodes = servers.Cluster()
    yield nodes.url()
    nodes.stop()


def _with(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


ON_SERVERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "valkey", "cluster")]
"""`make check` leaves these out; the contract suite runs on them there too."""


@pytest.fixture(params=["volatile", "sqlite", *ON_SERVERS])
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: HeldClock) -> Iterator[Backend]:
    """A store of each kind, empty, whose time is the test's."""
    if request.param == "volatile":
        url = "volatile:"
    elif request.param == "sqlite":
        url = str(tmp_path / "store.db")
    elif request.param == "postgres":
        url = _with(request.getfixturevalue("postgres").url, f"schema={pg_server.new_schema()}")
    else:
        url = _with(request.getfixturevalue(request.param), f"prefix={servers.fresh_prefix()}")
    store = connect(url, clock=clock)
    yield store
    store.close()


@pytest.fixture
def check_references() -> Callable[[Tenuto], None]:
    """Prove that the heads of blobs count exactly what refers to them."""
    return _check_references


def _check_references(agent: Tenuto) -> None:
    """Each blob's head counts exactly the checkpoints whose payload refers to it, and each that is referred to is there."""
    counted: dict[bytes, int] = {}
    for line in agent.checkpoint._lines(None, None):
        for placed in line.all():
            for digest in placed.item.references:
                counted[digest] = counted.get(digest, 0) + 1
    found = {}
    for record in agent.kernel.scan(keys.pack("blobs", "head"), limit=1_000):
        _, _, references, whole = codec.decode(record.value)
        if references:
            assert whole
            found[keys.unpack(record.key)[-1]] = references
    assert found == counted


@pytest.fixture
def check_nothing_left() -> Callable[[Tenuto], None]:
    """Prove that nothing refers to a blob any more."""
    return _check_nothing_left


def _check_nothing_left(agent: Tenuto) -> None:
    for record in agent.kernel.scan(keys.pack("blobs", "head"), limit=1_000):
        assert codec.decode(record.value)[2] == 0
