"""What a framework is promised, it is promised on every backend: here `url` is one of each, on real servers."""

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.stores import new_url, usual

from tenuto import Tenuto
from tenuto.aio import AsyncTenuto

sys.path.insert(0, str(Path(__file__).parent))


class Stores:
    """Makes empty stores of one kind."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        self.kind: str = request.param
        self._request = request
        self._folder = folder
        self._count = 0

    def new(self) -> str:
        self._count += 1
        return new_url(self.kind, self._request, self._folder / f"store-{self._count}.db")


@pytest.fixture(params=usual("sqlite", "postgres", "valkey"))
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    """Empty stores of each kind."""
    return Stores(request, tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a SQLite store may be."""
    return str(tmp_path / "graphs.db")


Face = Callable[[Tenuto], Tenuto | AsyncTenuto]


@pytest.fixture(params=["blocking", "awaited"])
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    """Return what gives an adapter a client: as it is, or its awaited face."""
    with ThreadPoolExecutor(4) as pool:
        yield (lambda agent: agent) if request.param == "blocking" else (lambda agent: AsyncTenuto._of(agent, pool))
