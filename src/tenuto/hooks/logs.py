"""A hook that logs events, each as one line with its correlation id and the version of the state that it is about."""

from __future__ import annotations

import logging

from tenuto.hooks.events import Call, Event, MemoryUsed, RunLeft, RunOpened, StepEnded


class LogCalls:
    """Log every storage call at DEBUG, failures and signs of lost context at WARNING: `Tenuto(hooks=[LogCalls()])`.

    No line has contents, unless `contents` allows the sentence that is a sign of lost context.
    """

    def __init__(self, logger: logging.Logger | None = None, *, contents: bool = False) -> None:
        self._logger = logger or logging.getLogger("tenuto.calls")
        self._contents = contents

    def __call__(self, call: Event) -> None:
        """Log one event."""
        if isinstance(call, MemoryUsed):
            about = {name: getattr(call, name) for name in call.__slots__}
            self._logger.debug(
                "%s of %d in %.3f ms",
                call.operation,
                call.count,
                call.seconds * 1e3,
                extra={**about, "state_version": None},
            )
            return
        if isinstance(call, RunOpened | RunLeft | StepEnded):
            self._of_run(call)
            return
        if not isinstance(call, Call):
            about = {"correlation_id": call.correlation_id, "state_version": None, "event": call.kind}
            said = f": {call.text} ({call.evidence})" if self._contents else ""
            self._logger.warning("%s in %s%s", call.kind, call.thread, said, extra=about)
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
            extra={
                "correlation_id": call.correlation_id,
                "state_version": call.version,
                "verb": call.verb,
                "count": call.count,
                "size": call.size,
                "seconds": call.seconds,
                "error": call.error,
            },
        )

    def _of_run(self, event: RunOpened | RunLeft | StepEnded) -> None:
        """Log an event of a run, with its fields as extras; no arguments and no results."""
        about = {name: getattr(event, name) for name in event.__slots__}
        what = {RunOpened: "opened", RunLeft: "left", StepEnded: "step ended"}[type(event)]
        bad = isinstance(event, StepEnded) and event.outcome in ("failed", "in_doubt")
        said = ", ".join(
            f"{name}={value}" for name, value in about.items() if name != "run" and value not in (None, False)
        )
        level = logging.WARNING if bad else logging.INFO
        self._logger.log(
            level, "run %s %s: %s", event.run, what, said, extra={"event": what, **about, "state_version": None}
        )
