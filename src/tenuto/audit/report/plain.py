"""The report as data: what --json prints, and the summary that the store holds."""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from tenuto.audit.findings import Finding, Item, Report
from tenuto.capabilities.audits import AuditFinding, AuditSummary


class FindingShown(NamedTuple):
    """The outcome of a rule, with the text of the rule."""

    code: str
    area: str
    title: str
    severity: str
    status: str
    """`passed`, `failed`, `known` (failed, and in the baseline), `not offered` or `not tested`."""
    evidence: str
    meaning: str
    fix: str
    figures: dict[str, Any]
    found: int
    items: list[Item]


class ReportShown(NamedTuple):
    """An audit."""

    target: str
    kind: str
    at: datetime
    seconds: float
    version: str
    counts: dict[str, int]
    findings: list[FindingShown]


def status_of(report: Report, finding: Finding) -> str:
    """Return the status of a finding; `known` if it failed and the baseline accepts it."""
    return "known" if finding.status == "failed" and finding.code in report.known else finding.status


def shown(report: Report) -> ReportShown:
    """Return a report as data."""
    findings = [
        FindingShown(
            one.code,
            one.rule.area,
            one.rule.title,
            one.severity,
            status_of(report, one),
            one.evidence,
            one.rule.meaning,
            one.rule.fix,
            one.figures,
            one.found,
            list(one.items),
        )
        for one in report.findings
    ]
    return ReportShown(report.target, report.kind, report.at, report.seconds, report.version, report.counts, findings)


def summary(report: Report) -> AuditSummary:
    """Return the summary of a report."""
    findings = [
        AuditFinding(one.code, status_of(report, one), one.severity, one.rule.title, one.evidence, one.found)
        for one in report.findings
    ]
    return AuditSummary(report.at, report.target, report.kind, report.seconds, report.version, report.counts, findings)
