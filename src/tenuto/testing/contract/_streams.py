"""The storage contract for streams: numbered entries, chained by digest, removable in ranges."""

from __future__ import annotations

import pytest

from tenuto.errors import Conflict, InvalidInput, RequestReused, TooLarge
from tenuto.kernel.contract import Append, Backend, Check, CheckEnd, Delete, Forget, Put
from tenuto.kernel.transact import new_request
from tenuto.testing.clock import HeldClock
from tenuto.testing.contract._keys import LOG, OTHER, A, B, C, key


class Streams:
    """Tests of `Append`, `Forget`, `CheckEnd` and `entries`."""

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
