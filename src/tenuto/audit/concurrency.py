"""Checks of concurrency: races between real processes, stale writes, the consistency of reads, and kills during writes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tenuto.audit.bench import Bench, check
from tenuto.audit.findings import Finding, failed, judged, passed
from tenuto.audit.replicas import Gone, Refused

_WRITERS, _EACH = 4, 25
_KILLS, _SIZE = 6, 200_000
_COUNTS = 60


@check("T020", "T021")
def races(bench: Bench) -> Iterator[Finding]:
    """Four processes change one value at the same time."""
    key, user = bench.key("counter"), bench.key("preferences")
    with bench.many(_WRITERS) as writers:
        writers[0]("count", key)
        for one in writers:
            one.begin("adds", key, _EACH)
        ends = [one.end() for one in writers]
        for mine, one in enumerate(writers):
            one.begin("fields", user, [f"preference-{mine}-{number}" for number in range(10)])
        kept = {name for one in writers for name in one.end()}
        try:
            final, stored = writers[0]("count", key), set(writers[0]("read", user) or {})
        except Refused as error:
            yield failed("T020", f"After {_WRITERS} processes wrote one value it could not be read: {error}.")
            return
    returned, conflicts = sum(one[0] for one in ends), sum(one[1] for one in ends)
    errors = [text for one in ends for text in one[2]]
    lost = returned - final
    yield judged(
        "T020",
        f"{_WRITERS} processes made {returned} increments that returned; the value is {final}: {lost} updates lost."
        + (f" {conflicts} were refused as conflicts." if conflicts else "")
        + (f" {len(errors)} raised: {errors[0]}." if errors else ""),
        ok=lost == 0 and not errors,
        returned=returned,
        lost=lost,
        conflicts=conflicts,
        errors=len(errors),
    )
    missing = kept - stored
    yield judged(
        "T021",
        f"{_WRITERS} processes set {len(kept)} preferences of one user; {len(kept - missing)} are stored"
        + (f", {len(missing)} are lost." if missing else "."),
        ok=not missing and len(kept) == _WRITERS * 10,
        lost=len(missing),
    )


@check("T022")
def stale(bench: Bench) -> Iterator[Finding]:
    """A write on the base of an old read is refused."""
    one, other = bench.pair
    key = bench.key("stale")
    one("write", key, {"seat": "none"})
    _, version = one("seen", key)
    _, newer = other("seen", key)
    other("write_if", key, {"seat": "window"}, newer)
    try:
        one("write_if", key, {"seat": "aisle"}, version)
    except Refused as error:
        yield judged("T022", f"The stale write was refused: {error.kind}.", ok=error.conflict)
        return
    now = other("read", key)
    yield failed("T022", f"A stale write was accepted without an error; the other agent now reads {now!r:.80}.")


@check("T023")
def consistent(bench: Bench) -> Iterator[Finding]:
    """One process counts up, the other reads."""
    writer, reader = bench.pair
    key = bench.key("model")
    writer("write", key, {"count": 0})
    reader.begin("watches", key, _COUNTS, 15.0)
    writer.begin("counts_up", key, _COUNTS)
    written: list[tuple[int, float]] = []
    while len(written) < _COUNTS:
        written.append(writer.end(15.0))
    writer.end()
    reads: list[tuple[float, float, int]] = reader.end(30.0)
    backwards = sum(later[2] < earlier[2] for earlier, later in pairwise(reads))
    older, most = 0, 0.0
    for began, _, value in reads:
        missed = [ended for number, ended in written if ended < began and number > value]
        if missed:
            older += 1
            most = max(most, began - missed[0])
    yield judged(
        "T023",
        f"{len(reads)} reads during {_COUNTS} writes by another process: {backwards} went backwards, {older} were older "
        f"than a write that had returned{f' (by up to {most * 1e3:.0f} ms)' if older else ''}"
        + (": reads are linearizable as far as this shows." if not (backwards or older) else "."),
        ok=not backwards and not older and reads[-1][2] == _COUNTS,
        reads=len(reads),
        backwards=backwards,
        stale=older,
        staleness=most,
    )


@check("T024")
def killed(bench: Bench) -> Iterator[Finding]:
    """SIGKILL in the middle of writes."""
    key = bench.key("killed")
    number = 0
    for kill in range(1, _KILLS + 1):
        writer = bench.fresh()
        writer.begin("writes_for_ever", key, number + 1, _SIZE)
        try:
            number = _killed_after(writer, 0.03 + 0.037 * kill, number)
        except Refused as error:
            when = f"after kill {kill - 1}" if kill > 1 else "before the first kill, after the checks that ran earlier,"
            yield failed("T024", f"Already {when} the value could not be written: {error}.", kills=kill - 1)
            return
        try:
            reader = bench.fresh()
            try:
                found = reader("number", key)
            finally:
                reader.stop()
        except (Refused, Gone) as error:
            yield failed("T024", f"After kill {kill} of {_KILLS} the value could not be read: {error}.", kills=kill)
            return
        if found < number:
            evidence = f"Write {number} had returned; after kill {kill} a new process read write {found}."
            yield failed("T024", evidence, kills=kill)
            return
        number = found
    yield passed(
        "T024",
        f"Killed {_KILLS} times during {number} writes: each time the old or the new value, none lost.",
        kills=_KILLS,
    )


def _killed_after(writer: Any, seconds: float, number: int) -> int:
    """Kill a writer some time after its first write; return the last write that returned."""
    first = writer.news(20.0)
    if first is None or isinstance(first, tuple):
        writer.kill()
        if isinstance(first, tuple):
            raise Refused(*first[1][:2], conflict=first[1][2])
        raise Gone("no write returned within 20 s")
    timer = threading.Timer(seconds, writer.kill)
    timer.start()
    last = max(number, int(first))
    ends = time.monotonic() + seconds + 10
    while time.monotonic() < ends:
        found = writer.news(0.05)
        if isinstance(found, int):
            last = max(last, found)
        elif found is None and not timer.is_alive():
            break
    timer.join()
    writer.stop()
    return last
