"""Checks of data: that it survives its process, is shared, can be restored, and comes back unchanged."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tenuto.audit.bench import Bench, check
from tenuto.audit.findings import Finding, failed, judged, not_tested, passed
from tenuto.audit.replicas import Refused

PREFERENCES = {
    "language": "fr",
    "seat": "aisle",
    "tags": ["vegan", "café"],
    "limits": {"price": 900.5, "stops": 1, "refundable": True, "airline": None},
}
_TEXTS = [f"message {number}" for number in range(1, 7)]
_DONE = {"completed": ["search", "compare"], "next": "book", "total": 4}
_SOON = 1.0


@check("T001", "T002", "T003")
def sessions(bench: Bench) -> Iterator[Finding]:
    """Three sessions in three processes: the first ends, the second is killed, the third reads."""
    talk, user, work = bench.key("talk"), bench.key("user"), bench.key("work")
    first = bench.fresh()
    first("say", talk, _TEXTS[:3])
    first("write", user, PREFERENCES)
    first.stop()
    second = bench.fresh()
    second("say", talk, _TEXTS[3:])
    second("write", work, _DONE)
    second.kill()
    second.stop()
    third = bench.fresh()
    found, preferences, progress = third("said", talk), third("read", user), third("read", work)
    third.stop()
    yield judged(
        "T001",
        f"A third process read {len(found)} of 6 messages that two earlier processes had written"
        + (", in order." if found == _TEXTS else f": {found}."),
        ok=found == _TEXTS,
    )
    yield judged(
        "T002",
        "A new process read the preferences unchanged."
        if preferences == PREFERENCES
        else f"A new process read {preferences!r:.120} instead of the preferences of the first.",
        ok=preferences == PREFERENCES,
    )
    yield judged(
        "T003",
        "The process was killed after step 2 of 4; a new one read: completed search and compare, next book."
        if progress == _DONE
        else f"The process was killed after step 2 of 4; a new one read {progress!r:.120}.",
        ok=progress == _DONE,
    )


@check("T004")
def shared(bench: Bench) -> Iterator[Finding]:
    """Two running processes see each other's writes."""
    one, other = bench.pair
    key = bench.key("shared")
    slowest = 0.0
    for writer, reader, value in ((one, other, "first"), (other, one, "second")):
        reader("read", key)  # whatever it caches, it caches now
        writer("write", key, {"from": value})
        began = time.monotonic()
        while reader("read", key) != {"from": value}:
            if time.monotonic() - began > _SOON:
                now = reader("read", key)
                yield failed("T004", f"A running replica still read {now!r:.80} one second after another had written.")
                return
            time.sleep(0.01)
        slowest = max(slowest, time.monotonic() - began)
    yield passed(
        "T004", f"Two running replicas read each other's writes within {slowest * 1e3:.0f} ms.", seconds=slowest
    )


@check("T005")
def backed_up(bench: Bench) -> Iterator[Finding]:
    """A real backup, restored and compared."""
    if "backup" not in bench.abilities:
        how = "Give the target a method backup(folder) that backs up, restores from that and returns a manager on it."
        yield not_tested("T005", f"The audit does not know how this target is backed up. {how}")
        return
    try:
        compared, wrong = bench.pair[0]("backup", bench.folder, bench.key("backup"))
    except Refused as error:
        if error.kind == "StorageUnavailable":
            yield not_tested("T005", f"No backup could be made from here: {error}.")
            return
        raise
    yield judged(
        "T005",
        f"A backup was taken, restored elsewhere and compared: {compared} values and messages, "
        + (f"{len(wrong)} differ: {', '.join(wrong[:3])}." if wrong else "all equal."),
        ok=not wrong,
        compared=compared,
    )


@check("T006", "T007")
def values(bench: Bench) -> Iterator[Finding]:
    """Types are kept or refused, and what was read is a copy."""
    if bench.wanted("T006"):  # a manager may break at a type that it does not know
        changed = bench.pair[0]("typed", bench.key("typed"))
        evidence = "; ".join(changed) + "." if changed else "All came back equal or were refused."
        yield judged("T006", evidence, ok=not changed)
    live = bench.pair[0]("aliased", bench.key("aliased"))
    yield judged(
        "T007",
        "Changing a value that had been read changed the stored one, without a write."
        if live
        else "Changing a value that had been read left the stored one alone.",
        ok=not live,
    )
