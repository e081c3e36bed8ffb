"""What a call costs as a store grows: turns, steps, memories, waiting runs, ten to ten thousand and more.

Each point is the median of a few dozen calls at that size. `make peers` also measures the peers that are installed there
and draws the plot, `docs/images/growth.svg`; without them the table has tenuto and the raw driver alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import sqlite3
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import idle, raw
from bench.child import HERE, Child
from bench.measure import RESULTS, Row, Table, folder, text
from bench.peers import PEERS, tenuto_graph, turn
from tenuto import Tenuto

Points = dict[int, float]
"""Seconds (or a share of a core) at each size."""
CALLS = 21
OTHERS = ("graph, SqliteSaver", "SQLiteSession", "DBOS", "SQLite FTS5")
COLUMNS = (10, 100, 1_000, 10_000, 100_000)
CONVERSATIONS = {
    "graph, TenutoSaver": (tenuto_graph, "langgraph"),
    "graph, SqliteSaver": PEERS["LangGraph graph, SqliteSaver"],
    "SQLiteSession": PEERS["OpenAI Agents SQLiteSession"],
}
"""Measured up to 1,000 turns: beyond, a run takes hours or gigabytes."""


def run(*, quick: bool) -> Table:
    sizes = [10, 100, 1_000] if quick else [10, 100, 1_000, 10_000]
    memories = [1_000, 10_000] if quick else [1_000, 10_000, 100_000]
    panels = {
        "a turn (ms)": _turns(sizes),
        "a step (ms)": _steps(sizes),
        "a resume (ms)": _resumes(sizes),
        "a recall (ms)": _memories(memories),
        "an idle worker (% of a core)": _waiting(sizes, 3.0 if quick else 10.0),
    }
    rows = [_row(f"{panel}: {name}", points) for panel, lines in panels.items() for name, points in lines.items()]
    notes = ["The ratio is the largest size against the smallest."]
    if importlib.util.find_spec("matplotlib"):
        place = RESULTS if quick else HERE / "docs" / "images"
        notes.append(f"The plot is {_plot(panels, place / 'growth.svg')}.")
    return Table("What a call costs as the store grows, SQLite at FULL", rows, notes)


def _row(what: str, points: Points) -> Row:
    shown = {f"{size:,}": "" for size in COLUMNS}
    shown |= {f"{size:,}": f"{value:.2%}" if "core" in what else f"{value * 1e3:.3g}" for size, value in points.items()}
    first, last = points[min(points)], points[max(points)]
    return Row(what, ratios=shown, ratio=f"{last / first:.1f}x" if first else None, detail={"points": points})


def _median(call: Callable[[int], Any], start: int = 0) -> float:
    took = []
    for number in range(CALLS):
        began = time.perf_counter()
        call(start + number)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


# -- a conversation ------------------------------------------------------------------------------


def _turns(sizes: list[int]) -> dict[str, Points]:
    lines: dict[str, Points] = {}
    with folder() as path:
        inserts = raw.Inserts(path / "raw.db", "full")
        lines["raw insert"] = _grown(sizes, lambda number: inserts.write(text(number).encode()))
        inserts.connection.close()
        with contextlib.closing(Tenuto("bench", path / "append.db")) as agent:
            thread = agent.thread("bench")
            lines["thread.append"] = _grown(sizes, lambda number: thread.append(*turn(number)))
        with contextlib.closing(Tenuto("bench", path / "create.db")) as agent:
            lines["checkpoint.create"] = _grown(sizes, _creating(agent))
    for name, (maker, package) in CONVERSATIONS.items():
        if _installed(package):
            with folder() as path:
                peer = maker(path)
                lines[name] = _grown([size for size in sizes if size <= 1_000], peer.save)
                peer.close()
    return lines


def _installed(package: str) -> bool:
    return importlib.util.find_spec({"openai-agents": "agents"}.get(package, package)) is not None


def _creating(agent: Tenuto) -> Callable[[int], Any]:
    state: dict[str, Any] = {"messages": [], "step": 0}

    def create(number: int) -> None:
        state["messages"].extend(turn(number))
        state["step"] = number
        agent.checkpoint.create("auto", state, thread="bench")

    return create


def _grown(sizes: list[int], save: Callable[[int], Any]) -> Points:
    """Save turn after turn; measure the last calls before each size."""
    points, done = {}, 0
    for size in sizes:
        while done < size - CALLS:
            save(done)
            done += 1
        points[size] = _median(save, done)
        done += CALLS
    return points


# -- runs ----------------------------------------------------------------------------------------


RUNS = {"tenuto": ("tenuto", "tenuto"), "DBOS": ("dbos", "dbos")}
"""Contenders of `bench.durable`, and the package that each needs."""


def _steps(sizes: list[int]) -> dict[str, Points]:
    """Return what a step takes after so many in one run."""
    lines: dict[str, Points] = {}
    for name, (system, package) in RUNS.items():
        if _installed(package):
            lines[name] = {size: statistics.median(_asked(system, "steps", size)[0]["took"][-CALLS:]) for size in sizes}
    return lines


def _resumes(sizes: list[int]) -> dict[str, Points]:
    """Return what the replay of so many finished steps takes in a fresh process, the store being open."""
    lines: dict[str, Points] = {}
    for name, (system, package) in RUNS.items():
        if _installed(package):
            times = 3 if system == "tenuto" else 1
            told = {size: _asked(system, "resume", size, times=times)[1:] for size in sizes}
            lines[name] = {size: statistics.median(map(_replayed, found)) for size, found in told.items()}
    return lines


def _replayed(told: dict[str, float]) -> float:
    return told["reached"] - told.get("body", told.get("opened", told["began"]))


def _asked(system: str, order: str, size: int, *, times: int = 0) -> list[Any]:
    """Give an order to a fresh process, and again to so many others on the same store."""
    found = []
    with folder() as path:
        for number in range(1 + times):
            child = Child("bench.durable", system, str(path / "store.db"), "{}", log=path / f"{number}.log")
            try:
                if order == "steps":
                    child.ask("open")
                found.append(child.ask(order, size, *([number == 0] if order == "resume" else [])))
            finally:
                child.end()
    return found


# -- memories and waiting runs -------------------------------------------------------------------


def _memories(sizes: list[int]) -> dict[str, Points]:
    own, plain = Points(), Points()
    words = [
        f"{syllable}{end}"
        for syllable in ("ar", "bel", "cor", "dun", "el", "fam")
        for end in ("to", "ris", "mond", "via")
    ]
    with (
        folder() as path,
        contextlib.closing(Tenuto("bench", path / "store.db", durability="process")) as agent,
        contextlib.closing(sqlite3.connect(path / "plain.db")) as table,
    ):
        table.execute("CREATE VIRTUAL TABLE texts USING fts5(text)")
        made = 0
        for size in sizes:
            for number in range(made, size):
                said = f"{words[number % 24]} {words[number // 24 % 24]} holds {number}"
                agent.memory.remember(said, user="u")
                table.execute("INSERT INTO texts VALUES (?)", (said,))
            made = size
            agent.memory.recall("warm", user="u")
            own[size] = _median(lambda number: agent.memory.recall(f"{words[number % 24]} holds", user="u"))
            plain[size] = _median(
                lambda number: table.execute(
                    "SELECT text FROM texts WHERE texts MATCH ? ORDER BY rank LIMIT 5",
                    (f"{words[number % 24]} OR holds",),
                ).fetchall()
            )
    return {"recall": own, "SQLite FTS5": plain}


def _waiting(sizes: list[int], seconds: float) -> dict[str, Points]:
    points = {}
    for size in sizes:
        with folder() as path:
            points[size] = idle.share_of(str(path / "store.db"), size, seconds)
    return {"idle worker": points}


def _plot(panels: dict[str, dict[str, Points]], path: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.fonttype"] = "none"  # texts, not outlines
    mpl.rcParams["svg.hashsalt"] = "tenuto"
    figure, places = plt.subplots(1, len(panels), figsize=(19, 4.2), layout="constrained")
    labels = ("turns", "steps before it", "finished steps", "memories", "waiting runs")
    for axes, (title, lines), label in zip(places, panels.items(), labels, strict=True):
        for name, points in lines.items():
            scale = 100 if "core" in title else 1e3
            style = ":" if name == "raw insert" else "--" if name in OTHERS else "-"
            axes.plot(list(points), [value * scale for value in points.values()], style, marker="o", label=name)
        axes.set(title=title, xlabel=label, xscale="log")
        if "core" in title:
            axes.set_ylim(0, 1.2)  # the goal is 1 %
        else:  # whole decades: noise must not look like a slope
            shown = [value * scale for points in lines.values() for value in points.values()]
            axes.set(
                yscale="log", ylim=(10 ** math.floor(math.log10(min(shown))), 10 ** math.ceil(math.log10(max(shown))))
            )
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize=8, frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
