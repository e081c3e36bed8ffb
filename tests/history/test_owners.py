"""On every store, concurrent calls to a lease and to a queue have an order in which each has one owner at a time."""

import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import planted_stores
import pytest
from owned_calls import KINDS, LeaseState, QueueState, Step, after_lease, after_queue, random_steps, violation
from support.long import size

from tenuto.backends.volatile import VolatileBackend

ROUNDS, COUNT = size(2, 400), 25
SEED = str(time.time_ns() % 1_000_000)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.scorecard(8)
def test_threads_on_a_volatile_store(kind: str, figures: Any) -> None:
    store, calls, found = VolatileBackend(), 0, []
    for number in range(ROUNDS):
        steps = random_steps([store] * 6, f"{SEED}.{number}", kind, COUNT)
        found += [violation(steps, kind)]
        calls += len(steps)
    figures(histories=ROUNDS, **{f"calls to {kind}": calls}, violations=len([one for one in found if one]))
    assert not any(found), [one for one in found if one]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.scorecard(8)
@pytest.mark.timeout(size(180, 1_800))
def test_threads_and_processes(url: str, kind: str, figures: Any) -> None:
    worker = [sys.executable, str(Path(__file__).with_name("worker_calls.py")), url, "2", kind]
    calls, found = 0, []
    with subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"ready\n"
        for number in range(ROUNDS):
            seed = f"{SEED}.{number}"
            other.stdin.write(f"{seed} {COUNT}\n".encode())
            other.stdin.flush()
            steps = random_steps([url] * 3, seed, kind, COUNT) + pickle.load(other.stdout)
            found += [violation(steps, kind)]
            calls += len(steps)
        other.stdin.close()
    figures(histories=ROUNDS, **{f"calls to {kind}": calls}, violations=len([one for one in found if one]))
    assert not any(found), f"seed {SEED}: {next(one for one in found if one)}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.scorecard(8, planted=True)
def test_a_store_that_does_not_check_gives_a_lease_or_a_task_to_two(kind: str) -> None:
    store = VolatileBackend()
    for number in range(100):
        steps = random_steps([planted_stores.Unchecked(store) for _ in range(4)], f"{SEED}.{number}", kind, COUNT)
        if told := violation(steps, kind):
            print(f"planted bug, found in history {number + 1}: {told}")
            return
    pytest.fail("a hundred histories did not show it")


def steps(*told: tuple[str, int, int, str, Any]) -> list[Step]:
    return [Step(*one) for one in told]


@pytest.mark.parametrize(
    "two",
    [
        steps(("a", 0, 1, "acquire", 1), ("b", 2, 3, "acquire", 2)),
        steps(("a", 0, 1, "acquire", 1), ("a", 2, 3, "release", None), ("b", 4, 5, "acquire", "held")),
        steps(("a", 0, 1, "acquire", 1), ("a", 2, 3, "release", None), ("b", 4, 5, "acquire", 1)),
        steps(("a", 0, 1, "acquire", 1), ("b", 2, 3, "write", 1)),
    ],
)
def test_there_is_no_order_for_two_holders(two: list[Step]) -> None:
    assert violation(two, "leases")
    assert after_lease(LeaseState(), two[0])


@pytest.mark.parametrize(
    "two",
    [
        steps(("a", 0, 1, "enqueue", 7), ("a", 2, 3, "claim", 7), ("b", 2, 3, "claim", 7)),
        steps(("a", 0, 1, "enqueue", 7), ("b", 2, 3, "claim", None)),
        steps(("a", 0, 1, "enqueue", 7), ("b", 2, 3, "claim", 8)),
        steps(("a", 0, 1, "enqueue", 7), ("b", 2, 3, "claim", 7), ("a", 4, 5, "complete", 7)),
    ],
)
def test_there_is_no_order_for_two_claimers(two: list[Step]) -> None:
    assert violation(two, "tasks")
    assert after_queue(QueueState(), two[0])
