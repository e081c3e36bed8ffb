"""The storage contract for scans: byte order, confinement to a prefix, pages."""

from __future__ import annotations

import pytest

from tenuto.errors import InvalidInput
from tenuto.kernel import keys
from tenuto.kernel.contract import Backend, Check, Delete, Put
from tenuto.testing.clock import HeldClock
from tenuto.testing.contract._keys import LOG, A, key


class Scans:
    """Tests of `scan`."""

    confined: bool

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
        if self.confined:  # every prefix gets the tenant, so that an empty one means the whole tenant
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
