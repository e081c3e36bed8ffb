"""Checks of performance: lookups under load, with more conversations, and without storage; and whether it is observed."""

from __future__ import annotations

from collections.abc import Iterator

from tenuto.audit.bench import Bench, check, latencies
from tenuto.audit.findings import Finding, judged, not_offered, not_tested

_LIMIT = 100.0
"""Milliseconds for p95 of a lookup."""
LEVELS = (1, 10, 100)


@check("T010", "T011")
def under_load(bench: Bench) -> Iterator[Finding]:
    """Lookups with 1, 10 and 100 concurrent conversations in one replica."""
    levels: dict[str, dict[str, float]] = {}
    errors: list[str] = []
    for conversations in LEVELS:
        found = bench.pair[0]("load", bench.key(f"load{conversations}"), conversations, bench.seconds)
        levels[str(conversations)] = {**latencies(found["took"]), "lookups": len(found["took"])}
        errors += found["errors"]
    ten = levels["10"]
    yield judged(
        "T010",
        f"10 conversations, {ten['lookups']:.0f} lookups: p50 {ten['p50']:g} ms, p95 {ten['p95']:g} ms, "
        f"p99 {ten['p99']:g} ms, maximum {ten['max']:g} ms.",
        ok=ten["p95"] < _LIMIT and ten["lookups"] > 0,
        **ten,
    )
    shown = ", ".join(f"{name}: {one['p95']:g} ms" for name, one in levels.items())
    yield judged(
        "T011",
        f"p95 by number of conversations: {shown}"
        + (f". {len(errors)} calls failed: {errors[0]}." if errors else "; no call failed."),
        ok=levels["100"]["p95"] < _LIMIT and not errors and levels["100"]["lookups"] > 0,
        levels=levels,
        errors=len(errors),
    )


@check("T012")
def unavailable(bench: Bench) -> Iterator[Finding]:
    """Without storage, calls raise in time."""
    if "outage" not in bench.abilities:
        how = "Give the target a method outage() that returns a manager whose storage cannot be reached."
        yield not_tested("T012", f"The audit cannot take the storage of this target away. {how}")
        return
    answers = bench.pair[0]("outage")
    wrong = [one for one in answers if ": raised" not in one or float(one.split()[-2]) > 10]
    yield judged("T012", f"Without its storage: {'; '.join(answers)}.", ok=not wrong)


@check("T013")
def observed(bench: Bench) -> Iterator[Finding]:
    """Each operation is reported."""
    if "runs" not in bench.abilities:
        yield not_offered("T013", "The target reports no operations; wrap it, or measure its callers.")
        return
    made, reported = bench.pair[0]("hooked", bench.key("hooked"))
    yield judged(
        "T013", f"{reported} of {made} operations were reported to a hook with their duration.", ok=made == reported
    )
