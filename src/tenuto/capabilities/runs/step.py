"""One step of a run: store its intent, call its function, store its result.

A crash in between leaves a step in doubt: its outcome is unknown. `verify` is called first, whatever the effect. An
idempotent step then runs again, with the same idempotency key. A step with the effect "once" runs again only if `verify`
or people, by a question in the inbox, say that it did not happen. A pure step has no intent and may run again.

A failed attempt and the next one share a line, so the count of attempts survives. An error is recorded like a result. If
the code handled it, a replay raises it again; if it made the run fail, the same call runs the step again.
"""

from __future__ import annotations

import functools
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, Self

from tenuto.capabilities._core.tracebacks import of_user
from tenuto.capabilities._core.values import MISSING
from tenuto.capabilities.people import (
    HAPPENED,
    NOT_HAPPENED,
    Answer,
    AskOptions,
    Happened,
    NotHappened,
    Unknown,
    verdict_of,
)
from tenuto.capabilities.runs.arguments import Described, describe, digest_of, revealed, revealed_call
from tenuto.capabilities.runs.engine import StepContext, current_step
from tenuto.capabilities.runs.log import (
    AGAIN,
    DOUBT,
    ERROR,
    HALTED,
    INTENT,
    LOWERED,
    PLAIN,
    RESULT,
    TEXT,
    Identity,
    Op,
    equal_to,
    idempotency_key_of,
)
from tenuto.capabilities.runs.open_run import OpenRun, log
from tenuto.capabilities.runs.options import Intent, Step
from tenuto.capabilities.runs.reports import stepping
from tenuto.capabilities.runs.results import (
    Schema,
    error_data,
    error_from,
    from_stored,
    is_rebuildable,
    schema_of,
    text_of,
    to_stored,
)
from tenuto.capabilities.runs.usage import must_be_within_budget
from tenuto.errors import Blocked, InDoubt, InvalidInput, NotStorable, Paused, StaleLease
from tenuto.kernel import codec
from tenuto.kernel.contract import Write
from tenuto.kernel.durations import moment, seconds
from tenuto.kernel.tree import LARGE
from tenuto.kernel.work import Call, Interrupted, Sleep, Store, Work


class _Around:
    """Makes a step the current one, for its idempotency key and its usage."""

    def __init__(self, inside: StepContext) -> None:
        self._inside = inside

    def __enter__(self) -> Self:
        self._token = current_step.set(self._inside)
        return self

    def __exit__(self, *_: object) -> None:
        current_step.reset(self._token)


