"""The forms of a report. Each is a function from a report to text or data."""

from tenuto.audit.report.baseline import applied, written
from tenuto.audit.report.github import workflow_commands
from tenuto.audit.report.page import page
from tenuto.audit.report.plain import FindingShown, ReportShown, shown, summary
from tenuto.audit.report.sarif import sarif
from tenuto.audit.report.text import lines

__all__ = [
    "FindingShown",
    "ReportShown",
    "applied",
    "lines",
    "page",
    "sarif",
    "shown",
    "summary",
    "workflow_commands",
    "written",
]
