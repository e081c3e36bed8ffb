"""The current correlation id, which connects the writes, events and log lines of one request.

It is a context variable, so it follows asyncio tasks and threads started through the bridge. If none is
set, the W3C trace context is used: the current OpenTelemetry span, else the `TRACEPARENT` environment
variable, which build systems and shells set.
"""

from __future__ import annotations

import os
import re
import sys
from contextvars import ContextVar, Token

from tenuto.kernel import keys

_current: ContextVar[str | None] = ContextVar("tenuto_correlation", default=None)
_traceparent = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_NO_TRACE = "0" * 32

variable = _current


def current() -> str | None:
    """Return the current correlation id, or None."""
    own = _current.get()
    if own is not None:
        return own
    if "opentelemetry.trace" in sys.modules:
        context = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
        if context.is_valid:
            return f"{context.trace_id:032x}"
    return _inherited


def trace_id(text: str) -> str | None:
    """Return the trace id of a W3C `traceparent`, or None if the text is not one."""
    found = _traceparent.fullmatch(text.strip().lower()) if isinstance(text, str) else None
    return found[1] if found and found[1] != _NO_TRACE else None


_inherited = trace_id(os.environ.get("TRACEPARENT", ""))


class Correlation:
    """A block that sets the correlation id, for this thread and for tasks started inside the block."""

    def __init__(self, correlation_id: str) -> None:
        self.id = trace_id(correlation_id) or keys.name(correlation_id, "correlation id")
        self._tokens: list[Token[str | None]] = []

    def __enter__(self) -> str:
        """Set the correlation id; return it."""
        self._tokens.append(variable.set(self.id))
        return self.id

    def __exit__(self, *_: object) -> None:
        """Restore the previous correlation id."""
        variable.reset(self._tokens.pop())
