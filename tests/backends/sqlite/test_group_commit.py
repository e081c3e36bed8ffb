"""Group commit: who waits is taken along, in order, and one refusal or interrupt leaves nobody waiting."""

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tenuto.backends.sqlite import SqliteBackend
from tenuto.backends.sqlite.group import GroupCommit, Job
from tenuto.kernel import keys
from tenuto.kernel.contract import Check, Put

A = keys.pack("t", "s", "a")


def test_callers_that_come_meanwhile_share_the_next_batch() -> None:
    batches: list[int] = []
    entered, go = threading.Event(), threading.Event()

    def run(batch: list[Job]) -> None:
        batches.append(len(batch))
        entered.set()
        assert go.wait(10)
        for job in batch:
            job.outcome, job.done = len(batches), True

    group: GroupCommit[Job] = GroupCommit(run)
    threads = [threading.Thread(target=group.submit, args=(Job(),)) for _ in range(9)]
    threads[0].start()
    assert entered.wait(5)
    for thread in threads[1:]:
        thread.start()
    while len(group._queue) < 8:
        pass
    go.set()
    for thread in threads:
        thread.join(5)
    assert batches == [1, 8]
    assert not group._turn.locked()


def test_a_job_that_is_taken_back_while_somebody_looks_at_it_is_not_missed() -> None:
    # given a queue whose first job is taken back by who waited for it, just as the leader has seen it
    ran: list[Job] = []

    class Slipping(deque[Job]):
        def __getitem__(self, at: Any) -> Any:
            found = super().__getitem__(at)
            if found is gone and found in self:
                self.remove(found)
            return found

    def run(batch: list[Job]) -> None:
        for job in batch:
            job.done = True
        ran.extend(batch)

    group: GroupCommit[Job] = GroupCommit(run)
    for others in ([], [Job()], [Job(), Job()]):
        gone = Job()
        group._queue = Slipping([gone, *others])
        # when somebody leads, then every other job is run
        batch: list[Job] = []
        while group._queue:
            group._lead(batch)
        assert batch == others
        assert all(job.started for job in others)


def test_a_batch_that_dies_leaves_nobody_waiting() -> None:
    entered, go = threading.Event(), threading.Event()

    def run(batch: list[Job]) -> None:
        entered.set()
        assert go.wait(10)
        raise KeyboardInterrupt

    group: GroupCommit[Job] = GroupCommit(run)
    errors: list[BaseException] = []

    def submit() -> None:
        try:
            group.submit(Job())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=submit) for _ in range(4)]
    threads[0].start()
    assert entered.wait(5)
    for thread in threads[1:]:
        thread.start()
    while len(group._queue) < 3:
        pass
    go.set()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    kinds = sorted(type(error).__name__ for error in errors)
    assert kinds == ["KeyboardInterrupt", "KeyboardInterrupt", "StorageUnavailable", "StorageUnavailable"]
    assert not group._turn.locked()


def test_one_conflict_in_a_batch_fails_nobody_else(path: Path, held: Callable[[], Any]) -> None:
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"0")])
    holder = held()
    results: list[Any] = []

    def commit(n: int) -> None:
        try:
            results.append(
                backend.commit([Check(A, 1)], [Put(keys.pack("t", "s", n), b"v")] if n % 2 else [Put(A, b"x")]).versions
            )
        except Exception as error:
            results.append(type(error).__name__)

    threads = [threading.Thread(target=commit, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    holder.release()
    for thread in threads:
        thread.join(10)
    assert len(results) == 8
    assert results.count((2,)) == 1
    assert all(result in ((1,), (2,), "Conflict") for result in results)
    assert backend.check() == []
    backend.close()


def test_closing_does_first_what_waits_whatever_it_is(path: Path, held: Callable[[], Any]) -> None:
    # given small and large commits that wait, one after the other
    backend = SqliteBackend(path)
    backend.commit([], [Put(A, b"0")])
    holder = held()
    done: list[int] = []
    threads = []
    for n in range(6):
        key, size = keys.pack("t", "s", f"k{n}"), (1, 100_000)[n % 2]
        threads.append(
            threading.Thread(
                target=lambda k=key, v=size: done.append(backend.commit([], [Put(k, b"x" * v)]).versions[0])
            )
        )
        threads[-1].start()
        while not backend._group._turn.locked() or len(backend._group._queue) < n:
            pass
    # when the client is closed
    threads.append(threading.Thread(target=backend.close))
    threads[-1].start()
    holder.release()
    for thread in threads:
        thread.join(10)
    assert done == [1] * 6


def test_a_second_interrupt_during_the_rollback_is_not_mistaken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a commit that Control-C interrupts, and whose rollback the next Control-C interrupts
    store = SqliteBackend(tmp_path / "store.db")
    store.commit([], [Put(A, b"1")])
    assert store._store is not None
    writer = store._store.writer

    def interrupted(*_: Any) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    def written_and_interrupted(*given: Any) -> None:
        write(*given)
        monkeypatch.setattr(writer, "abandon", interrupted)
        raise KeyboardInterrupt

    write = writer._add_commit
    monkeypatch.setattr(writer, "_add_commit", written_and_interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.commit([], [Put(A, b"2")])
    assert writer.connection.in_transaction
    # when the next commit begins
    outcome = store.commit([], [Put(A, b"3")])
    # then nothing of the interrupted one is left
    assert outcome.versions == (2,)
    assert store.check() == []
    store.close()
