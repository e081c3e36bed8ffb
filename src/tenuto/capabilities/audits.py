"""Audits: the summaries of the audits of a store, so that a server, the inspector or an alert can show them.

Keys, below the tenant: `("audit", "last")`, which the next audit replaces, and `("audit", "past", milliseconds)`, one record for
each audit, for a year. Both are written in one commit, without a journal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from tenuto.capabilities._core.base import Context, Timed, must_limit
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Put, Record
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work, on_store

LAST: Final = keys.pack("audit", "last")
_PAST: Final = keys.pack("audit", "past")
_YEAR: Final = 365 * 86_400.0


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
    """The audits of a tenant's store; `tenuto audit` writes them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kernel = context.kernel

    def last(self) -> AuditSummary | None:
        """Return the summary of the last audit, or None if there was none."""
        record = self._kernel.read([LAST])[0]
        return None if record is None else _summary(record)

    def list(self, limit: int = 10, *, after: datetime | None = None) -> list[AuditSummary]:
        """Return the summaries of the audits of the last year, newest first; `after` is the time of the last one seen."""
        must_limit(limit)
        seen = None if after is None else _past(after.timestamp())
        return [_summary(record) for record in self._kernel.scan(_PAST, after=seen, limit=limit, reverse=True)]

    @on_store
    def record(self, summary: AuditSummary) -> Work[None]:
        """Store the summary of an audit durably, as the last one."""
        findings = [[*one] for one in summary.findings]
        stored = codec.encode({**summary._asdict(), "counts": dict(summary.counts), "findings": findings})
        past = Put(_past(summary.at.timestamp()), stored, _YEAR)
        yield from commit_once(self._kernel, [], [Put(LAST, stored), past])


def _past(at: float) -> bytes:
    return _PAST + keys.pack(int(at * 1000))


def _summary(record: Record) -> AuditSummary:
    stored: dict[str, Any] = codec.decode(record.value)
    return AuditSummary(**{**stored, "findings": [AuditFinding(*one) for one in stored["findings"]]})
