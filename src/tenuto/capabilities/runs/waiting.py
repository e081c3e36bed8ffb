"""What a run waits for: a time, a signal, an answer.

Each is one line, written when the run first asks, that says until when or for what. If it has come already the
run goes on; else it pauses, and asks again when it is resumed. A sleep is over when its time has passed. A signal
is a record that stands until a run takes it, in the commit of the line that holds what it brought: one that comes
early is kept, and of two that come before it is taken the first counts. An answer is read from its question.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenuto.capabilities import outcomes, questions
from tenuto.capabilities.arguments import Described
from tenuto.capabilities.context import Context, stamp
from tenuto.capabilities.replay import LENIENT
from tenuto.capabilities.runlog import ERROR, PLAIN, RESULT, SIGNALLED, WAITS, Identity, Op, RunLog
from tenuto.capabilities.running import Running
from tenuto.errors import Conflict, InvalidInput, StateConflict, TimedOut, Waiting
from tenuto.kernel import codec
from tenuto.kernel.bell import Pause
from tenuto.kernel.contract import Check, Delete, Put, Write
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.transact import Steps, done, settle
from tenuto.kernel.work import Work

_OFTEN, _RARELY = 0.02, 0.5


def sleeping(run: Running, duration: Duration) -> Work[None]:
    """Return when so much time has passed since this was first asked for."""
    length = seconds(duration)
    identity, op = yield from _recalled(run, "sleep", "sleep", codec.digest(codec.pack(length)))
    if op is None:
        now = run.context.kernel.now()
        op = Op(run.number(), identity, now)
        op.until = now + length
        with run.busy(), run.awaiting("", "", op.until):
            yield run.write([], [run.log.line(WAITS, op.n, [identity.stored(), op.until, None])])
    with run.busy(), run.awaiting("", "", op.until):
        yield from _slept(run, op)


def _slept(run: Running, op: Op) -> Work[None]:
    while op.until is not None and run.context.kernel.now() < op.until:
        what = f"sleeps until {moment(op.until):%Y-%m-%d %H:%M:%S} UTC"
        yield from _pause(run, op.until, what, 1.0)


def signalled(run: Running, event: str, timeout: Duration | None) -> Work[Any]:
    """Return what a signal brings; `TimedOut` if none has come in time."""
    run.log.signal_key(event)  # refuses what cannot be a name
    identity, op = yield from _recalled(run, "wait", event, LENIENT)
    with run.busy():
        return (yield from _signalled(run, event, timeout, identity, op))


def _signalled(run: Running, event: str, timeout: Duration | None, identity: Identity, op: Op | None) -> Work[Any]:
    if op is not None and op.state == "done":
        return (yield run.value_of(op)) if op.apart else op.value
    if op is not None and op.error is not None and (run.over or run.past.went_on(op)):
        raise outcomes.raised(op.error)
    kernel, n = run.context.kernel, op.n if op is not None else run.number()
    until = op.until if op is not None else None if timeout is None else kernel.now() + seconds(timeout, "timeout")
    with run.awaiting("signal", event, until):
        return (yield from _taken(run, event, until, n, identity, op))


def _taken(run: Running, event: str, until: float | None, n: int, identity: Identity, op: Op | None) -> Work[Any]:
    where, kernel = run.log.signal_key(event), run.context.kernel
    delay = _OFTEN
    while True:
        record = (yield done(lambda: kernel.read([where])))[0]
        stored = identity.stored() if op is None else None
        if record is not None:
            payload = codec.decode(record.value)[2]
            line = run.log.line(RESULT, n, [stored, PLAIN, payload, False, 0.0, [], False])
            try:
                yield run.write([Check(where, record.version)], [line, Delete(where)])
            except StateConflict:  # and no other: whoever lost the run does not look again
                continue
            return payload
        if op is None:
            op = Op(n, identity, kernel.now())
            op.until = until
            yield run.write([], [run.log.line(WAITS, n, [stored, until, event])])
        if until is not None and kernel.now() >= until:
            late = TimedOut(
                f"The run {run.id!r} waited for the signal {event!r} until its time was over. Catch TimedOut to go on "
                "without it; or send it late, and make the same call again."
            )
            line = run.log.line(ERROR, n, [None, outcomes.told(late), run.next, 0.0, []])
            yield run.write([], [line])
            raise late
        yield from _pause(run, until, f"waits for the signal {event!r}", delay)
        delay = min(delay * 1.5, _RARELY)


def asked(
    run: Running,
    text: str,
    *,
    to: str | None,
    context: Any,
    choices: Sequence[Any] | None,
    deadline: Duration | None,
) -> Work[Any]:
    """Return people's answer; `TimedOut` if none has come in time, `Conflict` if the question was taken back."""
    identity, op = yield from _recalled(run, "ask", "ask", codec.digest(codec.pack(text)))
    if op is not None and op.state == "done":
        return (yield run.value_of(op)) if op.apart else op.value
    if op is not None and op.error is not None and (run.over or run.past.went_on(op)):
        raise outcomes.raised(op.error)
    kernel = run.context.kernel
    with run.busy():
        if op is None:
            op = Op(run.number(), identity, kernel.now())
            op.until = None if deadline is None else kernel.now() + seconds(deadline, "deadline")
            op.ref = f"{run.told.started['uid'].hex()[:16]}-{op.n}"
            question = questions.new(
                op.ref, text, op.at, to=to, context=context, choices=choices, run=run.id, deadline=op.until
            )
            checks, writes = questions.asking(question)
            with run.awaiting("question", op.ref, op.until):
                yield run.write(checks, [run.log.line(WAITS, op.n, [identity.stored(), op.until, op.ref]), *writes])
        with run.awaiting("question", op.ref or "", op.until):
            return (yield from _answered(run, op, text))


