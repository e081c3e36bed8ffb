"""The examinations of `tenuto doctor`. Each is a function that yields findings and changes nothing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tenuto import __version__, _machine
from tenuto.backends import connect
from tenuto.client import Tenuto
from tenuto.errors import Damaged, MissingDriver, NewerFormat, NotFound, StorageUnavailable, TenutoError
from tenuto.servers.mcp.place import place_of
from tenuto.wrappers.encrypt import key_from_environment

LOW, EMPTY = 500 * 1024 * 1024, 20 * 1024 * 1024
LONG_LOG = 64 * 1024 * 1024
"""A SQLite store truncates its log at this size unless a reader still needs it."""
SKEW, FUTURE, OVERDUE, HUNG, SILENT = 2.0, 60.0, 60.0, 3_600.0, 300.0
_EXTRAS = {"postgres": "psycopg", "redis": "redis"}


class Diagnosis(NamedTuple):
    """A finding."""

    status: Literal["ok", "warning", "error"]
    about: str
    """One word for programs: folder, disk, driver, clock, …"""
    what: str
    advice: str = ""
    """What to do; empty if nothing."""


def examined(url: str | None, tenant: str) -> Iterator[Diagnosis]:
    """Yield all findings, from the installation to the data."""
    yield Diagnosis("ok", "version", f"tenuto {__version__}, Python {sys.version.split()[0]}, {_extras()}")
    yield from _mcp(url)
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
            advice = "Create one here with tenuto init, or name another with --url or $TENUTO_URL."
            yield Diagnosis("warning", "store", f"there is no store at {path.absolute()}", advice)
            return
    try:
        if hasattr(backend, "migrate_check") and (missing := backend.migrate_check()):
            yield Diagnosis(
                "error",
                "schema",
                f"the schema lacks {', '.join(missing)}",
                "Run tenuto migrate; or print the SQL with tenuto migrate --sql for a role that may run DDL.",
            )
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # each warning is a finding here
            with Tenuto("doctor", backend, tenant=tenant, encryption_key=key_from_environment()) as agent:
                yield from inside(agent, backend)
    except TenutoError as error:
        yield _unopened(error)


def _mcp(url: str | None) -> Iterator[Diagnosis]:
    """Say where an MCP server stores that is started here, if the SDK is installed."""
    if importlib.util.find_spec("mcp") is None:
        return
    place = place_of(url)
    kinds = {"project": "the project's store", "user": "this user's store", "given": "the given store"}
    yield Diagnosis("ok", "mcp", f"an MCP server started here uses {kinds[place.kind]}: {_without_password(place.url)}")


def _without_password(url: str) -> str:
    return re.sub(r"(://[^:/@]*):[^@]*@", r"\1:…@", url)


def _unopened(error: TenutoError) -> Diagnosis:
    if isinstance(error, NewerFormat):
        return Diagnosis("error", "format", "a newer tenuto wrote this store", str(error))
    if isinstance(error, Damaged):
        return Diagnosis("error", "damage", "the store is damaged", f"{error} List the damage with: tenuto check")
    if isinstance(error, StorageUnavailable):
        return Diagnosis("error", "away", "the store cannot be reached", str(error))
    return Diagnosis("error", "store", f"the store cannot be used ({type(error).__name__})", str(error))


def _extras() -> str:
    there = [name for name, module in _EXTRAS.items() if importlib.util.find_spec(module) is not None]
    return f"with {' and '.join(there)}" if there else "without the extras postgres and redis"


def file_system(path: Path) -> Iterator[Diagnosis]:
    """Examine the folder of a store in a file."""
    folder = next(place for place in path.absolute().parents if place.exists())
    kind = _machine.network_filesystem(folder)
    if kind is not None:
        yield Diagnosis(
            "error",
            "network",
            f"{path} is on a network file system ({kind})",
            "Locks and syncs are not reliable there. Use a local disk, or a server: postgresql://…, redis://…",
        )
    if not os.access(folder, os.W_OK | os.X_OK) or (path.exists() and not os.access(path, os.W_OK)):
        advice = "Give this user the right to write the file and its folder: SQLite needs a log and a lock file there."
        yield Diagnosis("error", "folder", f"{path} cannot be written by this user", advice)
    free = shutil.disk_usage(folder).free
    if free < LOW:
        status: Literal["warning", "error"] = "error" if free < EMPTY else "warning"
        advice = "Free some space, or move the store. A full disk does not lose acknowledged commits."
        yield Diagnosis(status, "disk", f"only {size(free)} free on the disk of {path}", advice)
    else:
        yield Diagnosis("ok", "disk", f"{size(free)} free on the disk of {path}")


def inside(agent: Tenuto, backend: Any) -> Iterator[Diagnosis]:
    """Examine an open store."""
    stats = agent.store.stats()
    yield Diagnosis("ok", "store", _summary(stats))
    survives = str(stats.get("survives", "kill and power loss"))
    if survives != "kill and power loss" and stats["backend"] != "volatile":
        yield Diagnosis(
            "warning",
            "durability",
            f"acknowledged commits survive only {survives}",
            'Open the store with durability="full" and let the server sync each commit, unless this is intended.',
        )
    yield from _log(stats)
    yield from _clock(agent, backend, stats)
    yield from _runs(agent)


def _summary(stats: Any) -> str:
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
        f"the write-ahead log has {size(stats['wal_bytes'])}: a read transaction has been open for a long time",
        f"Reads get slower until that transaction ends. Processes with the file open: {named or 'none of this user'}.",
    )


def holders(path: Path) -> list[tuple[int, str]]:
    """Return the other processes of this user that have a file open; none if the system does not report them."""
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
            continue  # another user's process, or it has exited
    return found


def _clock(agent: Tenuto, backend: Any, stats: Any) -> Iterator[Diagnosis]:
    if stats["backend"] not in ("sqlite", "volatile"):
        skew = backend.now() - time.time()
        if abs(skew) > SKEW:
            yield Diagnosis(
                "warning",
                "clock",
                f"this machine's clock is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the store's",
                "Leases and order are safe; comparing times across machines is not. Synchronise both clocks with NTP.",
            )
    newest = max((one.written_at for one in agent.kernel.scan(b"", limit=1_000)), default=0.0)
    if "path" in stats:
        newest = max(newest, Path(stats["path"]).stat().st_mtime)
    if newest > time.time() + FUTURE:
        yield Diagnosis(
            "warning",
            "clock",
            f"the store was written {newest - time.time():.0f} s in the future",
            "The clock was set back since. Synchronise it with NTP; versions and order are correct.",
        )


def _runs(agent: Tenuto) -> Iterator[Diagnosis]:
    interrupted = agent.runs.list(status="interrupted")
    if interrupted:
        yield Diagnosis(
            "warning",
            "interrupted",
            f"{_count(interrupted, 'run')} interrupted and not resumed: {_named(interrupted)}",
            "Make the same call again; or, for durable functions, start tenuto worker MODULE:AGENT",
        )
    now = agent.kernel.now()
    late = agent.runs._overdue(OVERDUE)
    if late:
        yield Diagnosis(
            "warning",
            "overdue",
            f"{_count(late, 'run')} due and not resumed: {_named(late)}",
            "Start tenuto worker MODULE:AGENT, or make the same call again.",
        )
    hung = [(run, step) for run in agent.runs.list(status="running") for step in _hung(agent, run.id, now)]
    if hung:
        named = ", ".join(f"{run.id} in {step}" for run, step in hung[:3]) + (", …" if len(hung) > 3 else "")
        yield Diagnosis(
            "warning",
            "hung",
            f"{_count(hung, 'run')} in a step that hangs: {named}",
            "No heartbeat for five minutes, or no end for an hour. The process is alive and may wait for something for ever. See who holds it with tenuto runs show, and "
            "give such steps a timeout=.",
        )
    doubts = agent.runs.list(status="in_doubt")
    if doubts:
        yield Diagnosis(
            "warning",
            "in_doubt",
            f"{_count(doubts, 'run')} in doubt: {_named(doubts)}",
            "A person must say whether the step happened. See tenuto inbox list, then tenuto inbox answer",
        )


def _hung(agent: Tenuto, run_id: str, now: float) -> list[str]:
    """Return the steps of a running run without a heartbeat for `SILENT` seconds, or without one and begun `HUNG` ago."""
    try:
        steps = agent.runs.get(run_id).steps
    except NotFound:  # deleted meanwhile
        return []
    return [one.name for one in steps if one.status == "running" and _silent(one, now)]


def _silent(step: Any, now: float) -> bool:
    if step.heartbeat is not None:
        return bool(step.heartbeat.timestamp() < now - SILENT)
    return bool(step.started.timestamp() < now - HUNG)


def _count(runs: Sequence[Any], noun: str) -> str:
    return f"1 {noun} is" if len(runs) == 1 else f"{len(runs)} {noun}s are"


def _named(runs: Sequence[Any]) -> str:
    return ", ".join(run.id for run in runs[:3]) + (", …" if len(runs) > 3 else "")


def size(count: float) -> str:
    """Return a number of bytes in a readable unit."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if count < 1024 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit has no end")
