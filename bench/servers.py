"""Real servers for a benchmark, from the wheels that the tests use, with their files on the measured disk.

Whether client and server run on one core or on two is the scheduler's choice, made anew for each connection,
and it changes a round trip by more than all the rest: 25 us or 70 us for the same read. With one caller it is
therefore fixed: each on a core of its own, as if on two machines, or both on one. Crowds run where they will.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from bench.measure import Crowd, Row, crowd_row, in_threads, rates

CLIENTS = 16
Cores = Literal["a core each", "one core", "all cores"]
Makers = Sequence[Callable[[], Callable[[int], Any]]]
_TESTS = Path(__file__).parent.parent / "tests"


@contextlib.contextmanager
def postgres(path: Path, cores: Cores = "all cores") -> Iterator[Any]:
    """Start a PostgreSQL that keeps its data below `path`; it has a `url`, and `execute` for a statement."""
    path.chmod(0o755)  # as root, the server runs as another user
    start = _module(_TESTS / "support" / "pg_server.py").Server
    with _placed(start, path, cores) as server:
        yield server


@contextlib.contextmanager
def valkey(path: Path, fsync: str, cores: Cores = "all cores") -> Iterator[Any]:
    """Start a Valkey with that `appendfsync` and its log below `path`; it has a `url()`, and `raw()` for a client."""
    start = _module(_TESTS / "support" / "redis_servers.py").Server
    with _placed(lambda: start("--appendonly", "yes", "--appendfsync", fsync), path, cores) as server:
        yield server


@contextlib.contextmanager
def _placed(start: Callable[[], Any], path: Path, cores: Cores) -> Iterator[Any]:
    before = tempfile.tempdir
    own = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    first, *others = sorted(own) or [0]
    pinned = bool(own) and cores != "all cores"
    tempfile.tempdir = str(path)
    try:
        if pinned:
            os.sched_setaffinity(0, {others[0] if others and cores == "a core each" else first})
        server = start()
    finally:
        tempfile.tempdir = before
    try:
        if pinned:
            os.sched_setaffinity(0, {first})
        yield server
    finally:
        if pinned:
            os.sched_setaffinity(0, own)
        server.stop()


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"bench_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def crowd(where: str, raw: Callable[[], Makers], tenuto: Makers, *, quick: bool) -> list[Row]:
    """Let clients at once write in turns with raw ones, and tell the throughput, the waits and the errors."""
    seconds, rounds = (2, 1) if quick else (4, 3)
    crowds: dict[str, list[Crowd]] = {"raw": [], "tenuto": []}
    for number in range(rounds):
        for who in ("raw", "tenuto") if number % 2 else ("tenuto", "raw"):
            crowds[who].append(in_threads(raw() if who == "raw" else tenuto, seconds))
    rows = [
        crowd_row(f"{CLIENTS} clients {where}: raw", crowds["raw"]),
        crowd_row(f"{CLIENTS} clients {where}: state.set", crowds["tenuto"]),
    ]
    rows[1].ratio = str(rates(crowds["tenuto"], crowds["raw"]))
    errors = rows[1].detail["errors"]
    rows.append(Row(f"{CLIENTS} clients {where}: {len(errors)} errors", target="none", met=not errors))
    return rows


ABOUT_CROWDS = (
    f"{CLIENTS} clients: threads of one process, each with a client and a connection of its own; the raw ones write keys of "
    "their own. The ratio is of throughput. In one scope all of `state.set` append to one journal, one after the other. "
    "Shares: the part of the client that got least, and of the one that got most."
)
