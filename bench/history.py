"""A conversation of 1,000 turns, saved after every turn: tenuto and common alternatives (P2, P3).

It needs the peers: `make peers` installs them beside, and runs this. Everyone goes through the same turns in
short rounds, in an order shuffled anew each time.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import raw
from bench.measure import RESULTS, Row, Table, folder, stored, text
from bench.peers import PEERS, Peer, turn
from tenuto import Tenuto

MARKS = (10, 100, 1_000)
ROUND = 10
RAW, CREATE, APPEND = "raw 1 KB insert", "tenuto checkpoint.create", "tenuto thread.append"


def run(*, quick: bool) -> Table:
    turns = 200 if quick else 1_000
    needed = {"matplotlib", *(package for _, package in PEERS.values() if package)}
    missing = [package for package in needed if not _version(package)]
    if missing:
        sys.exit(f"The peers {', '.join(sorted(missing))} are not installed here; run: make peers")
    with folder() as path:
        contenders, folders = _contenders(path)
        took, loads, sizes = _go(contenders, folders, turns)
        edits = _edited(path / "edits", 100 if quick else 300)
        for peer in contenders.values():
            peer.close()
        final = {name: stored(where) for name, where in folders.items()}
    plot = _plot(took, sizes, RESULTS / "history.png")
    rows = [_row(name, took, loads, final, turns) for name in contenders]
    rows += _judged(took, final, turns, edits)
    return Table(
        f"A conversation of {turns:,} turns of 1 KB, saved after every turn, FULL",
        rows,
        [
            "Saving: the median of the ten turns up to that one. Loading: the whole conversation at that turn, median of five.",
            "Bytes are those on disk at the end: everybody is closed and every write-ahead log is moved into its file.",
            "A graph's turn loads its state before it saves; LangGraph does not let the two be measured apart.",
            "`checkpoint.create` is given the whole state each time and finds the change; `thread.append` the turn alone.",
            "json, diskcache and SQLiteSession keep only the newest state; the others can go back to every turn.",
            "Peers: " + ", ".join(f"{name} {_version(name)}" for name in sorted({p for _, p in PEERS.values() if p})),
            f"The plot is {plot}.",
        ],
    )


def _contenders(path: Path) -> tuple[dict[str, Peer], dict[str, Path]]:
    makers = {RAW: _raw, CREATE: _creating, APPEND: _appending, **{name: maker for name, (maker, _) in PEERS.items()}}
    folders = {name: path / f"{number}" for number, name in enumerate(makers)}
    for where in folders.values():
        where.mkdir()
    return {name: maker(folders[name]) for name, maker in makers.items()}, folders


def _raw(path: Path) -> Peer:
    inserts = raw.Inserts(path / "raw.db", "full")
    return Peer(
        lambda number: inserts.write(text(number).encode()),
        lambda: inserts.connection.execute("SELECT value FROM log ORDER BY id").fetchall(),
        inserts.connection.close,
    )


def _creating(path: Path) -> Peer:
    agent = Tenuto("bench", path / "tenuto.db")
    state: dict[str, Any] = {"messages": [], "step": 0}

    def create(number: int) -> None:
        state["messages"].extend(turn(number))
        state["step"] = number
        agent.checkpoint.create("auto", state, thread="bench")

    return Peer(create, lambda: agent.checkpoint.restore("auto", thread="bench"), agent.close)


def _appending(path: Path) -> Peer:
    agent = Tenuto("bench", path / "tenuto.db")
    thread = agent.thread("bench")
    return Peer(lambda number: thread.append(*turn(number)), lambda: agent.thread("bench").messages(), agent.close)


def _go(
    contenders: dict[str, Peer], folders: dict[str, Path], turns: int
) -> tuple[dict[str, list[float]], dict[str, dict[int, float]], dict[str, list[int]]]:
    took: dict[str, list[float]] = {name: [] for name in contenders}
    loads: dict[str, dict[int, float]] = {name: {} for name in contenders}
    sizes: dict[str, list[int]] = {name: [] for name in contenders}
    order = list(contenders)
    chance = random.Random(5)
    for start in range(0, turns, ROUND):
        chance.shuffle(order)
        for name in order:
            save = contenders[name].save
            for number in range(start, start + ROUND):
                began = time.perf_counter()
                save(number)
                took[name].append(time.perf_counter() - began)
            if start + ROUND in (*MARKS, turns):
                loads[name][start + ROUND] = statistics.median(_timed(contenders[name].load) for _ in range(5))
        for name, size in _sizes(folders).items():
            sizes[name].append(size)
    return took, loads, sizes


def _timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


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
    return written, stored(path)


def _row(
    name: str,
    took: dict[str, list[float]],
    loads: dict[str, dict[int, float]],
    final: dict[str, int],
    turns: int,
) -> Row:
    at = {mark: _at(took[name], mark) for mark in MARKS if mark <= turns}
    saved = ", ".join(f"{seconds * 1e3:.2f}" for seconds in at.values())
    loaded = ", ".join(f"{seconds * 1e3:.2f}" for seconds in loads[name].values())
    ratio = _at(took[name], turns) / _at(took[RAW], turns)
    return Row(
        f"{name}: save {saved} ms; load {loaded} ms; {final[name] / 1e6:,.2f} MB",
        p50=_at(took[name], turns),
        ratio=f"{ratio:,.1f}x",
        detail={"save": at, "load": loads[name], "bytes": final[name], "all": took[name]},
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


_MEASURE = """
import json, pathlib, sqlite3, sys
found = {}
for name, folder in json.loads(sys.argv[1]).items():
    found[name] = 0
    for file in pathlib.Path(folder).rglob("*"):
        if file.suffix == ".db":
            connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            found[name] += pages * connection.execute("PRAGMA page_size").fetchone()[0]
        elif file.is_file() and not file.name.endswith(("-wal", "-shm")):
            found[name] += file.stat().st_size
print(json.dumps(found))
"""


def _sizes(folders: dict[str, Path]) -> dict[str, int]:
    """Return what is stored, write-ahead logs folded in, without touching the files from this process."""
    given = json.dumps({name: str(path) for name, path in folders.items()})
    done = subprocess.run([sys.executable, "-c", _MEASURE, given], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _plot(took: dict[str, list[float]], sizes: dict[str, list[int]], path: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (times, space) = plt.subplots(1, 2, figsize=(14.5, 5), layout="constrained")
    for name, values in took.items():
        ours = name.startswith("tenuto")
        style: dict[str, Any] = {"linewidth": 2.6 if ours else 1.3, "zorder": 3 if ours else 2}
        if name == RAW:
            style["linestyle"] = ":"
        smooth = [statistics.median(values[at : at + ROUND]) * 1e3 for at in range(0, len(values), ROUND)]
        turns = [at + ROUND for at in range(0, len(values), ROUND)]
        (line,) = times.plot(turns, smooth, label=name, **style)
        space.plot(turns, [size / 1e6 for size in sizes[name]], color=line.get_color(), label=name, **style)
    for axes, title, unit in ((times, "Time to save a turn", "ms"), (space, "Stored", "MB")):
        axes.set(title=title, xlabel="turn", ylabel=unit, yscale="log")
        axes.set_xlim(0, len(next(iter(took.values()))))
        axes.grid(visible=True, which="major", alpha=0.3)
    figure.legend(*space.get_legend_handles_labels(), fontsize=9, loc="outside right center", frameon=False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=130)
    return path
