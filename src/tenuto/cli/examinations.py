"""What `tenuto doctor` looks at. Each examination is a function that yields findings; nothing is changed by looking."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tenuto import __version__, _machine
from tenuto.backends import connect
from tenuto.client import Tenuto
from tenuto.errors import Damaged, MissingDriver, NewerFormat, StorageUnavailable, TenutoError

LOW, EMPTY = 500 * 1024 * 1024, 20 * 1024 * 1024
LONG_LOG = 64 * 1024 * 1024
"""Where a SQLite store cuts its log back when nobody reads what is in it; a longer one is being read."""
SKEW, FUTURE, OVERDUE = 2.0, 60.0, 60.0
_EXTRAS = {"postgres": "psycopg", "redis": "redis"}


class Diagnosis(NamedTuple):
    """One thing that was looked at."""

    status: Literal["ok", "warning", "error"]
    about: str
    """One word for programs: folder, disk, driver, clock, …"""
    what: str
    advice: str = ""
    """What to do; empty where there is nothing to do."""


def examined(url: str | None, tenant: str) -> Iterator[Diagnosis]:
    """Look at everything, from the outside in."""
    yield Diagnosis("ok", "version", f"tenuto {__version__}, Python {sys.version.split()[0]}, {_extras()}")
    try:
        backend = connect(url)
    except MissingDriver as error:
        yield Diagnosis("error", "driver", "the driver of this store is not installed", str(error))
        return
    except TenutoError as error:
        yield Diagnosis("error", "url", "the store's URL cannot be used", str(error))
        return
    path: Path | None = getattr(backend, "path", None)
    if path is not None:
        yield from file_system(path)
        if not path.exists():
            advice = "Make one here with tenuto init, or say where it is with --url or $TENUTO_URL."
            yield Diagnosis("warning", "store", f"there is no store at {path.absolute()}", advice)
            return
    try:
        if hasattr(backend, "migrate_check") and (missing := backend.migrate_check()):
            yield Diagnosis(
                "error",
                "schema",
                f"the schema lacks {', '.join(missing)}",
                "Run tenuto migrate; or tenuto migrate --sql, and have it run by somebody who may.",
            )
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what they say is a finding here
            with Tenuto("doctor", backend, tenant=tenant) as agent:
                yield from inside(agent, backend)
    except TenutoError as error:
        yield _unopened(error)


def _unopened(error: TenutoError) -> Diagnosis:
    if isinstance(error, NewerFormat):
        return Diagnosis("error", "format", "a newer tenuto wrote this store", str(error))
    if isinstance(error, Damaged):
        return Diagnosis("error", "damage", "the store is damaged", f"{error} What is hurt is listed by: tenuto check")
    if isinstance(error, StorageUnavailable):
        return Diagnosis("error", "away", "the store cannot be reached", str(error))
    return Diagnosis("error", "store", f"the store cannot be used ({type(error).__name__})", str(error))


def _extras() -> str:
    there = [name for name, module in _EXTRAS.items() if importlib.util.find_spec(module) is not None]
    return f"with {' and '.join(there)}" if there else "without the extras postgres and redis"


def file_system(path: Path) -> Iterator[Diagnosis]:
    """Look at the folder of a store in a file."""
    folder = next(place for place in path.absolute().parents if place.exists())
    kind = _machine.network_filesystem(folder)
    if kind is not None:
        yield Diagnosis(
            "error",
            "network",
            f"{path} is on a network file system ({kind})",
            "Locks and syncs there are not what SQLite needs. Use a local disk, or a server: postgresql://…, redis://…",
        )
    if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        advice = "Give this user the right to write the file and its folder: SQLite keeps a log and a lock beside it."
        yield Diagnosis("error", "folder", f"{path} cannot be written by this user", advice)
    free = shutil.disk_usage(folder).free
    if free < LOW:
        status: Literal["warning", "error"] = "error" if free < EMPTY else "warning"
        advice = "Make room there, or move the store. Nothing that was acknowledged is lost by a full disk."
        yield Diagnosis(status, "disk", f"only {size(free)} are left on the disk of {path}", advice)
    else:
        yield Diagnosis("ok", "disk", f"{size(free)} free on the disk of {path}")


def inside(agent: Tenuto, backend: Any) -> Iterator[Diagnosis]:
    """Look at a store that is open."""
    stats = agent.store.stats()
    yield Diagnosis("ok", "store", _told(stats))
    survives = str(stats.get("survives", "kill and power loss"))
    if survives != "kill and power loss" and stats["backend"] != "volatile":
        yield Diagnosis(
            "warning",
            "durability",
            f"what is acknowledged survives {survives}",
            'Open it with durability="full", and let the server sync each commit, unless you mean that.',
        )
    yield from _log(stats)
    yield from _clock(agent, backend, stats)
    yield from _runs(agent)


def _told(stats: Any) -> str:
    kind, version = stats["backend"], stats.get("version")
    where = stats.get("path") or stats.get("place") or stats.get("where") or "memory"
    large = f", {size(stats['bytes'] + stats.get('wal_bytes', 0))}" if "bytes" in stats else ""
    counted = f", {stats['records']} records" if "records" in stats else ""
    if "entries" in stats:
        counted += f", {stats['entries']} journal entries"
    where = Path(where).absolute() if "path" in stats else where
    return f"{where}: {kind}{f' {version}' if version else ''}{large}{counted}"


def _log(stats: Any) -> Iterator[Diagnosis]:
    if stats.get("wal_bytes", 0) <= LONG_LOG:
        return
    others = holders(Path(stats["path"]))
    named = ", ".join(f"{pid} ({name})" for pid, name in others[:5])
    yield Diagnosis(
        "warning",
        "log",
        f"the log beside the store has {size(stats['wal_bytes'])}: somebody has been reading for a long time",
        f"Reads find more and more to look through until that read ends. The file is open in: {named or 'nobody of this user'}.",
    )


def holders(path: Path) -> list[tuple[int, str]]:
    """Return which other processes of this user have a file open; none where the system does not tell."""
    found = []
    try:
        wanted = path.stat()
        candidates = [int(place.name) for place in Path("/proc").iterdir() if place.name.isdecimal()]
    except OSError:
        return []
    for pid in candidates:
        if pid == os.getpid():
            continue
        try:
            files = [link.stat() for link in Path(f"/proc/{pid}/fd").iterdir() if link.exists()]
            if any((one.st_dev, one.st_ino) == (wanted.st_dev, wanted.st_ino) for one in files):
                found.append((pid, Path(f"/proc/{pid}/comm").read_text().strip()))
        except OSError:
            continue  # somebody else's, or gone
    return found


def _clock(agent: Tenuto, backend: Any, stats: Any) -> Iterator[Diagnosis]:
    if stats["backend"] not in ("sqlite", "volatile"):
        skew = backend.now() - time.time()
        if abs(skew) > SKEW:
            yield Diagnosis(
                "warning",
                "clock",
                f"this machine's clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the store's",
                "Leases and order are safe all the same; times that you compare are not. Let NTP set both.",
            )
    newest = max((one.written_at for one in agent.kernel.scan(b"", limit=1_000)), default=0.0)
    if "path" in stats:
        newest = max(newest, Path(stats["path"]).stat().st_mtime)
    if newest > time.time() + FUTURE:
        yield Diagnosis(
            "warning",
            "clock",
            f"the store was written {newest - time.time():.0f} s in the future",
            "A clock was set back since. Let NTP set it; versions and order are right all the same.",
        )


def _runs(agent: Tenuto) -> Iterator[Diagnosis]:
    interrupted = agent.runs.list(status="interrupted")
    if interrupted:
        yield Diagnosis(
            "warning",
            "interrupted",
            f"{_count(interrupted, 'run')} interrupted, and nobody goes on: {_named(interrupted)}",
            "Make the same call again; or, for durable functions, start tenuto worker MODULE:AGENT",
        )
    now = agent.kernel.now()
    late = [run for run in agent.runs.list(status="queued") if run.changed.timestamp() < now - OVERDUE]
    late += [
        run for run in agent.runs.list(status="waiting") if run.wakes and run.wakes.timestamp() < now - OVERDUE
    ]  # fmt: skip
    if late:
        yield Diagnosis(
            "warning",
            "overdue",
            f"{_count(late, 'run')} due, and nobody goes on: {_named(late)}",
            "Start tenuto worker MODULE:AGENT, or make the same call again.",
        )
    doubts = agent.runs.list(status="in_doubt")
    if doubts:
        yield Diagnosis(
            "warning",
            "in_doubt",
            f"{_count(doubts, 'run')} in doubt: {_named(doubts)}",
            "Whether the step happened is for people to say. See tenuto inbox list, then tenuto inbox answer",
        )


def _count(runs: list[Any], noun: str) -> str:
    return f"1 {noun} is" if len(runs) == 1 else f"{len(runs)} {noun}s are"


def _named(runs: list[Any]) -> str:
    return ", ".join(run.id for run in runs[:3]) + (", …" if len(runs) > 3 else "")


def size(count: float) -> str:
    """Return a number of bytes as people read it."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit has no end")
