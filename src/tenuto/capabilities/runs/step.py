"""One step of a run: its intent is written, its function is called, its result is written.

A crash between the two leaves a step in doubt: begun, and nobody knows whether it happened. Then it depends on
what was declared. `verify` is asked first, whatever the effect. An idempotent step is run again, with the same
idempotency key, and a line says so. One that may happen only once is not run again unless somebody says that it
did not happen: `verify`, or people, by the question that stands in the inbox from then on. A pure step has no
intent, and is free to run again.

An attempt that failed and the next one share a line, so that their count survives. An error is recorded like a
result. If the code handled it and went on, it is raised again on a replay; if it left the run, the same call
runs that step again.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, Self

from tenuto.capabilities import outcomes, questions
from tenuto.capabilities.arguments import Described, describe, digest_of, revealed, revealed_call
from tenuto.capabilities.outcomes import Schema, schema_of
from tenuto.capabilities.questions import Answer, Happened, NotHappened, Unknown
from tenuto.capabilities.runlog import (
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
)
from tenuto.capabilities.running import Running, StepContext, current_step, log
from tenuto.errors import InDoubt, InvalidInput, NotStorable, Paused
from tenuto.kernel import codec, keys
from tenuto.kernel.bell import Pause
from tenuto.kernel.contract import Write
from tenuto.kernel.durations import Duration, moment, seconds
from tenuto.kernel.transact import done
from tenuto.kernel.tree import LARGE
from tenuto.kernel.work import Call, Work

Effect = Literal["pure", "idempotent", "once"]
_EFFECTS: Final = ("pure", "idempotent", "once")


@dataclass(frozen=True)
class Retry:
    """How often a step that raised is tried again, and after how long: `first` seconds, then `factor` times as long."""

    attempts: int = 5
    first: Duration = 1.0
    factor: float = 2.0
    most: Duration = 3_600.0
    on: tuple[type[Exception], ...] = (Exception,)

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        if self.attempts < 1 or self.factor < 1:
            raise InvalidInput("A step has 1 attempt or more, and waits no shorter each time: factor is 1 or more.")
        seconds(self.first, "first"), seconds(self.most, "most")

    def delay(self, made: int) -> float:
        """Return how long to wait after so many attempts."""
        return min(seconds(self.first) * self.factor ** (made - 1), seconds(self.most))


class Intent(NamedTuple):
    """What `verify` is asked about: a step that may have happened."""

    run: str
    step: str
    key: str | None
    args: tuple[Any, ...]
    """As the code gives them now."""
    attempt: int
    """The last one that was begun."""
    idempotency_key: str
    started_at: datetime
    error: str | None
    """What it raised, if it came back at all."""


Verify = Callable[[Intent], Any]


@dataclass
class Lane:
    """Items of a map that follow each other: the result of one is written with the intent of the next."""

    writes: list[Write] = field(default_factory=list)

    def taken(self) -> list[Write]:
        """Return what has not been written yet, and forget it."""
        found, self.writes = self.writes, []
        return found


class _Around:
    """The surroundings of a step's function: it can ask for its idempotency key, and note what it used."""

    def __init__(self, inside: StepContext) -> None:
        self._inside = inside

    def __enter__(self) -> Self:
        self._token = current_step.set(self._inside)
        return self

    def __exit__(self, *_: object) -> None:
        current_step.reset(self._token)


@dataclass
class Step:
    """What was asked for."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    key: str | None = None
    effect: Effect = "idempotent"
    verify: Verify | None = None
    retry: Retry | None = None
    timeout: Duration | None = None
    schema: Any = None
    kind: str = "step"
    lane: Lane | None = None
    forgiving: bool = False
    """An error that it raised says that it did not happen, unless `verify` knows better."""

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        keys.name(self.name, "step's name")
        if not callable(self.fn):
            raise InvalidInput(f"The step {self.name!r} is given a function and its arguments, not {self.fn!r:.80}.")
        if self.key is not None:
            keys.name(self.key, "key")
        if self.effect not in _EFFECTS:
            raise InvalidInput(f"An effect is {', '.join(_EFFECTS)}; not {self.effect!r}.")
        if self.verify is not None and not callable(self.verify):
            raise InvalidInput(
                f"verify is a function that is asked whether the step happened, not {self.verify!r:.80}."
            )
        if self.retry is not None and not isinstance(self.retry, Retry):
            raise InvalidInput(f"retry is a tenuto.Retry, such as tenuto.Retry(attempts=5), not {self.retry!r:.80}.")


MISSING: Final = object()


def recalled(run: Running, name: str, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Return what a step without options came to, if it is the next on record and done; else `MISSING`."""
    digest = digest_of(fn, args) if run.past.has_next else None
    op = run.recall_next(name, digest) if digest is not None else None
    return MISSING if op is None else op.value


