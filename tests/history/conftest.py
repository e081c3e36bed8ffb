"""Every store on which histories are made, by its URL: the servers are those of tests/capabilities."""

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

_spec = importlib.util.spec_from_file_location("stores_of_histories", HERE.parent / "capabilities" / "conftest.py")
_stores = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_stores)
postgres, valkey, cluster = _stores.postgres, _stores.valkey, _stores.cluster


@pytest.fixture(params=["sqlite", "postgres", "valkey", "cluster"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind that processes can share, at full durability."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    if request.param == "postgres":
        return _stores._with(request.getfixturevalue("postgres").url, f"schema={_stores.pg_server.new_schema()}")
    return _stores._with(request.getfixturevalue(request.param), f"prefix={_stores.servers.fresh_prefix()}")
