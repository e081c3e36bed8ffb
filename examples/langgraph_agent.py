"""A LangGraph agent that is killed in the middle of its work and resumes at the same node.

    python examples/langgraph_agent.py --url store.db --die-in review     # exits with 137 inside a node
    python examples/langgraph_agent.py --url store.db                     # resumes at that node

It needs LangGraph (`pip install "tenuto[langgraph]"`) and no model: each node stands for a model call. The graph
plans, searches twice with a tool that costs money, reviews and writes. With LangGraph's default settings each step is
durable before the next one starts. The tool is durable too, so that a paid search is not repeated.
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
    """The state of the graph."""

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
            os._exit(137)  # the crash: the node has run, but its result is lost
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
    parser.add_argument("--url", default=None, help="store path or URL (default: .tenuto/tenuto.db)")
    parser.add_argument("--die-in", metavar="NODE", help="exit with 137 at the end of this node")
    options = parser.parse_args()
    with TenutoSaver(options.url) as saver:
        graph = build(saver, options.die_in)
        config = {"configurable": {"thread_id": "report-7"}, "metadata": {"turn": "1"}}
        seen = graph.get_state(config)
        if (seen.metadata or {}).get("turn") != "1":
            result = graph.invoke({"topic": "laptops", "notes": []}, config)
        elif seen.tasks:
            print(f"resuming at {seen.tasks[0].name}")
            result = graph.invoke(None, config)
        else:  # killed after the last node: the report is there, and nothing runs again
            result = seen.values
        print(result["notes"][-1])


if __name__ == "__main__":
    main()
