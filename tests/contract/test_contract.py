"""The one suite over every backend, every wrapper around each, and through the async face."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tenuto import AsyncTenuto
from tenuto.aio import AsyncKernel
from tenuto.backends.sqlite import SqliteBackend
from tenuto.backends.volatile import VolatileBackend
from tenuto.kernel.contract import Backend
from tenuto.testing import Faults, HeldClock
from tenuto.testing.contract import BackendContract
from tenuto.wrappers.encrypt import seal
from tenuto.wrappers.encrypt.wrapper import Encrypt
from tenuto.wrappers.observe import Observe
from tenuto.wrappers.protect import Protect
from tenuto.wrappers.tenant import Tenant


class Volatile:
    """A volatile store is one object: every client of one place is that object."""

    durable = False
    rings = True
    _places: dict[Path, VolatileBackend] = {}

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        if place not in self._places:
            self._places[place] = VolatileBackend(clock=clock)
        return self._places[place]


class Sqlite:
    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return SqliteBackend(place / "store.db", clock=clock)


class TestVolatile(Volatile, BackendContract):
    pass


class TestSqlite(Sqlite, BackendContract):
    pass


class TestSqliteProcessDurability(BackendContract):
    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return SqliteBackend(place / "store.db", clock=clock, durability="process")


class Observed:
    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return Observe(super().connect(place, clock), [lambda event: None])


class Protected:
    def connect(self, place: Path, clock: HeldClock) -> Backend:
        """Protect records that the suite does not touch: for all others nothing changes."""
        return Protect(super().connect(place, clock), hidden={b"\xfe": b"x"}, fixed=[b"\xff"], why="fixed")


class TestProtectedVolatile(Protected, Volatile, BackendContract):
    pass


class TestObservedVolatile(Observed, Volatile, BackendContract):
    pass


class TestObservedSqlite(Observed, Sqlite, BackendContract):
    pass


class Tenanted:
    confined = True

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return Tenant(super().connect(place, clock), "acme")


class TestTenantOfVolatile(Tenanted, Volatile, BackendContract):
    pass


class TestTenantOfSqlite(Tenanted, Sqlite, BackendContract):
    pass


class Faulty:
    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return Faults(super().connect(place, clock), clock=clock)


class TestFaultsAroundVolatile(Faulty, Volatile, BackendContract):
    pass


class TestFaultsAroundSqlite(Faulty, Sqlite, BackendContract):
    pass


class Encrypted:
    overhead = seal.OVERHEAD

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return Encrypt(super().connect(place, clock), b"k" * 32)


class TestEncryptedSqlite(Encrypted, Sqlite, BackendContract):
    pass


class Awaited:
    """The blocking contract on top of the async face: each call is awaited in a loop of its own thread."""

    def __init__(self, backend: Backend) -> None:
        self._agent = AsyncTenuto("contract", backend)
        self._kernel: AsyncKernel = self._agent.kernel
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._closed = False

    def _wait(self, call: Any) -> Any:
        if self._closed:
            return asyncio.run(call)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def read(self, keys: Sequence[bytes]) -> Any:
        return self._wait(self._kernel.read(keys))

    def scan(self, prefix: bytes, **options: Any) -> Any:
        return self._wait(self._kernel.scan(prefix, **options))

    def entries(self, stream: bytes, **options: Any) -> Any:
        return self._wait(self._kernel.entries(stream, **options))

    def commit(self, checks: Any, writes: Any, *, request: bytes | None = None) -> Any:
        return self._wait(self._kernel.commit(checks, writes, request=request))

    def streams(self, prefix: bytes, **options: Any) -> Any:
        return self._wait(self._kernel.streams(prefix, **options))

    def load(self, records: Any, entries: Any) -> Any:
        return self._wait(self._kernel.load(records, entries))

    def trim(self, stream: bytes, first: int) -> Any:
        return self._wait(self._kernel.trim(stream, first))

    def bell(self, stream: bytes) -> Any:
        return self._kernel.bell(stream)

    def now(self) -> float:
        return self._kernel.now()

    def check(self) -> Any:
        return self._wait(self._kernel.check())

    def stats(self) -> Any:
        return self._wait(self._kernel.stats())

    def close(self) -> None:
        if not self._closed:
            self._wait(self._kernel.close())
            self._closed = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Asynchronous:
    confined = True  # a client is a view of its tenant

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return Awaited(super().connect(place, clock))


class TestVolatileThroughAsyncTenuto(Asynchronous, Volatile, BackendContract):
    pass


class TestSqliteThroughAsyncTenuto(Asynchronous, Sqlite, BackendContract):
    pass
