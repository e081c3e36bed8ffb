"""Findings and reports: what an audit returns. Plain data, so that each output format is a function of it."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple

from tenuto.audit.rules import RULES, SEVERITIES, Rule, Severity, rank

Status = Literal["passed", "failed", "not offered", "not tested"]


class Item(NamedTuple):
    """One thing in the store that a content rule found."""

    id: str
    """The id that commands take: of a memory, a run, a thread."""
    kind: str
    evidence: str


@dataclass(frozen=True)
class Finding:
    """The outcome of one rule."""

    code: str
    status: Status
    evidence: str
    """What was done and seen, with numbers."""
    figures: dict[str, Any] = field(default_factory=dict)
    items: tuple[Item, ...] = ()
    found: int = 0
    """How many items there are; `items` has the first of them."""

    @property
    def rule(self) -> Rule:
        """Return the rule."""
        return RULES[self.code]

    @property
    def severity(self) -> Severity:
        """Return the severity of the rule."""
        return self.rule.severity

    def fingerprints(self) -> list[str]:
        """Return what a baseline records of a failed finding: one digest for each item, else one for the rule."""
        parts = [f"{self.code}\0{one.id}" for one in self.items] or [self.code]
        return [hashlib.sha256(part.encode()).hexdigest()[:16] for part in parts]


@dataclass(frozen=True)
class Report:
    """The outcome of an audit."""

    target: str
    kind: str
    at: datetime
    seconds: float
    version: str
    findings: tuple[Finding, ...]
    known: tuple[str, ...] = ()
    """Codes of failed rules that the baseline accepts; they do not count as failed."""

    @property
    def failed(self) -> list[Finding]:
        """Return the failed findings that no baseline accepts, the worst first."""
        bad = [one for one in self.findings if one.status == "failed" and one.code not in self.known]
        return sorted(bad, key=lambda one: (rank(one.severity), one.code))

    @property
    def verdict(self) -> str:
        """Return the number of findings in words."""
        count = len(self.failed)
        return f"{count or 'No'} finding{'' if count == 1 else 's'}"

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of findings by status."""
        found = Counter("known" if one.code in self.known else one.status for one in self.findings)
        return {name: found[name] for name in ("passed", "failed", "known", "not offered", "not tested")}

    def is_above(self, severity: str) -> bool:
        """Return whether a failed finding is at least this severe; never for "none"."""
        return severity in SEVERITIES and any(rank(one.severity) <= rank(severity) for one in self.failed)

    def get(self, code: str) -> Finding | None:
        """Return the finding of a rule, or None if it was not tested."""
        return next((one for one in self.findings if one.code == code), None)


def passed(code: str, evidence: str, **figures: Any) -> Finding:
    """Return a passed finding."""
    return Finding(code, "passed", evidence, figures)


def failed(code: str, evidence: str, **figures: Any) -> Finding:
    """Return a failed finding."""
    return Finding(code, "failed", evidence, figures)


def judged(code: str, evidence: str, *, ok: bool, **figures: Any) -> Finding:
    """Return a passed or a failed finding."""
    return Finding(code, "passed" if ok else "failed", evidence, figures)


def not_offered(code: str, evidence: str) -> Finding:
    """Return that the target has nothing to test here."""
    return Finding(code, "not offered", evidence)


def not_tested(code: str, evidence: str) -> Finding:
    """Return that the audit could not test this, and why."""
    return Finding(code, "not tested", evidence)
