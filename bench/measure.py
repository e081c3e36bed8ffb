"""Measure in interleaved rounds and report ratios.

A machine's disk and neighbours change from one second to the next, so a time by itself says little. The
contenders of a comparison take turns in short rounds, shuffled anew each time, and the ratio is the median
over the rounds of (median of this one / median of the other) within the same round. The disk is a real one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import platform
import random
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import apsw

import tenuto

RESULTS = Path(__file__).parent / "results"
_chance = random.Random(7)

# -- what comes out ------------------------------------------------------------------------------


@dataclass
class Row:
    """One line of a table. Times are in seconds, `rate` is per second; what is None is left out."""

    what: str
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    worst: float | None = None
    rate: float | None = None
    mean: float | None = None
    processor: float | None = None
    """Seconds of processor time per call."""
    written: float | None = None
    """Bytes written to storage per call."""
    ratios: dict[str, str] = field(default_factory=dict)
    """For a row of ratios: what stands in which column."""
    shares: str | None = None
    ratio: str | None = None
    target: str | None = None
    met: bool | None = None
    detail: dict[str, Any] = field(default_factory=dict)
    """Goes into the JSON only."""


@dataclass
class Table:
    """What one topic found."""

    title: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


def environment() -> dict[str, Any]:
    """Say on what all of this was measured."""
    return {
        "tenuto": f"{version('tenuto')} ({commit_of(Path(tenuto.__file__).parent)})",
        "python": platform.python_version(),
        "apsw": apsw.apsw_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "disk": filesystem(bench_dir()),
    }


def commit_of(where: Path) -> str:
    """Return the commit of a checkout, and whether anything was changed since."""
    command = ["git", "-C", str(where), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def save(name: str, table: Table, about: Mapping[str, Any]) -> Path:
    """Write a table as JSON."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    path.write_text(json.dumps({"topic": name, "at": at, "environment": about, **asdict(table)}, indent=2) + "\n")
    return path


def show(table: Table) -> None:
    """Print a table, without the columns that nothing in it has."""
    cells = [
        {
            "what": row.what,
            "p50": _duration(row.p50),
            "mean": _duration(row.mean),
            "p95": _duration(row.p95),
            "p99": _duration(row.p99),
            "worst": _duration(row.worst),
            "per second": "" if row.rate is None else f"{row.rate:,.0f}",
            "processor": _duration(row.processor),
            "written": "" if row.written is None else f"{row.written / 1000:,.1f} KB",
            "shares": row.shares or "",
            "ratio": row.ratio or "",
            "target": row.target or "",
            "met": {None: "", True: "yes", False: "NO"}[row.met],
            **row.ratios,
        }
        for row in table.rows
    ]
    names = [name for name in dict.fromkeys(name for cell in cells for name in cell) if any(map(_has(name), cells))]
    widths = {name: max(len(name), *(len(cell.get(name, "")) for cell in cells)) for name in names}
    print(f"\n## {table.title}\n")
    print("| " + " | ".join(name.ljust(widths[name]) for name in names) + " |")
    print("|" + "|".join("-" * (widths[name] + 2) for name in names) + "|")
    for cell in cells:
        print("| " + " | ".join(cell.get(name, "").ljust(widths[name]) for name in names) + " |")
    print()
    for note in table.notes:
        print(f"* {note}")


def _has(name: str) -> Callable[[Mapping[str, str]], bool]:
    return lambda cell: bool(cell.get(name))


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e6:,.1f} us" if seconds < 0.001 else f"{seconds * 1e3:,.2f} ms"


# -- one caller: what a call takes ---------------------------------------------------------------


@dataclass
class Samples:
    """What the calls of one contender took, in seconds, round by round."""

    rounds: list[list[float]] = field(default_factory=list)

    def quantile(self, share: float) -> float:
        return quantile([took for took_in_round in self.rounds for took in took_in_round], share)

    def row(self, what: str) -> Row:
        mean = statistics.fmean(took for took_in_round in self.rounds for took in took_in_round)
        return Row(what, self.quantile(0.5), p99=self.quantile(0.99), detail={"mean": mean})

    def against(self, other: Samples) -> Ratio:
        """Compare medians round by round."""
        pairs = zip(self.rounds, other.rounds, strict=True)
        return Ratio([statistics.median(own) / statistics.median(others) for own, others in pairs])


@dataclass
class Ratio:
    """A ratio, once for each round."""

    rounds: list[float]

    @property
    def value(self) -> float:
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        low, high = quantile(self.rounds, 0.25), quantile(self.rounds, 0.75)
        return f"{self.value:.2f}x ({low:.2f}-{high:.2f})"


def quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def take_turns(
    contenders: Mapping[str, Callable[[int], Any]], *, rounds: int, calls: int, warmup: int = 0
) -> dict[str, Samples]:
    """Time `calls` calls of each contender a round, in an order shuffled anew every round.

    A contender gets the number of the call, so that it can go through keys. After `warmup` calls each
    the write-ahead logs have gone round once: from then on they are written over, not made longer.
    """
    found = {name: Samples() for name in contenders}
    numbers = dict.fromkeys(contenders, 0)
    order = list(contenders)
    clock = time.perf_counter
    for count in [warmup, *[calls] * rounds]:
        _chance.shuffle(order)
        for name in order:
            call, took = contenders[name], []
            for number in range(numbers[name], numbers[name] + count):
                began = clock()
                call(number)
                took.append(clock() - began)
            numbers[name] += count
            found[name].rounds.append(took)
    for samples in found.values():
        del samples.rounds[0]
    return found


