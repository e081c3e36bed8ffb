"""Contenders compared in one interleaved run: p50, mean, p99, throughput, processor time and bytes written.

A contender is one kind of call (`bench.calls`) of one checkout, in one or several processes on one file of its own. All
contenders warm up, then take turns in short rounds, in an order shuffled anew each time. The ratio of a p50 is the
median over the rounds. All other ratios are of the totals, because a mean that leaves out the bad rounds is no mean.
The brackets hold the middle half of the rounds.
"""

from __future__ import annotations

import contextlib
import random
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from bench import raw
from bench.child import HERE, Child
from bench.measure import Ratio, Row, Table, commit_of, folder, quantile, settle

_chance = random.Random(17)


class Shape(NamedTuple):
    """How many callers there are at once."""

    processes: int = 1
    threads: int = 1

    def __str__(self) -> str:
        if self.processes > 1:
            return f"{self.processes} processes"
        return f"{self.threads} thread{'s' if self.threads > 1 else ''}"


ALONE = Shape()
CROWDS = (Shape(threads=16), Shape(threads=64), Shape(processes=2), Shape(processes=4))


@dataclass
class Round:
    """What the callers of one contender did in one round."""

    took: list[float]
    seconds: float
    callers: int
    processor: float
    written: int

    @property
    def rate(self) -> float:
        # The last call of each caller ends after the time is up: it counts as a wait, not as work done in time.
        return max(len(self.took) - self.callers, 1) / self.seconds

    @property
    def mean(self) -> float:
        return statistics.fmean(self.took)


@dataclass
class Contender:
    """One kind of call of one checkout, in processes of its own."""

    name: str
    kind: str
    source: Path
    children: list[Child] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def start(self, path: Path, durability: str, processes: int) -> None:
        path.mkdir()
        for number in range(processes):
            log = path / f"{number}.log"
            arguments = (self.kind, str(path / "store.db"), durability)
            self.children.append(Child("bench.calls", *arguments, log=log, source=self.source))

    def go(self, threads: int, seconds: float) -> Round:
        for child in self.children:
            child.order("go", threads, seconds)
        answers = [child.answer() for child in self.children]
        callers = [calls for answer in answers for calls in answer["took"]]
        self.errors += [error for answer in answers for error in answer["errors"]]
        return Round(
            [took for calls in callers for took in calls],
            seconds,
            len(callers),
            sum(answer["processor"] for answer in answers),
            sum(answer["written"] for answer in answers),
        )

    def row(self, what: str) -> Row:
        took = [one for own in self.rounds for one in own.took]
        return Row(
            what,
            p50=quantile(took, 0.5),
            mean=statistics.fmean(took),
            p99=quantile(took, 0.99),
            worst=max(took),
            rate=statistics.fmean(own.rate for own in self.rounds),
            processor=sum(own.processor for own in self.rounds) / len(took),
            written=sum(own.written for own in self.rounds) / len(took),
            detail={
                "calls": len(took),
                "rounds": len(self.rounds),
                "commit": commit_of(self.source),
                "errors": self.errors,
            },
        )

    def against(self, other: Contender, what: str) -> Row:
        """Return a row of ratios: this one's figures divided by the other's."""
        own, base = self.row(""), other.row("")
        pairs = list(zip(self.rounds, other.rounds, strict=True))
        p50 = Ratio([statistics.median(a.took) / statistics.median(b.took) for a, b in pairs])
        return Row(
            what,
            ratios={
                "p50": str(p50),
                "mean": _ratio(own.mean, base.mean, [a.mean / b.mean for a, b in pairs]),
                "p99": _ratio(own.p99, base.p99),
                "per second": _ratio(own.rate, base.rate, [a.rate / b.rate for a, b in pairs]),
                "processor": _ratio(own.processor, base.processor),
                "written": _ratio(own.written, base.written),
            },
            detail={"p50 by round": p50.rounds},
        )


def compare(
    title: str,
    kinds: Sequence[str],
    *,
    quick: bool,
    against: Path | None = None,
    crowds: Sequence[Shape] = (),
    durabilities: Sequence[str] = ("full", "process"),
) -> Table:
    """Measure each kind of call at each durability, alone and in crowds; kinds of tenuto in both checkouts."""
    rows: list[Row] = []
    for durability in durabilities:
        for shape in (ALONE, *crowds):
            with folder() as path, _started(path, kinds, durability, shape, against) as contenders:
                _take_turns(contenders, shape, quick=quick)
            rows += _rows(f"{raw.LEVELS[durability]}, {shape}", contenders)
    notes = [
        "Processor time is that of the whole process, background threads included, per call; likewise the bytes written.",
        "Bytes written are `write_bytes` of /proc/self/io: pages of 4 KB that the process made the system write.",
        "Ratios: of p50 the median over rounds; all others of the totals. Brackets: the middle half of the rounds.",
    ]
    if against is not None:
        notes.append(f"`before` is {against.name} at {commit_of(against)}; measured here: {commit_of(HERE)}.")
    return Table(title, rows, notes)


@contextlib.contextmanager
def _started(
    path: Path, kinds: Sequence[str], durability: str, shape: Shape, against: Path | None
) -> Iterator[list[Contender]]:
    contenders = [Contender(kind, kind, HERE) for kind in kinds]
    if against is not None:
        contenders += [Contender(f"{kind} before", kind, against) for kind in kinds if not kind.startswith("raw")]
    try:
        for number, contender in enumerate(contenders):
            contender.start(path / str(number), durability, shape.processes)
        yield contenders
    finally:
        for child in [child for contender in contenders for child in contender.children]:
            child.end()


def _take_turns(contenders: list[Contender], shape: Shape, *, quick: bool) -> None:
    alone = shape == ALONE
    rounds, seconds = (60, 0.1) if alone else (6, 1.0)
    if quick:
        rounds //= 3
    for contender in contenders:
        contender.go(shape.threads, 0.6 if alone else 0.3)  # every write-ahead log has reached its full size
    order = list(contenders)
    for _ in range(rounds):
        _chance.shuffle(order)
        for contender in order:
            if not alone:
                settle()
            contender.rounds.append(contender.go(shape.threads, seconds))


def _rows(where: str, contenders: list[Contender]) -> list[Row]:
    """Tell every contender's figures, then their ratios to the raw driver, and to the same call before."""
    rows = [contender.row(f"{where}: {contender.name}") for contender in contenders]
    named = {contender.name: contender for contender in contenders}
    base = contenders[0]
    for contender in contenders:
        if not contender.kind.startswith("raw") and contender.source == HERE:
            if base.kind.startswith("raw"):
                rows.append(contender.against(base, f"{where}: {contender.name} / {base.name}"))
            before = named.get(f"{contender.name} before")
            if before is not None:
                rows.append(contender.against(before, f"{where}: {contender.name} / before"))
    return rows


def _ratio(own: float | None, other: float | None, rounds: Sequence[float] = ()) -> str:
    if not own or not other:
        return ""
    spread = f" ({quantile(rounds, 0.25):.2f}-{quantile(rounds, 0.75):.2f})" if rounds else ""
    return f"{own / other:.2f}x{spread}"
