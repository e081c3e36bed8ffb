"""When a run is told that its step is durable, who saves it meanwhile, and for how long an event loop is held."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from graphs import chain, chat, config, say
from langgraph.checkpoint.base.id import uuid6

from tenuto import Conflict, Tenuto
from tenuto.adapters.langgraph import TenutoSaver, run, writes
from tenuto.adapters.langgraph.checkpoints import place_of
from tenuto.adapters.langgraph.run import RunView
from tenuto.adapters.langgraph.writes import TaskWrites
from tenuto.backends import connect
from tenuto.kernel.contract import AnyCheck, Commit, Write


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the run and the threads that save for it wait for each other, however late they come."""
    for name in ("_FIRST", "_LATER", "_OFFERED"):
        monkeypatch.setattr(run, name, 60)


def watched(path: str, commits: list[int]) -> Tenuto:
    """A client that notes which thread made each commit."""

    def note(event: Any) -> None:
        if event.verb == "commit":
            commits.append(threading.get_ident())

    return Tenuto("a", path, hooks=[note])


@pytest.mark.usefixtures("patient")
def test_a_run_that_waits_for_its_step_saves_it_itself(path: str) -> None:
    commits: list[int] = []
    with watched(path, commits) as agent:
        graph = chain(TenutoSaver(agent), 5)
        graph.invoke({"seen": []}, config())
    own = [ident == threading.get_ident() for ident in commits]
    assert sum(own) == 5, "each step that a node follows"
    assert not own[-1]


def test_a_run_that_does_not_come_leaves_the_saving_to_its_thread(path: str) -> None:
    commits: list[int] = []
    with watched(path, commits) as agent:
        graph = chain(TenutoSaver(agent), 5)
        graph.invoke({"seen": []}, config(), durability="sync")
        assert threading.get_ident() not in commits[1:]
        assert graph.get_state(config()).values["seen"] == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("patient")
def test_what_goes_wrong_in_a_saving_that_the_run_has_taken_is_raised_in_both_threads() -> None:
    look = RunView(b"", None, 0, waits=True)
    raised: list[BaseException] = []
    look.expect()
    look.wait()  # a run never waits before its first task
    first = threading.Thread(target=look.save, args=(lambda _: None,), kwargs={"leads_on": False})
    first.start()
    first.join()

    def save() -> None:
        def work(_: int | None) -> None:
            assert threading.current_thread() is threading.main_thread()
            raise Conflict("somebody was first")

        with pytest.raises(Conflict) as caught:
            look.save(work, leads_on=True)
        raised.append(caught.value)

    look.expect()
    saving = threading.Thread(target=save)
    saving.start()
    with pytest.raises(Conflict, match="somebody was first"):
        look.wait()
    saving.join()
    assert len(raised) == 1


@pytest.mark.parametrize("face", ["sync", "async"])
def test_writes_go_with_the_checkpoint_that_they_lead_to(path: str, face: str) -> None:
    commits: list[int] = []
    with watched(path, commits) as agent:
        graph = chat(TenutoSaver(agent, hold=60))
        for turn in range(10):
            if face == "sync":
                graph.invoke(say(f"turn {turn}"), config())
            else:
                asyncio.run(graph.ainvoke(say(f"turn {turn}"), config()))
    assert 30 <= len(commits) <= 40, "three checkpoints a turn, and the writes of two tasks"


def test_a_checkpoint_waits_a_moment_for_writes_that_are_on_their_way(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TenutoSaver(path) as saver:
        chain(saver, 1).invoke({"seen": []}, config(), durability="exit")
        monkeypatch.setattr(writes, "_ARRIVAL", 60)
        newest = saver.get_tuple(config())
        following = {**newest.checkpoint, "id": str(uuid6())}
        writers = 1
        putting = saver._put(newest.config, following, {"source": "loop", "step": 9}, None, writers)
        saving = threading.Thread(target=lambda: saver._now(putting))
        saving.start()  # before there is anything to go with it
        where = place_of(newest.config)
        record = saver._graphs.offer_writes(where, TaskWrites("task", "", [(0, "seen", [1])]))
        saving.join()
        assert record.state == "kept"
        assert saver.get_tuple(newest.config).pending_writes == [("task", "seen", [1])]


def test_a_run_in_async_code_is_told_of_a_conflict_one_node_later(path: str) -> None:
    with TenutoSaver(path) as one, TenutoSaver(path) as two:
        chain(one, 1).invoke({"seen": []}, config())
        ran: list[int] = []

        def node(number: int) -> Any:
            async def run(_: Any) -> Any:
                ran.append(number)
                if number == 2:
                    await asyncio.to_thread(chain(two, 1).invoke, {"seen": []}, config())
                return {"seen": [number]}

            return run

        with pytest.raises(Conflict, match="Another process wrote to the thread"):
            asyncio.run(chain(one, 6, node).ainvoke({"seen": []}, config()))
        assert ran in ([1, 2], [1, 2, 3])
        assert chain(two, 1).get_state(config()).values["seen"] == [1, 1, 1]


class Gate:
    """A store whose commits wait at a gate, once it is shut."""

    def __init__(self, path: str) -> None:
        self._backend = connect(path)
        self.gate = threading.Event()
        self.gate.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def commit(self, checks: Sequence[AnyCheck], writes: Sequence[Write], *, request: bytes | None = None) -> Commit:
        assert self.gate.wait(60), "nobody opened the gate: the event loop was held"
        return self._backend.commit(checks, writes, request=request)


@pytest.mark.parametrize("hold", [0, 0.01])
def test_a_store_that_takes_long_does_not_hold_the_event_loop(path: str, hold: float) -> None:
    store = Gate(path)

    async def main() -> None:
        running = asyncio.create_task(graph.ainvoke({"seen": []}, config()))
        for _ in range(10):
            await asyncio.sleep(0)  # the run hands over its checkpoint, and goes on
        store.gate.set()
        assert (await running)["seen"] == [1, 2, 3]

    with Tenuto("a", store) as agent:
        graph = chain(TenutoSaver(agent, hold=hold), 3)
        store.gate.clear()
        asyncio.run(main())
        assert graph.get_state(config()).values["seen"] == [1, 2, 3]


def test_a_step_is_durable_when_the_event_loop_comes_to_the_next_node(path: str) -> None:
    with TenutoSaver(path, hold=60) as saver, TenutoSaver(path) as other:
        stored: list[Any] = []

        def node(number: int) -> Any:
            async def run(_: Any) -> Any:
                found = other.get_tuple(config())
                stored.append(found.checkpoint["channel_values"].get("seen"))
                return {"seen": [number]}

            return run

        asyncio.run(chain(saver, 4, node).ainvoke({"seen": []}, config()))
        assert stored == [[], [1], [1, 2], [1, 2, 3]]
