"""Compacting a SQLite store: the file shrinks, and a crash or another client loses nothing."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tenuto import InvalidInput, Tenuto


def _filled(path: Path) -> Tenuto:
    agent = Tenuto("agent", path)
    for n in range(40):
        agent.state.set("s", "k", [n, "x" * 50_000])
    agent.store.prune("0s")
    with agent.state.transaction("many") as many:
        for n in range(300):
            many[f"k{n}"] = n
    return agent


def test_the_file_shrinks_and_holds_what_it_held(tmp_path: Path) -> None:
    with _filled(tmp_path / "a.db") as agent, Tenuto("other", tmp_path / "a.db") as other:
        before = agent.store.summary()
        assert other.state.get("s", "k")[0] == 39
        assert agent.store.stats()["free_bytes"] > 1_500_000
        freed = agent.store.compact()
        assert freed > 1_500_000
        assert (tmp_path / "a.db").stat().st_size == agent.store.stats()["bytes"] < 200_000
        assert agent.store.stats()["free_bytes"] < 20_000
        assert agent.store.summary() == before
        other.state.set("s", "k", "by another client")
        agent.state.set("s", "k2", 1)
        assert other.state.get("s", "k2") == 1
        assert agent.store.check().ok
    with Tenuto("again", tmp_path / "a.db") as agent:
        assert agent.state.get("s", "k") == "by another client"
        assert agent.store.check().ok


def test_writers_wait_and_lose_nothing(tmp_path: Path) -> None:
    with _filled(tmp_path / "a.db") as agent, Tenuto("other", tmp_path / "a.db") as other:
        over, done = threading.Event(), []

        def write() -> None:
            while not over.is_set():
                done.append(other.state.set("w", "n", len(done) + 1))

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(3):
            agent.store.compact()
        over.set()
        thread.join()
        assert other.state.get("w", "n") == len(done) == done[-1]
        assert agent.store.check().ok


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL")
@pytest.mark.parametrize("when", ["set_progress_handler(kill, 300)", "set_wal_hook(kill)"])
def test_killed_in_the_middle_and_run_again_it_completes(when: str, tmp_path: Path) -> None:
    """In the middle of the rewriting, and when it is committed but the file has not shrunk yet."""
    with _filled(tmp_path / "a.db") as agent:
        before = agent.store.summary()
    script = (
        "import os, signal, sys\n"
        "from tenuto import Tenuto\n"
        "agent = Tenuto('agent', sys.argv[1]); agent.open()\n"
        "store = agent._file._store\n"
        "kill = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"store.handle.connection.{when}\n"
        "agent.store.compact()\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.db")], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Tenuto("agent", tmp_path / "a.db") as agent:
        assert agent.store.check().ok
        assert agent.store.summary() == before
        agent.store.compact()
        assert agent.store.stats()["free_bytes"] < 20_000
        assert agent.store.summary() == before


def test_what_cannot_be_compacted_says_so() -> None:
    with pytest.raises(InvalidInput, match="nothing was done"):
        Tenuto("agent", "volatile:").store.compact()
