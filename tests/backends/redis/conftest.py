"""One Valkey server and one cluster for the session; `TENUTO_TEST_REDIS` names another server to use."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from servers import Cluster, fresh_prefix, shared


@pytest.fixture(scope="session")
def valkey():
    """The server that the tests share: each has a prefix of its own on it."""
    server = shared()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def cluster():
    nodes = Cluster()
    yield nodes
    nodes.stop()


@pytest.fixture
def url(valkey):
    return valkey.url(prefix=fresh_prefix())
