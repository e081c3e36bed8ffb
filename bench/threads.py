"""Many threads committing to one file at FULL: one client against a raw connection for each thread (P8)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import raw
from bench.measure import Crowd, Row, Table, crowd_row, folder, in_threads, rates, take_turns, text
from tenuto import Tenuto

FASTER, WORST = 5.0, 0.050


def run(*, quick: bool) -> Table:
    rows: list[Row] = []
    for count in (16, 64):
        with folder() as path:
            rows += _crowd(path, count, quick=quick)
    with folder() as path:
        rows += _alone(path, quick=quick)
    return Table(
        "Threads: 1 KB commits to one file at FULL",
        rows,
        [
            (
                "The ratio of a crowd is throughput to that of raw connections, one for each thread, each with BEGIN "
                "IMMEDIATE and a busy timeout of 30 s. A wait is one whole call. Shares: the part of the thread that got "
                "least, and of the one that got most, 1.00 being an even share."
            ),
            (
                "The disk by itself: 8 KB written over what a file has, and a sync. A wait is not shorter than the disk's. "
                "Group commit only: the raw insert, made by whoever leads for all who wait; what threads of Python come "
                "to before anything is encoded, versioned, journalled or kept."
            ),
            (
                "One thread: the ratio is p50 to the raw insert. `raw, same rows` writes the rows and pages that `state.set` "
                "writes and nothing else; not slower than its own connection means 1.0x of that."
            ),
        ],
    )


def _crowd(path: Path, count: int, *, quick: bool) -> list[Row]:
    seconds, rounds = (2, 1) if quick else (4, 4)
    crowds: dict[str, list[Crowd]] = {"raw": [], "grouped": [], "tenuto": [], "disk": []}
    grouped, disk = raw.GroupedInserts(path / "grouped.db"), raw.Syncs(path / "disk")
    with contextlib.closing(Tenuto("bench", path / "tenuto.db")) as agent:
        for number in range(rounds):
            turn = [
                ("raw", [_raw_thread(path / "raw.db") for _ in range(count)]),
                ("grouped", [_grouped_thread(grouped) for _ in range(count)]),
                ("tenuto", [_tenuto_thread(agent, thread) for thread in range(count)]),
                ("disk", [lambda: disk.write]),
            ]
            for who, makers in turn if number % 2 else reversed(turn):
                crowds[who].append(in_threads(makers, seconds))
    ratio = rates(crowds["tenuto"], crowds["raw"])
    rows = [
        crowd_row("The disk by itself, one thread", crowds["disk"]),
        crowd_row(f"{count} threads: raw connections", crowds["raw"]),
        crowd_row(f"{count} threads: one connection, group commit only", crowds["grouped"]),
        crowd_row(f"{count} threads: one client", crowds["tenuto"]),
    ]
    rows[2].ratio, rows[3].ratio = str(rates(crowds["grouped"], crowds["raw"])), str(ratio)
    errors = rows[3].detail["errors"]
    if count == 64:
        rows[3].target, rows[3].met = f">= {FASTER:g}x", ratio.value >= FASTER
        waits = ", ".join(f"{wait * 1_000:.0f}" for wait in rows[3].detail["worst waits"])
        wait = Row(f"64 threads: worst wait of one client (by round: {waits} ms)", worst=rows[3].worst)
        wait.target, wait.met = "<= 50 ms", rows[3].worst <= WORST
        rows.append(wait)
    rows.append(Row(f"{count} threads: {len(errors)} errors of one client", target="none", met=not errors))
    return rows


def _raw_thread(path: Path) -> Callable[[], Callable[[int], Any]]:
    def make() -> Callable[[int], Any]:
        own = raw.Inserts(path, "full")
        return lambda n: own.write_immediate(blobs[n % 97])

    raw.connect(path, "full").close()  # in WAL before they come, all at once: that change waits for nobody
    blobs = [text(number).encode() for number in range(97)]
    return make


def _grouped_thread(grouped: raw.GroupedInserts) -> Callable[[], Callable[[int], Any]]:
    blobs = [text(number).encode() for number in range(97)]
    return lambda: lambda n: grouped.write(blobs[n % 97])


def _tenuto_thread(agent: Tenuto, thread: int) -> Callable[[], Callable[[int], Any]]:
    texts = [text(number) for number in range(97)]
    return lambda: lambda n: agent.state.set(f"scope-{thread}", f"key-{n % 10}", texts[n % 97])


def _alone(path: Path, *, quick: bool) -> list[Row]:
    inserts = raw.Inserts(path / "inserts.db", "full")
    same = raw.SameRows(path / "same.db", "full", 10)
    texts = [text(number) for number in range(97)]
    blobs = [value.encode() for value in texts]
    with contextlib.closing(Tenuto("bench", path / "tenuto.db")) as agent:
        found = take_turns(
            {
                "raw insert": lambda n: inserts.write_immediate(blobs[n % 97]),
                "raw, same rows": lambda n: same.write(n, blobs[n % 97]),
                "one client": lambda n: agent.state.set("scope", f"key-{n % 10}", texts[n % 97]),
            },
            rounds=15 if quick else 60,
            calls=40,
            warmup=1_500,
        )
    rows = [samples.row(f"1 thread: {name}") for name, samples in found.items()]
    for row, samples in zip(rows[1:], list(found.values())[1:], strict=True):
        row.ratio = str(samples.against(found["raw insert"]))
    ratio = found["one client"].against(found["raw, same rows"])
    rows.append(
        Row("1 thread: one client to raw, same rows", ratio=str(ratio), target="<= 1.0x", met=ratio.value <= 1.0)
    )
    return rows
