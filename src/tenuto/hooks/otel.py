"""A hook that makes OpenTelemetry spans and metrics. It needs the API alone: pip install "tenuto[otel]".

It sets up no SDK and no exporter: that is the program's. Each opening of a run is one span, its steps are children. A
resumed run begins a new trace, linked to the one before: a run may last for days, and a trace should not. Operations of
memory have the names and attributes of the GenAI conventions (in development there); state, checkpoints and runs, which
those do not cover, are below `tenuto.`. No contents: no keys, arguments, results or texts.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from tenuto.errors import MissingDriver
from tenuto.hooks.events import Call, Event, MemoryUsed, RunLeft, RunOpened, SignFound, StepEnded

try:
    from opentelemetry import context as contexts
    from opentelemetry import metrics, trace
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
except ImportError as error:
    raise MissingDriver(
        'hooks.OpenTelemetry needs opentelemetry-api. Install it with: pip install "tenuto[otel]"'
    ) from error

_ALWAYS: Final = ("commit",)
_NS: Final = 1_000_000_000


class OpenTelemetry:
    """Make spans and metrics: `Tenuto("agent", hooks=[OpenTelemetry()])`.

    A storage call has a span if there is a span around it, or if `calls` is true. Without providers the program's global
    ones are used.
    """

    def __init__(self, *, tracer_provider: Any = None, meter_provider: Any = None, calls: bool = False) -> None:
        self._tracer = trace.get_tracer("tenuto", tracer_provider=tracer_provider)
        meter = metrics.get_meter("tenuto", meter_provider=meter_provider)
        self._every_call = calls
        self._runs: dict[str, Span] = {}
        self._lock = threading.Lock()
        self._duration = meter.create_histogram("tenuto.storage.duration", "s", "Time of a storage call")
        self._conflicts = meter.create_counter("tenuto.conflicts", description="Commits refused by another writer")
        self._errors = meter.create_counter("tenuto.errors", description="Storage calls that raised")
        self._opened = meter.create_counter("tenuto.runs", description="Runs started and resumed")
        self._takeovers = meter.create_counter(
            "tenuto.lease.takeovers", description="Runs taken over from dead processes"
        )
        self._reused = meter.create_counter("tenuto.steps.reused", description="Recorded steps that were not repeated")
        self._step = meter.create_histogram("tenuto.step.duration", "s", "Time of a step")
        self._memory = meter.create_histogram(
            "gen_ai.client.operation.duration", "s", "Time of an operation on memories"
        )
        self._signs = meter.create_counter("tenuto.signs", description="Signs of lost context")
        self._about: dict[tuple[str, str | None], dict[str, str]] = {}

    def __call__(self, event: Event) -> str | None:
        """Record one event; for an opened run return its traceparent, which is given back at the next opening."""
        if type(event) is Call:
            self._called(event)
        elif type(event) is RunOpened:
            return self._run_opened(event)
        elif type(event) is RunLeft:
            self._run_left(event)
        elif type(event) is StepEnded:
            self._step_ended(event)
        elif type(event) is MemoryUsed:
            self._memory_used(event)
        elif type(event) is SignFound:
            self._signs.add(1, {"tenuto.sign": event.kind})
            trace.get_current_span().add_event(
                "tenuto.sign", {"tenuto.sign": event.kind, **_conversation(event.thread)}
            )
        return None

    def _called(self, call: Call) -> None:
        key = (call.verb, call.error)
        about = self._about.get(key)
        if about is None:
            about = self._about[key] = {"tenuto.verb": call.verb} | ({"error.type": call.error} if call.error else {})
        self._duration.record(call.seconds, about)
        if call.error is not None:
            (self._conflicts if "Conflict" in call.error else self._errors).add(1, about)
        if not self._every_call and not trace.get_current_span().is_recording():
            return
        ended = time.time_ns()
        sizes = {"tenuto.count": call.count, "tenuto.bytes": call.size}
        if call.version is not None:
            sizes["tenuto.state.version"] = call.version
        span = self._tracer.start_span(
            f"tenuto.{call.verb}",
            kind=SpanKind.CLIENT,
            start_time=ended - int(call.seconds * _NS),
            attributes={**about, **sizes},
        )
        if call.error is not None:
            span.set_status(Status(StatusCode.ERROR, call.error))
        span.end(ended)

    def _memory_used(self, event: MemoryUsed) -> None:
        """One span by the GenAI conventions: named after the operation; neither query nor texts."""
        ended = time.time_ns()
        about: dict[str, str | int] = {"gen_ai.operation.name": event.operation, "gen_ai.memory.store.id": "tenuto"}
        self._memory.record(event.seconds, {"gen_ai.operation.name": event.operation})
        if event.record is not None:
            about["gen_ai.memory.record.id"] = event.record
        about["gen_ai.memory.record.count"] = event.count
        started = ended - int(event.seconds * _NS)
        self._tracer.start_span(event.operation, kind=SpanKind.CLIENT, start_time=started, attributes=about).end(ended)

    def _run_opened(self, event: RunOpened) -> str:
        about = {"tenuto.how": "resumed" if event.resumed else "started"}
        self._opened.add(1, about)
        if event.taken_over:
            self._takeovers.add(1)
        links = []
        before = _context_of(event.before)
        if before is not None:
            links.append(Link(before, {"tenuto.link": "the opening before"}))
        around: Any = None
        if event.resumed:  # a trace of its own; the caller's is a link, too
            around = contexts.Context()
            caller = trace.get_current_span().get_span_context()
            if caller.is_valid:
                links.append(Link(caller, {"tenuto.link": "the caller"}))
        span = self._tracer.start_span(
            f"invoke_workflow {event.function or 'run'}",
            context=around,
            kind=SpanKind.INTERNAL,
            links=links,
            attributes={"gen_ai.operation.name": "invoke_workflow", "tenuto.run.id": event.run, **about},
        )
        with self._lock:
            self._runs[event.run] = span
        return _traceparent(span.get_span_context())

    def _run_left(self, event: RunLeft) -> None:
        self._reused.add(event.reused)
        with self._lock:
            span = self._runs.pop(event.run, None)
        if span is None:
            return
        span.set_attributes({"tenuto.run.status": event.status, "tenuto.steps.reused": event.reused})
        if event.status in ("failed", "in_doubt"):
            span.set_status(Status(StatusCode.ERROR, event.status))
        span.end()

    def _step_ended(self, event: StepEnded) -> None:
        self._step.record(event.seconds, {"tenuto.outcome": event.outcome})
        with self._lock:
            parent = self._runs.get(event.run)
        around = None if parent is None else trace.set_span_in_context(parent)
        ended = time.time_ns()
        span = self._tracer.start_span(
            f"tenuto.step {event.step}",
            context=around,
            start_time=ended - int(event.seconds * _NS),
            attributes={
                "tenuto.run.id": event.run,
                "tenuto.step.name": event.step,
                "tenuto.outcome": event.outcome,
                "tenuto.attempts": event.attempts,
            },
        )
        if event.error is not None and event.outcome != "paused":
            span.set_status(Status(StatusCode.ERROR, event.error))
            span.set_attribute("error.type", event.error)
        span.end(ended)


def _conversation(thread: str) -> dict[str, str]:
    return {"gen_ai.conversation.id": thread}


def _traceparent(context: trace.SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def _context_of(traceparent: str | None) -> trace.SpanContext | None:
    parts = (traceparent or "").split("-")
    if len(parts) != 4:
        return None
    found = trace.SpanContext(int(parts[1], 16), int(parts[2], 16), True, trace.TraceFlags(int(parts[3], 16)))
    return found if found.is_valid else None
