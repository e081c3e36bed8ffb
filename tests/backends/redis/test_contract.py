"""The one suite over a real Valkey server and a real cluster of three, and both against a dict."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support.model import Model
from support.redis_servers import fresh_prefix

from tenuto.backends.redis import RedisBackend
from tenuto.kernel.contract import Backend
from tenuto.testing import HeldClock
from tenuto.testing.contract import BackendContract


class Placed:
    """A place is a prefix of its own on the shared server."""

    @pytest.fixture(autouse=True)
    def _prefixed(self, url: str) -> None:
        self.url = url

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return RedisBackend(self.url, clock=clock)


class TestValkey(Placed, BackendContract):
    rings = True


class TestValkeyCluster(Placed, BackendContract):
    @pytest.fixture(autouse=True)
    def _prefixed(self, cluster) -> None:
        self.url = cluster.url(prefix=fresh_prefix())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_a_redis_store_never_differs_from_a_dict(kind: str, request: pytest.FixtureRequest) -> None:
    base = request.getfixturevalue("valkey" if kind == "server" else "cluster")

    class RedisModel(Model):
        def open(self) -> Backend:
            if not hasattr(self, "url"):
                self.url = base.url(prefix=fresh_prefix(), durability="process")
            return RedisBackend(self.url, clock=self.clock)

    run_state_machine_as_test(
        RedisModel,
        settings=settings(
            max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
