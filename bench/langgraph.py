"""A real graph, turn after turn, on each saver: what a turn takes, what it leaves on disk, what reading costs (P4).

It needs the peers: `make peers` installs them beside. All savers go through the same turns in short rounds, in an
order shuffled anew each time, with LangGraph's default `durability`. SQLite runs WAL with synchronous=FULL, Postgres
with synchronous_commit=on.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bench import servers
from bench.compare import compare
from bench.measure import Row, Table, folder, stored
from bench.peers import turn

MARKS = (10, 100, 1_000)
ROUND, NEAR = 10, 20
READS = 7
NONE, OURS, OURS_PG = "no saver", "TenutoSaver, SQLite", "TenutoSaver, Postgres"
SQLITE, DELTA, POSTGRES = "SqliteSaver", "SqliteSaver with DeltaChannel", "PostgresSaver"
POSTGRES_DELTA = "PostgresSaver with DeltaChannel"
CONFIG: Any = {"configurable": {"thread_id": "bench"}}


@dataclass
class Contender:
    """A graph on one saver."""

    turn: Callable[[int], Any]
    graph: Any = None
    bytes: Callable[[], int] = lambda: 0
    cold: Callable[[], contextlib.AbstractContextManager[Any]] | None = None
    """Builds the graph again, as another process would, for one read."""
    took: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    """The processor's time, of this process."""
    reads: dict[str, float] = field(default_factory=dict)


def run(*, quick: bool, against: Path | None = None) -> Table:
    if against is not None:
        return compare("A graph's turn", ("raw insert", "graph turn"), quick=quick, against=against)
    turns = 100 if quick else 1_000
    with folder() as path, contextlib.ExitStack() as stack:
        contenders = _sqlite(path, stack)
        server = stack.enter_context(servers.postgres(path / "postgres"))
        contenders |= _postgres(server, stack)
        _go(contenders, turns)
        for contender in contenders.values():
            _read(contender)
        sizes = {name: contender.bytes() for name, contender in contenders.items()}
    packages = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite", "langgraph-checkpoint-postgres")
    return Table(
        f"A graph of one node, {turns:,} turns of 1 KB, FULL",
        [
            *(_row(name, one, sizes[name], turns) for name, one in contenders.items()),
            *_judged(contenders, sizes, turns),
        ],
        [
            "A time is the median of the turns around that one, two at a time in turn; cpu is this process's own. Bytes are those of the file, or of the tables, at the end.",
            "By default LangGraph saves in the background: only with TenutoSaver is a step durable before the next node runs.",
            "`no saver` is the graph alone, given the whole conversation each turn.",
            "A cold read is the first of a new client; the others are the median of several.",
            "Peers: " + ", ".join(f"{name} {version(name)}" for name in packages),
        ],
    )


def _builder(reducer: Any) -> Any:
    from langchain_core.messages import AIMessage
    from langgraph.graph import END, START, StateGraph

    state = TypedDict("state", {"messages": Annotated[list, reducer]})  # type: ignore[misc]  # noqa: UP013
    answers = iter(range(10**9))
    builder = StateGraph(state)
    builder.add_node("answer", lambda _: {"messages": [AIMessage(turn(next(answers))[1]["content"])]})
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder


def _on(
    saver: Any,
    *,
    delta: bool = False,
    size: Callable[[], int],
    cold: Callable[[], contextlib.AbstractContextManager[Any]] | None = None,
) -> Contender:
    from langchain_core.messages import HumanMessage
    from langgraph.channels.delta import DeltaChannel
    from langgraph.graph.message import _messages_delta_reducer, add_messages

    builder = _builder(DeltaChannel(_messages_delta_reducer, list) if delta else add_messages)
    graph = builder.compile(checkpointer=saver)

    @contextlib.contextmanager
    def anew() -> Any:
        assert cold is not None
        with cold() as own:
            yield builder.compile(checkpointer=own)

    return Contender(
        lambda number: graph.invoke({"messages": [HumanMessage(turn(number)[0]["content"])]}, CONFIG),
        graph,
        size,
        None if cold is None else anew,
    )


def _no_saver() -> Contender:
    from langchain_core.messages import HumanMessage
    from langgraph.graph.message import add_messages

    graph = _builder(add_messages).compile()
    messages: list[Any] = []

    def invoke(number: int) -> None:
        nonlocal messages
        messages = graph.invoke({"messages": [*messages, HumanMessage(turn(number)[0]["content"])]})["messages"]

    return Contender(invoke)


