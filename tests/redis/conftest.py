"""One Valkey server and one cluster for the session; `TENUTO_TEST_REDIS` names another server to use."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from servers import FULL, Cluster, Server, fresh_prefix


@pytest.fixture(scope="session")
def valkey():
    """A server that syncs at each write. It is shared: every test has a prefix of its own."""
    with Server(*FULL) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_url(valkey):
    return os.environ.get("TENUTO_TEST_REDIS") or valkey.url()


@pytest.fixture(scope="session")
def cluster():
    nodes = Cluster()
    yield nodes
    nodes.stop()


@pytest.fixture
def url(valkey_url):
    base = valkey_url.rstrip("?&")
    return f"{base}{'&' if '?' in base else '?'}prefix={fresh_prefix()}"
