"""Every store on which histories are made, by its URL."""

import sys
from pathlib import Path

import pytest
from support.memory import tmp_path
from support.stores import new_url

__all__ = ["tmp_path"]
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["sqlite", "postgres", "valkey", "cluster", "http"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind that processes can share, at full durability."""
    return new_url(request.param, request, tmp_path / "store.db")
