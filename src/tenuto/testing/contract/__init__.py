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

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import (
    Closed,
    Conflict,
    InvalidInput,
    RequestExpired,
    RequestReused,
    TooLarge,
)
from tenuto.kernel import keys
from tenuto.kernel.contract import (
    MAX_KEY,
    MAX_VALUE,
    MAX_WRITES,
    REQUEST_LIFE,
    Append,
    Backend,
    Check,
    CheckEnd,
    Delete,
    Forget,
    Put,
    Write,
)
from tenuto.kernel.transact import new_request
from tenuto.testing._several_clients import LOG, OTHER, A, B, C, SeveralClients, key
from tenuto.testing.clock import HeldClock


class BackendContract(SeveralClients):
    """Subclass it and say how to `connect`."""

    durable = True
    """False for a store that ends with its process."""
    rings = False
    """True for a store that rings the bells of those who watch a stream."""
    confined = False
    """True for a view of one tenant, which puts that tenant before every key."""

    def connect(self, place: Path, clock: HeldClock) -> Backend:
        """Return another client of the store at `place`, which is empty at first."""
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
        store.commit([], [Put(A, b"x" * MAX_VALUE)])
        with pytest.raises(TooLarge):
            store.commit([], [Put(A, b"y" * (MAX_VALUE + 1)), Put(B, b"v")])
        record, other = store.read([A, B])
        assert record is not None
        assert record.value == b"x" * MAX_VALUE
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
        for _ in range(6):  # hours with enough commits for a backend to sweep behind itself
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

    # -- scans -----------------------------------------------------------------------------------

    def test_a_scan_follows_byte_order(self, store: Backend) -> None:
        names = [key(n) for n in (-70000, -1, 0, 1, 255, 256, 65536)] + [key(t) for t in ("", "a", "a\x00", "ab", "é")]
        store.commit([], [Put(name, b"v") for name in reversed(names)])
        assert [r.key for r in store.scan(key(), limit=1000)] == sorted(names)
        assert [r.key for r in store.scan(key(), limit=1000, reverse=True)] == sorted(names, reverse=True)

    def test_a_scan_stays_below_its_prefix(self, store: Backend) -> None:
        inside = [key("p"), key("p", "a"), key("p", "b", "c")]
        outside = [key("o"), key("pa"), key("q"), keys.pack("tenant", "scope2", "p")]
        store.commit([], [Put(name, b"v") for name in inside + outside])
        store.commit([], [Put(keys.pack("tenant2", "scope", "p"), b"v")])
        assert [r.key for r in store.scan(key("p"))] == inside
        assert len(store.scan(keys.pack("tenant"))) == len(inside) + len(outside)

    def test_one_call_stays_within_one_tenant(self, store: Backend) -> None:
        if self.confined:
            pytest.skip("a view of one tenant has no other to reach, by definition")
        elsewhere = keys.pack("tenant2", "scope", "a")
        with pytest.raises(InvalidInput):
            store.commit([], [Put(A, b"1"), Put(elsewhere, b"2")])
        with pytest.raises(InvalidInput):
            store.commit([Check(elsewhere, 0)], [Put(A, b"1")])
        for between in ([A, elsewhere], [b"", A, elsewhere]):
            with pytest.raises(InvalidInput):
                store.read(between)
        assert store.read([A]) == [None]

    def test_a_scan_begins_with_a_tenant(self, store: Backend) -> None:
        store.commit([], [Put(A, b"1")])
        if self.confined:  # it is put before every prefix, so that an empty one is the whole tenant
            assert [r.key for r in store.scan(b"")] == [A]
            return
        for prefix in (b"", b"\x02", b"\x02tenant", b"tenant", keys.pack(1), keys.pack(b"tenant", "scope")):
            for reverse in (False, True):
                with pytest.raises(InvalidInput):
                    store.scan(prefix, reverse=reverse)
        assert [r.key for r in store.scan(keys.pack("tenant"))] == [A]

    def test_a_prefix_of_the_highest_bytes_ends_where_it_should(self, store: Backend) -> None:
        high = keys.pack("t", "s") + b"\xff\xff"
        store.commit([], [Put(high, b"1"), Put(high + b"\x01", b"2"), Put(keys.pack("t", "s") + b"\xff", b"0")])
        assert [r.value for r in store.scan(high)] == [b"1", b"2"]

    def test_a_scan_goes_on_behind_the_last_key_seen(self, store: Backend) -> None:
        names = [key("n", n) for n in range(25)]
        store.commit([], [Put(name, b"v") for name in names])
        for reverse in (False, True):
            seen: list[bytes] = []
            while page := store.scan(key("n"), after=seen[-1] if seen else None, limit=10, reverse=reverse):
                assert len(page) <= 10
                seen += [record.key for record in page]
            assert seen == (names[::-1] if reverse else names)

    def test_a_scan_goes_on_behind_a_key_that_is_gone(self, store: Backend) -> None:
        store.commit([], [Put(key("n", n), b"v") for n in range(5)])
        store.commit([], [Delete(key("n", 2))])
        assert [r.key for r in store.scan(key("n"), after=key("n", 2))] == [key("n", 3), key("n", 4)]
        assert [r.key for r in store.scan(key("n"), after=key("n", 2), reverse=True)] == [key("n", 1), key("n", 0)]

    def test_what_is_gone_does_not_count_against_a_limit(self, store: Backend, clock: HeldClock) -> None:
        store.commit([], [Put(key("n", n), b"v", 5.0 if n % 3 == 1 else None) for n in range(60)])
        store.commit([], [Delete(key("n", n)) for n in range(60) if n % 3 == 0])
        clock.advance(6)
        expected = [key("n", n) for n in range(60) if n % 3 == 2]
        assert [r.key for r in store.scan(key("n"), limit=15)] == expected[:15]
        assert [r.key for r in store.scan(key("n"), limit=15, reverse=True)] == expected[::-1][:15]

    def test_a_limit_that_makes_no_sense_is_refused(self, store: Backend) -> None:
        for limit in (0, -1, 10_000_000):
            with pytest.raises(InvalidInput):
                store.scan(key(), limit=limit)
            with pytest.raises(InvalidInput):
                store.entries(LOG, limit=limit)

    # -- streams ---------------------------------------------------------------------------------

    def test_entries_are_numbered_from_one(self, store: Backend) -> None:
        assert [store.commit([], [Append(LOG, b"%d" % n)]).versions for n in range(3)] == [(1,), (2,), (3,)]
        assert [(e.number, e.value) for e in store.entries(LOG)] == [(1, b"0"), (2, b"1"), (3, b"2")]
        assert store.commit([], [Append(OTHER, b"x")]).versions == (1,)

    def test_several_entries_of_one_commit_follow_each_other(self, store: Backend) -> None:
        store.commit([], [Append(LOG, b"0")])
        done = store.commit([], [Append(LOG, b"1"), Append(OTHER, b"x"), Append(LOG, b"2")])
        assert done.versions == (2, 1, 3)
        assert [e.value for e in store.entries(LOG)] == [b"0", b"1", b"2"]

    def test_each_entry_carries_the_digest_of_the_one_before(self, store: Backend) -> None:
        store.commit([], [Append(LOG, b"same"), Append(LOG, b"same")])
        store.commit([], [Append(LOG, b"other")])
        first, second, third = store.entries(LOG)
        assert first.previous == b""
        assert second.previous == first.digest
        assert third.previous == second.digest
        assert len({first.digest, second.digest, third.digest}) == 3

    def test_an_entry_knows_the_versions_its_commit_gave(self, store: Backend) -> None:
        store.commit([], [Put(A, b"1")])
        store.commit([], [Put(A, b"2"), Delete(B), Append(LOG, b"e")])
        assert store.entries(LOG)[0].versions == (2, 0, 1)

    def test_entries_are_read_in_both_directions_and_in_pages(self, store: Backend) -> None:
        store.commit([], [Append(LOG, b"%d" % n) for n in range(1, 26)])
        assert [e.number for e in store.entries(LOG, limit=3)] == [1, 2, 3]
        assert [e.number for e in store.entries(LOG, after=23)] == [24, 25]
        assert [e.number for e in store.entries(LOG, after=25)] == []
        assert [e.number for e in store.entries(LOG, after=99)] == []
        assert [e.number for e in store.entries(LOG, limit=3, reverse=True)] == [25, 24, 23]
        assert [e.number for e in store.entries(LOG, after=3, reverse=True)] == [2, 1]
        assert [e.number for e in store.entries(LOG, after=1, reverse=True)] == []

    def test_the_end_of_a_stream_can_be_checked(self, store: Backend) -> None:
        store.commit([CheckEnd(LOG, 0)], [Append(LOG, b"1")])
        store.commit([CheckEnd(LOG, 1)], [Append(LOG, b"2")])
        for number in (0, 1, 3):
            with pytest.raises(Conflict) as error:
                store.commit([CheckEnd(LOG, number)], [Append(LOG, b"no")])
            assert error.value.keys == (LOG,)
        assert len(store.entries(LOG)) == 2

    def test_what_is_forgotten_keeps_its_place_and_its_links(self, store: Backend) -> None:
        store.commit([], [Append(LOG, b"%d" % n) for n in range(1, 6)])
        before = store.entries(LOG)
        assert store.commit([CheckEnd(LOG, 5)], [Forget(LOG, 2, 3), Put(A, b"v")]).versions == (3, 1)
        after = store.entries(LOG)
        assert [(e.value, e.forgotten) for e in after] == [
            (b"1", False),
            (b"", True),
            (b"", True),
            (b"4", False),
            (b"5", False),
        ]
        assert [e[2:6] for e in after] == [e[2:6] for e in before], "times, digests, links and versions stay"
        assert [e.number for e in store.entries(LOG, reverse=True, limit=3)] == [5, 4, 3]
        store.commit([], [Forget(LOG, 1, 900)])  # again, and beyond the end
        assert [e.value for e in store.entries(LOG)] == [b""] * 5
        assert store.commit([CheckEnd(LOG, 5)], [Append(LOG, b"6")]).versions == (6,)
        assert store.entries(LOG)[5].previous == before[4].digest
        assert store.check() == []

    def test_a_commit_forgets_only_what_was_there_before_it(self, store: Backend) -> None:
        store.commit([], [Append(LOG, b"1")])
        assert store.commit([], [Append(LOG, b"2"), Forget(LOG, 1, 9)]).versions == (2, 9)
        assert [e.value for e in store.entries(LOG)] == [b"", b"2"]
        assert store.entries(LOG)[1].versions == (2, 9)

    def test_forgetting_is_part_of_a_commit_like_any_write(self, store: Backend) -> None:
        store.commit([], [Append(LOG, b"1"), Put(A, b"v")])
        with pytest.raises(Conflict):
            store.commit([Check(A, 7)], [Forget(LOG, 1, 1)])
        with pytest.raises(InvalidInput):
            store.commit([], [Forget(A, 1, 1)])
        assert store.entries(LOG)[0].value == b"1"
        assert store.commit([], [Forget(OTHER, 1, 5)]).versions == (5,)
        assert store.entries(OTHER) == []
        assert store.commit([CheckEnd(OTHER, 0)], [Append(OTHER, b"1")]).versions == (1,)
        request = new_request(store.now())
        store.commit([], [Forget(LOG, 1, 1)], request=request)
        assert store.commit([], [Forget(LOG, 1, 1)], request=request).repeated
        with pytest.raises(RequestReused):
            store.commit([], [Forget(LOG, 1, 2)], request=request)
        for first, last in ((0, 1), (2, 1), (-1, 1)):
            with pytest.raises(InvalidInput):
                store.commit([], [Forget(LOG, first, last)])
        with pytest.raises(TooLarge):
            store.commit([], [Forget(LOG, 1, 1_001)])

    def test_times_in_a_stream_never_go_back(self, store: Backend, clock: HeldClock) -> None:
        store.commit([], [Append(LOG, b"1")])
        clock.advance(-3600)
        store.commit([], [Append(LOG, b"2")])
        first, second = store.entries(LOG)
        assert second.written_at >= first.written_at

    def test_streams_and_records_do_not_see_each_other(self, store: Backend) -> None:
        store.commit([], [Append(LOG, b"e"), Put(key("log", "x"), b"v")])
        assert [r.key for r in store.scan(key())] == [key("log", "x")]
        assert store.read([LOG]) == [None]
        assert store.entries(key("log", "x")) == []

    def test_a_key_is_a_records_or_a_streams(self, store: Backend) -> None:
        store.commit([], [Append(LOG, b"e"), Put(A, b"v")])
        for write in (Put(LOG, b"v"), Delete(LOG), Append(A, b"e")):
            with pytest.raises(InvalidInput):
                store.commit([], [Put(B, b"no"), write])
        with pytest.raises(InvalidInput):
            store.commit([], [Put(C, b"v"), Append(C, b"e")])
        assert store.read([B, C]) == [None, None]
        assert [e.value for e in store.entries(LOG)] == [b"e"]

    # -- requests --------------------------------------------------------------------------------

    def test_a_request_is_applied_once(self, store: Backend) -> None:
        request = new_request(store.now())
        writes: list[Write] = [Put(A, b"1"), Append(LOG, b"e")]
        first = store.commit([], writes, request=request)
        again = store.commit([], writes, request=request)
        assert not first.repeated
        assert again == first._replace(repeated=True)
        assert len(store.entries(LOG)) == 1
        record = store.read([A])[0]
        assert record is not None
        assert record.version == 1

    def test_a_request_that_writes_nothing_is_remembered_too(self, store: Backend) -> None:
        request = new_request(store.now())
        assert not store.commit([Check(A, 0)], [], request=request).repeated
        assert store.commit([Check(A, 0)], [], request=request).repeated
        with pytest.raises(RequestReused):
            store.commit([], [Put(A, b"1")], request=request)
        with pytest.raises(InvalidInput):
            store.commit([], [])

    def test_a_request_is_known_before_its_checks_are_made(self, store: Backend) -> None:
        request = new_request(store.now())
        first = store.commit([Check(A, 0)], [Put(A, b"1")], request=request)
        store.commit([], [Put(A, b"2")])
        assert store.commit([Check(A, 0)], [Put(A, b"1")], request=request).versions == first.versions
        record = store.read([A])[0]
        assert record is not None
        assert record.value == b"2"

    def test_a_request_used_for_another_commit_is_refused(self, store: Backend) -> None:
        request = new_request(store.now())
        store.commit([], [Put(A, b"1")], request=request)
        for checks, writes in (
            ([], [Put(A, b"2")]),
            ([], [Put(B, b"1")]),
            ([], [Put(A, b"1", 9.0)]),
            ([], [Delete(A)]),
            ([], [Append(LOG, b"1")]),
            ([], [Put(A, b"1"), Put(B, b"1")]),
            ([Check(A, 1)], [Put(A, b"1")]),
        ):
            with pytest.raises(RequestReused):
                store.commit(checks, writes, request=request)
        record, other = store.read([A, B])
        assert record is not None
        assert (record.version, other) == (1, None)

    def test_a_conflict_is_not_an_outcome(self, store: Backend) -> None:
        request = new_request(store.now())
        with pytest.raises(Conflict):
            store.commit([Check(A, 1)], [Put(B, b"v")], request=request)
        store.commit([], [Put(A, b"v")])
        assert store.commit([Check(A, 1)], [Put(B, b"v")], request=request).versions == (1,)

    def test_a_request_too_old_to_be_known_is_never_applied(self, store: Backend, clock: HeldClock) -> None:
        unused = new_request(store.now())
        used = new_request(store.now())
        store.commit([], [Put(A, b"1")], request=used)
        clock.advance(REQUEST_LIFE * 3)
        for n in range(300):
            store.commit([], [Put(C, b"%d" % n)])
        with pytest.raises(RequestExpired):
            store.commit([], [Put(B, b"1")], request=unused)
        with contextlib.suppress(RequestExpired):
            assert store.commit([], [Put(A, b"1")], request=used).repeated
        record, other = store.read([A, B])
        assert record is not None
        assert (record.version, other) == (1, None)

    def test_requests_are_known_to_every_client(self, client: Callable[[], Backend]) -> None:
        one, two = client(), client()
        request = new_request(one.now())
        one.commit([], [Append(LOG, b"e")], request=request)
        assert two.commit([], [Append(LOG, b"e")], request=request).repeated
        assert len(two.entries(LOG)) == 1

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
        long = key("x" * (MAX_KEY - 100))  # a wrapper may need some bytes of its own
        store.commit([], [Put(long, b"v")])
        assert [r.key for r in store.scan(key())] == [long]

    @pytest.mark.parametrize("name", ["../../etc", "a/b", "*?[x]", "'; DROP TABLE records; --", "\n", "\x00", "😀"])
    def test_no_name_means_anything_to_the_store(self, store: Backend, name: str) -> None:
        store.commit([], [Put(key(name), b"mine"), Put(key("neighbour"), b"other")])
        assert [r.value for r in store.scan(key(name))] == [b"mine"]
        store.commit([], [Delete(key(name))])
        assert [r.value for r in store.scan(key())] == [b"other"]

    # -- time ------------------------------------------------------------------------------------

    def test_the_stores_time_never_goes_backwards(self, store: Backend, clock: HeldClock) -> None:
        before = store.now()
        clock.advance(-3600)
        assert store.now() >= before
        clock.advance(7200)
        assert store.now() > before

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
