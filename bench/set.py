"""`state.set` of 1 KB on an existing key, one thread, against the raw driver's commits.

Twice: in a new file, and in one whose write-ahead log has gone round. As long as that log only grows, each sync
makes the file longer, which takes about twice as long as writing over it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from bench import raw
from bench.measure import Row, Samples, Table, folder, take_turns, text
from tenuto import Tenuto

KEYS = 50
TARGETS = {"full": 1.3, "process": 3.0}
YOUNG = (14, 40)
"""Rounds and calls in a new file: the raw driver's log grows until commit 670 or so."""


def run(*, quick: bool) -> Table:
    rows: list[Row] = []
    for durability in ("full", "process"):
        rows += _young(durability, quick=quick)
    for durability in ("full", "process"):
        with folder() as path:
            rows += _compared(path, durability, quick=quick)
    pages = ", ".join(
        f"{row.what.removeprefix('FULL: ')} {row.detail['pages']:.1f}"
        for row in rows
        if "pages" in row.detail and row.what.startswith("FULL")
    )
    return Table(
        "state.set: 1 KB on 50 existing keys, one thread",
        rows,
        [
            (
                f"A new file: its first {YOUNG[0] * YOUNG[1]} commits; several files, one after the other. All other rows: "
                "after 1,500 commits, when SQLite's write-ahead log is written over and no longer grows. tenuto makes "
                "it longer before that is needed; the raw driver does not."
            ),
            "The ratio is to the raw insert of the same durability: one row in one table, without a key.",
            f"Pages of 4 KB that a commit writes on average: {pages}.",
            (
                "`state.set` adds one row to the log: the value, who wrote it, its key and version, the journal's line, the "
                "request id with its outcome, and a digest linked to the row before; and the mark in the lock file. Some "
                "hundred rows later they are folded into the tables, in a thread beside; `mean` in the JSON has that in it."
            ),
            "`raw, same rows` is the raw driver writing what a fold writes, at once: four rows of three tables.",
            (
                "`raw insert, and volatile set` makes the same call on a store in memory before the raw insert: what Python "
                "code of this size costs beside a sync, which leaves the processor's caches cold."
            ),
        ],
    )


def _young(durability: str, *, quick: bool) -> list[Row]:
    rounds, calls = YOUNG
    texts = [text(number) for number in range(997)]
    found = {"raw insert": Samples(), "state.set": Samples()}
    for _ in range(3 if quick else 8):
        with folder() as path, contextlib.closing(Tenuto("bench", path / "tenuto.db", durability=durability)) as agent:
            inserts = raw.Inserts(path / "inserts.db", durability)
            part = take_turns(
                {
                    "raw insert": lambda n, to=inserts: to.write(texts[n % 997].encode()),
                    "state.set": lambda n, to=agent: to.state.set("scope", f"key-{n % KEYS}", texts[n % 997]),
                },
                rounds=rounds,
                calls=calls,
            )
        for name, samples in part.items():
            found[name].rounds += samples.rounds
    level = raw.LEVELS[durability]
    rows = [samples.row(f"{level}, a new file: {name}") for name, samples in found.items()]
    ratio = found["state.set"].against(found["raw insert"])
    rows[1].ratio, rows[1].target = str(ratio), f"<= {TARGETS[durability]}x"
    rows[1].met = ratio.value <= TARGETS[durability]
    return rows


def _compared(path: Path, durability: str, *, quick: bool) -> list[Row]:
    keys = [f"key-{number}" for number in range(KEYS)]
    texts = [text(number) for number in range(997)]
    blobs = [value.encode() for value in texts]
    inserts = raw.Inserts(path / "inserts.db", durability)
    upserts = raw.Upserts(path / "upserts.db", durability)
    same = raw.SameRows(path / "same.db", durability, KEYS)
    beside = raw.Inserts(path / "beside.db", durability)
    with (
        contextlib.closing(Tenuto("bench", path / "tenuto.db", durability=durability)) as agent,
        contextlib.closing(Tenuto("bench", "volatile:")) as memory,
    ):

        def both(n: int) -> None:
            memory.state.set("scope", keys[n % KEYS], texts[n % 997])
            beside.write(blobs[n % 997])

        contenders = {
            "raw insert": lambda n: inserts.write(blobs[n % 997]),
            "raw upsert by key": lambda n: upserts.write("scope", keys[n % KEYS], blobs[n % 997]),
            "raw, same rows": lambda n: same.write(n, blobs[n % 997]),
            "raw insert, and volatile set": both,
            "state.set": lambda n: agent.state.set("scope", keys[n % KEYS], texts[n % 997]),
        }
        files = dict(zip(contenders, ("inserts", "upserts", "same", "beside", "tenuto"), strict=True))
        pages = {name: _pages(path / f"{files[name]}.db", call) for name, call in contenders.items()}
        found = take_turns(
            contenders,
            rounds=15 if quick else 60,
            calls=40 if durability == "full" else 100,
            warmup=1_500,
        )
    level = raw.LEVELS[durability]
    rows = []
    for name, samples in found.items():
        row = samples.row(f"{level}: {name}")
        row.detail["pages"] = pages[name]
        if name != "raw insert":
            row.ratio = str(samples.against(found["raw insert"]))
        rows.append(row)
    ratio = found["state.set"].against(found["raw insert"])
    rows[-1].target, rows[-1].met = f"<= {TARGETS[durability]}x", ratio.value <= TARGETS[durability]
    rows += [
        Row(f"{level}: state.set to {other}", ratio=str(found["state.set"].against(found[other])))
        for other in ("raw upsert by key", "raw, same rows", "raw insert, and volatile set")
    ]
    return rows


def _pages(path: Path, call: Callable[[int], Any]) -> float:
    """Return how many pages a commit adds to the write-ahead log, while that still only grows."""
    for number in range(-200, -150):
        call(number % KEYS)
    with contextlib.closing(apsw.Connection(str(path))) as beside:
        beside.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        before = beside.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
        for number in range(-150, 0):
            call(number % 997)
        beside.execute("SELECT count(*) FROM sqlite_schema").fetchall()
        return (beside.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0] - before) / 150
