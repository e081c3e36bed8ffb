"""`state.set` of 1 KB on existing keys: alone, in 16 and 64 threads, in 2 and 4 processes, at FULL and NORMAL (P1, P8).

The raw driver inserts the same 1 KB at the same durability. The floor is `state.set` on a backend that does nothing,
followed by that insert: no backend can be faster without the layers above it becoming so.
"""

from __future__ import annotations

from pathlib import Path

from bench.compare import CROWDS, compare
from bench.measure import Table

KINDS = ("raw insert", "floor of set", "state.set")


def run(*, quick: bool, against: Path | None = None) -> Table:
    table = compare("state.set of 1 KB", KINDS, quick=quick, against=against, crowds=CROWDS)
    table.notes += [
        (
            "In threads the raw driver has a connection for each, and the floor one connection with group commit. In "
            "processes everyone has a connection, and waits for the others by SQLite's busy handler but for tenuto."
        ),
        "In a crowd the raw driver's p50 is that of the caller that happens to hold the lock; its worst wait is that of the others.",
        "All of it after a warm-up, when SQLite's write-ahead log is overwritten and no longer grows.",
    ]
    return table
