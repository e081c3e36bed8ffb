"""A graph killed with -9 in its third node goes on there; a death at any commit leaves threads whole."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from graphs import asking, chain, config
from langgraph.types import Command
from support.long import size

from tenuto import Tenuto
from tenuto.adapters.langgraph import TenutoSaver
from tenuto.backends import connect
from tenuto.kernel.contract import AnyCheck, Backend, Commit, Record, Write
from tenuto.wrappers.faults import Faults

ROUNDS = 24


@pytest.mark.slow
@pytest.mark.parametrize(
    "face", size(["sync", "async"], ["sync", "async", "async, functions", "async, streamed", "async, awaited"])
)
def test_killed_in_node_3_a_graph_resumes_at_node_3(tmp_path: Path, face: str) -> None:
    """With LangGraph's defaults; only what is "awaited" holds nothing, and says `durability="sync"`."""
    worker = Path(__file__).parent / "worker_graph.py"
    command = [sys.executable, str(worker), str(tmp_path), face, str(ROUNDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["123 345"] * ROUNDS


class Crash(BaseException):
    """The process ends here."""


class CrashAt:
    """Passes everything through, and ends the process before or after its n-th commit: from then on nothing works."""

    def __init__(self, backend: Backend, at: int, when: str) -> None:
        self._backend, self._at, self._when = backend, at, when
        self.commits = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def _live(self) -> None:
        if self._at and self.commits >= self._at:
            raise Crash

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        self._live()
        return self._backend.read(keys)

    def scan(self, *given: Any, **named: Any) -> list[Record]:
        self._live()
        return self._backend.scan(*given, **named)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        self._live()
        self.commits += 1
        if self.commits == self._at and self._when == "before":
            raise Crash
        done = self._backend.commit(checks, writes, request=request)
        if self.commits == self._at:
            raise Crash
        return done


def crashes(path: Path, prepare: Callable[[TenutoSaver], Any], act: Callable[[TenutoSaver], Any]) -> Any:
    """Yield a store at which `act` was killed before and after each of its commits."""
    at, when, number = 1, "before", 0
    while True:
        number += 1
        backend = connect(str(path / f"{number}.db"))
        prepare(TenutoSaver(Tenuto("before", backend)))
        crashing = CrashAt(backend, at, when)
        try:
            act(TenutoSaver(Tenuto("killed", crashing)))
            died = False
        except Crash:
            died = True
        yield f"{when} commit {at}", TenutoSaver(Tenuto("after", backend)), backend
        backend.close()
        if not died and crashing.commits < at:
            assert at > 1, "it made no commit at all"
            return
        at, when = (at, "after") if when == "before" else (at + 1, "before")


def guides_resume() -> Callable[..., Any]:
    """Return the function that the guide recommends."""
    guide = (Path(__file__).parents[2] / "docs/guides/langgraph.md").read_text()
    block = next(one for one in guide.split("```python\n") if one.startswith("def resume"))
    found: dict[str, Any] = {}
    exec(block.partition("\nother =")[0], found)
    return found["resume"]  # type: ignore[no-any-return]


def test_a_graph_killed_at_any_commit_and_called_again_runs_once(tmp_path: Path) -> None:
    resume, ran = guides_resume(), []

    def call(saver: TenutoSaver) -> Any:
        def node(number: int) -> Callable[[Any], Any]:
            return lambda _: ran.append(number) or {"seen": [number]}

        return resume(chain(saver, 3, node), config(), "turn-1", {"seen": []})["seen"]

    finished = 0
    for label, saver, _ in crashes(tmp_path, lambda saver: None, call):
        finished += 3 in ran
        ran.clear()
        assert call(saver) == [1, 2, 3], label
        before = [*ran]
        assert call(saver) == [1, 2, 3], f"{label}: again"
        assert ran == before, f"{label}: a finished graph ran again"
        ran.clear()
    assert finished > 2, "some were killed after the last node"


def answered(saver: TenutoSaver) -> None:
    asking(saver).invoke(Command(resume="yes"), config(), durability="sync")


@pytest.mark.slow
def test_a_run_that_died_at_any_commit_goes_on_to_the_same_end(tmp_path: Path) -> None:
    def begin(saver: TenutoSaver) -> None:
        asking(saver).invoke({"seen": []}, config())

    for where, saver, backend in crashes(tmp_path, begin, answered):
        graph = asking(saver)
        state = graph.get_state(config())
        if state.tasks and state.tasks[0].interrupts:
            answered(saver)
        elif state.tasks:  # a task whose writes are there, and not yet the checkpoint that they lead to, is no `next`
            graph.invoke(None, config())
        assert graph.get_state(config()).values["seen"] == ["first", "yes", "last"], where
        assert backend.check() == [], where


@pytest.mark.slow
def test_copying_deleting_and_pruning_can_be_cut_off_at_any_commit_and_done_again(tmp_path: Path) -> None:
    def begin(saver: TenutoSaver) -> None:
        asking(saver).invoke({"seen": []}, config())
        answered(saver)

    def whole(saver: TenutoSaver, thread: str) -> None:
        assert asking(saver).get_state(config(thread)).values["seen"] == ["first", "yes", "last"]

    acts: dict[str, Callable[[TenutoSaver], Any]] = {
        "copy": lambda saver: saver.copy_thread("t-1", "t-2"),
        "prune": lambda saver: saver.prune(["t-1"]),
        "delete": lambda saver: saver.delete_thread("t-1"),
    }
    for name, act in acts.items():
        folder = tmp_path / name
        folder.mkdir()
        for where, saver, backend in crashes(folder, begin, act):
            act(saver)
            if name == "copy":
                whole(saver, "t-2")
                assert len(list(saver.list(config("t-2")))) == len(list(saver.list(config()))), where
            if name == "delete":
                assert list(saver.list(None)) == []
                assert not list(saver._graphs.writes.records("t-1")), where
            else:
                whole(saver, "t-1")
            assert backend.check() == [], where


def test_a_commit_whose_reply_was_lost_is_made_once(path: str) -> None:
    faults = Faults(connect(path))
    with Tenuto("a", faults) as agent:
        graph = asking(TenutoSaver(agent))
        graph.invoke({"seen": []}, config())
        for _ in range(3):
            faults.lose_reply()
        graph.invoke(Command(resume="yes"), config(), durability="sync")
        assert faults.armed == 0
        assert graph.get_state(config()).values["seen"] == ["first", "yes", "last"]
        steps = [one.metadata["step"] for one in graph.get_state_history(config())]
        assert steps == sorted(set(steps), reverse=True)
