"""The correlation id in force: what ties writes, events and log lines of one request together.

It is a context variable, so it follows threads started through the bridge and asyncio tasks. Where
none was set, a W3C trace context is taken up: the span that OpenTelemetry has open, else the
`TRACEPARENT` environment variable, which is how build systems and shells hand one down.
"""

from __future__ import annotations

import os
import re
import sys
from contextvars import ContextVar

_current: ContextVar[str | None] = ContextVar("tenuto_correlation", default=None)
_traceparent = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE = "0" * 32

variable = _current


def current() -> str | None:
    """Return the correlation id in force, or None."""
    own = _current.get()
    if own is not None:
        return own
    if "opentelemetry.trace" in sys.modules:
        context = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
        if context.is_valid:
            return f"{context.trace_id:032x}"
    return _inherited


def trace_id(text: str) -> str | None:
    """Return the trace id inside a W3C `traceparent`, or None if it is not one."""
    found = _traceparent.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    return found[1] if found and found[1] != _NO_TRACE else None


_inherited = trace_id(os.environ.get("TRACEPARENT", ""))
