"""kill -9 while an agent learns: a memory, its journal line and the run that learned it are all there, or none is.

And while its memories are embedded with another model: the next process continues after the last whole batch.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.long import size

from tenuto import Tenuto
from tenuto.kernel import codec, keys

WORKER = Path(__file__).parent / "worker_memory.py"
EMBEDDER = Path(__file__).parent / "worker_embedding.py"


@pytest.mark.slow
def test_a_killed_agent_learned_it_wholly_or_not_at_all(tmp_path: Path) -> None:
    path, first = tmp_path / "store.db", 0
    for kill in range(size(2, 30)):
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


def earlier(texts: list[str]) -> list[list[float]]:
    return [[1.0, float(len(text))] for text in texts]


def stored(agent: Tenuto, model: str) -> list[str]:
    """Return the ids of the memories that have a vector of a model, in the order in which they were stored."""
    lines = agent.kernel.entries(keys.pack("ann", "memory", "vectors", model), limit=1_000)
    return [one for line in lines if not line.forgotten for one in codec.decode(line.value)[0]]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_embedding_anew_continues_after_a_kill(url: str | None, path: Path) -> None:
    where, total = url or str(path), size(260, 4_000)
    with Tenuto("agent", where, embed=earlier) as agent:
        for number in range(total):
            agent.memory.remember(f"Fact {'x' * (number % 50)} number {number}", user="ann")
        agent.memory.embed(user="ann")
        every = {one.id for one in agent.memory.list("ann", limit=total)}
        assert set(stored(agent, "earlier")) == every
    done = 0
    for stop_at in (1, 2, 3):  # in the batch with this number, after those before it were stored
        worker = subprocess.Popen(
            [sys.executable, str(EMBEDDER), where, str(stop_at)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == "killed here\n"
        worker.kill()
        worker.communicate()
        assert worker.returncode == -signal.SIGKILL
        done += 64 * (stop_at - 1)
        with Tenuto("reader", where) as agent:
            assert agent.store.check().ok
            assert len(stored(agent, "newer")) == done, "whole batches, and none twice"
            assert set(stored(agent, "earlier")) == every, "they stay until the new ones are complete"
            assert agent.memory.recall("fact number 7", user="ann", k=1)[0].memory.text.endswith("number 7")
    last = subprocess.run(
        [sys.executable, str(EMBEDDER), where, "0"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert last.stdout == f"embedded {total - done}\n", "what the killed ones had stored is not embedded again"
    with Tenuto("reader", where) as agent:
        assert sorted(stored(agent, "newer")) == sorted(every)
