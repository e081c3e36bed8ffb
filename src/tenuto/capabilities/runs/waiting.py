"""Waiting in a run: for a time, a signal, or an answer.

The first call writes one line with the deadline and what it waits for. If that has come, the run continues; else it
pauses and checks again when resumed. A signal is a record that the run deletes in the commit that logs its payload: an
early signal waits, and of two pending ones the first counts. An answer is read from its question, which the run asks in
the commit of its line; without a worker the run itself fires the question's timers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenuto.capabilities._core.base import stamp
from tenuto.capabilities.people import (
    AskOptions,
    NoAnswer,
    Question,
)
from tenuto.capabilities.runs.arguments import Described
from tenuto.capabilities.runs.engine import Engine
from tenuto.capabilities.runs.log import ERROR, PLAIN, RESULT, SIGNALLED, WAITS, Identity, Op, RunLog
from tenuto.capabilities.runs.open_run import OpenRun
from tenuto.capabilities.runs.replay import LENIENT
from tenuto.capabilities.runs.results import Schema, error_data, error_from, from_stored
from tenuto.errors import Conflict, InvalidInput, StateConflict, TimedOut, Waiting
from tenuto.kernel import codec
from tenuto.kernel.contract import Check, Delete, Put
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Sleep, Store, Work

_OFTEN, _RARELY = 0.02, 0.5


def sleeping(run: OpenRun, duration: Duration) -> Work[None]:
    """Return once `duration` has passed since the first call."""
    length = seconds(duration)
    identity, op = yield from _recalled(run, "sleep", "sleep", codec.digest(codec.pack(length)))
    if op is None:
        now = run.context.kernel.now()
        op = Op(run.number(), identity, now)
        op.until = now + length
        with run.busy(), run.awaiting("", "", op.until):
            yield Store(run.write([], [run.log.line(WAITS, op.n, [identity.stored(), op.until, None])]))
    with run.busy(), run.awaiting("", "", op.until):
        yield from _slept(run, op)


def _slept(run: OpenRun, op: Op) -> Work[None]:
    while op.until is not None and run.context.kernel.now() < op.until:
        what = f"sleeps until {moment(op.until):%Y-%m-%d %H:%M:%S} UTC"
        yield from _pause(run, op.until, what, 1.0)


def signalled(run: OpenRun, event: str, timeout: Duration | None) -> Work[Any]:
    """Return the payload of a signal; raise `TimedOut` if none came in time."""
    run.log.signal_key(event)  # validates the name
    identity, op = yield from _recalled(run, "wait", event, LENIENT)
    with run.busy():
        return (yield from _signalled(run, event, timeout, identity, op))


def _signalled(run: OpenRun, event: str, timeout: Duration | None, identity: Identity, op: Op | None) -> Work[Any]:
    if op is not None and op.state == "done":
        return (yield from run.value_of(op))
    if op is not None and op.error is not None and (run.over or run.past.went_on(op)):
        raise error_from(op.error)
    kernel, n = run.context.kernel, op.n if op is not None else run.number()
    until = op.until if op is not None else None if timeout is None else kernel.now() + seconds(timeout, "timeout")
    with run.awaiting("signal", event, until):
        return (yield from _taken(run, event, until, n, identity, op))


def _taken(run: OpenRun, event: str, until: float | None, n: int, identity: Identity, op: Op | None) -> Work[Any]:
    where, kernel = run.log.signal_key(event), run.context.kernel
    delay = _OFTEN
    while True:
        record = (yield Store(lambda: kernel.read([where])))[0]
        stored = identity.stored() if op is None else None
        if record is not None:
            payload = codec.decode(record.value)[2]
            line = run.log.line(RESULT, n, [stored, PLAIN, payload, False, 0.0, [], False])
            try:
                yield Store(run.write([Check(where, record.version)], [line, Delete(where)]))
            except StateConflict:  # not `StaleLease`: a process that lost the run must stop
                continue
            return payload
        if op is None:
            op = Op(n, identity, kernel.now())
            op.until = until
            yield Store(run.write([], [run.log.line(WAITS, n, [stored, until, event])]))
        if until is not None and kernel.now() >= until:
            late = TimedOut(
                f"The run {run.id!r} got no signal {event!r} in time. Catch TimedOut to continue without it, or send it "
                "late and repeat the call."
            )
            line = run.log.line(ERROR, n, [None, error_data(late), run.next, 0.0, []])
            yield Store(run.write([], [line]))
            raise late
        yield from _pause(run, until, f"waits for the signal {event!r}", delay)
        delay = min(delay * 1.5, _RARELY)


def asked(run: OpenRun, text: str, options: AskOptions) -> Work[Any]:
    """Return the answer; raise `TimedOut` if it expired with `on_timeout="fail"`, `Conflict` if it was cancelled."""
    identity, op = yield from _recalled(run, "ask", "ask", codec.digest(codec.pack(text)))
    if op is not None and op.state == "done":
        return as_type((yield from run.value_of(op)), options.get("schema"))
    if op is not None and op.error is not None and (run.over or run.past.went_on(op)):
        raise error_from(op.error)
    with run.busy():
        if op is None:
            op = Op(run.number(), identity, run.context.kernel.now())
            op.ref = options.get("key") or f"{run.history.started['uid'].hex()[:16]}-{op.n}"
            yield from _asking(run, op, text, options)
        return as_type((yield from _answered(run, op, text)), options.get("schema"))


def _asking(run: OpenRun, op: Op, text: str, options: AskOptions) -> Work[None]:
    """Ask the question in the commit of the run's line, unless its key was asked before."""
    while True:
        question, checks, writes = yield Store(
            lambda: run.engine.inbox._opening(op.ref or "", text, options, run=run.id)
        )
        op.until = _expires(question)
        line = run.log.line(WAITS, op.n, [op.identity.stored(), op.until, op.ref])
        try:
            with run.awaiting("question", op.ref or "", op.until):
                yield Store(run.write(checks, [line, *writes]))
        except StateConflict:
            continue  # the key, or the gate of the resource, has just changed
        return


