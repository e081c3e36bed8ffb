"""A backend against a dict: random commits, expiry, reopening; nothing may differ."""

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tenuto.errors import Conflict
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Backend, Check, CheckEnd, Delete, Put
from tenuto.kernel.transact import new_request
from tenuto.testing import HeldClock

NAMES = [keys.pack("t", "s", name) for name in ("a", "a\x00", "ab", "b", "é")] + [
    keys.pack("t", "s2", n) for n in (-1, 0, 300)
]
STREAMS = [keys.pack("t", "log", n) for n in range(2)]
some_key = st.sampled_from(NAMES)
some_stream = st.sampled_from(STREAMS)
some_value = st.binary(max_size=40) | st.binary(min_size=5000, max_size=5001)
some_ttl = st.none() | st.floats(min_value=0.5, max_value=100)
a_write = (
    st.builds(Put, some_key, some_value, some_ttl)
    | st.builds(Delete, some_key)
    | st.builds(Append, some_stream, some_value)
)


def once_each(writes: list[Any]) -> list[Any]:
    seen: set[bytes] = set()
    return [w for w in writes if type(w) is Append or not (w[0] in seen or seen.add(w[0]))]


class Model(RuleBasedStateMachine):
    durable = True

    def open(self) -> Backend:
        raise AssertionError("a subclass says how")

    @initialize()
    def start(self) -> None:
        self.clock = HeldClock()
        self.folder = tempfile.TemporaryDirectory()
        self.place = Path(self.folder.name)
        self.store = self.open()
        self.other = self.open() if self.durable else self.store
        self.values: dict[bytes, tuple[bytes, float | None]] = {}
        self.versions: dict[bytes, int] = {}
        self.streams: dict[bytes, list[bytes]] = {}
        self.requests: list[tuple[bytes, list[Any], Any]] = []

    def teardown(self) -> None:
        if hasattr(self, "store"):
            assert self.store.check() == []
            self.store.close()
            self.other.close()
            self.folder.cleanup()

    def live(self, key: bytes) -> bytes | None:
        value, expires = self.values.get(key, (None, None))
        return None if expires is not None and expires <= self.clock.time() else value

    def apply(self, writes: list[Any]) -> tuple[int, ...]:
        versions = []
        for write in writes:
            if type(write) is Append:
                self.streams.setdefault(write.stream, []).append(write.value)
                versions.append(len(self.streams[write.stream]))
            elif type(write) is Put:
                self.versions[write.key] = self.versions.get(write.key, 0) + 1
                self.values[write.key] = (write.value, None if write.ttl is None else self.clock.time() + write.ttl)
                versions.append(self.versions[write.key])
            else:
                if self.live(write.key) is not None:
                    self.versions[write.key] += 1
                    del self.values[write.key]
                versions.append(self.versions.get(write.key, 0))
        return tuple(versions)

    @rule(writes=st.lists(a_write, min_size=1, max_size=5).map(once_each), requested=st.booleans())
    def commit(self, writes: list[Any], requested: bool) -> None:
        request = new_request(self.store.now()) if requested else None
        done = self.store.commit([], writes, request=request)
        assert done.versions == self.apply(writes)
        if request:
            self.requests.append((request, writes, done))

    @rule(key=some_key, stream=some_stream, off=st.sampled_from([0, 0, 0, 1]), write=a_write)
    def commit_with_checks(self, key: bytes, stream: bytes, off: int, write: Any) -> None:
        version = (self.versions[key] if self.live(key) is not None else 0) + off
        checks = [Check(key, version), CheckEnd(stream, len(self.streams.get(stream, [])))]
        if off:
            with pytest.raises(Conflict) as error:
                self.other.commit(checks, [write])
            assert error.value.keys == (key,)
        else:
            assert self.other.commit(checks, [write]).versions == self.apply([write])

    @rule(data=st.data())
    def repeat_a_request(self, data: Any) -> None:
        if self.requests:
            request, writes, done = data.draw(st.sampled_from(self.requests))
            assert self.other.commit([], writes, request=request) == done._replace(repeated=True)

    @rule(seconds=st.floats(min_value=0, max_value=60))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.requests.clear()

    @rule()
    def swap(self) -> None:
        self.store, self.other = self.other, self.store

    @rule()
    def reopen(self) -> None:
        if self.durable:
            self.store.close()
            self.store = self.open()

    @invariant()
    def same_records(self) -> None:
        if not hasattr(self, "store"):
            return
        expected = {key: value for key in NAMES if (value := self.live(key)) is not None}
        found = self.store.read(NAMES)
        assert {r.key: r.value for r in found if r} == expected
        assert all(r.version == self.versions[r.key] for r in found if r)
        assert [(r.key, r.value) for r in self.store.scan(keys.pack("t"))] == sorted(expected.items())
        assert [r.key for r in self.other.scan(keys.pack("t"), reverse=True, limit=3)] == sorted(
            expected, reverse=True
        )[:3]

    @invariant()
    def same_entries(self) -> None:
        if not hasattr(self, "store"):
            return
        for stream in STREAMS:
            expected = self.streams.get(stream, [])
            assert [(e.number, e.value) for e in self.other.entries(stream, limit=1000)] == list(enumerate(expected, 1))
