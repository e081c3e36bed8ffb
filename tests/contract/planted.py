"""Backends with one planted bug each, and the suite over the one that PLANTED names.

Run by test_planted.py in a process of its own; not collected by itself.
"""

import os
import threading
from pathlib import Path

from tenuto.backends.volatile import VolatileBackend
from tenuto.errors import Conflict
from tenuto.kernel.contract import Backend, Commit, Delete, Forget, Record
from tenuto.testing import HeldClock
from tenuto.testing.contract import BackendContract


class LostWrite(VolatileBackend):
    """Acknowledges every seventh commit and forgets it."""

    count = 0

    def commit(self, checks, writes, *, request=None):
        self.count += 1
        if self.count % 7 == 0 and writes:
            return Commit(tuple(1 for _ in writes), self.now())
        return super().commit(checks, writes, request=request)


class NotAtomic(VolatileBackend):
    """Applies the writes one after the other, checks or no checks."""

    def commit(self, checks, writes, *, request=None):
        if len(writes) < 2 or request:
            return super().commit(checks, writes, request=request)
        versions = []
        for write in writes:
            versions += super().commit([], [write]).versions
            threading.Event().wait(0.001)
        super().commit(checks, [])
        return Commit(tuple(versions), self.now())


class StaleRead(VolatileBackend):
    """Answers reads of a key from a cache that every other write to it refreshes."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self._cache: dict[bytes, Record | None] = {}
        self._turn = 0

    def read(self, keys):
        fresh = super().read(keys)
        self._turn += 1
        if self._turn % 2:
            self._cache.update(zip(keys, fresh, strict=True))
        return [self._cache.get(key, record) for key, record in zip(keys, fresh, strict=True)]


class WrongOrder(VolatileBackend):
    """Sorts keys as text."""

    def scan(self, prefix, *, after=None, limit=100, reverse=False):
        found = super().scan(prefix, after=after, limit=limit, reverse=reverse)
        return sorted(found, key=lambda record: repr(record.key), reverse=reverse)


class RestartingVersion(VolatileBackend):
    """Forgets the count of a key when it is deleted."""

    def _apply_record(self, write, now):
        version = super()._apply_record(write, now)
        if type(write) is Delete and write.key in self._rows:
            del self._rows[write.key]
            self._order.remove(write.key)
            self._dead.pop(write.key, None)
        return version


class ForgetsNothing(VolatileBackend):
    """Says that it has forgotten, and keeps what entries say."""

    def _apply(self, writes, now):
        kept = {name: list(stream) for name, stream in self._streams.items()}
        versions = super()._apply(writes, now)
        for name, stream in kept.items():
            self._streams[name][: len(stream)] = stream
        return versions


class ForgetsTooMuch(VolatileBackend):
    """Forgets also what the same commit adds."""

    def _apply(self, writes, now):
        versions = super()._apply(writes, now)
        super()._apply([write for write in writes if type(write) is Forget], now)
        return versions


class NoFloor(VolatileBackend):
    """Purges tombstones without raising the floor."""

    def _sweep(self, now):
        super()._sweep(now)
        self._floors.clear()


class RequestTwice(VolatileBackend):
    """Forgets request ids."""

    def commit(self, checks, writes, *, request=None):
        self._requests.clear()
        return super().commit(checks, writes, request=request)


class UncheckedEnd(VolatileBackend):
    """Does not look at checks of a stream's end."""

    def commit(self, checks, writes, *, request=None):
        return super().commit([c for c in checks if not hasattr(c, "stream")], writes, request=request)


class NativeExpiry(VolatileBackend):
    """Lets expired records be seen until somebody sweeps."""

    def _live(self, key, now):
        return None if key in self._dead else self._rows.get(key)


class BrokenChain(VolatileBackend):
    """Links no entry to the one before."""

    def entries(self, stream, **options):
        return [entry._replace(previous=b"") for entry in super().entries(stream, **options)]


class NamelessConflict(VolatileBackend):
    """Says that something differed and not what."""

    def commit(self, checks, writes, *, request=None):
        try:
            return super().commit(checks, writes, request=request)
        except Conflict as error:
            raise Conflict(str(error)) from None


class LateCheck(VolatileBackend):
    """Checks, then lets others in, then writes: two may pass the same check."""

    def commit(self, checks, writes, *, request=None):
        if checks and not request:
            super().commit(checks, [])
            threading.Event().wait(0.002)
            return super().commit([], writes)
        return super().commit(checks, writes, request=request)


class DeafBell(VolatileBackend):
    """Says that it will ring and does not."""

    def _ring(self, writes):
        pass


BUGS = {
    bug.__name__: bug
    for bug in (
        LostWrite,
        NotAtomic,
        StaleRead,
        WrongOrder,
        RestartingVersion,
        ForgetsNothing,
        ForgetsTooMuch,
        NoFloor,
        RequestTwice,
        UncheckedEnd,
        NativeExpiry,
        BrokenChain,
        NamelessConflict,
        LateCheck,
        DeafBell,
    )
}
_planted = BUGS[os.environ.get("PLANTED", "LostWrite")]
_places: dict[Path, Backend] = {}


class TestPlanted(BackendContract):
    durable = False
    rings = True

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        return _places.setdefault(place, _planted(clock=clock))
