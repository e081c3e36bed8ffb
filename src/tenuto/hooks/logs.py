"""A hook that logs each storage call as one line, with its correlation id."""

from __future__ import annotations

import logging

from tenuto.hooks.events import Call, Event


class LogCalls:
    """Log every storage call at DEBUG, failures and signs of lost context at WARNING: `Tenuto(hooks=[LogCalls()])`."""

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("tenuto.calls")

    def __call__(self, call: Event) -> None:
        """Log one event."""
        if not isinstance(call, Call):
            about = {"correlation_id": call.correlation_id}
            self._logger.warning("%s in %s: %s (%s)", call.kind, call.thread, call.text, call.evidence, extra=about)
            return
        level = logging.DEBUG if call.error is None else logging.WARNING
        self._logger.log(
            level,
            "%s of %d (%d bytes) in %.3f ms%s%s",
            call.verb,
            call.count,
            call.size,
            call.seconds * 1e3,
            f" [{call.correlation_id}]" if call.correlation_id else "",
            f" failed: {call.error}" if call.error else "",
            extra={"correlation_id": call.correlation_id},
        )
