"""Baselines: findings that a team knows and accepts, as a file of digests. What is new still fails."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tenuto.audit.findings import Report
from tenuto.errors import InvalidInput, NotFound


def written(report: Report, path: Path) -> int:
    """Write the failed findings of a report as a baseline; return how many digests it has."""
    digests = {digest: one.code for one in report.findings if one.status == "failed" for digest in one.fingerprints()}
    path.write_text(json.dumps({"format": 1, "target": report.target, "findings": digests}, indent=1) + "\n")
    return len(digests)


def applied(report: Report, path: Path) -> Report:
    """Return the report with the findings that a baseline accepts marked as known.

    A rule is known if all that it found is in the baseline; a new item under it makes it fail again.
    """
    try:
        known = json.loads(path.read_text())["findings"]
    except FileNotFoundError:
        raise NotFound(f"There is no baseline {path}. Write one with --write-baseline {path}.") from None
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{path} is no baseline of tenuto audit. Write one with --write-baseline.") from None
    codes = [one.code for one in report.findings if one.status == "failed" and set(one.fingerprints()) <= set(known)]
    return dataclasses.replace(report, known=tuple(codes))
