"""One table for a whole run of the bench: what each topic measured, its goals, and which of them were missed."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.measure import Row, Table, bench_dir

_SYNCS = 50
_SHOWN = 60


def summary(found: Mapping[str, tuple[Table, Sequence[float]]]) -> Table:
    """Return a line for each topic, and one for each goal that was missed; `found` has the load after each topic."""
    rows = []
    for topic, (table, load) in found.items():
        judged = [row for row in table.rows if row.met is not None]
        met = f"{sum(bool(row.met) for row in judged)} of {len(judged)}" if judged else ""
        rows.append(Row(f"{topic}: {table.title}", ratios={"load": f"{load[0]:.1f}", "goals met": met}))
        rows += [_missed(row) for row in judged if not row.met]
    return Table("Summary", rows, ["Below a topic are the goals that it missed, each with its figure and the goal."])


def _missed(row: Row) -> Row:
    what = row.what if len(row.what) <= _SHOWN else f"{row.what[: _SHOWN - 1]}…"
    figure = row.ratio or ("" if row.p50 is None else f"{row.p50 * 1e3:.3g} ms")
    return Row(f"- {what}", ratios={"missed": figure, "goal": row.target or ""})


def sync_time() -> str:
    """Return what a synced write of 4 KB takes on the measured disk, the median of some."""
    path = bench_dir() / f".bench-sync-{os.getpid()}"
    took = []
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for _ in range(_SYNCS):
            os.pwrite(fd, bytes(4096), 0)
            began = time.perf_counter()
            os.fsync(fd)
            took.append(time.perf_counter() - began)
    finally:
        os.close(fd)
        path.unlink()
    return f"{statistics.median(took) * 1e6:.0f} us"


def peers() -> dict[str, str]:
    """Return the peers that are installed here, with their versions."""
    lines = (Path(__file__).parent / "requirements.txt").read_text().splitlines()
    found = {}
    for line in lines:
        name = line.partition("==")[0].partition("[")[0].strip()
        if name and not name.startswith("#"):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
    return found
