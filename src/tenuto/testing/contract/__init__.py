"""The storage contract as tests: what every backend and every wrapper must do, one behaviour each.

A backend of your own is proven by a few lines in a pytest module:

    from tenuto.testing.contract import BackendContract

    class TestMine(BackendContract):
        def connect(self, place, clock):
            return MyBackend(place / "store", clock=clock)

`connect` returns another client of the one store at `place` each time it is called; the store takes its
time from `clock`, which the tests move by hours. See docs/writing-a-backend.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import Closed, Conflict, InvalidInput, TooLarge
from tenuto.kernel.contract import (
    MAX_KEY,
    MAX_VALUE,
    MAX_WRITES,
    REQUEST_LIFE,
    Append,
    Backend,
    Check,
    Delete,
    Put,
    Write,
)
from tenuto.kernel.transact import new_request
from tenuto.testing.clock import HeldClock
from tenuto.testing.contract._keys import LOG, A, B, C, key
from tenuto.testing.contract._moving import Moving
from tenuto.testing.contract._requests import Requests
from tenuto.testing.contract._scans import Scans
from tenuto.testing.contract._several_clients import SeveralClients
from tenuto.testing.contract._streams import Streams


class BackendContract(Scans, Streams, Moving, Requests, SeveralClients):
    """Subclass this and implement `connect`."""

    durable = True
    """False for a store in the memory of its process."""
    rings = False
    """True for a store that notifies the watchers of a stream."""
    confined = False
    """True for a view of one tenant, which prefixes every key with it."""
    overhead = 0
    """Number of bytes that a wrapper adds to each value; the largest value is smaller by them."""

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        """Return another client of the initially empty store at `place`."""
        raise AssertionError(f"say how to connect to the store at {place} by {clock}: a backend's author writes this")

    @pytest.fixture
    def clock(self) -> HeldClock:
        return HeldClock()

    @pytest.fixture
    def client(self, tmp_path: Path, clock: HeldClock) -> Iterator[Callable[[], Backend]]:
        opened: list[Backend] = []

        def connect() -> Backend:
            opened.append(self.connect(tmp_path, clock))
            return opened[-1]

        yield connect
        for backend in opened:
            backend.close()

    @pytest.fixture
    def store(self, client: Callable[[], Backend]) -> Backend:
        return client()

    # -- records ---------------------------------------------------------------------------------

    def test_what_was_never_written_is_absent(self, store: Backend) -> None:
        assert store.read([A, B]) == [None, None]
        assert store.scan(key()) == []
        assert store.entries(LOG) == []

    def test_a_value_comes_back_as_it_was_put(self, store: Backend) -> None:
        for value in (b"", b"x", bytes(range(256)) * 4, b"\x00" * 100_000):
            store.commit([], [Put(A, value)])
            record = store.read([A])[0]
            assert record is not None
            assert (record.key, record.value, record.expires_at) == (A, value, None)

    def test_records_come_back_in_the_order_asked_for(self, store: Backend) -> None:
        store.commit([], [Put(A, b"1"), Put(B, b"2")])
        assert [r and r.value for r in store.read([B, C, A, B])] == [b"2", None, b"1", b"2"]
        assert store.read([]) == []

    def test_many_keys_are_read_at_once(self, store: Backend) -> None:
        names = [key("many", n) for n in range(900)]
        store.commit([], [Put(name, b"%d" % n) for n, name in enumerate(names)])
        found = store.read(list(reversed(names)))
        assert [r and r.value for r in found] == [b"%d" % n for n in reversed(range(900))]

    def test_each_put_raises_the_version_by_one(self, store: Backend) -> None:
        assert [store.commit([], [Put(A, b"v")]).versions for _ in range(3)] == [(1,), (2,), (3,)]
        assert store.commit([], [Put(B, b"v"), Put(A, b"v")]).versions == (1, 4)

    def test_a_record_says_when_it_was_written(self, store: Backend, clock: HeldClock) -> None:
        done = store.commit([], [Put(A, b"v")])
        record = store.read([A])[0]
        assert record is not None
        assert record.written_at == done.at == clock.time()

    def test_the_largest_value_fits_and_a_larger_one_is_refused(self, store: Backend) -> None:
        most = MAX_VALUE - self.overhead
        store.commit([], [Put(A, b"x" * most)])
        with pytest.raises(TooLarge):
            store.commit([], [Put(A, b"y" * (most + 1)), Put(B, b"v")])
        record, other = store.read([A, B])
        assert record is not None
        assert record.value == b"x" * most
        assert other is None

    # -- checks ----------------------------------------------------------------------------------

    def test_a_commit_happens_when_every_check_holds(self, store: Backend) -> None:
        store.commit([], [Put(A, b"1")])
        done = store.commit([Check(A, 1), Check(B, 0)], [Put(B, b"2")])
        assert done.versions == (1,)

    def test_a_failed_check_names_its_keys_and_nothing_happens(self, store: Backend) -> None:
        store.commit([], [Put(A, b"1"), Put(C, b"3")])
        with pytest.raises(Conflict) as error:
            store.commit([Check(A, 2), Check(B, 0), Check(C, 0)], [Put(B, b"2"), Delete(C), Append(LOG, b"e")])
        assert sorted(error.value.keys) == [A, C]
        assert [r and r.value for r in store.read([A, B, C])] == [b"1", None, b"3"]
        assert store.entries(LOG) == []

    def test_a_commit_of_checks_alone_verifies_and_writes_nothing(self, store: Backend) -> None:
        store.commit([], [Put(A, b"1")])
        assert store.commit([Check(A, 1)], []).versions == ()
        with pytest.raises(Conflict):
            store.commit([Check(A, 2)], [])

    def test_a_check_of_an_older_version_fails(self, store: Backend) -> None:
        for _ in range(3):
            store.commit([], [Put(A, b"v")])
        for version in (0, 1, 2, 4):
            with pytest.raises(Conflict):
                store.commit([Check(A, version)], [Put(A, b"w")])
        assert store.commit([Check(A, 3)], [Put(A, b"w")]).versions == (4,)

    # -- deletion: versions never restart ------------------------------------------------------------

    def test_a_deleted_record_is_absent_to_every_verb(self, store: Backend) -> None:
        store.commit([], [Put(A, b"1"), Put(B, b"2")])
        store.commit([], [Delete(A)])
        assert store.read([A]) == [None]
        assert [r.key for r in store.scan(key())] == [B]
        store.commit([Check(A, 0)], [])

    def test_deleting_nothing_changes_nothing(self, store: Backend) -> None:
        assert store.commit([], [Delete(A)]).versions == (0,)
        assert store.commit([], [Put(A, b"v")]).versions == (1,)
        assert store.commit([], [Delete(A)]).versions == (2,)
        assert store.commit([], [Delete(A)]).versions == (2,)

    def test_a_key_made_anew_goes_on_counting(self, store: Backend) -> None:
        store.commit([], [Put(A, b"1")])
        store.commit([], [Delete(A)])
        assert store.commit([Check(A, 0)], [Put(A, b"2")]).versions == (3,)
        with pytest.raises(Conflict):
            store.commit([Check(A, 1)], [Put(A, b"stale")])

    def test_versions_go_on_after_old_tombstones_were_purged(self, store: Backend, clock: HeldClock) -> None:
        for _ in range(5):
            store.commit([], [Put(A, b"v")])
        store.commit([], [Delete(A)])
        store.commit([], [Put(B, b"v", 5.0)])
        for _ in range(6):  # hours with enough commits for a backend to clean up
            clock.advance(REQUEST_LIFE)
            for n in range(100):
                store.commit([], [Put(C, b"%d" % n)])
        assert store.commit([Check(A, 0)], [Put(A, b"again")]).versions[0] >= 7
        assert store.commit([Check(B, 0)], [Put(B, b"again")]).versions[0] >= 2

    # -- expiry ----------------------------------------------------------------------------------

    def test_an_expired_record_is_absent_to_every_verb(self, store: Backend, clock: HeldClock) -> None:
        store.commit([], [Put(A, b"1", 10.0), Put(B, b"2")])
        record = store.read([A])[0]
        assert record is not None
        assert record.expires_at == clock.time() + 10
        clock.advance(9.9)
        assert store.read([A])[0] is not None
        clock.advance(0.1)
        assert store.read([A]) == [None]
        assert [r.key for r in store.scan(key())] == [B]
        with pytest.raises(Conflict):
            store.commit([Check(A, 1)], [])

    def test_an_expired_key_made_anew_goes_on_counting(self, store: Backend, clock: HeldClock) -> None:
        store.commit([], [Put(A, b"1", 10.0)])
        clock.advance(11)
        assert store.commit([], [Delete(A)]).versions == (1,)
        assert store.commit([Check(A, 0)], [Put(A, b"2")]).versions == (2,)

    def test_a_new_put_replaces_the_time_to_live(self, store: Backend, clock: HeldClock) -> None:
        store.commit([], [Put(A, b"1", 10.0)])
        store.commit([], [Put(A, b"2")])
        store.commit([], [Put(B, b"1")])
        store.commit([], [Put(B, b"2", 10.0)])
        clock.advance(20)
        assert [r and r.value for r in store.read([A, B])] == [b"2", None]

    # -- bad input -------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "writes",
        [
            [Put(b"", b"v")],
            [Put(key("x" * MAX_KEY), b"v")],
            [Delete(b"")],
            [Append(b"", b"v")],
            [Put(b"no tenant and scope", b"v")],
            [Append(b"no tenant and scope", b"v")],
            [Put(B, b"v", 0.0)],
            [Put(B, b"v", -1.0)],
            [Put(B, b"v", float("nan"))],
            [Put(B, b"v", float("inf"))],
            [Put(B, b"1"), Put(B, b"2")],
            [Put(B, b"1"), Delete(B)],
            [Put(key("n", n), b"v") for n in range(MAX_WRITES + 1)],
            [Put(key("n", n), b"v" * MAX_VALUE) for n in range(3)],
        ],
        ids=lambda writes: f"{type(writes[0]).__name__}-{len(writes)}",
    )
    def test_a_commit_outside_the_limits_is_refused_whole(self, store: Backend, writes: list[Any]) -> None:
        with pytest.raises(InvalidInput):
            store.commit([], [Put(A, b"first"), *writes])
        assert store.read([A, B]) == [None, None]

    def test_checks_and_request_ids_outside_the_limits_are_refused(self, store: Backend) -> None:
        with pytest.raises(InvalidInput):
            store.commit([Check(A, -1)], [Put(A, b"v")])
        with pytest.raises(InvalidInput):
            store.commit([Check(b"", 0)], [Put(A, b"v")])
        with pytest.raises(InvalidInput):
            store.commit([], [Put(A, b"v")], request=b"short")
        assert store.read([A]) == [None]

    def test_long_keys_work(self, store: Backend) -> None:
        long = key("x" * (MAX_KEY - 100))  # a wrapper may add some bytes
        store.commit([], [Put(long, b"v")])
        assert [r.key for r in store.scan(key())] == [long]

    @pytest.mark.parametrize("name", ["../../etc", "a/b", "*?[x]", "'; DROP TABLE records; --", "\n", "\x00", "😀"])
    def test_no_name_means_anything_to_the_store(self, store: Backend, name: str) -> None:
        store.commit([], [Put(key(name), b"mine"), Put(key("neighbour"), b"other")])
        assert [r.value for r in store.scan(key(name))] == [b"mine"]
        store.commit([], [Delete(key(name))])
        assert [r.value for r in store.scan(key())] == [b"other"]

    # -- time ------------------------------------------------------------------------------------

    def test_a_small_step_back_is_waited_out_and_a_large_one_followed(self, store: Backend, clock: HeldClock) -> None:
        before = store.now()
        clock.advance(-5)  # a small correction: `now` waits
        assert store.now() >= before
        clock.advance(86_400)
        store.commit([], [Append(LOG, b"ahead")])
        clock.advance(-86_400)  # a corrected jump: `now` follows
        store.commit([], [Put(A, b"short", 5.0), Append(LOG, b"back")])
        clock.advance(6)
        assert store.read([A]) == [None]
        assert store.entries(LOG)[1].written_at >= store.entries(LOG)[0].written_at

    # -- the whole -------------------------------------------------------------------------------

    def test_a_store_in_order_has_nothing_to_find(self, store: Backend) -> None:
        store.commit([], [Put(A, b"1"), Put(B, b"2", 9.0), Append(LOG, b"e"), Append(LOG, b"f")])
        store.commit([], [Delete(A)])
        assert store.check() == []

    def test_a_store_says_what_it_is(self, store: Backend) -> None:
        figures = store.stats()
        assert figures["backend"]
        assert figures["durability"]

    def test_closing_ends_every_verb_but_closing(self, store: Backend) -> None:
        store.commit([], [Put(A, b"1")])
        store.close()
        store.close()
        for call in (
            lambda: store.read([A]),
            lambda: store.scan(key()),
            lambda: store.entries(LOG),
            lambda: store.commit([], [Put(A, b"2")]),
            store.check,
            store.stats,
        ):
            with pytest.raises(Closed):
                call()

    def test_everything_is_there_after_reopening(self, client: Callable[[], Backend], clock: HeldClock) -> None:
        if not self.durable:
            pytest.skip("this store ends with its process, by definition")
        store = client()
        request = new_request(store.now())
        store.commit([], [Put(A, b"1"), Put(B, b"2", 60.0), Put(C, b"3"), Append(LOG, b"e")], request=request)
        store.commit([], [Delete(C)])
        before = (store.read([A, B, C]), store.scan(key()), store.entries(LOG))
        store.close()

        again = client()
        assert (again.read([A, B, C]), again.scan(key()), again.entries(LOG)) == before
        writes: list[Write] = [Put(A, b"1"), Put(B, b"2", 60.0), Put(C, b"3"), Append(LOG, b"e")]
        assert again.commit([], writes, request=request).repeated
        assert again.commit([Check(C, 0)], [Put(C, b"4"), Append(LOG, b"f")]).versions == (3, 2)
        clock.advance(61)
        assert again.read([B]) == [None]
        assert again.check() == []