def _answered(run: Running, op: Op, text: str) -> Work[Any]:
    inbox, kernel = run.engine.inbox, run.context.kernel
    delay = _OFTEN
    while True:
        found, version = yield done(lambda: inbox.look(op.ref or ""))
        late: list[Write] = []
        if found is None or found.status == "cancelled":
            problem: Exception = Conflict(
                f"The question {op.ref!r} was taken back: {text!r:.200}. Catch Conflict to go on without an answer, or "
                f"ask anew in another run: agent.runs.fork({run.id!r}, NEW_ID, …)."
            )
        elif found.status == "answered":
            line = run.log.line(RESULT, op.n, [None, PLAIN, found.answer, False, 0.0, [], False])
            yield run.write([], [line])
            return found.answer
        elif op.until is not None and kernel.now() >= op.until:
            problem = TimedOut(
                f"Nobody has answered in time: {text!r:.200}. Catch TimedOut to go on without an answer, or ask anew in "
                f"another run: agent.runs.fork({run.id!r}, NEW_ID, …)."
            )
            late = questions.closing(found._replace(status="expired"))
        else:
            yield from _pause(run, op.until, f"waits for an answer to {text!r:.200}", delay)
            delay = min(delay * 1.5, _RARELY)
            continue
        line = run.log.line(ERROR, op.n, [None, outcomes.told(problem), run.next, 0.0, []])
        try:
            yield run.write([Check(questions.question_key(op.ref or ""), version)] if late else [], [line, *late])
        except StateConflict:
            continue  # it was answered at the last moment
        raise problem


def _recalled(run: Running, kind: str, name: str, digest: bytes) -> Work[tuple[Identity, Op | None]]:
    run.must_go_on(f"run.{kind}")
    identity = Identity(kind, name, None, Described(digest), together=run.beside())
    op = yield from run.recall(identity)
    if op is None:
        run.may_begin(f"run.{kind}")
    return identity, op


def _pause(run: Running, until: float | None, what: str, delay: float) -> Work[None]:
    """Let a moment pass where the run waits in place; else pause it."""
    run.in_time(f"going on: it {what}")
    if not run.block or run.leaving:
        raise Waiting(
            f"The run {run.id!r} {what}. What it has done is on record: make the same call again then, or let a worker "
            "do it.",
            run.id,
            until,
        )
    run.may_begin(f"going on: it {what}")
    left = delay if until is None else min(delay, max(until - run.context.kernel.now(), 0.0))
    yield Pause(left)


def signal(context: Context, log: RunLog, event: str, payload: Any) -> Steps[bool]:
    """Leave a signal for a run, durably; tell whether it counts: False if an earlier one has not been taken yet."""
    where = log.signal_key(event)
    value = codec.encode([*stamp(context), payload])
    if len(value) > 1 << 20:
        raise InvalidInput("A signal brings up to 1 MB; store what is larger, and send where it is.")
    try:
        yield from settle(
            context.kernel, [Check(where, 0)], [Put(where, value), log.line(SIGNALLED, 0, [event, payload])]
        )
    except Conflict:
        return False
    return True
