"""One client for each backend, a clock in the test's hand, and the servers of `support`, which every test can import."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.backends import connect
from tenuto.kernel.contract import Backend
from tenuto.testing import HeldClock

sys.path.insert(0, str(Path(__file__).parent))

from support.http_server import SharedClock
from support.scorecard import Plugin, figures
from support.stores import cluster, http, postgres, valkey

__all__ = ["cluster", "figures", "http", "postgres", "valkey"]

# A shell ignores SIGINT in its background jobs, and a child process inherits that; tests of Control-C send it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--scorecard", action="store_true", help="print the scorecard; write build/scorecard.json")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Plugin(config))


@pytest.fixture
def clock() -> HeldClock:
    return SharedClock()


@pytest.fixture(params=["volatile", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path, clock: HeldClock) -> Iterator[Backend]:
    """A store of each kind, whose time is the test's."""
    url = "volatile:" if request.param == "volatile" else str(tmp_path / "store.db")
    store = connect(url, clock=clock)
    yield store
    store.close()


@pytest.fixture
def client(backend: Backend, clock: HeldClock) -> Callable[..., Tenuto]:
    """Make a client of the store: another one at each call."""

    def make(name: str = "tester", **options: Any) -> Tenuto:
        return Tenuto(name, backend, clock=clock, **options)

    return make


@pytest.fixture
def agent(client: Callable[..., Tenuto]) -> Tenuto:
    return client()
