"""16 processes committing to one file at FULL: who waits how long, and is every write there afterwards (P9)."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import raw
from bench.measure import Crowd, Row, Table, crowd_row, folder, rates, repeat, text
from tenuto import Tenuto

PROCESSES = 16
WORST = 0.100
_context = multiprocessing.get_context("spawn")


def run(*, quick: bool) -> Table:
    seconds, rounds = (2, 1) if quick else (5, 4)
    crowds: dict[str, list[Crowd]] = {"raw": [], "tenuto": []}
    missing, found_wrong = 0, 0
    for number in range(rounds):
        turn = [("raw", _raw_writer), ("tenuto", _tenuto_writer)]
        for who, writer in turn if number % 2 else reversed(turn):
            with folder() as path:
                crowd = _crowd(writer, path / "shared.db", seconds)
                crowds[who].append(crowd)
                if who == "tenuto":
                    missing += _missing(path / "shared.db", crowd)
                    found_wrong += _wrong(path / "shared.db")
    rows = [
        crowd_row("raw, BEGIN IMMEDIATE", crowds["raw"]),
        crowd_row("state.set", crowds["tenuto"]),
    ]
    rows[1].ratio = str(rates(crowds["tenuto"], crowds["raw"]))
    rows[1].target, rows[1].met = "worst <= 100 ms", rows[1].worst <= WORST
    for who, row in zip(("raw", "state.set"), rows[:2], strict=True):
        met = crowds["raw" if who == "raw" else "tenuto"]
        low, high = min(crowd.shares[0] for crowd in met), max(crowd.shares[1] for crowd in met)
        rows.append(Row(f"{who}: share of a process, least and most", ratio=f"{low:.2f}x to {high:.2f}x"))
        row.detail["shares"] = [crowd.shares for crowd in met]
    errors = rows[1].detail["errors"]
    acknowledged = sum(len(crowd.calls) for crowd in crowds["tenuto"])
    rows += [
        Row(f"state.set: {len(errors)} errors", target="none", met=not errors),
        Row(f"state.set: {missing} of {acknowledged:,} acknowledged writes missing", target="none", met=not missing),
        Row(f"state.set: {found_wrong} findings of store.check", target="none", met=not found_wrong),
    ]
    return Table(
        f"Processes: {PROCESSES} of them, 1 KB commits to one file at FULL",
        rows,
        ["The ratio of throughput is to the raw driver, of a share to an even one. A wait is one whole call."],
    )


def _crowd(writer: Callable[..., Callable[[int], Any]], path: Path, seconds: float) -> Crowd:
    ready = _context.Barrier(PROCESSES + 1)
    outcomes = _context.Queue()
    writer(path, -1)(0)  # the file is made before the crowd comes
    children = [
        _context.Process(target=_child, args=(writer, path, number, seconds, ready, outcomes))
        for number in range(PROCESSES)
    ]
    for child in children:
        child.start()
    ready.wait()
    began = time.perf_counter()
    found = sorted(outcomes.get() for _ in children)
    took = time.perf_counter() - began
    for child in children:
        child.join()
    return Crowd([took for _, took, _ in found], took, [error for _, _, errors in found for error in errors])


def _child(
    writer: Callable[..., Callable[[int], Any]], path: Path, number: int, seconds: float, ready, outcomes
) -> None:
    call = writer(path, number)
    ready.wait()
    took, errors = repeat(call, time.perf_counter() + seconds)
    outcomes.put((number, took, errors))


def _raw_writer(path: Path, number: int) -> Callable[[int], Any]:
    own = raw.Inserts(path, "full")
    return lambda n: own.write_immediate(text(n).encode())


def _tenuto_writer(path: Path, number: int) -> Callable[[int], Any]:
    agent = Tenuto(f"process-{number}", path).open()
    return lambda n: agent.state.set(f"scope-{number}", f"key-{n % 10}", text(n))


def _missing(path: Path, crowd: Crowd) -> int:
    """Return how many acknowledged writes are not in the journal, or not as the value they left behind."""
    missing = 0
    with Tenuto("reader", path) as agent:
        for number, calls in enumerate(crowd.callers):
            scope = f"scope-{number}"
            noted = [change.value for change in agent.state.watch(scope, after=0, timeout=0.001)]
            missing += sum(1 for n in range(len(calls)) if n >= len(noted) or noted[n] != text(n))
            for n in range(max(0, len(calls) - 10), len(calls)):
                missing += agent.state.get(scope, f"key-{n % 10}") != noted[-1 - (len(noted) - 1 - n) % 10]
    return missing


def _wrong(path: Path) -> int:
    with Tenuto("reader", path) as agent:
        return len(agent.store.check().findings)