def _answered(run: OpenRun, op: Op, text: str) -> Work[Any]:
    inbox, kernel = run.engine.inbox, run.context.kernel
    delay = _OFTEN
    while True:
        found, _ = yield Store(lambda: inbox._look(op.ref or ""))
        if found is not None and found.timers and found.timers[0].at <= kernel.now():
            yield Store(inbox._fire(found.id))  # no worker did
            continue
        if found is not None and found.open:
            until = _expires(found)
            with run.awaiting("question", found.id, until):
                yield from _pause(run, until, f"waits for an answer to {text!r:.200}", delay)
            delay = min(delay * 1.5, _RARELY)
            continue
        if found is not None and (found.status == "answered" or _is_decided(found)):
            denied = found.status == "expired" and found.on_timeout == "deny"
            value = NoAnswer(found.id, found.text) if denied else found.answer
            yield Store(run.write([], [run.log.line(RESULT, op.n, [None, PLAIN, value, False, 0.0, [], False])]))
            return value
        problem = _no_answer(run, found, text)
        yield Store(run.write([], [run.log.line(ERROR, op.n, [None, error_data(problem), run.next, 0.0, []])]))
        raise problem


def _is_decided(question: Question) -> bool:
    """Return whether an expired question has an outcome by its own policy."""
    return question.status == "expired" and question.on_timeout in ("default", "deny")


def _expires(question: Question) -> float | None:
    return None if question.expires_at is None else question.expires_at.timestamp()


def _no_answer(run: OpenRun, found: Question | None, text: str) -> Exception:
    fork = f"ask again in a fork: agent.runs.fork({run.id!r}, NEW_ID, …)"
    if found is None or found.status == "cancelled":
        return Conflict(
            f"The question was cancelled: {text!r:.200}. Catch Conflict to continue without an answer, or {fork}."
        )
    return TimedOut(f"No answer came in time: {text!r:.200}. Catch TimedOut to continue without an answer, or {fork}.")


def as_type(value: Any, schema: Any) -> Any:
    """Return an answer as the type of its schema; unchanged if that is a JSON Schema, or there is no answer."""
    if schema is None or isinstance(schema, Mapping) or isinstance(value, NoAnswer):
        return value
    return from_stored(value, False, Schema(schema, True))


def _recalled(run: OpenRun, kind: str, name: str, digest: bytes) -> Work[tuple[Identity, Op | None]]:
    run.must_go_on(f"run.{kind}")
    identity = Identity(kind, name, None, Described(digest), together=run.beside())
    op = yield from run.recall(identity)
    if op is None:
        run.may_begin(f"run.{kind}")
    return identity, op


def _pause(run: OpenRun, until: float | None, what: str, delay: float) -> Work[None]:
    """Sleep if the run blocks; else pause it by raising `Waiting`."""
    run.in_time(f"continuing: it {what}")
    if not run.block or run.leaving:
        raise Waiting(
            f"The run {run.id!r} {what}; its finished steps are recorded. Repeat the call then, or let a worker resume it.",
            run.id,
            until,
        )
    run.may_begin(f"continuing: it {what}")
    left = delay if until is None else min(delay, max(until - run.context.kernel.now(), 0.0))
    yield Sleep(left)


def signal(engine: Engine, log: RunLog, event: str, payload: Any) -> Work[bool]:
    """Store a signal for a run durably and make the run due; return False if an earlier one of this event is still pending."""
    where = log.signal_key(event)
    value = codec.encode([*stamp(engine.context), payload])
    if len(value) > 1 << 20:
        raise InvalidInput(
            "The payload of a signal must be at most 1 MB; nothing was sent. Store it, and send its key."
        )
    try:
        yield from commit_once(
            engine.context.kernel,
            [Check(where, 0)],
            [Put(where, value), log.line(SIGNALLED, 0, [event, payload]), *engine.waking(log.id, "signalled")],
        )
    except Conflict:
        return False
    return True