def stepping(run: Running, step: Step) -> Work[Any]:
    """Return what the step comes to: its recorded result, or that of running it now."""
    run.must_go_on(f"the step {step.name!r}")
    described = Described(b"")
    if step.key is None or step.kind == "map":
        described = describe(step.fn, step.args, run.told.started["salt"])
    identity = Identity(step.kind, step.name, step.key, described, step.effect, run.beside())
    op = yield from run.recall(identity)
    which = run.equal(identity)
    schema = schema_of(step.fn, step.schema)
    if op is not None:
        if op.state == "done" and not op.form & TEXT:
            value = (yield run.value_of(op)) if op.apart else op.value
            return outcomes.lifted(value, bool(op.form & LOWERED), schema)
        if op.state == "done" and step.effect == "once":
            raise _not_storable(step.name, op.value)
        if op.error is not None and op.state == "error" and (run.over or run.past.went_on(op)):
            raise run.raises(outcomes.raised(op.error), op.n, identity)
    run.may_begin(f"the step {step.name!r}")
    with run.flying(identity):
        return (yield from _Attempts(run, step, identity, op, which, schema).go())


class _Attempts:
    """A step being carried out."""

    def __init__(self, run: Running, step: Step, identity: Identity, op: Op | None, which: int, schema: Schema) -> None:
        self._run = run
        self._step = step
        self._identity = identity
        self._op = op
        self._schema = schema
        self._n = op.n if op is not None else run.number()
        self._attempt = op.attempts if op is not None else 0
        self._written = op is not None
        self._args = revealed(_replaced(run, step, self._n))
        same = step.key if step.key is not None else identity.described.digest
        told = codec.pack([run.told.started["uid"], step.kind, step.name, same, which])
        self._key = hashlib.sha256(told).hexdigest()[:32]
        self._began = op.at if op is not None else 0.0
        self._usage: list[Any] = []
        self._clock = 0.0

    def go(self) -> Work[Any]:  # noqa: C901 - one attempt after the other
        """Carry it out."""
        op = self._op
        if op is None:
            yield from self._intend()
        else:
            if self._step.lane is not None and self._step.lane.writes:  # before verify, or the step itself, is called
                yield self._run.write([], self._step.lane.taken(), saving=True)
            why = {"begun": "doubt", "halted": "halted"}.get(op.state, "failed")
            forgiven = why == "failed" and self._step.forgiving and self._step.verify is None
            if why != "halted" and not forgiven:
                answer = yield from self._asked(op.error)
                if isinstance(answer, Happened):
                    return (yield from self._done(answer.result, verified=True))
                if isinstance(answer, NotHappened):
                    why = "not happened"
            yield from self._again(why, None)
        while True:
            try:
                value = yield self._call()
            except Paused:
                if self._written:
                    yield self._run.write([], [self._line(HALTED, None)])
                raise
            except Exception as error:  # noqa: BLE001 - it is recorded, and raised again
                answer = yield from self._failed(error)
                if isinstance(answer, Happened):
                    return (yield from self._done(answer.result, verified=True))
            else:
                return (yield from self._done(value))

    # -- attempts ----------------------------------------------------------------------------------------------

    def _intend(self) -> Work[None]:
        self._attempt = 1
        self._began = self._run.context.kernel.now()
        lane = self._step.lane
        writes = lane.taken() if lane is not None else []
        if self._step.effect != "pure":
            self._written = True
            writes = [*writes, self._line(INTENT, self._identity.stored())]
        if writes:
            yield self._run.write([], writes, saving=bool(len(writes) > 1))

    def _again(self, why: str, error: dict[str, Any] | None) -> Work[None]:
        self._attempt += 1
        if why == "doubt" and self._step.effect != "pure":
            log.warning(
                "The step %r of the run %r was begun and its outcome is not known; it is run again with the same "
                "idempotency key (attempt %d).",
                self._step.name,
                self._run.id,
                self._attempt,
            )
        identity = None if self._written else self._identity.stored()
        self._written = True
        yield self._run.write([], [self._line(AGAIN, [identity, self._attempt, why, error])])

    def _call(self) -> Call:
        step, run = self._step, self._run
        inside = StepContext(run, self._n, self._attempt, self._key, self._usage)
        timeout = None if step.timeout is None else seconds(step.timeout, "timeout")
        self._clock = time.monotonic()
        return Call(revealed_call(step.fn), self._args, lambda: _Around(inside), f"The step {step.name!r}", timeout)

    def _failed(self, error: Exception) -> Work[Answer | None]:
        """Record that an attempt failed; return what is known of it if another one is made, else raise."""
        step, retry = self._step, self._step.retry
        told = outcomes.told(error)
        again = (
            retry is not None
            and self._attempt < retry.attempts
            and isinstance(error, retry.on)
            and (step.effect != "once" or step.verify is not None)
        )
        if again and retry is not None:
            answer = yield from self._asked(told)
            if isinstance(answer, Happened):
                return answer
            made = self._attempt
            yield from self._again("retry", told)
            yield from self._wait(retry.delay(made))
            return None
        identity = None if self._written else self._identity.stored()
        line = self._line(ERROR, [identity, told, self._run.next, time.monotonic() - self._clock, self._usage])
        yield self._run.write([], [line], saving=True)
        if outcomes.comes_back(error):
            raise self._run.raises(error, self._n, self._identity)
        raise self._run.raises(outcomes.raised(told), self._n, self._identity) from error

    def _wait(self, delay: float) -> Work[None]:
        """Wait before another attempt, unless the run is to stop: then that attempt has not been made."""
        while delay > 0:
            pause = min(delay, 1.0)
            yield Pause(pause)
            delay -= pause
            try:
                self._run.may_begin(f"another attempt of the step {self._step.name!r}")
            except Paused:
                yield self._run.write([], [self._line(HALTED, None)])
                raise

    def _done(self, value: Any, *, verified: bool = False) -> Work[Any]:
        """Record a result, and return it as a replay will."""
        step, problem, form = self._step, None, PLAIN
        try:
            value, lowered = outcomes.kept(value)
            form = LOWERED if lowered else PLAIN
        except NotStorable as error:
            value, form, problem = outcomes.text_of(value), TEXT, error
        identity = None if self._written else self._identity.stored()
        took = 0.0 if verified else time.monotonic() - self._clock
        data = [identity, form, value, False, took, self._usage, verified]
        line = None if step.lane is None else self._run.log.line(RESULT, self._n, data)
        if step.lane is not None and line is not None and len(line.value) < LARGE:
            step.lane.writes.append(line)
        else:
            yield self._run.record(RESULT, self._n, data, 2, saving=True)
        if problem is not None:
            raise _not_storable(step.name, value) from problem
        return outcomes.lifted(codec.unpack(codec.pack(value)), bool(form & LOWERED), self._schema)

    # -- doubt -------------------------------------------------------------------------------------------------

    def _asked(self, error: dict[str, Any] | None) -> Work[Answer | None]:
        """Ask whether a step happened, before it is repeated; `InDoubt` where nobody can say and it must not be."""
        step, run, op = self._step, self._run, self._op
        answer: Answer | None = None
        if step.verify is not None:
            said = None if error is None else f"{error['type']}: {error['message']}"
            intent = Intent(
                run.id, step.name, step.key, self._args, self._attempt, self._key, moment(self._began), said
            )
            inside = StepContext(run, self._n, self._attempt, self._key, self._usage)
            answer = yield Call(step.verify, (intent,), lambda: _Around(inside), f"verify of the step {step.name!r}")
            if not isinstance(answer, Happened | NotHappened | Unknown):
                raise InvalidInput(
                    f"verify of the step {step.name!r} returned {answer!r:.80}; it returns tenuto.Happened(result), "
                    "tenuto.NotHappened() or tenuto.Unknown(reason). The step was not repeated."
                )
        if step.effect != "once":
            return answer
        if not isinstance(answer, Happened | NotHappened) and op is not None and op.question is not None:
            question, _ = yield done(lambda: run.engine.inbox.look(op.question or ""))
            said_by_people = None if question is None else questions.verdict(question)
            answer = answer if said_by_people is None else said_by_people
            if question is not None and question.status == "pending":
                raise self._in_doubt(op.question, answer)
        if isinstance(answer, Happened | NotHappened):
            return answer
        reason = answer.reason if isinstance(answer, Unknown) else ""
        yield from self._ask_people(reason, error)
        raise AssertionError("asking ends in a pause")

    def _ask_people(self, reason: str, error: dict[str, Any] | None) -> Work[None]:
        step, run = self._step, self._run
        question_id = f"{run.told.started['uid'].hex()[:16]}-{self._n}-{secrets.token_hex(4)}"
        raised = f" It raised {error['type']}: {error['message']:.200}." if error is not None else ""
        began = f"{moment(self._began):%Y-%m-%d %H:%M:%S}"
        question = questions.new(
            question_id,
            f"Did the step {step.name!r} of the run {run.id!r} happen? It was begun at {began} UTC and its outcome is "
            f"not known.{raised} It must not happen twice.",
            run.context.kernel.now(),
            context={
                "run": run.id,
                "step": step.name,
                "key": step.key,
                "args": self._identity.described.whole,
                "attempt": self._attempt,
                "idempotency_key": self._key,
                "reason": reason,
            },
            choices=[questions.HAPPENED, questions.NOT_HAPPENED],
            run=run.id,
            step=step.name,
        )
        checks, writes = questions.asking(question)
        identity = [] if self._written else [self._line(INTENT, self._identity.stored())]
        yield run.write(checks, [*identity, self._line(DOUBT, [question_id, reason]), *writes])
        raise self._in_doubt(question_id, Unknown(reason))

    def _in_doubt(self, question_id: str, answer: Answer | None) -> InDoubt:
        run, name = self._run, self._step.name
        run.waits.append(("question", question_id, None))
        why = f" ({answer.reason})" if isinstance(answer, Unknown) and answer.reason else ""
        return InDoubt(
            f"The step {name!r} of the run {run.id!r} may have happened{why} and must not happen twice; it was not "
            f"repeated. Find out, then call agent.inbox.answer({question_id!r}, tenuto.Happened(result)) or "
            f"agent.inbox.answer({question_id!r}, tenuto.NotHappened()), and make the same call again.",
            run.id,
            question_id,
        )

    def _line(self, kind: int, data: Any) -> Write:
        return self._run.log.line(kind, self._n, data)


def _replaced(run: Running, step: Step, n: int) -> tuple[Any, ...]:
    """Return the arguments of a step: those that a fork was given for the first new step of that name, if any."""
    instead = run.told.started["instead"]
    if not instead or instead["name"] != step.name or n < instead["from"]:
        return step.args
    before = any(
        op.identity.name == step.name and instead["from"] <= op.n < n and op.identity.kind == step.kind
        for op in run.told.ops.values()
    )
    if before or run.instead not in (None, n):
        return step.args
    run.instead = n
    return tuple(instead["args"])


def _not_storable(name: str, text: str) -> NotStorable:
    return NotStorable(
        f"The step {name!r} returned something that has no stored form; it is kept as text in agent.runs.get(): {text:.200}. "
        "Return plain data, or give its class to tenuto.register. To go on with what it was, write it as plain data: "
        f"agent.runs.fork(RUN, NEW_ID, results={{{name!r}: …}}).",
        "result",
    )


def idempotency_key() -> str:
    """Return the key of the step that is being run: the same at each attempt, and no other step's. Send it along."""
    inside = current_step.get()
    if inside is None:
        raise InvalidInput("There is no step being run here; ask for the idempotency key inside of a step's function.")
    return inside.key