def _sqlite(path: Path, stack: contextlib.ExitStack) -> dict[str, Contender]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    from tenuto.adapters.langgraph import TenutoSaver

    def place(name: str) -> tuple[Path, Callable[[], int]]:
        (path / name).mkdir()
        return path / name / f"{name}.db", lambda: stored(path / name)

    @contextlib.contextmanager
    def theirs(where: Path) -> Any:
        with contextlib.closing(sqlite3.connect(where, check_same_thread=False)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            yield SqliteSaver(connection)

    own, own_size = place("tenuto")
    plain, plain_size = place("sqlite")
    delta, delta_size = place("delta")
    (path / "postgres").mkdir()
    saver = TenutoSaver(str(own))

    def closed() -> int:
        saver.close()
        return own_size()

    return {
        NONE: _no_saver(),
        OURS: _on(saver, size=closed, cold=lambda: TenutoSaver(str(own))),
        SQLITE: _on(stack.enter_context(theirs(plain)), size=plain_size, cold=lambda: theirs(plain)),
        DELTA: _on(stack.enter_context(theirs(delta)), delta=True, size=delta_size, cold=lambda: theirs(delta)),
    }


def _postgres(server: Any, stack: contextlib.ExitStack) -> dict[str, Contender]:
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver
    from psycopg.rows import dict_row

    from tenuto.adapters.langgraph import TenutoSaver

    def schema(name: str) -> str:
        server.execute(f"CREATE SCHEMA {name}")
        return f"{server.url}{'&' if '?' in server.url else '?'}options=-csearch_path%3D{name}"

    def theirs(name: str) -> Any:
        url = schema(name)
        connection = stack.enter_context(
            psycopg.connect(url, autocommit=True, prepare_threshold=0, row_factory=dict_row)
        )
        saver = PostgresSaver(connection)
        saver.setup()
        return saver

    def size(name: str) -> Callable[[], int]:
        told = f"SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c WHERE relnamespace = '{name}'::regnamespace"
        return lambda: int(server.execute(f"{told} AND relkind = 'r'")[0][0])

    url = f"{server.url}{'&' if '?' in server.url else '?'}schema=tenuto"
    saver = stack.enter_context(TenutoSaver(url))
    return {
        OURS_PG: _on(saver, size=size("tenuto"), cold=lambda: TenutoSaver(url)),
        POSTGRES: _on(theirs("plain"), size=size("plain")),
        POSTGRES_DELTA: _on(theirs("delta"), delta=True, size=size("delta")),
    }


def _go(contenders: dict[str, Contender], turns: int) -> None:
    order = list(contenders.values())
    chance = random.Random(5)
    start = 0
    while start < turns:
        # Around a mark every contender takes two turns at a time, so that a busy moment affects all of them.
        near = any(0 <= mark - start <= NEAR for mark in MARKS)
        count = min(2 if near else ROUND, turns - start)
        chance.shuffle(order)
        for contender in order:
            for number in range(start, start + count):
                began, busy = time.perf_counter(), time.process_time()
                contender.turn(number)
                contender.took.append(time.perf_counter() - began)
                contender.busy.append(time.process_time() - busy)
        start += count


def _read(contender: Contender) -> None:
    graph = contender.graph
    if graph is None:
        return
    contender.reads = {
        "get_state": _median(lambda: graph.get_state(CONFIG)),
        "list(10)": _median(lambda: list(graph.checkpointer.list(CONFIG, limit=10))),
    }
    if contender.cold is not None:
        contender.reads["get_state, cold"] = statistics.median(_cold(contender.cold) for _ in range(READS))


def _cold(anew: Callable[[], contextlib.AbstractContextManager[Any]]) -> float:
    began = time.perf_counter()
    with anew() as graph:
        graph.get_state(CONFIG)
        return time.perf_counter() - began


def _median(call: Callable[[], Any]) -> float:
    took = []
    for _ in range(READS):
        began = time.perf_counter()
        call()
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _at(one: Contender, mark: int) -> float:
    return statistics.median(one.took[max(0, mark - NEAR) : mark])


def _busy(one: Contender, mark: int) -> float:
    return statistics.median(one.busy[max(0, mark - NEAR) : mark])


def _row(name: str, one: Contender, size: int, turns: int) -> Row:
    at = {mark: _at(one, mark) for mark in MARKS if mark <= turns}
    times = ", ".join(f"turn {mark:,}: {seconds * 1e3:.1f} ms" for mark, seconds in at.items())
    reads = "".join(f"; {what} {seconds * 1e3:.1f} ms" for what, seconds in one.reads.items())
    return Row(
        f"{name}: {times} (cpu {_busy(one, turns) * 1e3:.1f}); {size / 1e6:,.2f} MB{reads}",
        p50=_at(one, turns),
        detail={"at": at, "bytes": size, "reads": one.reads, "all": one.took},
    )


def _judged(contenders: dict[str, Contender], sizes: dict[str, int], turns: int) -> list[Row]:
    rows = []

    def ratio(what: str, value: float, target: str, *, met: bool | None) -> None:
        rows.append(Row(what, ratio=f"{value:,.1f}x", target=target, met=met))

    ours, floor = contenders[OURS], contenders[NONE]
    marks = [mark for mark in MARKS if mark <= turns]
    for ours_name, peer, least in (
        (OURS, SQLITE, 8),
        (OURS, DELTA, 4),
        (OURS_PG, POSTGRES, 8),
        (OURS_PG, POSTGRES_DELTA, 4),
    ):
        for mark in marks:
            faster = _at(contenders[peer], mark) / _at(contenders[ours_name], mark)
            wanted = least if mark == 1_000 else 1
            ratio(f"P4: {ours_name} against {peer}, turn {mark:,}", faster, f">= {wanted}x", met=faster >= wanted)
        smaller = sizes[peer] / sizes[ours_name]
        ratio(f"{ours_name} against {peer}, bytes", smaller, ">= 1x", met=smaller >= 1)
        for what in ("get_state", "list(10)", "get_state, cold"):
            if what in contenders[peer].reads:
                faster = contenders[peer].reads[what] / contenders[ours_name].reads[what]
                ratio(f"{ours_name} against {peer}, {what}", faster, ">= 1x", met=faster >= 1)
    for mark in marks:
        slower = _at(ours, mark) / _at(floor, mark)
        ratio(f"P4: {OURS} to no saver, turn {mark:,}", slower, "<= 3x", met=slower <= 3 if mark == 1_000 else None)
    ratio(f"{OURS} to no saver, turn {turns:,}, cpu alone", _busy(ours, turns) / _busy(floor, turns), "", met=None)
    return rows
