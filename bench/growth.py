"""What a call costs as a store grows: turns, steps, memories, waiting runs, ten to ten thousand and more.

Each point is the median of a few dozen calls at that size. `make peers` also measures the peers that are installed there
and draws the plot; without them the table has tenuto and the raw driver alone.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import idle, raw
from bench.measure import RESULTS, Row, Table, folder, text
from bench.peers import PEERS, turn
from tenuto import Tenuto

Points = dict[int, float]
"""Seconds (or a share of a core) at each size."""
CALLS = 21
COLUMNS = (10, 100, 1_000, 10_000, 100_000)
SLOW = {"SqliteSaver.put": "LangGraph SqliteSaver.put", "SQLiteSession": "OpenAI Agents SQLiteSession"}
"""Peers of a conversation, which are measured up to 1,000 turns: beyond, a run takes hours or gigabytes."""


def run(*, quick: bool) -> Table:
    sizes = [10, 100, 1_000] if quick else [10, 100, 1_000, 10_000]
    memories = [1_000, 10_000] if quick else [1_000, 10_000, 100_000]
    panels = {
        "a turn (ms)": _turns(sizes),
        "a run (ms)": _steps(sizes),
        "a recall (ms)": _memories(memories),
        "an idle worker (% of a core)": _waiting(sizes, 3.0 if quick else 10.0),
    }
    rows = [_row(f"{panel}: {name}", points) for panel, lines in panels.items() for name, points in lines.items()]
    notes = ["The ratio is the largest size against the smallest."]
    if importlib.util.find_spec("matplotlib"):
        notes.append(f"The plot is {_plot(panels, RESULTS / 'growth.png')}.")
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
    for name, (maker, package) in PEERS.items():
        shown = next((short for short, long in SLOW.items() if long == name), None)
        if shown and importlib.util.find_spec(package.replace("-", "_").split("_")[0] if package else "json"):
            with folder() as path, contextlib.suppress(ImportError):
                peer = maker(path)
                lines[shown] = _grown([size for size in sizes if size <= 1_000], peer.save)
                peer.close()
    return lines


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


class _Stop(BaseException):
    """Ends a run as a kill would: it stays resumable."""


def _steps(sizes: list[int]) -> dict[str, Points]:
    steps: Points = {}
    resumes: Points = {}
    for size in sizes:
        with folder() as path:
            with contextlib.closing(Tenuto("bench", path / "store.db")) as agent:
                steps[size] = _run_of(agent, size)
            resumes[size] = statistics.median(_resume(path, size) for _ in range(3))
    return {"a step, after so many": steps, "a resume of so many": resumes}


def _run_of(agent: Tenuto, size: int) -> float:
    with contextlib.suppress(_Stop), agent.run("r") as run:
        for number in range(max(0, size - CALLS)):
            run.step("s", text, number)
        took = _median(lambda number: run.step("s", text, number), max(0, size - CALLS))
        raise _Stop
    return took


def _resume(path: Path, size: int) -> float:
    with contextlib.closing(Tenuto("bench", path / "store.db")) as agent:
        agent.open()
        began = time.perf_counter()
        with contextlib.suppress(_Stop), agent.run("r") as run:
            for number in range(size):
                run.step("s", text, number)
            raise _Stop
        return time.perf_counter() - began


# -- memories and waiting runs -------------------------------------------------------------------


def _memories(sizes: list[int]) -> dict[str, Points]:
    points: Points = {}
    words = [
        f"{syllable}{end}"
        for syllable in ("ar", "bel", "cor", "dun", "el", "fam")
        for end in ("to", "ris", "mond", "via")
    ]
    with folder() as path, contextlib.closing(Tenuto("bench", path / "store.db", durability="process")) as agent:
        made = 0
        for size in sizes:
            for number in range(made, size):
                agent.memory.remember(f"{words[number % 24]} {words[number // 24 % 24]} holds {number}", user="u")
            made = size
            agent.memory.recall("warm", user="u")
            points[size] = _median(lambda number: agent.memory.recall(f"{words[number % 24]} holds", user="u"))
    return {"recall": points}


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

    figure, places = plt.subplots(1, len(panels), figsize=(17, 4.2), layout="constrained")
    labels = ("turns", "steps", "memories", "waiting runs")
    for axes, (title, lines), label in zip(places, panels.items(), labels, strict=True):
        for name, points in lines.items():
            scale = 100 if "core" in title else 1e3
            style = ":" if name == "raw insert" else "--" if name in SLOW else "-"
            axes.plot(list(points), [value * scale for value in points.values()], style, marker="o", label=name)
        axes.set(title=title, xlabel=label, xscale="log", yscale="log")
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize=8, frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
