"""The report as annotations of GitHub Actions."""

from __future__ import annotations

from collections.abc import Iterator

from tenuto.audit.findings import Report

_COMMANDS = {"critical": "error", "high": "error", "medium": "warning", "low": "notice"}


def workflow_commands(report: Report) -> Iterator[str]:
    """Yield one workflow command for each failed finding, then a summary."""
    for one in report.failed:
        title = _property(f"{one.code} {one.rule.title}")
        yield f"::{_COMMANDS[one.severity]} title={title}::{_data(f'{one.evidence} {one.rule.meaning} Fix: {one.rule.fix}')}"
    said = ", ".join(f"{count} {name}" for name, count in report.counts.items() if count)
    yield f"tenuto audit of {_data(report.target)}: {said}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
