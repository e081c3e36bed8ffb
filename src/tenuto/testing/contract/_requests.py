"""The storage contract for request ids: a retried commit is applied once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from tenuto.errors import Conflict, InvalidInput, RequestExpired, RequestReused
from tenuto.kernel.contract import REQUEST_LIFE, Append, Backend, Check, Delete, Put, Write
from tenuto.kernel.transact import new_request
from tenuto.testing.clock import HeldClock
from tenuto.testing.contract._keys import LOG, A, B, C


class Requests:
    """Tests of commits with a request id."""

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
