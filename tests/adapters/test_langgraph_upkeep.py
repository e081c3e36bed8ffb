"""Copying, deleting and pruning threads: what was to stay works on, and what was to go is gone from the store."""

from pathlib import Path
from typing import Any

import pytest
from graphs import asking, chain, chat, config, say
from langgraph.types import Command
from test_langgraph_saver import deltas

from tenuto import Conflict, InvalidInput, Tenuto
from tenuto.adapters.langgraph import TenutoSaver
from tenuto.kernel import keys


def test_pruned_to_the_newest_a_thread_goes_on(stores: Any) -> None:
    with TenutoSaver(stores.new()) as saver:
        graph = chat(saver, answer=str)
        for turn in range(5):
            graph.invoke(say(f"turn {turn}"), config())
        saver.prune(["t-1"])
        assert len(list(saver.list(config()))) == 1
        graph.invoke(say("on"), config())
        assert [m.content for m in graph.get_state(config()).values["messages"]][-2:] == ["on", "11"]
        assert len(list(saver.list(config()))) == 4


def test_pruning_keeps_a_question_that_waits(stores: Any) -> None:
    with TenutoSaver(stores.new()) as saver:
        asking(saver).invoke({"seen": []}, config())
        saver.prune(["t-1"])
        assert asking(saver).get_state(config()).tasks[0].interrupts[0].value == "really?"
        assert asking(saver).invoke(Command(resume="yes"), config())["seen"] == ["first", "yes", "last"]


@pytest.mark.parametrize("turns", [3, 7, 10])
def test_pruning_keeps_what_delta_channels_are_put_together_from(stores: Any, turns: int) -> None:
    with TenutoSaver(stores.new()) as saver:
        for turn in range(turns):
            deltas(saver).invoke({"plain": str(turn)}, config())
        before = len(list(saver.list(config())))
        saver.prune(["t-1"])
        assert deltas(saver).get_state(config()).values["items"] == list(range(turns))
        assert len(list(saver.list(config()))) < before or turns == 3
        deltas(saver).invoke({"plain": "on"}, config())
        assert deltas(saver).get_state(config()).values["items"] == list(range(turns + 1))


def test_deleting_a_run_keeps_what_delta_channels_of_others_need(path: str) -> None:
    with TenutoSaver(path) as saver:
        for turn in range(4):
            deltas(saver, often=100).invoke({"plain": str(turn)}, {**config(), "metadata": {"run_id": f"run-{turn}"}})
        saver.delete_for_runs(["run-1"])
        assert deltas(saver, often=100).get_state(config()).values["items"] == [0, 1, 2, 3]
        saver.delete_for_runs(["run-3"])
        assert deltas(saver, often=100).get_state(config()).values["items"] == [0, 1, 2]


def test_deleting_the_newest_run_goes_back_to_the_one_before(stores: Any) -> None:
    with TenutoSaver(stores.new()) as saver:
        graph = chat(saver, answer=str)
        for turn in range(3):
            graph.invoke(say(f"turn {turn}"), {**config(), "metadata": {"run_id": f"run-{turn}"}})
        saver.delete_for_runs(["run-2", "none"])
        assert [m.content for m in graph.get_state(config()).values["messages"]] == ["turn 0", "1", "turn 1", "3"]
        graph.invoke(say("on"), config())
        assert len(graph.get_state(config()).values["messages"]) == 6


def test_a_deleted_thread_leaves_nothing_behind_and_can_begin_again(stores: Any) -> None:
    with TenutoSaver(stores.new()) as saver:
        graph = chat(saver)
        graph.invoke(say("secret"), config())
        graph.invoke(say("other"), config("t-2"))
        saver.delete_thread("t-1")
        assert graph.get_state(config()).values == {}
        left = saver._agent.kernel.scan(keys.pack("t-1"), limit=1_000)
        assert len(left) == 2, "the end of its lineage, which keeps the count, and that it is hidden"
        assert max(len(record.value) for record in left) < 100
        graph.invoke(say("new"), config())
        assert next(m.content for m in graph.get_state(config()).values["messages"]) == "new"
        saver.prune(["t-1", "t-2", "none"], strategy="delete")
        assert list(saver.list(None)) == []


def test_a_copy_has_everything_and_goes_its_own_way(stores: Any) -> None:
    with TenutoSaver(stores.new()) as saver:
        graph = chain(saver, 3)
        graph.invoke({"seen": []}, config())
        saver.copy_thread("t-1", "t-2")
        one, two = (list(graph.get_state_history(config(thread))) for thread in ("t-1", "t-2"))
        assert [(s.values, s.next, s.metadata) for s in one] == [(s.values, s.next, s.metadata) for s in two]
        assert [[task.result for task in s.tasks] for s in one] == [[task.result for task in s.tasks] for s in two]
        graph.invoke({"seen": ["more"]}, config("t-2"))
        assert graph.get_state(config()).values["seen"] == [1, 2, 3]
        saver.delete_thread("t-1")
        assert graph.get_state(config("t-2")).values["seen"] == [1, 2, 3, "more", 1, 2, 3]


def test_a_copy_of_a_delta_thread_is_put_together_there(path: str) -> None:
    with TenutoSaver(path) as saver:
        for turn in range(8):
            deltas(saver).invoke({"plain": str(turn)}, config())
        saver.copy_thread("t-1", "t-2")
        saver.delete_thread("t-1")
        assert deltas(saver).get_state(config("t-2")).values["items"] == list(range(8))


def test_what_cannot_be_done_is_said_before_anything_is(path: str) -> None:
    with TenutoSaver(path) as saver:
        chain(saver, 1).invoke({"seen": []}, config())
        chain(saver, 1).invoke({"seen": []}, config("t-2"))
        with pytest.raises(InvalidInput, match="keep_latest"):
            saver.prune(["t-1"], strategy="some")
        with pytest.raises(Conflict, match="of its own"):
            saver.copy_thread("t-1", "t-2")
        with pytest.raises(InvalidInput, match="another"):
            saver.copy_thread("t-1", "t-1")
        with pytest.raises(InvalidInput, match="thread_id"):
            saver.get_tuple({"configurable": {}})


def test_tenants_see_nothing_of_each_other(path: str) -> None:
    with Tenuto("a", path) as agent:
        chain(TenutoSaver(agent), 1).invoke({"seen": []}, config())
        other = TenutoSaver(agent.for_tenant("acme"))
        assert list(other.list(None)) == []
        assert other.get_tuple(config()) is None


def test_pruning_makes_room(tmp_path: Path) -> None:
    with TenutoSaver(str(tmp_path / "g.db")) as saver:
        graph = chat(saver, answer=lambda count: f"{count} " * 200)
        for turn in range(60):
            graph.invoke(say(f"turn {turn} " * 50), config())

        def stored() -> int:
            return sum(len(record.value) for record in saver._agent.kernel.scan(keys.pack("t-1"), limit=10_000))

        before = stored()
        saver.prune(["t-1"])
        assert stored() < before / 2
        assert len(graph.get_state(config()).values["messages"]) == 120
