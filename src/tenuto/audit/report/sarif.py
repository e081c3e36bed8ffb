"""The report as SARIF 2.1.0, for code scanning."""

from __future__ import annotations

from typing import Any, Final

from tenuto.audit.findings import Finding, Report
from tenuto.audit.report.plain import status_of
from tenuto.audit.rules import RULES

_LEVELS: Final = {"critical": "error", "high": "error", "medium": "warning", "low": "note"}
_SCORES: Final = {"critical": "9.5", "high": "8.0", "medium": "5.0", "low": "2.0"}
SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(report: Report) -> dict[str, Any]:
    """Return a SARIF log: every rule as a rule, each failed finding and each of its items as a result."""
    codes = list(RULES)
    results = [
        result
        for one in report.findings
        if one.status == "failed"
        for result in _results(report, one, codes.index(one.code))
    ]
    driver = {
        "name": "tenuto audit",
        "version": report.version,
        "rules": [
            {
                "id": rule.code,
                "name": "".join(word.capitalize() for word in rule.title.replace(",", "").split()),
                "shortDescription": {"text": rule.title},
                "fullDescription": {"text": rule.meaning},
                "help": {"text": f"Tested: {rule.tested}\nFix: {rule.fix}"},
                "defaultConfiguration": {"level": _LEVELS[rule.severity]},
                "properties": {"tags": [rule.area], "security-severity": _SCORES[rule.severity]},
            }
            for rule in RULES.values()
        ],
    }
    invocation = {"executionSuccessful": True, "endTimeUtc": f"{report.at:%Y-%m-%dT%H:%M:%SZ}"}
    properties = {"target": report.target, "kind": report.kind, "counts": report.counts}
    run = {"tool": {"driver": driver}, "invocations": [invocation], "results": results, "properties": properties}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _results(report: Report, finding: Finding, index: int) -> list[dict[str, Any]]:
    known = status_of(report, finding) == "known"
    found = []
    items = [(one.id, one.kind, f"{one.id}: {one.evidence}") for one in finding.items]
    prints = finding.fingerprints()
    for (name, kind, text), digest in zip(
        items or [(report.target, "resource", finding.evidence)], prints, strict=True
    ):
        result: dict[str, Any] = {
            "ruleId": finding.code,
            "ruleIndex": index,
            "level": _LEVELS[finding.severity],
            "message": {"text": f"{text} {finding.rule.meaning} Fix: {finding.rule.fix}"},
            "locations": [{"logicalLocations": [{"name": name, "fullyQualifiedName": name, "kind": kind}]}],
            "partialFingerprints": {"tenuto/v1": digest},
        }
        if known:
            result["suppressions"] = [{"kind": "external", "justification": "in the baseline"}]
        found.append(result)
    return found
