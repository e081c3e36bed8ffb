"""Closing a client while others are at work: it returns, and what comes after it touches nothing."""

import fcntl
import threading

import pytest
from crash_harness import beside, wait_until
from support.long import size

from tenuto import Closed, Tenuto
from tenuto.backends.sqlite.lockfile import LockFile


def test_closing_waits_for_the_commits_before_it_and_returns(path):
    # given two threads with a commit in hand, both behind another process that holds the lock
    agent = Tenuto("closer", path).open()
    with beside(path, "-lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        group = agent._backend._group
        threads = [threading.Thread(target=agent.state.set, args=("s", f"k{n}", n), daemon=True) for n in range(2)]
        threads[0].start()
        wait_until(lambda: group._turn.locked() and not group._queue)
        threads[1].start()
        wait_until(lambda: len(group._queue) == 1)
        # when the client is closed meanwhile
        closer = threading.Thread(target=agent.close, daemon=True)
        closer.start()
        wait_until(lambda: agent._backend._closed)
        fcntl.flock(other, fcntl.LOCK_UN)
    # then closing returns, with both commits made
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    closer.join(5)
    assert not closer.is_alive(), "close() never returned"
    with Tenuto("judge", path) as judge:
        assert judge.state.items("s") == {"k0": 0, "k1": 1}


@pytest.mark.slow
def test_a_commit_that_meets_a_close_is_made_or_refused_as_closed(path):
    # given threads that commit without a pause
    acknowledged, refused, stuck = 0, [], 0
    for _ in range(size(25, 1_000)):
        agent = Tenuto("closer", path).open()
        made = [0, 0]

        def commit(which, agent=agent, made=made):
            try:
                while True:
                    agent.state.set("s", f"k{which}", made[which])
                    made[which] += 1
            except BaseException as error:
                refused.append(error)

        threads = [threading.Thread(target=commit, args=(n,), daemon=True) for n in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda made=made: all(made))
        # when the client is closed under them
        closer = threading.Thread(target=agent.close, daemon=True)
        closer.start()
        for thread in [*threads, closer]:
            thread.join(5)
            stuck += thread.is_alive()
        if stuck:
            break
        acknowledged += sum(made)
    # then each ends with Closed and nothing else, and nobody waits for ever
    kinds = sorted({f"{type(error).__name__}: {error}" for error in refused if not isinstance(error, Closed)})
    print(f"close under load: {acknowledged} commits, {len(refused)} refused, {stuck} stuck, other errors {kinds}")
    assert stuck == 0
    assert kinds == []
    with Tenuto("judge", path) as judge:
        assert sum(judge.state.entry("s", f"k{n}").version for n in range(2)) >= acknowledged
        assert judge.store.check().ok


def test_upkeep_that_comes_after_the_close_touches_no_other_store(path):
    # given a closed client, and another store whose lock file got the number of the closed one's
    agent = Tenuto("closer", path).open()
    backend = agent._backend
    fd = backend._store.lock._fd
    agent.close()
    other = LockFile(path.with_name("other.db-lock"))
    assert other._fd == fd
    fcntl.flock(other._fd, fcntl.LOCK_EX)
    # when the upkeep thread, which had just found the client open, comes to its work
    with pytest.raises(Closed):
        backend.upkeep()
    # then the other store is still locked
    with path.with_name("other.db-lock").open("rb") as third:
        with pytest.raises(BlockingIOError):
            fcntl.flock(third, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other.close()