# -- many callers: how many calls a second, and who waits ----------------------------------------


@dataclass
class Crowd:
    """What many callers at once saw in so many seconds: each one's calls, and what went wrong."""

    callers: list[list[float]]
    seconds: float
    errors: list[str]

    @property
    def calls(self) -> list[float]:
        return [took for caller in self.callers for took in caller]

    @property
    def rate(self) -> float:
        # The last call of each ends after the time is up; it counts as a wait, not as work done in time.
        return sum(max(0, len(caller) - 1) for caller in self.callers) / self.seconds

    @property
    def shares(self) -> tuple[float, float]:
        """Return the smallest and the largest caller's part, 1.0 being an even share."""
        counts = [len(caller) for caller in self.callers]
        even = sum(counts) / len(counts) or 1
        return min(counts) / even, max(counts) / even


def crowd_row(what: str, crowds: Sequence[Crowd]) -> Row:
    """Tell several rounds of the same crowd as one line: the median rate, the worst wait of all."""
    calls = [took for crowd in crowds for took in crowd.calls]
    least, most = min(crowd.shares[0] for crowd in crowds), max(crowd.shares[1] for crowd in crowds)
    return Row(
        what,
        quantile(calls, 0.5),
        p99=quantile(calls, 0.99),
        worst=max(calls),
        rate=statistics.median(crowd.rate for crowd in crowds),
        shares=f"{least:.2f}-{most:.2f}",
        detail={
            "rates": [crowd.rate for crowd in crowds],
            "worst waits": [max(crowd.calls) for crowd in crowds],
            "shares": [crowd.shares for crowd in crowds],
            "errors": [error for crowd in crowds for error in crowd.errors],
        },
    )


def rates(crowds: Sequence[Crowd], others: Sequence[Crowd]) -> Ratio:
    """Compare throughput round by round."""
    return Ratio([own.rate / other.rate for own, other in zip(crowds, others, strict=True)])


def repeat(call: Callable[[int], Any], until: float) -> tuple[list[float], list[str]]:
    """Call until a moment of `perf_counter`; return what the calls took and the error that ended it."""
    took, errors, number = [], [], 0
    clock = time.perf_counter
    began = clock()
    while began < until:
        try:
            call(number)
        except Exception as error:
            errors.append(repr(error))
            break
        number += 1
        ended = clock()
        took.append(ended - began)
        began = ended
    return took, errors


def in_threads(makers: Sequence[Callable[[], Callable[[int], Any]]], seconds: float) -> Crowd:
    """Let one thread for each maker call what it made, all at once, for so many seconds."""
    ready = threading.Barrier(len(makers) + 1)
    until = 0.0
    outcomes: list[tuple[list[float], list[str]]] = []

    def work(maker: Callable[[], Callable[[int], Any]]) -> None:
        try:
            call = maker()
        except BaseException:
            ready.abort()  # or all others would wait for this one
            raise
        ready.wait()
        ready.wait()
        outcomes.append(repeat(call, until))

    threads = [threading.Thread(target=work, args=(maker,)) for maker in makers]
    for thread in threads:
        thread.start()
    ready.wait()
    settle()
    until = time.perf_counter() + seconds
    ready.wait()
    for thread in threads:
        thread.join()
    return Crowd([took for took, _ in outcomes], seconds, [error for _, errors in outcomes for error in errors])


# -- where ---------------------------------------------------------------------------------------


def settle() -> None:
    """Collect garbage and write pages, so that no contender pays for the one before."""
    gc.collect()
    if hasattr(os, "sync"):
        os.sync()


def bench_dir() -> Path:
    """Return the folder for the files: $TENUTO_BENCH_DIR, or this one."""
    return Path(os.environ.get("TENUTO_BENCH_DIR") or ".").resolve()


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """Give a new folder on a real disk, and remove it at the end."""
    kind = filesystem(bench_dir())
    if kind in ("tmpfs", "ramfs"):
        sys.exit(f"{bench_dir()} is in memory ({kind}), where a sync costs nothing. Set TENUTO_BENCH_DIR to a disk.")
    path = Path(tempfile.mkdtemp(prefix=".bench-", dir=bench_dir()))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def filesystem(path: Path) -> str:
    """Return the type of the file system that holds a folder, as far as the system tells."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return "unknown"
    holding = [mount for mount in mounts if path.is_relative_to(mount[1])]
    return max(holding, key=lambda mount: len(mount[1]))[2] if holding else "unknown"


def stored(path: Path) -> int:
    """Return the bytes of a folder whose stores are closed; a write-ahead log that is left is moved into its file."""
    for file in path.rglob("*.db"):
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file() and not file.name.endswith("-shm"))


def text(number: int, size: int = 1_000) -> str:
    """Return a text of about 1 KB that no other number has."""
    return (f"{number:08d} " + _LETTERS[number % 97 :])[:size]


_LETTERS = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz     ", k=1_200))
