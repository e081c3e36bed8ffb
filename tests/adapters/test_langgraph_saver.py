"""GraphCheckpoints on `TenutoSaver`: what they store, what they get back, and what they are told of one another."""

import asyncio
import operator
import os
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from graphs import asking, chain, chat, config, say
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send
from pydantic import BaseModel

from tenuto import AsyncTenuto, Conflict, NotStorable, Tenuto
from tenuto.adapters.langgraph import TenutoSaver
from tenuto.adapters.langgraph import stored_types as types
from tenuto.kernel import codec, keys


def texts(graph: Any, where: Any) -> list[str]:
    return [message.content for message in graph.get_state(where).values["messages"]]


# -- a conversation ------------------------------------------------------------------------------------------


def test_a_conversation_goes_on_in_another_process(stores: Any) -> None:
    url = stores.new()
    with TenutoSaver(url) as saver:
        chat(saver).invoke(say("hello"), config())
    with TenutoSaver(url) as saver:
        graph = chat(saver, answer=lambda count: f"there were {count}")
        graph.invoke(say("again"), config())
        assert texts(graph, config()) == ["hello", "a" * 500, "again", "there were 3"]


def test_sync_and_async_calls_share_one_object(stores: Any) -> None:
    async def main() -> None:
        async with TenutoSaver(stores.new()) as saver:
            graph = chat(saver)
            await graph.ainvoke(say("one"), config())
            await asyncio.to_thread(graph.invoke, say("two"), config())
            state = await graph.aget_state(config())
            assert [m.content for m in state.values["messages"]][::2] == ["one", "two"]
            assert len([one async for one in saver.alist(config())]) == 6

    asyncio.run(main())


def test_an_agent_is_taken_as_well_as_a_url(path: str) -> None:
    async def main() -> None:
        async with AsyncTenuto("a", path) as agent:
            await chat(TenutoSaver(agent)).ainvoke(say("one"), config())

    asyncio.run(main())
    with Tenuto("b", path) as agent:
        saver = TenutoSaver(agent)
        assert len(texts(chat(saver), config())) == 2
        saver.close()
        assert agent.checkpoint.list("t-1"), "a saver closes only what it opened"


def test_long_conversations_come_back_the_same_from_memory_and_from_the_store(path: str) -> None:
    with TenutoSaver(path) as saver:
        graph = chat(saver, answer=lambda count: f"{count} " + "x" * 300)
        for turn in range(80):
            graph.invoke(say(f"turn {turn}"), config())
        warm = graph.get_state(config())
        with TenutoSaver(path) as other:
            cold = chat(other).get_state(config())
            assert cold.values == warm.values
            assert [type(m) for m in cold.values["messages"]] == [HumanMessage, AIMessage] * 80
            listed = [len(one.values["messages"]) for one in chat(other).get_state_history(config())][:7]
    assert listed == [160, 159, 158, 158, 157, 156, 156]


