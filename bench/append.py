"""`thread.append` of a turn at turn 10 to 10,000 (P1), and reading a thread of 1,000 turns (P11)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ormsgpack

from bench import raw
from bench.compare import compare
from bench.measure import Row, Samples, Table, folder, take_turns, text
from tenuto import Tenuto

TARGETS = {"full": 1.3, "process": 3.0}
FLAT, WHOLE, LAST_50 = 1.2, 2.0, 0.0003
LONG = 1_000
"""So many turns make the conversation that is read: about 1 MB."""


def turn(number: int) -> list[dict[str, str]]:
    """Return what a user says and what is answered: about 1 KB together."""
    return [
        {"role": "user", "content": text(number, 300)},
        {"role": "assistant", "content": text(number + 1, 640)},
    ]


def run(*, quick: bool, against: Path | None = None) -> Table:
    if against is not None:
        return compare("thread.append of 1 KB", ("raw insert", "thread.append"), quick=quick, against=against)
    rows: list[Row] = []
    for durability in ("full", "process"):
        with folder() as path:
            rows += _appends(path, durability, quick=quick)
    with folder() as path:
        rows += _reads(path, quick=quick)
    return Table(
        "thread.append of a turn of 1 KB, and reading 1,000 turns",
        rows,
        [
            (
                "The threads of all lengths are in one file, filled before anything is measured; a round appends to one "
                "length after the other. The ratio is to the raw insert of the same bytes at the same durability."
            ),
            (
                "In its one commit an append writes what the raw insert does not: who wrote it and what the thread amounts "
                "to, the request id with its outcome, and the commit counter; sums, linked to the entry before; the mark in "
                "the lock file. It checks that the thread's end is where the writer believes it to be."
            ),
            "One blob is the whole conversation in one row, read and decoded by the raw driver, with no sum checked.",
            "`raw rows` is the raw driver reading one row a turn and decoding each, with no sum checked.",
            "On disk three rows of this size fill a page of 4 KB by three quarters; smaller turns fill it better.",
        ],
    )


def _appends(path: Path, durability: str, *, quick: bool) -> list[Row]:
    rounds, calls, warmup = 10 if quick else 50, 40, 1_500
    count = warmup + rounds * calls
    lengths = {10: count // 10, 100: count // 100, 1_000: max(1, count // 1_000)}
    if not quick:
        lengths[10_000] = 1
    with contextlib.closing(Tenuto("bench", path / "tenuto.db", durability="process")) as agent:
        for length, threads in lengths.items():
            for number in range(length * threads):
                agent.thread(f"{length}-{number % threads}").append(*turn(number))
    inserts = raw.Inserts(path / "inserts.db", durability)
    turns = [turn(number) for number in range(97)]
    blobs = [ormsgpack.packb(messages) for messages in turns]
    with contextlib.closing(Tenuto("bench", path / "tenuto.db", durability=durability)) as agent:

        def appender(length: int, threads: int) -> Callable[[int], Any]:
            handles = [agent.thread(f"{length}-{number}") for number in range(threads)]
            return lambda n: handles[n % threads].append(*turns[n % 97])

        for length, threads in lengths.items():
            for number in range(threads):
                agent.thread(f"{length}-{number}").append(
                    *turns[0]
                )  # each end is known: no reading in what is measured
        contenders = {f"append at turn {length:,}": appender(length, threads) for length, threads in lengths.items()}
        found = take_turns(
            {"raw insert": lambda n: inserts.write(blobs[n % 97]), **contenders},
            rounds=rounds,
            calls=calls,
            warmup=warmup,
        )
    level, base = raw.LEVELS[durability], found["raw insert"]
    rows = [base.row(f"{level}: raw insert")]
    first = found["append at turn 10"]
    for name in contenders:
        row, ratio = found[name].row(f"{level}: {name}"), found[name].against(base)
        row.ratio, row.target, row.met = str(ratio), f"<= {TARGETS[durability]}x", ratio.value <= TARGETS[durability]
        rows.append(row)
    longest = list(contenders)[-1]
    flat = found[longest].against(first)
    rows.append(Row(f"{level}: {longest} to turn 10", ratio=str(flat), target=f"<= {FLAT:g}x", met=flat.value <= FLAT))
    return rows


def _reads(path: Path, *, quick: bool) -> list[Row]:
    messages = [message for number in range(LONG) for message in turn(number)]
    blob = ormsgpack.packb(messages)
    one, rows = raw.Inserts(path / "one.db", "full"), raw.Inserts(path / "rows.db", "full")
    one.write(blob)
    with contextlib.closing(Tenuto("bench", path / "tenuto.db")) as agent:
        t = agent.thread("t")
        for number in range(LONG):
            t.append(*turn(number))
            rows.write(ormsgpack.packb(turn(number)))
        agent.state.set("s", "k", messages)
        assert t.messages() == agent.state.get("s", "k") == _rows(rows) == messages
        assert t.messages(last=50) == messages[-50:]
        found = take_turns(
            {
                "one blob": lambda _: ormsgpack.unpackb(_all(one)[0][0]),
                "raw rows": lambda _: _rows(rows),
                "state.get of the whole": lambda _: agent.state.get("s", "k"),
                "thread.messages()": lambda _: t.messages(),
                "thread.messages(last=50)": lambda _: t.messages(last=50),
            },
            rounds=10 if quick else 40,
            calls=10,
            warmup=10,
        )
    told = [samples.row(f"1,000 turns: {name}") for name, samples in found.items()]
    for row, samples in zip(told[1:4], list(found.values())[1:4], strict=True):
        row.ratio = str(samples.against(found["one blob"]))
    whole = found["thread.messages()"].against(found["one blob"])
    told[3].target, told[3].met = f"<= {WHOLE:g}x one blob", whole.value <= WHOLE
    last: Samples = found["thread.messages(last=50)"]
    told[4].target, told[4].met = "<= 0.3 ms", last.quantile(0.5) <= LAST_50
    disk = {"raw rows": rows.connection, "thread.append": _filled(path / "alone.db")}
    return told + [
        Row(f"1,000 turns: bytes on disk to bytes appended, {name}", ratio=f"{_pages(connection) / len(blob):.2f}x")
        for name, connection in disk.items()
    ]


def _filled(path: Path) -> Any:
    """Return a connection to a file with nothing in it but the conversation, one append a turn."""
    with contextlib.closing(Tenuto("bench", path)) as agent:
        for number in range(LONG):
            agent.thread("t").append(*turn(number))
    return raw.connect(path, "full")


def _pages(connection: Any) -> float:
    """Return how many bytes the pages of a file take."""
    (count,), (size,) = (connection.execute(f"PRAGMA page_{name}").fetchall()[0] for name in ("count", "size"))
    return float(count * size)


def _all(inserts: raw.Inserts) -> list[Any]:
    return inserts.connection.execute("SELECT value FROM log ORDER BY id").fetchall()


def _rows(inserts: raw.Inserts) -> list[Any]:
    found: list[Any] = []
    for (value,) in _all(inserts):
        found += ormsgpack.unpackb(value)
    return found
