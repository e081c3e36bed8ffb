"""A conversation of 1,000 turns, saved after every turn: tenuto beside what people use today (P2, P3).

It needs the peers: `make peers` installs them beside, and runs this. Everyone goes through the same turns in
short rounds, in an order shuffled anew each time.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import raw
from bench.measure import RESULTS, Row, Table, folder, text
from bench.peers import PEERS, Turn, turn
from tenuto import Tenuto

MARKS = (10, 100, 1_000)
ROUND = 10
RAW, CREATE, APPEND = "raw 1 KB insert", "tenuto checkpoint.create", "tenuto thread.append"


def run(*, quick: bool) -> Table:
    turns = 200 if quick else 1_000
    missing = [package for _, package in PEERS.values() if package and not _version(package)]
    if missing:
        sys.exit(f"The peers {', '.join(sorted(set(missing)))} are not installed here; run: make peers")
    with folder() as path, contextlib.ExitStack() as stack:
        contenders, folders = _contenders(path, stack)
        took, sizes = _go(contenders, folders, turns)
        edits = _edited(path / "edits", 100 if quick else 300)
        stack.close()
        final = {name: _size(where) for name, where in folders.items()}
    plot = _plot(took, sizes, RESULTS / "history.png")
    rows = [_row(name, took, final, turns) for name in contenders]
    rows += _judged(took, final, turns, edits)
    return Table(
        f"A conversation of {turns:,} turns of 1 KB, saved after every turn, FULL",
        rows,
        [
            "A time is the median of the ten turns up to that one. Bytes are those on disk at the end, all history included.",
            "`checkpoint.create` is given the whole state each time and finds the change; `thread.append` the turn alone.",
            "json, diskcache and SQLiteSession keep only the newest state; the others can go back to every turn.",
            "Peers: " + ", ".join(f"{name} {_version(name)}" for name in sorted({p for _, p in PEERS.values() if p})),
            f"The plot is {plot}.",
        ],
    )


def _contenders(path: Path, stack: contextlib.ExitStack) -> tuple[dict[str, Turn], dict[str, Path]]:
    contenders: dict[str, Turn] = {}
    folders: dict[str, Path] = {}
    for name in [RAW, CREATE, APPEND, *PEERS]:
        folders[name] = path / f"{len(folders)}"
        folders[name].mkdir()
        if name in PEERS:
            contenders[name] = PEERS[name][0](folders[name])
    inserts = raw.Inserts(folders[RAW] / "raw.db", "full")
    stack.callback(inserts.connection.close)
    contenders[RAW] = lambda number: inserts.write(text(number).encode())
    creating = stack.enter_context(contextlib.closing(Tenuto("bench", folders[CREATE] / "tenuto.db")))
    state: dict[str, Any] = {"messages": [], "step": 0}

    def create(number: int) -> None:
        state["messages"].extend(turn(number))
        state["step"] = number
        creating.checkpoint.create("auto", state, thread="bench")

    contenders[CREATE] = create
    appending = stack.enter_context(contextlib.closing(Tenuto("bench", folders[APPEND] / "tenuto.db")))
    thread = appending.thread("bench")
    contenders[APPEND] = lambda number: thread.append(*turn(number))
    return {name: contenders[name] for name in folders}, folders


def _go(
    contenders: dict[str, Turn], folders: dict[str, Path], turns: int
) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    took: dict[str, list[float]] = {name: [] for name in contenders}
    sizes: dict[str, list[int]] = {name: [] for name in contenders}
    order = list(contenders)
    chance = random.Random(5)
    for start in range(0, turns, ROUND):
        chance.shuffle(order)
        for name in order:
            save = contenders[name]
            for number in range(start, start + ROUND):
                began = time.perf_counter()
                save(number)
                took[name].append(time.perf_counter() - began)
            sizes[name].append(_size(folders[name]))
    return took, sizes


def _edited(path: Path, turns: int) -> tuple[int, int]:
    """Edit a state at random places, 1 KB each time; return the bytes written by the program and on disk."""
    path.mkdir()
    chance = random.Random(3)
    written = 0
    with contextlib.closing(Tenuto("bench", path / "tenuto.db")) as agent:
        state = {"rows": [{"n": n, "text": text(n)} for n in range(200)]}
        written += 200 * 1_000
        agent.checkpoint.create("auto", state, thread="bench")
        for number in range(turns):
            state["rows"][chance.randrange(200)]["text"] = text(1_000 + number)
            written += 1_000
            agent.checkpoint.create("auto", state, thread="bench")
    return written, _size(path)


def _row(name: str, took: dict[str, list[float]], final: dict[str, int], turns: int) -> Row:
    at = {mark: _at(took[name], mark) for mark in MARKS if mark <= turns}
    times = ", ".join(f"turn {mark:,}: {seconds * 1e3:.2f} ms" for mark, seconds in at.items())
    ratio = _at(took[name], turns) / _at(took[RAW], turns)
    return Row(
        f"{name}: {times}; {final[name] / 1e6:,.2f} MB",
        p50=_at(took[name], turns),
        ratio=f"{ratio:,.1f}x",
        detail={"at": at, "bytes": final[name], "all": took[name]},
    )


def _judged(took: dict[str, list[float]], final: dict[str, int], turns: int, edits: tuple[int, int]) -> list[Row]:
    create, plain = _at(took[CREATE], turns), _at(took[RAW], turns)
    limit = 0.0008 + 1.3 * plain
    faster = _at(took["LangGraph SqliteSaver.put"], turns) / create
    written = turns * 1_000
    graph = final["LangGraph graph, SqliteSaver"] / final[CREATE]
    rows = [
        Row(f"P2: create at turn {turns:,}", p50=create, target=f"<= {limit * 1e3:.2f} ms", met=create <= limit),
        Row("P2: faster than SqliteSaver.put", ratio=f"{faster:.1f}x", target=">= 15x", met=faster >= 15),
        Row("P3: less on disk than LangGraph's graph", ratio=f"{graph:,.0f}x", target=">= 500x", met=graph >= 500),
    ]
    for name in (CREATE, APPEND):
        ratio = final[name] / written
        rows.append(
            Row(f"P3: {name}, bytes to what was written", ratio=f"{ratio:.2f}x", target="<= 1.3x", met=ratio <= 1.3)
        )
    ratio = edits[1] / edits[0]
    rows.append(Row("P3: create under random edits", ratio=f"{ratio:.2f}x", target="<= 3x", met=ratio <= 3))
    return rows


def _at(took: list[float], mark: int) -> float:
    return statistics.median(took[max(0, mark - 10) : mark])


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.name.endswith("-shm"))


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _plot(took: dict[str, list[float]], sizes: dict[str, list[int]], path: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (times, space) = plt.subplots(1, 2, figsize=(13, 5.2), layout="constrained")
    for name, values in took.items():
        ours = name.startswith("tenuto")
        style: dict[str, Any] = {"linewidth": 2.6 if ours else 1.3, "zorder": 3 if ours else 2}
        if name == RAW:
            style["linestyle"] = ":"
        smooth = [statistics.median(values[at : at + ROUND]) * 1e3 for at in range(0, len(values), ROUND)]
        turns = [at + ROUND for at in range(0, len(values), ROUND)]
        (line,) = times.plot(turns, smooth, label=name, **style)
        space.plot(turns, [size / 1e6 for size in sizes[name]], color=line.get_color(), label=name, **style)
    for axes, title, unit in ((times, "Time to save a turn", "ms"), (space, "On disk, all history", "MB")):
        axes.set(title=title, xlabel="turn", ylabel=unit, yscale="log")
        axes.grid(visible=True, which="major", alpha=0.3)
    space.legend(fontsize=8, loc="upper left", frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
