"""Audits: the summary of the last audit of a store, so that a server, the inspector or an alert can show it.

Key, below the tenant: `("audit", "last")`, one record that the next audit replaces. One commit, no journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, Timed
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Put
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work, on_store

LAST: Final = keys.pack("audit", "last")


class AuditFinding(NamedTuple):
    """The outcome of one rule."""

    code: str
    status: str
    """`passed`, `failed`, `not offered` or `not tested`."""
    severity: str
    title: str
    evidence: str
    found: int = 0
    """How many things in the store a content rule found."""


class AuditSummary(NamedTuple):
    """The summary of an audit."""

    at: datetime
    target: str
    kind: str
    seconds: float
    version: str
    counts: Mapping[str, int]
    """The number of findings by status; `known` are those that the baseline accepts."""
    findings: Sequence[AuditFinding]


class Audits(Timed):
    """The last audit of a tenant's store; `tenuto audit` writes it."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kernel = context.kernel

    def last(self) -> AuditSummary | None:
        """Return the summary of the last audit, or None if there was none."""
        record = self._kernel.read([LAST])[0]
        if record is None:
            return None
        stored: dict[str, Any] = codec.decode(record.value)
        return AuditSummary(**{**stored, "findings": [AuditFinding(*one) for one in stored["findings"]]})

    @on_store
    def record(self, summary: AuditSummary) -> Work[None]:
        """Store the summary of an audit durably, in place of the last one."""
        findings = [list(one) for one in summary.findings]
        stored = {**summary._asdict(), "counts": dict(summary.counts), "findings": findings}
        yield from commit_once(self._kernel, [], [Put(LAST, codec.encode(stored))])
