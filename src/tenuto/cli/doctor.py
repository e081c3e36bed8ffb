"""`tenuto doctor`: what is wrong with the set-up, and what to do about it.

Each examination is a function that yields findings; nothing is changed by looking.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from tenuto import __version__, _machine
from tenuto.backends import connect
from tenuto.cli.shared import FAILURE, guarded, show_json, store_options
from tenuto.client import Tenuto
from tenuto.errors import MissingDriver, TenutoError

_LOW, _EMPTY = 500 * 1024 * 1024, 20 * 1024 * 1024
_LONG_LOG = 64 * 1024 * 1024
_SKEW = 2.0


class Diagnosis(NamedTuple):
    """One thing that was looked at."""

    status: Literal["ok", "warning", "error"]
    what: str
    advice: str
    """What to do; empty where there is nothing to do."""


def examined(url: str | None, tenant: str) -> Iterator[Diagnosis]:
    """Look at everything, from the outside in."""
    yield Diagnosis("ok", f"tenuto {__version__}, Python {sys.version.split()[0]}", "")
    try:
        backend = connect(url)
    except MissingDriver as error:
        yield Diagnosis("error", "the driver of this store is not installed", str(error))
        return
    except TenutoError as error:
        yield Diagnosis("error", "the store's URL cannot be used", str(error))
        return
    path: Path | None = getattr(backend, "path", None)
    if path is not None:
        yield from file_system(path)
        if not path.exists():
            yield Diagnosis("warning", f"there is no store at {path}", "Make one here with: tenuto init")
            return
    try:
        with Tenuto("doctor", backend, tenant=tenant) as agent:
            yield from inside(agent, backend)
    except TenutoError as error:
        yield Diagnosis("error", f"the store cannot be opened ({type(error).__name__})", str(error))


def file_system(path: Path) -> Iterator[Diagnosis]:
    """Look at the folder of a store in a file."""
    folder = path.parent if path.parent.exists() else Path()
    kind = _machine.network_filesystem(folder)
    if kind is not None:
        yield Diagnosis(
            "error",
            f"{path} is on a network file system ({kind})",
            "Locks and syncs there are not what SQLite needs. Use a local disk, or a server: postgresql://…",
        )
    if not os.access(folder, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        yield Diagnosis(
            "error", f"{path} cannot be written", "Give this user the right to write the file and its folder."
        )
    free = shutil.disk_usage(folder).free
    if free < _LOW:
        status: Literal["warning", "error"] = "error" if free < _EMPTY else "warning"
        yield Diagnosis(status, f"only {_size(free)} are left on the disk of {path}", "Make room, or move the store.")
    else:
        yield Diagnosis("ok", f"{path.resolve()}, {_size(free)} free", "")


def inside(agent: Tenuto, backend: Any) -> Iterator[Diagnosis]:
    """Look at a store that is open."""
    stats = agent.store.stats()
    large = f", {_size(stats['bytes'])}" if "bytes" in stats else ""
    yield Diagnosis(
        "ok", f"{stats['backend']} {stats.get('version', '')}, survives {stats.get('survives', '?')}{large}", ""
    )
    if stats.get("durability") == "process":
        yield Diagnosis(
            "warning",
            f"what is acknowledged survives {stats.get('survives')} only",
            'Open it with durability="full" unless you mean that.',
        )
    if stats.get("wal_bytes", 0) > _LONG_LOG:
        yield Diagnosis(
            "warning",
            f"the log beside the store has {_size(stats['wal_bytes'])}: somebody reads for a very long time",
            "Find the process that holds a read open (lsof on the file), and let it end.",
        )
    if stats["backend"] != "sqlite":
        skew = backend.now() - time.time()
        if abs(skew) > _SKEW:
            yield Diagnosis(
                "warning",
                f"this machine's clock and the store's differ by {abs(skew):.1f} s",
                "Leases are safe all the same; times in records will look wrong. Let NTP set both.",
            )
    newest = max((one.written_at for one in agent.kernel.scan(b"", limit=1_000)), default=0.0)
    if newest > time.time() + 60:
        yield Diagnosis(
            "warning",
            f"records were written {newest - time.time():.0f} s in the future",
            "A clock was set back. Let NTP set it; versions and order are right all the same.",
        )
    if hasattr(backend, "migrate_check"):
        missing = backend.migrate_check()
        if missing:
            yield Diagnosis("error", f"the schema lacks {len(missing)} things", "Run: tenuto migrate")
    interrupted = agent.runs.list(status="interrupted")
    if interrupted:
        yield Diagnosis(
            "warning",
            f"{len(interrupted)} runs were interrupted and nobody goes on with them, e.g. {interrupted[0].id}",
            "Make the same call again, or start: tenuto worker MODULE:AGENT",
        )
    doubts = agent.runs.list(status="in_doubt")
    if doubts:
        yield Diagnosis("warning", f"{len(doubts)} runs are in doubt and wait for people", "See: tenuto inbox list")


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit has no end")


_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


@click.command("doctor")
@store_options
@guarded
def command(url: str | None, tenant: str, *, as_json: bool) -> None:
    """Find what is wrong with the set-up, and say what to do about it; exit 1 if anything is. Nothing is changed."""
    found = list(examined(url, tenant))
    if as_json:
        show_json(found)
    else:
        for one in found:
            mark, colour = _MARKS[one.status]
            click.echo(f"{click.style(mark, fg=colour)} {one.what}")
            if one.advice:
                click.echo(f"  {one.advice}")
    sys.exit(FAILURE if any(one.status != "ok" for one in found) else 0)
