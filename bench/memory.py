"""Memory: `remember` next to `state.set`, and `recall` in scopes of 1,000, 10,000 and 100,000 memories, warm and cold (P12).

The texts are random words, some of them frequent; a query has five words. Cold is the first recall of a new client, which
reads all memories of the scope. Recall does not write; the store is filled at NORMAL, and `remember` is measured at FULL.
"""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Iterator

from bench import servers
from bench.measure import Row, Table, folder
from tenuto import Tenuto

SIZES = (1_000, 10_000, 100_000)
WARM = {1_000: 0.002, 10_000: 0.006, 100_000: 0.030}
COLD = {10_000: 0.300}
RATIO = 2.0
_chance = random.Random(7)
_LETTERS = ("bcdfghklmnprst", "aeiou")
_VOCABULARY = [
    "".join(_chance.choice(_LETTERS[at % 2]) for at in range(_chance.choice((4, 6, 8)))) for _ in range(8_000)
]
_WEIGHTS = [1 / (rank + 5) for rank in range(len(_VOCABULARY))]


def words(count: int) -> str:
    return " ".join(_chance.choices(_VOCABULARY, _WEIGHTS, k=count))


def run(*, quick: bool) -> Table:
    rows: list[Row] = []
    sizes = SIZES[:2] if quick else SIZES
    with folder() as path:
        rows += _remembering(str(path / "full.db"), "SQLite", quick=quick)
        rows += _recalling(str(path / "store.db"), "SQLite", sizes)
    with folder() as path, servers.postgres(path) as server:
        rows += _remembering(server.url, "Postgres", quick=quick)
        rows += _recalling(server.url, "Postgres", sizes[:2])
    with folder() as path, servers.valkey(path, "always") as server:
        rows += _recalling(server.url(), "Valkey", sizes[:2])
    return Table(
        "Memory: remember and recall",
        rows,
        [
            "Recall searches the tenant's scope (empty) and one user's; it reads the five memories that it returns.",
            "Every backend has the same index, in the process; a warm recall asks the store for what is new.",
        ],
    )


def _remembering(url: str, where: str, *, quick: bool) -> list[Row]:
    with contextlib.closing(Tenuto("bench", url)) as agent:
        counter = iter(range(1_000_000_000))
        calls = {
            "state.set": lambda: agent.state.set("bench", f"key-{next(counter) % 100}", words(12)),
            "remember": lambda: agent.memory.remember(f"{words(12)} {next(counter)}", user="bench"),
        }
        took: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(100 if quick else 500):
            for name, call in calls.items():
                began = time.perf_counter()
                call()
                took[name].append(time.perf_counter() - began)
    base = statistics.median(took["state.set"])
    rows = []
    for name, times in took.items():
        ratio = statistics.median(times) / base
        met = None if name == "state.set" else ratio <= RATIO
        row = _row(f"{where}: {name}", times)
        row.ratio, row.target, row.met = f"{ratio:.2f}x", None if met is None else f"<= {RATIO:g}x", met
        rows.append(row)
    return rows


def _row(what: str, times: list[float]) -> Row:
    ordered = sorted(times)
    return Row(what, p50=statistics.median(ordered), p95=ordered[int(len(ordered) * 0.95)], worst=ordered[-1])


def _recalling(url: str, where: str, sizes: tuple[int, ...]) -> Iterator[Row]:
    done = 0
    for size in sizes:
        with contextlib.closing(Tenuto("bench", url, durability="process" if where == "SQLite" else "full")) as agent:
            for number in range(done, size):
                agent.memory.remember(f"{words(12)} {number}", user="ann")
            done = size
        with contextlib.closing(Tenuto("bench", url)) as agent:
            agent.open()
            began = time.perf_counter()
            agent.memory.recall(words(5), user="ann")
            cold = time.perf_counter() - began
            times = []
            for _ in range(200):
                query = words(5)
                began = time.perf_counter()
                agent.memory.recall(query, user="ann")
                times.append(time.perf_counter() - began)
        warm = _row(f"{where}: recall among {size:,}, warm", times)
        warm.target, warm.met = f"<= {WARM[size] * 1_000:g} ms", (warm.p50 or 0) <= WARM[size]
        yield warm
        first = Row(f"{where}: first recall of a client among {size:,}", p50=cold)
        if size in COLD:
            first.target, first.met = f"<= {COLD[size] * 1_000:g} ms", cold <= COLD[size]
        yield first