def test_every_old_checkpoint_is_what_it_was(path: str) -> None:
    with TenutoSaver(path) as saver:
        graph = chat(saver, answer=lambda count: f"answer {count}")
        for turn in range(50):
            graph.invoke(say(f"turn {turn}"), config())
        for tup in saver.list(config()):
            messages = tup.checkpoint["channel_values"].get("messages", [])
            assert saver.get_tuple(tup.config).checkpoint == tup.checkpoint
            assert [m.content for m in messages[::2]] == [f"turn {turn}" for turn in range((len(messages) + 1) // 2)]


@pytest.mark.parametrize("size", [300, 1_100, 40_000, 70_000])
def test_messages_of_any_size_are_read_as_they_were_written(path: str, size: int) -> None:
    with TenutoSaver(path) as saver:
        graph = chat(saver, answer=lambda count: f"{count} " + os.urandom(size // 2).hex()[: size * (count % 5) // 4])
        for turn in range(70):
            graph.invoke(say(f"turn {turn}"), config())
        warm = graph.get_state(config()).values
        with TenutoSaver(path) as other:
            assert chat(other).get_state(config()).values == warm
            assert [len(one.checkpoint["channel_values"]["messages"]) for one in other.list(config(), limit=3)] == [
                140,
                139,
                138,
            ]


def test_a_message_that_was_edited_in_place_is_stored_when_the_channel_is(path: str) -> None:
    def edit(state: Any) -> Any:
        state["messages"][3].additional_kwargs["read"] = True
        return {"messages": [AIMessage("done")]}

    with TenutoSaver(path) as saver:
        graph = chat(saver)
        for turn in range(60):
            graph.invoke(say(f"turn {turn}"), config())
        builder = StateGraph(graph.builder.state_schema)
        builder.add_node("answer", edit)
        builder.add_edge(START, "answer")
        builder.compile(checkpointer=saver).invoke(say("last"), config())
        with TenutoSaver(path) as other:
            assert chat(other).get_state(config()).values["messages"][3].additional_kwargs == {"read": True}


def test_what_is_done_to_a_result_between_two_turns_is_not_the_threads_business(path: str) -> None:
    with TenutoSaver(path) as saver:
        graph = chat(saver)
        for turn in range(60):
            result = graph.invoke(say(f"turn {turn}"), config())
        result["messages"][0].content = "tampered with"
        assert texts(graph, config())[0] == "turn 0"
        graph.invoke(say("one more"), config())
        assert texts(graph, config())[0] == "turn 0"


def test_a_warm_turn_decodes_nothing_old(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lifted: list[Any] = []
    lift = types._Kind.lift
    with TenutoSaver(path) as saver:
        graph = chat(saver)
        for turn in range(60):
            graph.invoke(say(f"turn {turn}"), config())
        # the registrations hold bound methods, so the class is watched where they end up: at `object.__new__`
        known = {cls: codec._by_type[cls] for cls in types._MESSAGES}
        for cls, entry in known.items():
            watched = entry._replace(lift=lambda stored, entry=entry: lifted.append(1) or entry.lift(stored))
            monkeypatch.setitem(codec._by_name, entry.name, watched)
            monkeypatch.setitem(codec._by_type, cls, watched)
        graph.invoke(say("warm"), config())
        assert len(lifted) <= 2, "only what tasks wrote on the newest checkpoint"
    with TenutoSaver(path) as saver:
        chat(saver).get_state(config())
    assert len(lifted) >= 122
    assert lift is types._Kind.lift


def test_storage_grows_with_what_is_said_not_with_what_was_said(tmp_path: Path) -> None:
    sizes = {}
    for turns in (50, 100, 200):
        store = tmp_path / f"{turns}.db"
        with TenutoSaver(str(store)) as saver:
            graph = chat(saver, answer=lambda count: f"{count:04d} " * 100)
            for turn in range(turns):
                graph.invoke(say(f"{turn:04d} " * 100), config(), durability="exit")
        sizes[turns] = store.stat().st_size
    assert sizes[200] / sizes[100] < 2.5
    assert sizes[100] / sizes[50] < 2.5


def test_channels_of_any_kind_cost_what_changed(path: str) -> None:
    class Table(TypedDict):
        rows: Annotated[dict, operator.or_]
        note: str

    builder = StateGraph(Table)
    builder.add_node("edit", lambda state: {"rows": {"7": "changed" * 10}, "note": "x"})
    builder.add_edge(START, "edit")
    with TenutoSaver(path) as saver:
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"rows": {str(n): f"row {n} " * 20 for n in range(1_000)}}, config())
        for _ in range(3):
            graph.invoke({"note": "again"}, config())
        listed = saver._agent.checkpoint.list("t-1", limit=5)
    assert max(one.stored_bytes for one in listed) < 2_000
    assert listed[0].size > 100_000


# -- one commit a superstep ----------------------------------------------------------------------------------


def test_a_superstep_is_one_commit_where_nothing_else_is_to_be_waited_for(path: str) -> None:
    commits: list[Any] = []
    with Tenuto("a", path, hooks=[lambda event: commits.append(event) if event.verb == "commit" else None]) as agent:
        graph = chain(TenutoSaver(agent), 5)
        graph.invoke({"seen": []}, config())
        del commits[:]
        graph.invoke({"seen": []}, config())
        assert len(saved := graph.get_state(config()).values["seen"]) == 10, saved
    # the input, the step that hands it to the first node, and one for each node: 7 checkpoints, 6 tasks' writes
    assert 7 <= len(commits) <= 10


def test_writes_are_durable_when_put_writes_returns(path: str) -> None:
    with TenutoSaver(path) as saver, TenutoSaver(path) as other:
        saver.put_writes(config(checkpoint_ns="", checkpoint_id="c-1"), [("a", 1), ("b", 2)], "task")
        records = list(other._graphs.writes.records("t-1"))
        assert len(records) == 1
        agent = saver._agent
        assert agent.kernel.scan(keys.pack("t-1", "langgraph"))


def test_pending_writes_are_in_the_order_in_which_a_run_applies_them(stores: Any) -> None:
    with TenutoSaver(stores.new()) as saver:
        made = saver.put(config(checkpoint_ns=""), checkpoint(), {"source": "loop", "step": 0}, {})
        saver.put_writes(made, [("x", "third")], "0-task", "path-2")
        saver.put_writes(made, [("x", "first"), ("y", "second")], "9-task", "path-1")
        saver.put_writes(made, [("x", "ignored"), ("y", "ignored"), ("z", "added")], "9-task", "path-1")
        found = saver.get_tuple(made).pending_writes
    assert [value for _, _, value in found] == ["first", "second", "added", "third"]
    assert [task for task, _, _ in found] == ["9-task"] * 3 + ["0-task"]


def test_large_writes_and_values_are_held_apart_and_let_go(path: str) -> None:
    large = os.urandom(100_000).hex()
    with TenutoSaver(path) as saver:
        made = saver.put(config(checkpoint_ns=""), checkpoint(note=large), {"source": "loop", "step": 0}, {})
        saver.put_writes(made, [("x", {"deep": [large]})], "task")
        saver.put_writes(made, [("x", "ignored"), ("y", large)], "task")
        assert [value for *_, value in saver.get_tuple(made).pending_writes] == [{"deep": [large]}, large]
        assert references(saver) > 0
        saver.copy_thread("t-1", "t-2")
        assert saver.get_tuple(config("t-2")).checkpoint["channel_values"]["note"] == large
        saver.delete_thread("t-1")
        assert [value for *_, value in saver.get_tuple(config("t-2")).pending_writes] == [{"deep": [large]}, large]
        saver.delete_thread("t-2")
        assert references(saver) == 0


@pytest.mark.parametrize("content", ["z" * 20_000_000, os.urandom(6_000_000).hex()], ids=["even", "uneven"])
def test_a_message_of_many_megabytes_goes_through(path: str, content: str) -> None:
    with TenutoSaver(path) as saver:
        graph = chat(saver, answer=lambda _: content)
        graph.invoke(say("an image, please"), config())
        graph.invoke(say("again"), config(), durability="exit")
        history = list(graph.get_state_history(config()))
        assert [m.content for m in history[0].values["messages"]][1::2] == [content, content]
        assert [task.result for one in history for task in one.tasks if one.next == ("answer",)]
        saver.delete_thread("t-1")
        assert references(saver) == 0


def references(saver: TenutoSaver) -> int:
    heads = saver._agent.kernel.scan(keys.pack("blobs", "head"), limit=1_000)
    return sum(codec.decode(record.value)[2] for record in heads)


def checkpoint(**values: Any) -> Any:
    return {
        "v": 4,
        "id": str(uuid6(clock_seq=1)),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, 1),
        "versions_seen": {},
    }


# -- two writers ---------------------------------------------------------------------------------------------


def test_two_processes_on_one_thread_one_is_told(stores: Any) -> None:
    url = stores.new()
    with TenutoSaver(url) as one, TenutoSaver(url) as two:
        chain(one, 2).invoke({"seen": []}, config())
        ran: list[int] = []

        def node(number: int) -> Any:
            def run(_: Any) -> Any:
                ran.append(number)
                if number == 2 and len(ran) == 2:
                    chain(two, 2).invoke({"seen": []}, config())
                return {"seen": [number]}

            return run

        with pytest.raises(Conflict, match="Another process wrote to the thread"):
            chain(one, 3, node).invoke({"seen": []}, config())
        assert ran == [1, 2], "the third node did not run on a state that is not the thread's"
        assert chain(two, 2).get_state(config()).values["seen"] == [1, 2, 1, 1, 2], "the other one's is the thread's"


def test_two_runs_of_one_process_on_one_thread_one_is_told(path: str) -> None:
    with TenutoSaver(path) as saver:
        outcomes: list[Any] = []
        begun: list[bool] = []

        def node(number: int) -> Any:
            def run(_: Any) -> Any:
                if number == 1 and not begun:
                    begun.append(True)
                    other.start()  # another run begins and ends while this one is in its first node
                    other.join()
                return {"seen": [number]}

            return run

        graph = chain(saver, 2, node)

        def invoke() -> None:
            try:
                outcomes.append(graph.invoke({"seen": []}, config()))
            except Conflict as error:
                outcomes.append(error)

        other = threading.Thread(target=invoke)
        invoke()
        assert [type(one) for one in outcomes] == [dict, Conflict]
        assert graph.get_state(config()).values["seen"] == [1, 2]


def test_after_a_conflict_the_next_run_is_none(path: str) -> None:
    with TenutoSaver(path) as one, TenutoSaver(path) as two:
        chain(one, 1).invoke({"seen": []}, config())

        def node(_: int) -> Any:
            def run(_: Any) -> Any:
                chain(two, 1).invoke({"seen": []}, config())
                return {"seen": ["lost"]}

            return run

        with pytest.raises(Conflict):
            chain(one, 1, node).invoke({"seen": []}, config())
        assert chain(one, 1).invoke({"seen": []}, config())["seen"] == [1, 1, 1]


def test_a_new_thread_begun_twice_at_once_is_a_conflict(path: str) -> None:
    with TenutoSaver(path) as one, TenutoSaver(path) as two:
        assert one.get_tuple(config()) is None
        two.put(config(checkpoint_ns=""), checkpoint(a=1), {"source": "input", "step": -1}, {})
        with pytest.raises(Conflict):
            one.put(config(checkpoint_ns=""), checkpoint(a=2), {"source": "input", "step": -1}, {})


def test_another_client_between_two_turns_is_no_conflict(path: str) -> None:
    with TenutoSaver(path) as one, TenutoSaver(path) as two:
        for turn in range(40):
            chat((one, two)[turn % 2]).invoke(say(f"turn {turn}"), config())
        assert texts(chat(one), config())[::2] == [f"turn {turn}" for turn in range(40)]


# -- time travel ---------------------------------------------------------------------------------------------


def test_a_run_from_an_older_checkpoint_forks_and_the_old_branch_stays(stores: Any) -> None:
    with TenutoSaver(stores.new()) as saver:
        graph = chain(saver, 3)
        graph.invoke({"seen": []}, config())
        history = list(graph.get_state_history(config()))
        old = next(one for one in history if one.next == ("n3",))
        forked = graph.update_state(old.config, {"seen": ["forked"]})
        assert graph.invoke(None, forked)["seen"] == [1, 2, "forked", 3]
        assert graph.get_state(history[0].config).values["seen"] == [1, 2, 3]
        assert graph.get_state(config()).values["seen"] == [1, 2, "forked", 3]
        assert graph.invoke(None, old.config)["seen"] == [1, 2, 3]
        parents = {one.config["configurable"]["checkpoint_id"]: one.parent_config for one in saver.list(config())}
        for parent in filter(None, parents.values()):
            assert parent["configurable"]["checkpoint_id"] in parents


def test_two_branches_whose_channels_have_the_same_version_are_told_apart(path: str) -> None:
    with TenutoSaver(path) as saver:
        root = saver.put(config(checkpoint_ns=""), checkpoint(x="root"), {"source": "loop", "step": 0}, {"x": 1})
        made = []
        for value in ("a", "b"):
            one = checkpoint(x=value, y="z" * 2_000)
            one["channel_versions"] = {"x": 2, "y": 2}
            made.append(saver.put(root, one, {"source": "loop", "step": 1}, {"x": 2}))
        assert [saver.get_tuple(one).checkpoint["channel_values"]["x"] for one in made] == ["a", "b"]


def test_listing_goes_back_from_a_checkpoint_and_by_metadata(path: str) -> None:
    with TenutoSaver(path) as saver:
        graph = chain(saver, 3)
        graph.invoke({"seen": []}, config(user="ann"))
        every = list(saver.list(config()))
        assert [one.metadata["step"] for one in every] == [3, 2, 1, 0, -1]
        assert list(saver.list(config(), before=every[1].config)) == every[2:]
        assert list(saver.list(config(), limit=2)) == every[:2]
        assert [one.metadata["step"] for one in saver.list(config(), filter={"source": "input"})] == [-1]
        assert list(saver.list(config(), filter={"user": "ann"})) == every
        assert list(saver.list(config(), filter={"user": "' OR 1=1 --"})) == []
        assert [one.config for one in saver.list(None)] == [one.config for one in every]


# -- interrupts, subgraphs, durability -----------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_question_is_answered_in_another_process(stores: Any, durability: Any) -> None:
    url = stores.new()
    with TenutoSaver(url) as saver:
        result = asking(saver).invoke({"seen": []}, config(), durability=durability)
        assert result["__interrupt__"][0].value == "really?"
    with TenutoSaver(url) as saver:
        graph = asking(saver)
        assert graph.get_state(config()).tasks[0].interrupts[0].value == "really?"
        done = graph.invoke(Command(resume="yes"), config(), durability=durability)
        assert done["seen"] == ["first", "yes", "last"]


def test_subgraphs_keep_their_own_checkpoints_and_resume(stores: Any) -> None:
    url = stores.new()

    def outer(saver: Any) -> Any:
        builder = StateGraph(chain(None, 1).builder.state_schema)
        builder.add_node("inner", asking(None))
        builder.add_edge(START, "inner")
        return builder.compile(checkpointer=saver)

    with TenutoSaver(url) as saver:
        outer(saver).invoke({"seen": []}, config())
        assert len({one.config["configurable"]["checkpoint_ns"] for one in saver.list(config())}) == 2
    with TenutoSaver(url) as saver:
        state = outer(saver).get_state(config(), subgraphs=True)
        assert state.tasks[0].state.values["seen"] == ["first"]
        assert outer(saver).invoke(Command(resume="yes"), config())["seen"] == ["first", "yes", "last"]
        saver.delete_thread("t-1")
        assert list(saver.list(None)) == []
        assert saver._agent.kernel.scan(keys.pack("langgraph")) == []


def test_tasks_that_were_done_are_not_done_again_after_one_failed(stores: Any) -> None:
    ran: list[int] = []

    def work(state: Any) -> Any:
        ran.append(state["n"])
        if state["n"] == 2 and ran.count(2) == 1:
            raise RuntimeError("once")
        return {"seen": [state["n"]]}

    builder = StateGraph(chain(None, 1).builder.state_schema)
    builder.add_node("work", work)
    builder.add_conditional_edges(START, lambda _: [Send("work", {"n": n}) for n in range(4)])
    builder.add_edge("work", END)
    with TenutoSaver(stores.new()) as saver:
        graph = builder.compile(checkpointer=saver)
        with pytest.raises(RuntimeError, match="once"):
            graph.invoke({"seen": []}, config())
        assert sorted(graph.invoke(None, config())["seen"]) == [0, 1, 2, 3]
    assert sorted(ran) == [0, 1, 2, 2, 3]


# -- delta channels ------------------------------------------------------------------------------------------


def deltas(saver: Any, often: int = 5) -> Any:
    class State(TypedDict):
        items: Annotated[list, DeltaChannel(lambda old, new: [*old, *(x for one in new for x in one)], list, snapshot_frequency=often)]  # fmt: skip
        plain: str

    builder = StateGraph(State)
    builder.add_node("add", lambda state: {"items": [len(state["items"])]})
    builder.add_edge(START, "add")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_delta_channels_are_put_together_from_what_was_written(stores: Any, durability: Any) -> None:
    url = stores.new()
    with TenutoSaver(url) as saver:
        for turn in range(23):
            deltas(saver).invoke({"plain": str(turn)}, config(), durability=durability)
    with TenutoSaver(url) as saver:
        graph = deltas(saver)
        assert graph.get_state(config()).values["items"] == list(range(23))
        history = list(graph.get_state_history(config()))
        assert sorted({len(one.values["items"]) for one in history if "items" in one.values}) == list(range(24))


def test_delta_history_is_each_channels_writes_since_its_nearest_value(stores: Any) -> None:
    with TenutoSaver(stores.new()) as saver:
        ids, where = [], config(checkpoint_ns="")
        for step in range(4):
            made = checkpoint(**({"d": "seed", "e": 0} if step == 0 else {"e": step} if step == 2 else {}))
            metadata = {"source": "loop", "step": step, "counters_since_delta_snapshot": {"d": (step, step)}}
            where = saver.put(where, made, metadata, {})
            saver.put_writes(where, [("d", f"w{step}"), ("e", f"v{step}"), ("other", 1)], f"task-{step}", "")
            ids.append(made["id"])
        found = saver.get_delta_channel_history(config=where, channels=["d", "e", "none"])
        assert [value for *_, value in found["d"]["writes"]] == ["w0", "w1", "w2"]
        assert found["d"]["seed"] == "seed"
        assert [value for *_, value in found["e"]["writes"]] == ["v2"]
        assert found["e"]["seed"] == 2
        assert found["none"] == {"writes": []}
        branch = saver.put(config(checkpoint_ns="", checkpoint_id=ids[1]), checkpoint(), {"step": 9}, {})
        assert [v for *_, v in saver.get_delta_channel_history(config=branch, channels=["d"])["d"]["writes"]] == [
            "w0",
            "w1",
        ]
        assert asyncio.run(saver.aget_delta_channel_history(config=where, channels=["d"])) == {"d": found["d"]}


# -- types ---------------------------------------------------------------------------------------------------


class Plan(BaseModel):
    steps: list[str]


@dataclass
class Point:
    x: int
    y: int


class Pair(NamedTuple):
    left: int
    right: int


class Unknown(BaseModel):
    n: int


def holding(saver: Any, value: Any) -> Any:
    class Held(TypedDict):
        value: Any

    builder = StateGraph(Held)
    builder.add_node("hold", lambda _: {"value": value})
    builder.add_edge(START, "hold")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize(
    "value",
    [
        Plan(steps=["a"]),
        Point(1, 2),
        Pair(1, 2),
        (1, (2, {3})),
        {"deep": [Plan(steps=[])]},
        ToolMessage("r", tool_call_id="c", artifact={"raw": (1, 2)}, status="error"),
        AIMessage("", tool_calls=[{"name": "f", "args": {"a": 1}, "id": "c"}], usage_metadata=None, more="extra"),
        AIMessage([{"type": "text", "text": "hi"}, "x"], response_metadata={"n": 1.5}, name="bob", id="m"),
        Path("a/b"),
        Send("n", {"a": 1}),
        Command(goto="n", update={"a": (1,)}),
    ],
    ids=repr,
)
def test_types_come_back_equal_and_of_the_same_type(path: str, value: Any) -> None:
    allowed = [Plan, Point, Pair]
    with TenutoSaver(path, allow=allowed) as saver:
        holding(saver, value).invoke({"value": None}, config())
    with TenutoSaver(path, allow=allowed) as saver:
        found = holding(saver, value).get_state(config()).values["value"]
    assert found == value
    assert type(found) is type(value)


def test_a_type_that_is_not_allowed_is_refused_before_anything_is_stored_and_the_error_says_where(path: str) -> None:
    with TenutoSaver(path) as saver:
        with pytest.raises(NotStorable, match=r"Unknown.*tenuto\.register"):
            holding(saver, {"deep": [1, Unknown(n=1)]}).invoke({"value": None}, config())
        with pytest.raises(NotStorable) as refused:
            saver.put(config(checkpoint_ns=""), checkpoint(a={"deep": [1, Unknown(n=1)]}), {"step": 0}, {})
        assert refused.value.path == "a.deep[1]"
        assert [one.metadata["step"] for one in saver.list(config())] == [-1, 0][::-1]


# -- the bridge ----------------------------------------------------------------------------------------------


def test_a_graphs_checkpoints_are_the_agents(path: str) -> None:
    with Tenuto("a", path) as agent:
        graph = chat(TenutoSaver(agent))
        graph.invoke(say("one"), config())
        graph.invoke(say("two"), config())
        listed = agent.checkpoint.list("t-1")
        assert [one.meta["metadata"]["step"] for one in listed] == [4, 3, 2, 1, 0, -1]
        assert listed[0].name == graph.get_state(config()).config["configurable"]["checkpoint_id"]
        assert [m.content for m in agent.checkpoint.restore(thread="t-1")["messages"]][::2] == ["one", "two"]
        changes = agent.checkpoint.diff(listed[1], listed[0])
        assert ("messages", 3) in [change.path for change in changes]


def test_the_command_line_shows_a_graphs_threads(path: str) -> None:
    with TenutoSaver(path) as saver:
        chat(saver, answer=str).invoke(say("hello"), config())

    def tenuto(*given: str) -> str:
        command = [sys.executable, "-m", "tenuto", *given, "--url", path]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return done.stdout

    assert tenuto("checkpoint", "list", "--thread", "t-1").count("t-1@") >= 3
    assert "messages" in tenuto("checkpoint", "diff", "t-1@1", "t-1@3")
    shown = tenuto("thread", "show", "t-1")
    assert "hello" in shown
    assert "assistant" in shown


def test_a_graphs_messages_are_the_threads(stores: Any) -> None:
    with Tenuto("a", stores.new()) as agent:
        graph = chat(TenutoSaver(agent), answer=str)
        graph.invoke(say("one"), config())
        graph.invoke(say("two"), config())
        thread = agent.thread("t-1")
        assert thread.messages() == [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "1"},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": "3"},
        ]
        assert thread.count() == 4
        assert [m["content"] for m in thread.messages(last=2)] == ["two", "3"]
        assert [m["content"] for m in thread.messages(after=1, before=4)] == ["1", "two"]
        assert agent.thread("t-2").messages() == []
        thread.append({"role": "user", "content": "in a log of its own"})
        assert thread.count() == 1, "a thread that was appended to is what was appended"
        assert len(graph.get_state(config()).values["messages"]) == 4


# -- the package ---------------------------------------------------------------------------------------------


def test_importing_tenuto_imports_nothing_of_langgraph() -> None:
    code = "import sys, tenuto; sys.exit(any(name.startswith(('langgraph', 'langchain')) for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_missing_package_is_named_with_the_extra_to_install() -> None:
    code = """
import sys
sys.modules["langgraph.checkpoint.base"] = None
from tenuto import MissingDriver
try:
    import tenuto.adapters.langgraph
except MissingDriver as error:
    sys.exit('tenuto[langgraph]' not in str(error))
sys.exit(2)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
