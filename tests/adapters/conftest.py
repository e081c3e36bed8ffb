"""What a framework is promised, it is promised on every backend: here `url` is one of each, on real servers."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(Path(__file__).parent))


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
def postgres() -> Iterator[str]:
    server = pg_server.shared()
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def valkey() -> Iterator[str]:
    server = servers.shared()
    yield server.url()
    server.stop()


def _with(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


class Stores:
    """Makes empty stores of one kind."""

    def __init__(self, kind: str, path: Path, server: str | None) -> None:
        self.kind = kind
        self._path = path
        self._server = server
        self._count = 0

    def new(self) -> str:
        self._count += 1
        if self.kind == "sqlite":
            return str(self._path / f"store-{self._count}.db")
        option = f"schema={pg_server.new_schema()}" if self.kind == "postgres" else f"prefix={servers.fresh_prefix()}"
        return _with(str(self._server), option)


ON_SERVERS = [pytest.param(name, marks=pytest.mark.slow) for name in ("postgres", "valkey")]


@pytest.fixture(params=["sqlite", *ON_SERVERS])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Empty stores of each kind."""
    server = None if request.param == "sqlite" else request.getfixturevalue(request.param)
    return Stores(request.param, tmp_path, server)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a SQLite store may be."""
    return str(tmp_path / "graphs.db")
