"""Eight workers on one queue are killed at random, again and again: no task is lost, and what must happen once does."""

import os
import random
import signal
import time
from typing import NamedTuple

import pytest
from crash_harness import Child, wait_until
from support.long import size

from tenuto import Tenuto

TASKS = size(150, 10_000)
WORKERS = 8


class Verdict(NamedTuple):
    lost: list
    undone: list
    unmarked: list
    paid_again: list
    out_of_order: list

    @property
    def clean(self):
        return not any(self)


def judge(folder, agent, ids):
    """Compare what the workers noted and paid with what is stored: the one function that all tests here use."""
    deliveries, out_of_order = {}, []
    for file in folder.glob("*.notes"):
        lines = [line.split() for line in file.read_text().splitlines()]
        fresh = []
        for task_id, priority, attempt, again in lines:
            deliveries.setdefault(task_id, []).append((int(attempt), again == "1"))
            if again == "0":
                fresh.append(int(priority))
        if fresh != sorted(fresh, reverse=True):
            out_of_order.append(file.name)
    lost = [one for one in ids if not agent.tasks.is_completed(one)]
    undone = [one for one in ids if one not in deliveries]
    unmarked = [
        one
        for one, seen in deliveries.items()
        if len({attempt for attempt, _ in seen}) != len(seen) or any(not again for _, again in sorted(seen)[1:])
    ]
    paid_again = [one for one in ids if (folder / f"{one}.paid").stat().st_size != 1] if not undone else ["?"]
    return Verdict(lost, undone, unmarked, paid_again, out_of_order), deliveries


def kill_workers(shared_url, folder, mode, ids, *, pace=0.04, seconds=120):
    """Keep eight workers going until nothing is left, killing one at random every now and then; return how many."""
    chance, kills, number = random.Random(4), 0, 0
    folder.mkdir(exist_ok=True)
    living: dict[int, None] = {}
    deadline = time.monotonic() + seconds
    with Child("worker_tasks.py", shared_url, folder, mode) as nursery, Tenuto("overseer", shared_url) as agent:
        while not all(agent.tasks.is_completed(one) for one in ids[-1:] + chance.sample(ids, 3)) or any(
            number for place, number in agent.tasks.counts("q").items() if place != "dead"
        ):
            assert time.monotonic() < deadline, agent.tasks.counts("q")
            living = {pid: None for pid in living if not _gone(pid)}
            while len(living) < WORKERS:
                nursery.tell(f"w{number}")
                living[int(nursery.says())] = None
                number += 1
            time.sleep(chance.expovariate(1 / pace))  # the random moment is the point
            victim = chance.choice(list(living))
            if not _gone(victim):
                os.kill(victim, signal.SIGKILL)
                kills += 1
        wait_until(lambda: all(_gone(pid) for pid in living), what="the end of the workers")
        return kills, nursery.ends()[1]


def _gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(size(180, 3_600))
@pytest.mark.scorecard(14)
def test_no_task_is_lost_and_each_effect_happens_once_under_kill_9(shared_url, tmp_path, figures):
    # given tasks of several priorities
    folder = tmp_path / "notes"
    with Tenuto("enqueuer", shared_url) as agent:
        ids = []
        for priority in range(5):
            ids += [one.id for one in agent.tasks.enqueue_many("q", range(TASKS // 5), priority=priority)]
        # when eight workers do them, and are killed again and again
        began = time.monotonic()
        kills, complaints = kill_workers(shared_url, folder, "honest", ids, seconds=size(120, 3_000))
        took = time.monotonic() - began
        # then each was done, in the order of priority, and whatever was delivered again says so
        verdict, deliveries = judge(folder, agent, ids)
        again = sum(len(seen) - 1 for seen in deliveries.values())
        print(f"{took:.1f} s; {verdict}")
        figures(
            tasks=len(ids),
            kills=kills,
            lost=len(verdict.lost) + len(verdict.undone),
            doubled=len(verdict.paid_again),
            redelivered=again,
            wrong=len(verdict.unmarked) + len(verdict.out_of_order),
        )
        assert complaints == ""
        assert verdict.clean, verdict
        assert kills >= 5
        assert agent.tasks.dead("q") == []
        assert agent.store.check().ok


@pytest.mark.slow
@pytest.mark.scorecard(14, planted=True)
def test_a_claim_that_does_not_check_is_found_out(path, tmp_path):
    # given workers with that bug, then the same judgement that finds nothing above finds it
    folder = tmp_path / "notes"
    with Tenuto("enqueuer", path) as agent:
        ids = [one.id for one in agent.tasks.enqueue_many("q", range(100))]
        kill_workers(path, folder, "unchecked", ids, pace=0.5)
        verdict, _ = judge(folder, agent, ids)
    print(f"planted bug: {len(verdict.unmarked)} of {len(ids)} tasks were delivered twice and did not say so")
    assert verdict.unmarked
