"""kill -9 while an agent learns: a memory, its journal line and the run that learned it are all there, or none is."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.long import size

from tenuto import Tenuto

WORKER = Path(__file__).parent / "worker_memory.py"


@pytest.mark.slow
def test_a_killed_agent_learned_it_wholly_or_not_at_all(tmp_path: Path) -> None:
    path, first = tmp_path / "store.db", 0
    for kill in range(size(4, 30)):
        worker = subprocess.Popen(
            [sys.executable, str(WORKER), str(path), str(first)], stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout is not None
        for _ in range(3 + kill % 4):
            first = int(worker.stdout.readline()) + 1
        worker.kill()
        worker.communicate()
        with Tenuto("reader", path) as agent:
            assert agent.store.check().ok
            memories = {one.text: one for one in agent.memory.list("ann", limit=10_000)}
            for number in range(first):
                assert f"Fact number {number}" in memories, "it was reported as done"
            with agent.run(f"turn-{first}", user="ann", thread="chat") as run:  # the interrupted one, resumed
                run.remember(f"Fact number {first}")
                run.thread.append({"role": "user", "content": f"number {first}"})
            learned = [one for one in agent.memory.list("ann", limit=10_000) if one.text == f"Fact number {first}"]
            assert [one.seen for one in learned] == [1]
            found = agent.memory.recall(f"fact number {first}", user="ann", k=1)
            assert found[0].memory == learned[0]
            said = [one["content"] for one in agent.thread("chat").messages()]
            assert said == [f"number {number}" for number in range(first + 1)]
        first += 1
