"""Makes the helpers of this folder importable, and gives every test a path for its store, or one on each server."""

import sys
from pathlib import Path

import pytest
from support.memory import tmp_path
from support.stores import kinds, new_url

from tenuto.testing.crash import crash

__all__ = ["crash", "tmp_path"]
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store.db"


@pytest.fixture(params=kinds("sqlite", "postgres", "valkey", "http"))
def url(request, path):
    """The URL of an empty store of each kind that survives a process; None is a SQLite file."""
    if request.param == "http":
        return new_url("http", request, path) + "~{trial}"  # an API key has one tenant: a store for each trial
    return None if request.param == "sqlite" else new_url(request.param, request, path)


@pytest.fixture(params=kinds("sqlite", "postgres", "valkey", "cluster", "http"))
def shared_url(request, path):
    """The URL of an empty store of each kind that several processes can share."""
    return new_url(request.param, request, path)
