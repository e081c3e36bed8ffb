"""Log lines of tenuto: each has `correlation_id` and `state_version` as extras, also those that say neither themselves.

A filter of every logger adds what a line lacks: the correlation id of the block in which it was logged, and None for the version of a
state that it is not about. A formatter may name both fields for all of tenuto's lines.
"""

from __future__ import annotations

import logging
from typing import Final

from tenuto.kernel import correlation

NAMES: Final = (
    "access", "audit", "backends", "calls", "claude_agent", "clock", "hooks", "leases", "mcp", "memory", "postgres", "runs", "server",
    "sessions", "sqlite", "tasks",
)  # fmt: skip
"""The loggers, below `tenuto.`."""


def _stamped(record: logging.LogRecord) -> bool:
    if not hasattr(record, "correlation_id"):
        record.correlation_id = correlation.current()
    if not hasattr(record, "state_version"):
        record.state_version = None
    return True


def stamp() -> None:
    """Add the fields to the lines of every logger of tenuto. Doing it again changes nothing."""
    for name in NAMES:
        logging.getLogger(f"tenuto.{name}").addFilter(_stamped)
