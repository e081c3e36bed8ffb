"""A LangGraph agent that is killed in the middle of its work, and goes on where it was.

    python examples/langgraph_agent.py --url store.db --die-in review     # dies with 137 inside of a node
    python examples/langgraph_agent.py --url store.db                     # goes on at that node

It needs LangGraph (`pip install "tenuto[langgraph]"`) and no model: each node stands for a call of one. The graph
plans, searches twice with a tool that costs money, reviews and writes. With LangGraph's default settings each step
is durable before the next one begins; the tool is durable too, so a search that was paid for is not made again.
"""

import argparse
import operator
import os
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

from tenuto import durable_tool
from tenuto.adapters.langgraph import TenutoSaver


class Report(TypedDict):
    """What the graph works on."""

    topic: str
    notes: Annotated[list[str], operator.add]


def search(query: str) -> str:
    """The tool. It costs money, so it must not run twice for one query."""
    print(f"searched {query}", flush=True)
    return f"about {query}"


paid_search = durable_tool(search)


def node(name: str, work: Callable[[Report], list[str]], die_in: str | None) -> Callable[[Report], dict[str, Any]]:
    def run(state: Report) -> dict[str, Any]:
        print(f"node {name}", flush=True)
        notes = work(state)
        if name == die_in:
            os._exit(137)  # the crash: what the node did is done, and what it returns is lost
        return {"notes": notes}

    return run


def build(saver: TenutoSaver, die_in: str | None) -> Any:
    steps: dict[str, Callable[[Report], list[str]]] = {
        "plan": lambda state: [f"plan for {state['topic']}"],
        "research": lambda state: [paid_search(f"{state['topic']} prices"), paid_search(f"{state['topic']} reviews")],
        "review": lambda state: [f"reviewed {len(state['notes'])} notes"],
        "write": lambda state: [f"report of {len(state['notes'])} notes"],
    }
    builder = StateGraph(Report)
    before = START
    for name, work in steps.items():
        builder.add_node(name, node(name, work, die_in))
        builder.add_edge(before, name)
        before = name
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=None, help="where to keep it (default: .tenuto/tenuto.db)")
    parser.add_argument("--die-in", metavar="NODE", help="die with 137 at the end of this node")
    options = parser.parse_args()
    with TenutoSaver(options.url) as saver:
        graph = build(saver, options.die_in)
        config = {"configurable": {"thread_id": "report-7"}}
        begun = graph.get_state(config).tasks  # what was not finished; nothing in a new thread
        if begun:
            print(f"resuming at {begun[0].name}")
        result = graph.invoke(None if begun else {"topic": "laptops", "notes": []}, config)
        print(result["notes"][-1])


if __name__ == "__main__":
    main()
