"""16 processes committing to one file at FULL: who waits how long, and is every write there afterwards (P9)."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import raw
from bench.measure import Crowd, Row, Table, crowd_row, folder, rates, repeat, settle, text
from tenuto import Tenuto

PROCESSES = 16
WORST = 0.100
Writer = Callable[[Path, int], Callable[[int], Any]]
_context = multiprocessing.get_context("spawn")


def run(*, quick: bool) -> Table:
    seconds, rounds = (2, 1) if quick else (5, 4)
    crowds: dict[str, list[Crowd]] = {"raw": [], "tenuto": []}
    missing = wrong = 0
    for number in range(rounds):
        turn = [("raw", _raw_writer), ("tenuto", _tenuto_writer)]
        for who, writer in turn if number % 2 else reversed(turn):
            with folder() as path:
                crowds[who].append(_crowd(writer, path / "shared.db", seconds))
                if who == "tenuto":
                    missing += _missing(path / "shared.db", crowds[who][-1])
                    wrong += _wrong(path / "shared.db")
    rows = [crowd_row("raw, BEGIN IMMEDIATE", crowds["raw"]), crowd_row("state.set", crowds["tenuto"])]
    rows[1].ratio = str(rates(crowds["tenuto"], crowds["raw"]))
    rows[1].target, rows[1].met = "worst <= 100 ms", rows[1].worst <= WORST
    errors = rows[1].detail["errors"]
    acknowledged = sum(len(crowd.calls) for crowd in crowds["tenuto"])
    rows += [
        Row(f"state.set: {len(errors)} errors", target="none", met=not errors),
        Row(f"state.set: {missing} of {acknowledged:,} acknowledged writes missing", target="none", met=not missing),
        Row(f"state.set: {wrong} findings of store.check", target="none", met=not wrong),
    ]
    return Table(
        f"Processes: {PROCESSES} of them, 1 KB commits to one file at FULL",
        rows,
        [
            "The ratio is throughput to that of the raw driver. A wait is one whole call.",
            "Shares: the part of the process that got least, and of the one that got most, 1.00 being an even share.",
        ],
    )


def _crowd(writer: Writer, path: Path, seconds: float) -> Crowd:
    ready, over = _context.Barrier(PROCESSES), _context.Barrier(PROCESSES)
    outcomes = _context.Queue()
    writer(path, -1)(0)  # the file is made before the crowd comes
    settle()
    children = [
        _context.Process(target=_child, args=(writer, path, number, seconds, ready, over, outcomes))
        for number in range(PROCESSES)
    ]
    for child in children:
        child.start()
    found = sorted(outcomes.get() for _ in children)
    for child in children:
        child.join()
    return Crowd([took for _, took, _ in found], seconds, [error for _, _, errors in found for error in errors])


def _child(writer: Writer, path: Path, number: int, seconds: float, ready: Any, over: Any, outcomes: Any) -> None:
    call = writer(path, number)
    ready.wait()
    took, errors = repeat(call, time.perf_counter() + seconds)
    over.wait()  # a process that ends takes the machine's time from those that still write
    outcomes.put((number, took, errors))


def _raw_writer(path: Path, number: int) -> Callable[[int], Any]:
    own = raw.Inserts(path, "full")
    return lambda n: own.write_immediate(text(n).encode())


def _tenuto_writer(path: Path, number: int) -> Callable[[int], Any]:
    agent = Tenuto(f"process-{number}", path).open()
    return lambda n: agent.state.set(f"scope-{number}", f"key-{n % 10}", text(n))


def _missing(path: Path, crowd: Crowd) -> int:
    """Return how many acknowledged writes are not in the journal, or not what was left under their key."""
    missing = 0
    with Tenuto("reader", path) as agent:
        for number, calls in enumerate(crowd.callers):
            scope = f"scope-{number}"
            noted = [change.value for change in agent.state.watch(scope, after=0, timeout=0.001)]
            missing += sum(noted[n : n + 1] != [text(n)] for n in range(len(calls)))
            for key, value in agent.state.items(scope).items():
                missing += value != next(text(n) for n in reversed(range(len(noted))) if f"key-{n % 10}" == key)
    return missing


def _wrong(path: Path) -> int:
    with Tenuto("reader", path) as agent:
        return len(agent.store.check().findings)
