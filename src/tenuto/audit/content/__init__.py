"""The content audit: what is stored that should not be, or is stuck. Offline, without a model, with evidence for each item.

One pass over the records of the tenant, then the lists of runs, questions, tasks and notifications. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tenuto.audit.content import memories, work
from tenuto.audit.findings import Finding, Item, failed, passed
from tenuto.client import Tenuto

Step = Callable[[int, int], None]
CODES = ("T014", *memories.CODES, *work.CODES)
_MOST = 100
"""Items listed for a rule; `found` counts all."""


def content_findings(agent: Tenuto, wanted: Callable[[str], bool], step: Step) -> list[Finding]:
    """Return the findings of the content of a store."""
    found: dict[str, tuple[str, Sequence[Item], int]] = {}
    if any(map(wanted, memories.CODES)):
        found.update(memories.examined(agent, step))
    found.update(work.examined(agent, wanted))
    findings = [_finding(code, *one) for code, one in found.items() if wanted(code)]
    if wanted("T014"):
        findings.append(_alerted(agent))
    return sorted(findings, key=lambda one: one.code)


def _finding(code: str, looked_at: str, items: Sequence[Item], count: int) -> Finding:
    if not count:
        return passed(code, f"{looked_at}: none found.")
    evidence = f"{looked_at}: {count:,} found. The first: {items[0].id}: {items[0].evidence}"
    return Finding(code, "failed", evidence, {}, tuple(items[:_MOST]), count)


def _alerted(agent: Tenuto) -> Finding:
    alerts = agent.alerts.list()
    named = {channel.name for channel in agent.notify.channels()}
    people = {
        person
        for name, members in agent.inbox.groups().items()
        if name in named or set(members) & named
        for person in (name, *members)
    }
    reached = [one.name for one in alerts if set(one.to) & (named | people)]
    if reached:
        return passed("T014", f"{len(reached)} alerts reach a channel: {', '.join(reached[:3])}.")
    if alerts:
        return failed("T014", f"{len(alerts)} alerts are stored, and none of their people has a channel.")
    return failed("T014", "No alert is stored.")


def pages(items: Iterator[Item]) -> tuple[list[Item], int]:
    """Return the first items and the count of all."""
    first: list[Item] = []
    count = 0
    for one in items:
        count += 1
        if len(first) < _MOST:
            first.append(one)
    return first, count
