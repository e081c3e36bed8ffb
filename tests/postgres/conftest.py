"""One server for the session, a schema for each test."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

for _name in ("pg_server", "pgbouncer"):
    if _name not in sys.modules:  # tests/capabilities has servers of the same kind
        _spec = importlib.util.spec_from_file_location(_name, Path(__file__).with_name(f"{_name}.py"))
        sys.modules[_name] = importlib.util.module_from_spec(_spec)
        _spec.loader.exec_module(sys.modules[_name])
pg_server = sys.modules["pg_server"]


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    found = pg_server.shared()
    pg_server.SHARED = found
    yield found
    found.stop()


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
