"""Several processes append to one thread, and are killed: everything is there once, in order, without a gap."""

import itertools
import random
import signal
from collections import Counter

import pytest
from crash_harness import Child
from support.long import size

from tenuto import Tenuto

EACH = 200
KILLS = size(8, 400)


def test_two_processes_append_to_one_thread(path):
    said = {}
    with (
        Child("worker_appends.py", path, "a", 0, EACH, "plain") as a,
        Child("worker_appends.py", path, "b", 0, EACH, "plain") as b,
    ):
        assert (a.says(), b.says()) == ("ready", "ready")
        a.tell()
        b.tell()
        for who, worker in (("a", a), ("b", b)):
            out, complaints = worker.ends()
            assert (worker.process.returncode, complaints) == (0, "")
            said[who] = [tuple(map(int, line.split())) for line in out.splitlines()]
    with Tenuto("judge", path) as agent:
        messages, count = agent.thread("t").messages(), agent.thread("t").count()
        report = agent.store.check()
    # every message is there, each process's in its order, and at the number it was told
    assert len(messages) == count == 4 * EACH
    for who in "ab":
        assert [m["n"] for m in messages if m["who"] == who and "answer" not in m] == list(range(EACH))
        assert all(messages[number - 1] == {"who": who, "n": n, "answer": True} for n, number in said[who])
    # the numbers of both together are 2, 4, 6, … without a gap
    assert sorted(number for told in said.values() for _, number in told) == list(range(2, 4 * EACH + 1, 2))
    assert report.ok, report.findings
    # and they did meet, since each waited for the other on its way: one writer after the other would prove nothing
    turns = [m["who"] for m in messages]
    assert sum(one != two for one, two in itertools.pairwise(turns)) > 1


def _killed_again_and_again(path, mode, kills):
    """Kill a writer at random moments while another one writes; each time it goes on a little before the last word."""
    chance = random.Random(5)
    told: dict[int, int] = {}
    with Child("worker_appends.py", path, "other", 0, 10 * kills, "keys") as other:
        for _ in range(kills):
            first = max(0, max(told, default=0) - 3)
            with Child("worker_appends.py", path, "killed", first, 10**6, mode) as worker:
                for _ in range(chance.randrange(4, 12)):
                    n, number = map(int, worker.says().split())
                    assert told.setdefault(n, number) == number, "a repeated append came back with another number"
                worker.signal(signal.SIGKILL)
                worker.process.wait()
                for line in worker.process.stdout.read().splitlines(keepends=True):
                    if line.endswith("\n"):
                        n, number = map(int, line.split())
                        told.setdefault(n, number)
        others = other.ends()[0].splitlines()
    with Tenuto("judge", path) as agent:
        return told, others, agent.thread("t").messages(), agent.store.check()


@pytest.mark.slow
def test_what_is_appended_with_keys_is_there_once_whatever_is_killed(path):
    told, others, messages, report = _killed_again_and_again(path, "keys", KILLS)
    times = Counter((m["who"], m["n"], "answer" in m) for m in messages)
    assert set(times.values()) == {1}
    own = [m["n"] for m in messages if m["who"] == "killed" and "answer" not in m]
    assert own == list(range(len(own)))
    assert len(own) >= len(told) > KILLS
    assert all(messages[number - 1] == {"who": "killed", "n": n, "answer": True} for n, number in told.items())
    assert [m["n"] for m in messages if m["who"] == "other" and "answer" not in m] == list(range(len(others)))
    assert report.ok, report.findings
    print(
        f"kill -9: {KILLS} kills, {len(told)} appends told of by the killed, {len(others)} by the other, each there once"
    )


def test_a_writer_that_makes_new_keys_after_a_crash_is_found_out(path):
    # given writers with that bug, the judgement that finds nothing above finds what was appended twice
    with pytest.raises(AssertionError, match="another number"):
        _killed_again_and_again(path, "early", 3)
