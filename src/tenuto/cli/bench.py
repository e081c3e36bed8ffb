"""`tenuto bench`: compare tenuto with common alternatives on this machine, in one interleaved run.

Only installed libraries are measured. Each round runs all contenders in turn, so that a busy moment affects all of
them. The figures are medians. Every contender syncs to disk, as tenuto does by default.
"""

from __future__ import annotations

import json
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click

from tenuto.cli.bench_recall import command as recall
from tenuto.cli.render import table
from tenuto.cli.shared import guarded, show_json
from tenuto.client import Tenuto

_TURN = {"role": "assistant", "content": "x" * 1_000}


class Measured(NamedTuple):
    """The timing of one contender."""

    what: str
    who: str
    first_ms: float
    last_ms: float
    times_a_raw_commit: float


def _contenders(place: Path, stack: ExitStack, history: list[Any]) -> Iterator[tuple[str, str, Callable[[int], Any]]]:
    """Yield a topic, the name of a contender, and the call it makes each turn."""
    agent = stack.enter_context(Tenuto("bench", place / "tenuto.db"))
    raw = sqlite3.connect(place / "raw.db", isolation_level=None)
    stack.callback(raw.close)
    raw.execute("PRAGMA journal_mode=wal")
    raw.execute("PRAGMA synchronous=full")
    raw.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, v TEXT)")
    body = json.dumps(_TURN)
    yield "a value", "sqlite3, one row", lambda n: raw.execute("INSERT INTO t VALUES (?, ?)", (n, body))
    yield "a value", "tenuto state.set", lambda n: agent.state.set("bench", "value", [_TURN, n])
    thread = agent.thread("bench")
    yield "a turn of a conversation", "a JSON file, rewritten", lambda n: _rewrite(place / "turns.json", history)  # noqa: ARG005
    yield "a turn of a conversation", "tenuto thread.append", lambda n: thread.append(_TURN)  # noqa: ARG005
    yield (
        "the whole state",
        "tenuto checkpoint.create",
        lambda n: agent.checkpoint.create("bench", {"turn": n, "messages": history}),
    )
    yield from _langgraph(place, stack, history)
    run = stack.enter_context(agent.run("bench"))
    yield "a durable step", "tenuto run.step", lambda n: run.step("work", lambda _: _TURN, n)


def _langgraph(place: Path, stack: ExitStack, history: list[Any]) -> Iterator[tuple[str, str, Callable[[int], Any]]]:
    try:
        from langgraph.checkpoint.base import empty_checkpoint  # noqa: PLC0415
        from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415
    except ImportError:
        return
    saver: Any = stack.enter_context(SqliteSaver.from_conn_string(str(place / "langgraph.db")))
    saver.setup()
    saver.conn.execute("PRAGMA synchronous=full")
    config: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}

    def put(n: int) -> None:
        checkpoint: Any = {
            **empty_checkpoint(),
            "channel_values": {"messages": history},
            "channel_versions": {"messages": n},
        }
        saver.put(config, checkpoint, {"source": "loop", "step": n, "parents": {}}, {})

    yield "the whole state", "LangGraph SqliteSaver.put", put


def _rewrite(path: Path, history: list[Any]) -> None:
    partial = path.with_suffix(".new")
    with partial.open("w") as file:
        json.dump(history, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def measured(turns: int, place: Path) -> list[Measured]:
    """Measure all contenders in turn, over a growing conversation of `turns` turns."""
    history: list[Any] = []
    took: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        contenders = list(_contenders(place, stack, history))
        for n in range(1, turns + 1):
            history.append(_TURN)
            for topic, who, do in contenders:
                began = time.perf_counter()
                do(n)
                took.setdefault((topic, who), []).append(time.perf_counter() - began)
    tenth = max(turns // 10, 1)
    base = statistics.median(took["a value", "sqlite3, one row"])
    return [
        Measured(
            topic,
            who,
            round(statistics.median(times[:tenth]) * 1_000, 3),
            round(statistics.median(times[-tenth:]) * 1_000, 3),
            round(statistics.median(times[-tenth:]) / base, 1),
        )
        for (topic, who), times in took.items()
    ]


@click.group("bench", invoke_without_command=True)
@click.option("--turns", default=500, show_default=True, help="Length of the conversation.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
@guarded
def command(context: click.Context, turns: int, *, as_json: bool) -> None:
    """Compare tenuto with common alternatives on this machine, in one interleaved run, everything synced to disk.

    FIRST and LAST are medians over the first and the last tenth of a conversation of 1 KB a turn.
    """
    if context.invoked_subcommand is not None:
        return
    if turns < 10:
        raise click.UsageError("--turns must be at least 10.")
    with tempfile.TemporaryDirectory(prefix="tenuto-bench-", dir=".") as place:
        rows = measured(turns, Path(place))
    if as_json:
        show_json(rows)
    else:
        click.echo("\n".join(table(rows, Measured._fields)))


command.add_command(recall)
