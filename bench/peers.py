"""Common ways to store a conversation: each saves it after every turn, as its docs say.

Every one gets the same messages: one of the user and one of the assistant a turn, 1 KB together. All of them
sync on every turn (`synchronous=FULL`, fsync), as tenuto does by default. Saving and loading are two calls, and
`close` comes before anybody's size is taken.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from bench.measure import text


class Peer(NamedTuple):
    """One way to keep a conversation."""

    save: Callable[[int], Any]
    """Adds a turn, durably."""
    load: Callable[[], Any]
    """Returns the whole conversation, from the disk."""
    close: Callable[[], Any]


def turn(number: int) -> list[dict[str, str]]:
    return [
        {"role": "user", "content": text(2 * number, 480)},
        {"role": "assistant", "content": text(2 * number + 1, 480)},
    ]


def json_file(folder: Path) -> Peer:
    """The whole conversation as JSON: written to a temporary file, synced, renamed."""
    messages: list[Any] = []
    path = folder / "state.json"

    def save(number: int) -> None:
        messages.extend(turn(number))
        beside = path.with_suffix(".new")
        with beside.open("w") as file:
            json.dump({"messages": messages}, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)

    return Peer(save, lambda: json.loads(path.read_text()), lambda: None)


def diskcache(folder: Path) -> Peer:
    """The whole conversation under one key."""
    from diskcache import Cache

    cache = Cache(str(folder / "diskcache"), sqlite_synchronous=2)
    messages: list[Any] = []

    def save(number: int) -> None:
        messages.extend(turn(number))
        cache.set("state", {"messages": messages})

    return Peer(save, lambda: cache["state"], cache.close)


def agents_session(folder: Path) -> Peer:
    """OpenAI Agents SDK, SQLiteSession: a run loads all items, and saves the new ones."""
    from agents import SQLiteSession

    session = SQLiteSession("bench", folder / "agents.db")
    loop = asyncio.new_event_loop()

    def close() -> None:
        session.close()
        loop.close()

    return Peer(
        lambda number: loop.run_until_complete(session.add_items(turn(number))),  # type: ignore[arg-type]
        lambda: loop.run_until_complete(session.get_items()),
        close,
    )


def langgraph_put(folder: Path) -> Peer:
    """LangGraph's SqliteSaver, called directly: one checkpoint a turn."""
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.base.id import uuid6
    from langgraph.checkpoint.sqlite import SqliteSaver

    connection = _connected(folder / "put.db")
    saver = SqliteSaver(connection)
    messages: list[Any] = []
    config: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}

    def save(number: int) -> None:
        nonlocal config
        said, answered = turn(number)
        messages.extend([HumanMessage(said["content"]), AIMessage(answered["content"])])
        checkpoint = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=number))
        checkpoint["channel_values"] = {"messages": messages}
        checkpoint["channel_versions"] = {"messages": number + 1}
        config = saver.put(config, checkpoint, {"source": "loop", "step": number}, {"messages": number + 1})

    return Peer(save, lambda: saver.get_tuple(config), connection.close)


def langgraph_graph(folder: Path) -> Peer:
    """A graph of one node, its state in SqliteSaver: one invoke a turn, which loads the state before it saves it."""
    from langgraph.graph.message import add_messages

    return _on_sqlite(folder / "graph.db", add_messages)


def langgraph_delta(folder: Path) -> Peer:
    """The same graph with LangGraph's DeltaChannel (beta)."""
    from langgraph.channels.delta import DeltaChannel
    from langgraph.graph.message import _messages_delta_reducer

    return _on_sqlite(folder / "delta.db", DeltaChannel(_messages_delta_reducer, list))


def tenuto_graph(folder: Path) -> Peer:
    """The same graph, its state in TenutoSaver."""
    from langgraph.graph.message import add_messages

    from tenuto.adapters.langgraph import TenutoSaver

    saver = TenutoSaver(str(folder / "tenuto.db"))
    return _graph(saver, add_messages, saver.close)


def _on_sqlite(path: Path, reducer: Any) -> Peer:
    from langgraph.checkpoint.sqlite import SqliteSaver

    connection = _connected(path)
    return _graph(SqliteSaver(connection), reducer, connection.close)


def _graph(saver: Any, reducer: Any, close: Callable[[], Any]) -> Peer:
    from langchain_core.messages import AIMessage, HumanMessage
    from langgraph.graph import END, START, StateGraph

    state = TypedDict("state", {"messages": Annotated[list, reducer]})  # type: ignore[misc]  # noqa: UP013
    answers = iter(range(10**9))
    builder = StateGraph(state)
    builder.add_node("answer", lambda _: {"messages": [AIMessage(turn(next(answers))[1]["content"])]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "bench"}}
    return Peer(
        lambda number: graph.invoke({"messages": [HumanMessage(turn(number)[0]["content"])]}, config),
        lambda: graph.get_state(config),
        close,
    )


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


PEERS: dict[str, tuple[Callable[[Path], Peer], str]] = {
    "json file, rewritten": (json_file, ""),
    "diskcache": (diskcache, "diskcache"),
    "OpenAI Agents SQLiteSession": (agents_session, "openai-agents"),
    "LangGraph SqliteSaver.put": (langgraph_put, "langgraph-checkpoint-sqlite"),
    "LangGraph graph, SqliteSaver": (langgraph_graph, "langgraph"),
    "LangGraph graph, DeltaChannel": (langgraph_delta, "langgraph"),
}
