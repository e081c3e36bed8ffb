"""The server process that these tests share, and stores on it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.http_server import SharedClock

from tenuto.backends.remote import RemoteBackend


@pytest.fixture
def clock() -> SharedClock:
    return SharedClock()


@pytest.fixture
def remote(http: Any, tmp_path: Path) -> Iterator[Callable[..., RemoteBackend]]:
    """Make a client of one store on the server: another one at each call."""
    name, token = http.store(tmp_path / "store.db")
    made: list[RemoteBackend] = []

    def make(**options: Any) -> RemoteBackend:
        made.append(RemoteBackend(http.address(name, options.pop("port", None)), **{"api_key": token, **options}))
        return made[-1]

    make.token, make.address = token, http.address(name)  # type: ignore[attr-defined]
    yield make
    for one in made:
        one.close()
