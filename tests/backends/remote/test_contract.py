"""The one suite through a real server process, on SQLite; and the store behind it against a dict."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from support.http_server import SharedClock
from support.long import size
from support.model import Model

from tenuto.backends.remote import RemoteBackend
from tenuto.kernel.contract import Backend
from tenuto.testing import HeldClock
from tenuto.testing.contract import BackendContract
from tenuto.wrappers.tenant import Tenant


class TestRemote(BackendContract):
    rings = True
    confined = True  # the server adds the tenant of the API key

    @pytest.fixture
    def clock(self) -> HeldClock:
        return SharedClock()

    @pytest.fixture
    def client(self, http: Any, tmp_path: Path, clock: SharedClock) -> Iterator[Callable[[], Backend]]:
        clock.share(tmp_path / "clock")
        name, token = http.store(tmp_path / "store.db", clock=tmp_path / "clock")
        opened: list[Backend] = []

        def connect() -> Backend:
            opened.append(Tenant(RemoteBackend(http.address(name), api_key=token, clock=clock), "default"))
            return opened[-1]

        yield connect
        for backend in opened:
            backend.close()


@pytest.mark.slow
def test_a_remote_store_never_differs_from_a_dict(http: Any) -> None:
    class RemoteModel(Model):
        def open(self) -> Backend:
            if not isinstance(self.clock, SharedClock):
                self.clock = SharedClock()
                self.clock.share(self.place / "clock")
                self.name, self.token = http.store(self.place / "store.db", clock=self.place / "clock")
            return Tenant(RemoteBackend(http.address(self.name), api_key=self.token, clock=self.clock), "default")

    run_state_machine_as_test(
        RemoteModel,
        settings=settings(
            max_examples=size(10, 50), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
