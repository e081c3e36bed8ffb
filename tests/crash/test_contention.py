"""Many processes on one SQLite file: everybody gets through, nobody is starved, nothing is counted twice."""

import contextlib
import fcntl
import json
import threading

import pytest
from crash_harness import Child, beside, size, wait_until

from tenuto import Closed, Tenuto


def race(count, *command):
    """Start so many processes, let them go at once, and return what each printed and its complaints."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Child("worker_counts.py", *command)) for _ in range(count)]
        for worker in workers:
            assert worker.says() == "ready"
        for worker in workers:
            worker.tell()
        return [worker.ends(120) for worker in workers]


@pytest.mark.slow
def test_every_increment_of_one_counter_by_eight_processes_counts_once(path):
    # given one counter, when eight processes raise it by one two hundred times each
    ended = race(8, "increments", path, 200)
    # then it stands at exactly 1600, after as many versions, and nobody had to give up
    with Tenuto("judge", path) as agent:
        entry = agent.state.entry("s", "n")
        print(f"8 processes x 200 increments: value {entry.value}, version {entry.version}")
        assert [complaints for _, complaints in ended if complaints] == []
        assert (entry.value, entry.version) == (1_600, 1_600)
        assert [told.value for told in agent.state.history("s", "n", limit=1_600)] == list(range(1_600, 0, -1))
        assert agent.store.check().ok


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 8, 16])
def test_writers_share_the_file_without_an_error(path, writers):
    # given so many processes, when each commits as fast as it can
    seconds = size(2, 20)
    ended = race(writers, "steady", path, seconds)
    # then none meets an error, and none is left behind
    assert [complaints for _, complaints in ended if complaints] == []
    done = [json.loads(out) for out, _ in ended]
    made = [one["made"] for one in done]
    worst = max(one["worst"] for one in done)
    share = 100 * writers / sum(made)
    print(
        f"{writers} writers: {sum(made) / seconds:,.0f} commits/s, worst wait {1e3 * worst:.0f} ms, "
        f"share of a fair part {min(made) * share:.0f} % to {max(made) * share:.0f} %"
    )
    with Tenuto("judge", path) as agent:
        assert agent.state.entry("s", "n").version == sum(made)
        assert agent.store.check().ok
    assert min(made) > 0
    assert worst < 5


def test_closing_waits_for_the_commits_before_it_and_returns(path):
    # given two threads with a commit in hand, both behind another process that holds the lock
    agent = Tenuto("closer", path).open()
    with beside(path, "-lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        group = agent._backend._group
        threads = [threading.Thread(target=agent.state.set, args=("s", f"k{n}", n), daemon=True) for n in range(2)]
        threads[0].start()
        wait_until(lambda: group._busy and not group._queue)
        threads[1].start()
        wait_until(lambda: len(group._queue) == 1)
        # when the client is closed meanwhile
        closer = threading.Thread(target=agent.close, daemon=True)
        closer.start()
        wait_until(lambda: len(group._queue) == 2)
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
    for _ in range(size(60, 1_000)):
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
