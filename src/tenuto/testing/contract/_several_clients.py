"""The storage contract for several clients and threads: no lost update, no partial commit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from tenuto.errors import Conflict, TenutoError
from tenuto.kernel.contract import Append, Backend, Check, Put
from tenuto.testing.contract._keys import LOG, A, B, key
from tenuto.testing.history import random_calls, verify


class SeveralClients:
    """Tests of several clients of one store; each call of the fixture `client` creates another one."""

    rings: bool

    def test_a_commit_is_seen_at_once_by_every_client(self, client: Callable[[], Backend]) -> None:
        one, two = client(), client()
        for n in range(20):
            one.commit([], [Put(A, b"%d" % n), Append(LOG, b"%d" % n)])
            record = two.read([A])[0]
            assert record is not None
            assert record.value == b"%d" % n
            assert two.scan(key())[0].value == b"%d" % n
            assert two.entries(LOG, limit=1, reverse=True)[0].value == b"%d" % n
            one, two = two, one

    def test_a_live_bell_rings_when_any_client_adds_to_its_stream(self, client: Callable[[], Backend]) -> None:
        one, two = client(), client()
        two.commit([], [Append(LOG, b"0")])
        bell = one.bell(LOG)
        deadline = time.monotonic() + 10
        while self.rings and not bell.live:
            assert time.monotonic() < deadline, "the bell never became live"
            bell.wait(0.02)
        for n in range(1, 4 if self.rings else 1):
            bell.hush()
            two.commit([], [Append(LOG, b"%d" % n)])
            bell.wait(10)
            assert bell.rung
            assert one.entries(LOG, limit=1, reverse=True)[0].number == n + 1
        bell.close()
        bell.close()
        assert not bell.live
        two.commit([], [Append(LOG, b"after")])

    def test_of_many_who_create_a_key_one_succeeds(self, client: Callable[[], Backend]) -> None:
        clients = [client() for _ in range(4)]
        for n in range(10):
            won = _together(
                [lambda c=c, n=n: _wins(c, key("race", n)) for c in clients for _ in range(2)]  # type: ignore[misc]
            )
            assert sum(won) == 1

    def test_no_client_passes_a_check_that_another_has_just_broken(self, client: Callable[[], Backend]) -> None:
        one, two = client(), client()
        for n in range(15):  # write skew: each writes if the other has not
            left, right = key("skew", n, "l"), key("skew", n, "r")
            won = _together([lambda: _wins(one, left, right), lambda: _wins(two, right, left)])  # noqa: B023
            assert sum(won) == 1

    def test_no_increment_is_lost_between_clients(self, client: Callable[[], Backend]) -> None:
        clients = [client() for _ in range(4)]
        _together([lambda c=c: _increments(c, 15) for c in clients])  # type: ignore[misc]
        record = clients[0].read([A])[0]
        assert record is not None
        assert (record.value, record.version) == (b"60", 60)

    def test_concurrent_entries_have_every_number_once(self, client: Callable[[], Backend]) -> None:
        clients = [client() for _ in range(4)]

        def append(backend: Backend) -> list[int]:
            return [backend.commit([], [Append(LOG, b"e")]).versions[0] for _ in range(20)]

        given = _together([lambda c=c: append(c) for c in clients])  # type: ignore[misc]
        assert sorted(n for numbers in given for n in numbers) == list(range(1, 81))
        found = clients[0].entries(LOG, limit=100)
        assert [e.number for e in found] == list(range(1, 81))
        assert all(b.previous == a.digest for a, b in pairwise(found))

    def test_some_order_explains_what_concurrent_calls_were_answered(self, client: Callable[[], Backend]) -> None:
        clients = [client() for _ in range(3)]
        for seed in ("first", "second"):
            verify(random_calls([*clients, clients[0]], seed, 40))

    def test_no_client_sees_half_a_commit(self, client: Callable[[], Backend]) -> None:
        writer, reader = client(), client()
        writer.commit([], [Put(A, b"0"), Put(B, b"0")])
        done = threading.Event()
        halves: list[Any] = []

        def watch() -> None:
            while not done.is_set():
                left, right = reader.read([A, B])
                scanned = reader.scan(key())
                if left is None or right is None or left.value != right.value:
                    halves.append((left, right))
                if len({record.value for record in scanned}) != 1:
                    halves.append(scanned)

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            for n in range(1, 60):
                writer.commit([], [Put(A, b"%d" % n), Put(B, b"%d" % n)])
        finally:
            done.set()
            thread.join()
        assert halves == []


def _together(calls: list[Callable[[], Any]]) -> list[Any]:
    """Run calls in threads that start together; return their results."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)
    errors: list[BaseException] = []

    def run(at: int) -> None:
        barrier.wait()
        try:
            results[at] = calls[at]()
        except TenutoError as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def _wins(backend: Backend, mine: bytes, other: bytes | None = None) -> bool:
    try:
        backend.commit([Check(other or mine, 0)], [Put(mine, b"v")])
    except Conflict:
        return False
    return True


def _increments(backend: Backend, times: int) -> None:
    for _ in range(times):
        while True:
            record = backend.read([A])[0]
            value, version = (int(record.value), record.version) if record else (0, 0)
            try:
                backend.commit([Check(A, version)], [Put(A, b"%d" % (value + 1))])
                break
            except Conflict:
                continue
