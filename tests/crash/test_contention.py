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
@pytest.mark.scorecard(15)
def test_every_increment_of_one_counter_by_eight_processes_counts_once(path, figures):
    # given one counter, when eight processes raise it by one two hundred times each
    ended = race(8, "increments", path, 200)
    # then it stands at exactly 1600, after as many versions, and nobody had to give up
    with Tenuto("judge", path) as agent:
        entry = agent.state.entry("s", "n")
        figures(increments=1_600, lost=1_600 - entry.value)
        assert [complaints for _, complaints in ended if complaints] == []
        assert (entry.value, entry.version) == (1_600, 1_600)
        assert [told.value for told in agent.state.history("s", "n", limit=1_600)] == list(range(1_600, 0, -1))
        assert agent.store.check().ok


@pytest.mark.slow
@pytest.mark.scorecard(15, planted=True)
def test_processes_that_read_and_then_write_are_found_out(path):
    # given the planted bug: a value is read, raised and written without a check
    race(4, "careless", path, 200)
    # then the counter does not stand where it should
    with Tenuto("judge", path) as agent:
        print(f"planted bug: {800 - agent.state.get('s', 'n')} of 800 increments lost")
        assert agent.state.get("s", "n") < 800


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 8, 16])
@pytest.mark.scorecard(15)
def test_writers_share_the_file_without_an_error(path, writers, figures):
    # given so many processes, when each commits as fast as it can
    seconds = size(1, 20)
    ended = race(writers, "steady", path, seconds)
    # then none meets an error, and none is left behind
    assert [complaints for _, complaints in ended if complaints] == []
    done = [json.loads(out) for out, _ in ended]
    made = [one["made"] for one in done]
    worst = max(one["worst"] for one in done)
    share = 100 * writers / sum(made)
    named = {
        f"commits a second by {writers}": round(sum(made) / seconds),
        f"worst wait of {writers} (ms)": round(1e3 * worst),
    }
    figures(**named, **{f"least share of {writers} (%)": round(min(made) * share)}, errors=0)
    with Tenuto("judge", path) as agent:
        assert agent.state.entry("s", "n").version == sum(made)
        assert agent.store.check().ok
    assert min(made) > 0
    assert worst < 5
