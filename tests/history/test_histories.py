"""On every store, concurrent calls of threads and processes have an order that explains all their answers."""

import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import planted_stores
import pytest
from support.long import size

from tenuto.backends import connect
from tenuto.backends.volatile import VolatileBackend
from tenuto.errors import Conflict
from tenuto.testing.history import Call, NotLinearizable, random_calls, verify

ROUNDS, COUNT = size(6, 200), 60
SEED = str(time.time_ns() % 1_000_000)
"""Another one in every run; it stands in the name of the scope, and is printed."""


def told(calls: list[Call]) -> str:
    conflicts = sum(isinstance(call.answer, Conflict) for call in calls)
    return f"{len(calls)} calls, {conflicts} conflicts, {sum(call.answer is None for call in calls)} without an answer"


def verified(calls: list[Call], seed: str) -> None:
    try:
        verify(calls)
    except NotLinearizable as error:
        raise AssertionError(f"seed {seed}\n{error}") from None


@pytest.mark.scorecard(8)
def test_threads_on_a_volatile_store(figures: Any) -> None:
    store = VolatileBackend()
    calls: list[Call] = []
    for number in range(ROUNDS):
        seed = f"{SEED}.{number}"
        made = random_calls([store] * 6, seed, COUNT)
        verified(made, seed)
        calls += made
    print(told(calls))
    figures(histories=ROUNDS, calls=len(calls), violations=0)


@pytest.mark.slow
@pytest.mark.scorecard(8)
def test_threads_and_processes(url: str, figures: Any) -> None:
    one, two = connect(url), connect(url)
    worker = [sys.executable, str(Path(__file__).with_name("worker_calls.py")), url, "2"]
    calls: list[Call] = []
    with subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"ready\n"
        for number in range(ROUNDS):
            seed = f"{SEED}.{number}"
            other.stdin.write(f"{seed} {COUNT}\n".encode())
            other.stdin.flush()
            made = random_calls([one, one, two, two], seed, COUNT) + pickle.load(other.stdout)
            verified(made, seed)
            calls += made
        other.stdin.close()
    assert one.check() == []
    one.close()
    two.close()
    print(told(calls))
    figures(histories=ROUNDS, calls=len(calls), violations=0)


@pytest.mark.parametrize("bug", planted_stores.BUGS)
@pytest.mark.scorecard(8, planted=True)
def test_a_planted_bug_is_found(bug: Any) -> None:
    store = VolatileBackend()
    for number in range(100):
        try:
            verify(random_calls([bug(store) for _ in range(4)], f"{SEED}.{number}", COUNT))
        except NotLinearizable as error:
            print(f"{bug.__doc__} Found in history {number + 1}:", error, sep="\n")
            return
    pytest.fail("a hundred histories did not show it")
