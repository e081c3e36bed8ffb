"""Durable tools: called once for each call that a task makes, however often the task is run."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from graphs import Log, config
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

import tenuto
from tenuto import InDoubt, InvalidInput, Tenuto
from tenuto.adapters.langgraph import TenutoSaver


def one_node(saver: Any, node: Any) -> Any:
    builder = StateGraph(Log)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


def test_a_call_before_a_question_is_not_made_again_with_the_answer(stores: Any) -> None:
    called: list[Any] = []

    def charge(amount: int, *, currency: str = "EUR") -> str:
        called.append((amount, currency))
        return f"receipt {len(called)}"

    durable = tenuto.durable_tool(charge, effect="once")

    def node(_: Any) -> Any:
        first, second = durable(5), durable(5, currency="USD")
        return {"seen": [first, second, interrupt("sure?")]}

    url = stores.new()
    with TenutoSaver(url) as saver:
        one_node(saver, node).invoke({"seen": []}, config())
    with TenutoSaver(url) as saver:
        done = one_node(saver, node).invoke(Command(resume="yes"), config())
    assert done["seen"] == ["receipt 1", "receipt 2", "yes"]
    assert called == [(5, "EUR"), (5, "USD")]


def test_another_turn_is_another_call(path: str) -> None:
    called: list[int] = []
    durable = tenuto.durable_tool(lambda n: called.append(n) or len(called), name="count")
    with TenutoSaver(path) as saver:
        graph = one_node(saver, lambda _: {"seen": [durable(7)]})
        graph.invoke({"seen": []}, config())
        graph.invoke({"seen": []}, config())
        assert graph.invoke({"seen": []}, config("t-2"))["seen"] == [3]
    assert called == [7, 7, 7]


def test_async_tools_too(path: str) -> None:
    called: list[int] = []

    async def slow(n: int) -> int:
        await asyncio.sleep(0)
        called.append(n)
        return n * 2

    durable = tenuto.durable_tool(slow)

    async def node(_: Any) -> Any:
        return {"seen": [await durable(4), interrupt("sure?")]}

    async def main() -> Any:
        async with TenutoSaver(path) as saver:
            graph = one_node(saver, node)
            await graph.ainvoke({"seen": []}, config())
            return await graph.ainvoke(Command(resume="yes"), config())

    assert asyncio.run(main())["seen"] == [8, "yes"]
    assert called == [4]


def test_langchains_tools_are_made_of_them(path: str) -> None:
    called: list[str] = []

    def search(query: str) -> str:
        """Search the web."""
        called.append(query)
        return f"found {query}"

    calls = [{"name": "search", "args": {"query": q}, "id": f"call-{q}", "type": "tool_call"} for q in ("a", "b")]
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode([tool(tenuto.durable_tool(search))]))
    builder.add_node("after", lambda _: {"messages": [HumanMessage(interrupt("sure?"))]})
    builder.add_edge(START, "tools")
    builder.add_edge("tools", "after")
    with TenutoSaver(path) as saver:
        graph = builder.compile(checkpointer=saver)
        result = graph.invoke({"messages": [AIMessage("", tool_calls=calls)]}, config())
        assert sorted(m.content for m in result["messages"][1:]) == ["found a", "found b"]
        assert len(saver._agent.runs.list()) == 2
    assert sorted(called) == ["a", "b"]


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_tool_of_langchains_decorator_becomes_durable(path: str, face: str) -> None:
    called: list[int] = []

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        called.append(amount)
        return f"paid {amount}"

    @tool
    async def apay(amount: int) -> str:
        """Pay."""
        called.append(amount)
        return f"paid {amount}"

    durable = tenuto.durable_tool(pay if face == "sync" else apay, effect="once")
    assert durable.args_schema is (pay if face == "sync" else apay).args_schema

    def node(_: Any) -> Any:
        return {"seen": [durable.invoke({"amount": 5}), interrupt("sure?")]}

    async def anode(_: Any) -> Any:
        return {"seen": [await durable.ainvoke({"amount": 5}), interrupt("sure?")]}

    async def main(saver: TenutoSaver) -> Any:
        graph = one_node(saver, anode)
        await graph.ainvoke({"seen": []}, config())
        return await graph.ainvoke(Command(resume="yes"), config())

    ToolNode([durable])
    with TenutoSaver(path) as saver:
        if face == "async":
            result = asyncio.run(main(saver))
        else:
            one_node(saver, node).invoke({"seen": []}, config())
            result = one_node(saver, node).invoke(Command(resume="yes"), config())
    assert result["seen"] == ["paid 5", "yes"]
    assert called == [5], "the node ran twice, the tool once"


def test_a_tool_without_a_function_is_refused_at_once() -> None:
    class Own(BaseTool):
        name: str = "own"
        description: str = "own"

        def _run(self) -> str:
            return ""

    with pytest.raises(InvalidInput, match="takes a function or a tool of @tool, not a Own"):
        tenuto.durable_tool(Own())


def test_inside_of_a_run_it_is_a_step_of_that(path: str) -> None:
    durable = tenuto.durable_tool(lambda n: n + 1, name="add")
    with Tenuto("a", path) as agent:
        with agent.run("r") as run:
            assert durable(1) == 2
            assert run.id == "r"
        assert [step.name for step in agent.runs.get("r").steps] == ["add"]
    with pytest.raises(InvalidInput, match="outside a graph"):
        durable(1)


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import tenuto
from graphs import config
from test_langgraph_tools import one_node
from tenuto.adapters.langgraph import TenutoSaver

def charge(amount):
    print("charged", amount, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

saver = TenutoSaver(sys.argv[1])
one_node(saver, lambda _: {"seen": [tenuto.durable_tool(charge, effect="once")(5)]}).invoke({"seen": []}, config())
"""


def test_a_call_that_was_killed_in_the_middle_is_in_doubt_and_not_made_again(path: str) -> None:
    here = str(Path(__file__).parent)
    killed = subprocess.run([sys.executable, "-c", KILLED, path, here], capture_output=True, text=True, check=False)
    assert (killed.returncode, killed.stdout) == (-9, "charged 5\n"), killed.stderr
    called: list[int] = []
    with TenutoSaver(path) as saver:
        agent = saver._agent

        def charge(amount: int) -> None:
            called.append(amount)

        graph = one_node(saver, lambda _: {"seen": [tenuto.durable_tool(charge, effect="once")(5)]})
        with pytest.raises(InDoubt):
            graph.invoke(None, config())
        assert len(agent.inbox.list()) == 1

        def found(intent: Any) -> Any:
            return tenuto.Happened("receipt 1")

        graph = one_node(saver, lambda _: {"seen": [tenuto.durable_tool(charge, effect="once", verify=found)(5)]})
        assert graph.invoke(None, config())["seen"] == ["receipt 1"]
    assert called == []
