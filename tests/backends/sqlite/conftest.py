"""What the tests of the SQLite backend share: a path, clients without upkeep of their own, a lock that is held."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenuto.backends.sqlite import SqliteBackend
from tenuto.backends.sqlite.lockfile import LockFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def quiet(path: Path) -> Iterator[Callable[..., SqliteBackend]]:
    """Make a client of the store that sweeps only when the test says so: another one at each call."""
    made: list[SqliteBackend] = []

    def make(where: Path = path, **options: Any) -> SqliteBackend:
        backend = SqliteBackend(where, **options)
        backend.open()
        backend._sweep_due = float("inf")
        made.append(backend)
        return backend

    yield make
    for backend in made:
        backend.close()


class Held:
    """The lock of a store, held as another process would hold it."""

    def __init__(self, path: Path) -> None:
        self._lock, self._go, holds = LockFile(path), threading.Event(), threading.Event()

        def hold() -> None:
            holds.set()
            assert self._go.wait(60)

        self._thread = threading.Thread(target=self._lock.run, args=(hold, 10))
        self._thread.start()
        assert holds.wait(10)

    def release(self) -> None:
        self._go.set()
        self._thread.join()
        self._lock.close()


@pytest.fixture
def held(path: Path) -> Iterator[Callable[[], Held]]:
    """Take the lock of the store, which must be there already."""
    holders: list[Held] = []

    def hold() -> Held:
        holders.append(Held(path.with_name(path.name + "-lock")))
        return holders[-1]

    yield hold
    for holder in holders:
        holder.release()
