"""The storage contract for moving history: `streams`, `load` and `trim`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tenuto.errors import Conflict, Damaged, InvalidInput, TooLarge
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Backend, Check, CheckEnd, Delete, Entry, Forget, Put, Record
from tenuto.testing.clock import HeldClock
from tenuto.testing.contract._keys import LOG, OTHER, A, B, C, key


class Moving:
    """Tests of `streams`, `load` and `trim`."""

    confined = False

    def test_streams_are_listed_in_key_order_and_in_pages(self, store: Backend) -> None:
        names = sorted(key("many", n) for n in range(12))
        store.commit([], [*(Append(name, b"e") for name in names), Put(A, b"v")])
        assert store.streams(key("many")) == names
        assert store.streams(key("many"), limit=5) == names[:5]
        assert store.streams(key("many"), after=names[4], limit=5) == names[5:10]
        assert store.streams(key("many"), after=names[-1]) == []
        assert store.streams(keys.pack("tenant")) == names
        if not self.confined:
            with pytest.raises(InvalidInput):
                store.streams(b"")

    def test_what_is_loaded_is_as_it_was(self, store: Backend, clock: HeldClock) -> None:
        now = clock.time()
        records = [
            Record(A, b"1", 7, now - 900.5),
            Record(B, b"", 1, now - 1e6),
            Record(C, b"3" * 70_000, 2, now - 1, now + 50),
        ]
        given = [
            Entry(1, b"one", now - 800.25, b"", b"", (7, 1)),
            Entry(2, b"", now - 700, b"", b"?" * 16, (), True),
            Entry(3, b"three" * 99, now - 600, b"", b"?" * 16, (3, 9)),
        ]
        assert store.load(records, {LOG: given}) == 6
        assert store.read([A, B, C]) == records
        found = store.entries(LOG)
        assert [(e.number, e.value, e.written_at, e.versions, e.forgotten) for e in found] == [
            (e.number, e.value, e.written_at, e.versions, e.forgotten) for e in given
        ]
        assert [e.previous for e in found] == [b"", found[0].digest, found[1].digest]
        assert store.check() == []
        assert store.load(records, {LOG: given}) == 0, "what is there already is skipped"
        assert store.commit([Check(A, 7), CheckEnd(LOG, 3)], [Put(A, b"2"), Append(LOG, b"4")]).versions == (8, 4)
        clock.advance(60)
        assert store.read([C]) == [None]

    def test_other_content_is_a_conflict_and_nothing_is_loaded(self, store: Backend, clock: HeldClock) -> None:
        now = clock.time()
        store.commit([], [Put(A, b"mine"), Append(LOG, b"mine"), Append(LOG, b"more")])
        fresh = Record(B, b"new", 1, now)
        with pytest.raises(Conflict) as error:
            store.load([fresh, Record(A, b"other", 1, now)], {})
        assert error.value.keys == (A,)
        mine = store.entries(LOG)
        other = mine[1]._replace(value=b"other")
        for given in ([mine[0], other], [mine[0]._replace(number=4, previous=b"?" * 16)]):
            with pytest.raises(Conflict):
                store.load([fresh], {LOG: given})
        for stream, record in ((A, fresh), (LOG, fresh)):
            with pytest.raises((InvalidInput, Conflict)):
                store.load([record._replace(key=LOG)], {}) if stream == LOG else store.load([], {A: mine})
        assert store.read([B]) == [None]
        assert [e.value for e in store.entries(LOG)] == [b"mine", b"more"]

    def test_a_load_must_be_consecutive_and_within_the_limits(self, store: Backend) -> None:
        one, two = Entry(1, b"", 1.0, b"", b"", ()), Entry(2, b"", 1.0, b"", b"?" * 16, ())
        for given in ([], [two, one], [one, one], [one._replace(number=0)], [one._replace(previous=b"?" * 16)]):
            with pytest.raises(InvalidInput):
                store.load([], {LOG: given})
        with pytest.raises(InvalidInput):
            store.load([Record(A, b"", 1, 1.0), Record(A, b"", 1, 1.0)], {})
        with pytest.raises(TooLarge):
            store.load([Record(key("n", n), b"", 1, 1.0) for n in range(1_001)], {})
        assert store.scan(key()) == []

    def test_a_deleted_key_comes_back_above_its_last_version(self, store: Backend, clock: HeldClock) -> None:
        store.commit([], [Put(A, b"v")])
        (record,) = store.read([A])
        assert record is not None
        store.commit([], [Delete(A)])
        assert store.load([record], {}) == 1
        (back,) = store.read([A])
        assert back is not None
        assert (back.value, back.version, back.written_at) == (b"v", 3, record.written_at)
        assert store.load([record], {}) == 0
        with pytest.raises(Conflict):
            store.commit([Check(A, 1)], [Put(A, b"stale")])
        clock.advance(1)

    def test_a_trimmed_stream_keeps_its_numbers_and_its_links(self, store: Backend) -> None:
        store.commit([], [Append(LOG, b"%d" % n) for n in range(1, 11)])
        before = store.entries(LOG)
        assert store.trim(LOG, 4) == 3
        assert store.entries(LOG) == before[3:]
        assert store.entries(LOG, after=2, limit=2) == before[3:5]
        assert store.entries(LOG, after=5) == before[5:]
        assert store.entries(LOG, reverse=True) == before[:2:-1]
        assert store.entries(LOG, after=5, reverse=True) == [before[3]]
        assert store.entries(LOG, after=4, reverse=True) == []
        assert store.entries(LOG, after=2, reverse=True) == []
        assert store.check() == []
        assert store.trim(LOG, 4) == 0
        assert store.commit([CheckEnd(LOG, 10)], [Append(LOG, b"11")]).versions == (11,)
        store.commit([], [Forget(LOG, 1, 5)])
        assert [e.value for e in store.entries(LOG, limit=3)] == [b"", b"", b"6"]
        assert store.trim(LOG, 99) == 7
        assert [e.value for e in store.entries(LOG)] == [b"11"], "the last entry stays"
        assert store.trim(LOG, 99) == 0
        assert store.commit([CheckEnd(LOG, 11)], [Append(LOG, b"12")]).versions == (12,)
        assert [e.number for e in store.entries(LOG)] == [11, 12]
        assert store.check() == []

    def test_trimming_a_record_or_nothing(self, store: Backend) -> None:
        store.commit([], [Put(A, b"v")])
        assert store.trim(LOG, 5) == 0
        with pytest.raises(InvalidInput):
            store.trim(A, 5)
        assert store.read([A])[0] is not None

    def test_a_trim_removes_a_thousand_entries_at_most(self, store: Backend) -> None:
        for start in range(0, 2_500, 500):
            store.commit([], [Append(LOG, b"%d" % n) for n in range(start, start + 500)])
        assert [store.trim(LOG, 2_400) for _ in range(4)] == [1_000, 1_000, 399, 0]
        assert store.entries(LOG, limit=1)[0].value == b"2399"

    def test_a_record_keeps_the_value_that_it_shared_with_a_trimmed_entry(self, store: Backend) -> None:
        value = b"shared" * 100
        store.commit([], [Put(key("log", "x"), value), Append(LOG, value)])
        store.commit([], [Append(LOG, b"2")])
        assert store.trim(LOG, 2) == 1
        (record,) = store.read([key("log", "x")])
        assert record is not None
        assert record.value == value
        assert store.check() == []

    def test_only_what_was_there_is_taken_back(self, store: Backend) -> None:
        store.commit([], [Put(A, b"v"), *(Append(LOG, b"%d" % n) for n in range(1, 9))])
        gone = store.entries(LOG)[:5]
        store.trim(LOG, 6)
        changed = [gone[3], gone[4]._replace(value=b"forged")]
        with pytest.raises(Damaged):
            store.load([], {LOG: changed})
        with pytest.raises(Conflict):
            store.load([], {LOG: gone[:3]})
        assert store.load([], {LOG: gone[3:]}) == 2
        assert store.load([], {LOG: gone[2:]}) == 1
        assert store.load([], {LOG: gone}) == 2
        assert [e.number for e in store.entries(LOG)] == list(range(1, 9))
        assert store.entries(LOG)[:5] == gone, "with the digests that they had"
        assert store.check() == []

    def test_a_stream_may_begin_after_its_first_entry(self, store: Backend, client: Callable[[], Backend]) -> None:
        given = [Entry(n, b"%d" % n, 1.0 + n, b"", b"anchor-anchor-16", (n,)) for n in (5, 6)]
        assert store.load([], {LOG: given, OTHER: [given[0]._replace(number=1, previous=b"")]}) == 3
        assert [e.number for e in store.entries(LOG)] == [5, 6]
        assert store.entries(LOG)[0].previous == b"anchor-anchor-16"
        assert store.commit([CheckEnd(LOG, 6)], [Append(LOG, b"7")]).versions == (7,)
        assert store.load([], {LOG: given}) == 0
        assert [e.number for e in client().entries(LOG, after=5)] == [6, 7]
        assert store.check() == []
