"""Graphs that the tests run."""

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import interrupt


class Chat(TypedDict):
    messages: Annotated[list, add_messages]


class Log(TypedDict):
    seen: Annotated[list, operator.add]


def config(thread: str = "t-1", **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, **more}}


def chat(saver: Any, answer: Any = lambda count: "a" * 500, **compiling: Any) -> Any:
    """A conversation: each turn is answered by one node."""
    builder = StateGraph(Chat)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(answer(len(state["messages"])))]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver, **compiling)


def say(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def chain(saver: Any, count: int = 5, node: Any = None, **compiling: Any) -> Any:
    """Nodes one after the other, each of which notes that it ran."""
    builder = StateGraph(Log)
    before = START
    for number in range(1, count + 1):
        run = (lambda _, number=number: {"seen": [number]}) if node is None else node(number)
        builder.add_node(f"n{number}", run)
        builder.add_edge(before, f"n{number}")
        before = f"n{number}"
    builder.add_edge(before, END)
    return builder.compile(checkpointer=saver, **compiling)


def asking(saver: Any) -> Any:
    """A graph that asks, in its second node, and goes on with the answer."""

    def ask(_: Any) -> dict[str, Any]:
        return {"seen": [interrupt("really?")]}

    builder = StateGraph(Log)
    builder.add_node("first", lambda _: {"seen": ["first"]})
    builder.add_node("ask", ask)
    builder.add_node("last", lambda _: {"seen": ["last"]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "ask")
    builder.add_edge("ask", "last")
    builder.add_edge("last", END)
    return builder.compile(checkpointer=saver)