def recalled(run: OpenRun, name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the recorded result of a step without options if it is next and done; else `MISSING`."""
    digest = digest_of(fn, args, kwargs) if run.past.has_next else None
    op = run.recall_next(name, digest) if digest is not None else None
    return MISSING if op is None else op.value


def run_step(run: OpenRun, step: Step) -> Work[Any]:
    """Return the recorded result of a step, or execute it."""
    run.must_go_on(f"the step {step.name!r}")
    described = Described(b"")
    if step.key is None or step.kind == "map":
        described = describe(step.fn, step.args, run.history.started["salt"], step.kwargs)
    identity = Identity(step.kind, step.name, step.key, described, step.effect, run.beside())
    op = yield from run.recall(identity)
    which = run.equal(identity)
    schema = schema_of(step.fn, step.schema)
    if op is not None:
        if op.state == "done" and not op.form & TEXT:
            value = yield from run.value_of(op)
            return from_stored(value, bool(op.form & LOWERED), schema)
        if op.state == "done" and step.effect == "once":
            raise _not_storable(step.name, op.value)
        if op.error is not None and op.state == "error" and (run.over or run.past.went_on(op)):
            raise run.raises(error_from(op.error, step.errors), op.n, identity)
    run.may_begin(f"the step {step.name!r}")
    must_be_within_budget(run, f"the step {step.name!r}")
    with run.flying(identity):
        attempts = _Attempts(run, step, identity, op, which, schema)
        if not run.context.observed:
            return (yield from attempts.go())
        before = attempts.made
        return (yield from stepping(run.context, run.id, step.name, attempts.go(), lambda: attempts.made - before))


class _Attempts:
    """A step being executed."""

    def __init__(self, run: OpenRun, step: Step, identity: Identity, op: Op | None, which: int, schema: Schema) -> None:
        self._run = run
        self._step = step
        self._identity = identity
        self._op = op
        self._schema = schema
        self._n = op.n if op is not None else run.number()
        self.made = op.attempts if op is not None else 0
        """Attempts so far, with those of earlier openings."""
        self._written = op is not None
        args, kwargs = _replaced(run, step, self._n)
        self._args, self._kwargs = revealed(args), revealed(kwargs)
        self._key = idempotency_key_of(run.history.started["uid"], equal_to(identity), which)
        self._began = op.at if op is not None else 0.0
        self._usage: list[Any] = []
        self._clock = 0.0
        self._said: list[Any] | None = None
        """Who said whether the last attempt happened, and when."""

    def go(self) -> Work[Any]:  # noqa: C901, PLR0912 - one attempt after the other
        """Execute the step."""
        op = self._op
        if op is None:
            yield from self._intend()
        else:
            if self._step.lane is not None and self._step.lane.writes:  # before verify, or the step itself, is called
                yield Store(self._run.write([], self._step.lane.taken(), saving=True))
            why = {"begun": "doubt", "halted": "halted"}.get(op.state, "failed")
            stopped = op.error is not None and op.error["type"] == "Blocked"  # by its gate, before it was called
            if why != "halted" and not stopped:
                answer = yield from self._asked(op.error)
                if isinstance(answer, Happened):
                    return (yield from self._done(answer.result, verified=self._said))
                if isinstance(answer, NotHappened):
                    why = "not happened"
            yield from self._again(why, None)
        while True:
            try:
                value = yield self._call()
            except Paused:
                if self._written:
                    yield Store(self._run.write([], [self._line(HALTED, None)]))
                raise
            except Interrupted:  # its intent stays: the step is in doubt
                raise (yield Store(self._run.fenced_out(StaleLease("The lease was lost."), (), ()))) from None
            except Exception as error:  # noqa: BLE001 - it is recorded, and raised again
                self._run.beats.end(self._n)
                answer = yield from self._failed(error)
                if isinstance(answer, Happened):
                    return (yield from self._done(answer.result, verified=self._said))
            else:
                self._run.beats.end(self._n)
                return (yield from self._done(value))

    def _intend(self) -> Work[None]:
        self.made = 1
        self._began = self._run.context.kernel.now()
        lane = self._step.lane
        writes = lane.taken() if lane is not None else []
        if self._step.effect != "pure" or self._step.gate is not None:
            self._written = True
            writes = [*writes, self._line(INTENT, self._identity.stored())]
        if writes:
            yield from self._begun(writes, None, saving=bool(len(writes) > 1))

    def _again(self, why: str, error: dict[str, Any] | None) -> Work[None]:
        self.made += 1
        if why == "doubt" and self._step.effect != "pure":
            log.warning(
                "The step %r of the run %r has started and its outcome is unknown; it runs again with the same "
                "idempotency key (attempt %d).",
                self._step.name,
                self._run.id,
                self.made,
            )
        elif why == "not happened" and self._said is not None:
            log.warning(
                "The step %r of the run %r had started and its outcome was unknown; %s said that it did not happen, so it "
                "runs again (attempt %d).",
                self._step.name,
                self._run.id,
                self._said[0],
                self.made,
            )
        identity = None if self._written else self._identity.stored()
        self._written = True
        yield from self._begun([self._line(AGAIN, [identity, self.made, why, error, self._said])], identity)
        self._said = None

    def _begun(self, writes: list[Write], identity: Any, *, saving: bool = False) -> Work[None]:
        """Write the beginning of an attempt. If its gate is closed, record `Blocked` instead: it did not happen."""
        try:
            yield Store(self._run.write([], writes, saving=saving, gate=self._step.gate))
        except Blocked as error:
            first = self._identity.stored() if self.made == 1 else identity
            line = self._line(ERROR, [first, error_data(error), self._run.next, 0.0, []])
            yield Store(self._run.write([], [line], saving=True))
            raise self._run.raises(error, self._n, self._identity) from None

    def _call(self) -> Call:
        step, run = self._step, self._run
        inside = StepContext(run, self._n, self.made, self._key, self._usage)
        timeout = None if step.timeout is None else seconds(step.timeout, "timeout")
        self._clock = time.monotonic()
        fn = revealed_call(step.fn)
        if self._kwargs:
            fn = functools.partial(fn, **self._kwargs)
        return Call(fn, self._args, lambda: _Around(inside), f"The step {step.name!r}", timeout, self._on_lost)

    def _on_lost(self, tell: Callable[[], None] | None) -> None:
        """Register what to call when another process took over or cancelled the run; None removes it."""
        listeners = self._run.lease._when_lost
        if tell is None:
            listeners.pop(self._n, None)
        else:
            listeners[self._n] = tell

    def _failed(self, error: Exception) -> Work[Answer | None]:
        """Record a failed attempt; wait for the next one and return the verdict on this one, or raise."""
        step, retry = self._step, self._step.retry
        failure = error_data(error, step.errors)
        log.info(
            "The step %r of the run %r raised %s (attempt %d).",
            step.name,
            self._run.id,
            failure["type"],
            self.made,
            exc_info=of_user(error),
        )
        again = (
            retry is not None
            and self.made < retry.attempts
            and isinstance(error, retry.on)
            and (step.effect != "once" or step.verify is not None)
        )
        if again and retry is not None:
            answer = yield from self._asked(failure)
            if isinstance(answer, Happened):
                return answer
            made = self.made
            yield from self._again("retry", failure)
            yield from self._wait(retry.delay(made))
            return None
        identity = None if self._written else self._identity.stored()
        line = self._line(ERROR, [identity, failure, self._run.next, time.monotonic() - self._clock, self._usage])
        yield Store(self._run.write([], [line], saving=True))
        if is_rebuildable(error, failure, step.errors):
            raise self._run.raises(error, self._n, self._identity)
        raise self._run.raises(error_from(failure, step.errors), self._n, self._identity) from error

    def _wait(self, delay: float) -> Work[None]:
        """Wait before the next attempt, unless the worker stops: then that attempt does not count."""
        while delay > 0:
            pause = min(delay, 1.0)
            yield Sleep(pause)
            delay -= pause
            try:
                self._run.may_begin(f"another attempt of the step {self._step.name!r}")
            except Paused:
                yield Store(self._run.write([], [self._line(HALTED, None)]))
                raise

    def _done(self, value: Any, *, verified: list[Any] | None = None) -> Work[Any]:
        """Record a result durably, and return it as a replay will; `verified` is who said that it happened, and when."""
        step, problem, form = self._step, None, PLAIN
        try:
            value, lowered = to_stored(value if step.recorded is None else step.recorded(value))
            form = LOWERED if lowered else PLAIN
        except NotStorable as error:
            value, form, problem = text_of(value), TEXT, error
        identity = None if self._written else self._identity.stored()
        took = 0.0 if verified else time.monotonic() - self._clock
        data = [identity, form, value, False, took, self._usage, verified]
        line = None if step.lane is None else self._run.log.line(RESULT, self._n, data)
        if step.lane is not None and line is not None and len(line.value) < LARGE:
            step.lane.writes.append(line)
        else:
            yield Store(self._run.record(RESULT, self._n, data, 2, saving=True))
        if problem is not None:
            raise _not_storable(step.name, value) from problem
        return from_stored(codec.unpack(codec.pack(value)), bool(form & LOWERED), self._schema)

    def _asked(self, error: dict[str, Any] | None) -> Work[Answer | None]:
        """Ask `verify` and people whether a step happened; raise `InDoubt` if unknown and a repeat is forbidden."""
        step, run, op = self._step, self._run, self._op
        answer: Answer | None = None
        if step.verify is not None:
            said = None if error is None else f"{error['type']}: {error['message']}"
            intent = Intent(
                run.id,
                step.name,
                step.key,
                self._args,
                self.made,
                self._key,
                moment(self._began),
                said,
                dict(self._kwargs),
            )
            inside = StepContext(run, self._n, self.made, self._key, self._usage)
            answer = yield Call(step.verify, (intent,), lambda: _Around(inside), f"verify of the step {step.name!r}")
            if not isinstance(answer, Happened | NotHappened | Unknown):
                raise InvalidInput(
                    f"verify of the step {step.name!r} returned {answer!r:.80}; the step was not repeated. Return "
                    "tenuto.Happened(result), tenuto.NotHappened() or tenuto.Unknown(reason)."
                )
            if not isinstance(answer, Unknown):
                self._said = ["verify", run.context.kernel.now()]
        if step.effect != "once":
            return answer
        if not isinstance(answer, Happened | NotHappened) and op is not None and op.question is not None:
            question, _ = yield Store(lambda: run.engine.inbox._look(op.question or ""))
            said_by_people = None if question is None else verdict_of(question)
            if question is not None and question.answered_at is not None and said_by_people is not None:
                answer = said_by_people
                self._said = [question.by or "a person", question.answered_at.timestamp()]
            if question is not None and question.open:
                raise self._in_doubt(op.question, answer)
        if isinstance(answer, Happened | NotHappened):
            return answer
        reason = answer.reason if isinstance(answer, Unknown) else ""
        raise (yield from self._ask_people(reason, error))

    def _ask_people(self, reason: str, error: dict[str, Any] | None) -> Work[InDoubt]:
        step, run = self._step, self._run
        question_id = f"{run.history.started['uid'].hex()[:16]}-{self._n}-{secrets.token_hex(4)}"
        raised = f" It raised {error['type']}: {error['message']:.200}." if error is not None else ""
        began = f"{moment(self._began):%Y-%m-%d %H:%M:%S}"
        text = (
            f"Did the step {step.name!r} of the run {run.id!r} happen? It began at {began} UTC and its outcome is "
            f"unknown.{raised} It must not happen twice."
        )
        options: AskOptions = {
            "context": {
                "run": run.id,
                "step": step.name,
                "key": step.key,
                "args": self._identity.described.whole,
                "attempt": self.made,
                "idempotency_key": self._key,
                "reason": reason,
            },
            "choices": [HAPPENED, NOT_HAPPENED],
            "about": [f"step:{step.name:.500}", f"run:{run.id:.500}"],
        }
        _, checks, writes = yield Store(
            lambda: run.engine.inbox._opening(question_id, text, options, run=run.id, step=step.name)
        )
        identity = [] if self._written else [self._line(INTENT, self._identity.stored())]
        yield Store(run.write(checks, [*identity, self._line(DOUBT, [question_id, reason]), *writes]))
        return self._in_doubt(question_id, Unknown(reason))

    def _in_doubt(self, question_id: str, answer: Answer | None) -> InDoubt:
        run, name = self._run, self._step.name
        run.waits.append(("question", question_id, None))
        why = f" ({answer.reason})" if isinstance(answer, Unknown) and answer.reason else ""
        return InDoubt(
            f"The step {name!r} of the run {run.id!r} may have happened{why} and must not happen twice; it was not "
            f"repeated. Find out, then call agent.inbox.answer({question_id!r}, tenuto.Happened(result)) or "
            f"agent.inbox.answer({question_id!r}, tenuto.NotHappened()), and repeat the call.",
            run.id,
            question_id,
        )

    def _line(self, kind: int, data: Any) -> Write:
        return self._run.log.line(kind, self._n, data)


def _replaced(run: OpenRun, step: Step, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a step: for the first new step of that name in a fork, those passed to the fork."""
    ours = step.args, dict(step.kwargs)
    instead = run.history.started["instead"]
    if not instead or instead["name"] != step.name or n < instead["from"]:
        return ours
    before = any(
        op.identity.name == step.name and instead["from"] <= op.n < n and op.identity.kind == step.kind
        for op in run.history.ops.values()
    )
    if before or run.instead not in (None, n):
        return ours
    run.instead = n
    given = instead["args"]
    return (step.args, {**step.kwargs, **given}) if isinstance(given, dict) else (tuple(given), ours[1])


def _not_storable(name: str, text: str) -> NotStorable:
    return NotStorable(
        f"The step {name!r} returned a value that cannot be stored; agent.runs.get() has its repr: {text:.200}. "
        "Return plain data or register its class with tenuto.register; to continue with this value, pass it as plain data "
        f"to agent.runs.fork(RUN, NEW_ID, results={{{name!r}: …}}).",
        "result",
    )


def idempotency_key() -> str:
    """Return the idempotency key of the current step: unique to it, and the same at each attempt."""
    inside = current_step.get()
    if inside is None:
        raise InvalidInput("No step is running here. Call idempotency_key() inside a step's function.")
    return inside.key
