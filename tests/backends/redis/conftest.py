"""A prefix for each test on the session's Valkey server; `TENUTO_TEST_REDIS` names another server to use."""

import pytest
from support.redis_servers import fresh_prefix


@pytest.fixture
def url(valkey):
    return valkey.url(prefix=fresh_prefix())
