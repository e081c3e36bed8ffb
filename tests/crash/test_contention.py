"""Many processes on one SQLite file: everybody gets through, nobody is starved, nothing is counted twice."""

import contextlib
import json

import pytest
from crash_harness import Child
from support.long import size

from tenuto import Tenuto


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
