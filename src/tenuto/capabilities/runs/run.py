"""A run: code that resumes from its last completed step.

    with agent.run("trip-42") as run:
        plan = run.step("plan", make_plan, "Lisbon, May")
        booking = run.step("book", book, plan, effect="once", verify=find_booking)

The body runs again each time; recorded steps do not. This is the handle that the body gets; `open_run` opens and leaves
a run, `step` executes steps, `waiting` waits, and `replay` finds recorded steps.
"""

from __future__ import annotations

import random
import uuid as uuids
from collections.abc import Callable, Iterable, Mapping
from contextvars import Token
from datetime import datetime
from typing import Any, ParamSpec, Self, TypeVar, TypeVarTuple, Unpack, overload

from tenuto.capabilities._core.values import MISSING
from tenuto.capabilities.memory import Memory, MemoryFields
from tenuto.capabilities.people import AskOptions
from tenuto.capabilities.runs import waiting
from tenuto.capabilities.runs.engine import Engine, current, current_step, new_id
from tenuto.capabilities.runs.heartbeat import beat
from tenuto.capabilities.runs.lanes import Lanes
from tenuto.capabilities.runs.live import emit_live
from tenuto.capabilities.runs.log import EMITTED
from tenuto.capabilities.runs.open_run import OpenRun
from tenuto.capabilities.runs.options import (
    Effect,
    MapOptions,
    OnError,
    Retry,
    Step,
    StepOptions,
    Verify,
    called,
)
from tenuto.capabilities.runs.recorded import RunState, RunThread, noted
from tenuto.capabilities.runs.remember import remembered
from tenuto.capabilities.runs.results import paused_in
from tenuto.capabilities.runs.step import recalled, run_step
from tenuto.capabilities.runs.usage import recorded
from tenuto.capabilities.threads import Thread
from tenuto.errors import InvalidInput, Paused
from tenuto.kernel import keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.durations import Duration, moment, patience, seconds
from tenuto.kernel.work import Store, Work, on_caller, perform

A = TypeVar("A")
P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
Ts = TypeVarTuple("Ts")


class Run:
    """An open run. Use it inside `with`; every method is durable when it returns."""

    def __init__(  # noqa: PLR0913 - the words of the API
        self,
        engine: Engine,
        run_id: str | None,
        *,
        user: str | None = None,
        wait: Duration | None = 15,
        block: bool = False,
        deadline: Duration | None = None,
        thread: str | None = None,
        budget: float | None = None,
    ) -> None:
        run_id = new_id("run") if run_id is None else run_id
        self._running = OpenRun(
            engine,
            run_id,
            user=None if user is None else keys.name(user, "user"),
            wait=patience(wait),
            block=block,
            deadline=None if deadline is None else seconds(deadline, "deadline"),
        )
        self._running.handle = self
        if budget is not None and not (isinstance(budget, int | float) and budget >= 0):
            raise InvalidInput(f"budget must be an amount in dollars, 0 or more, not {budget!r}.")
        self._running.budget = budget
        self.id = self._running.id
        self.result: Any = None
        """The result of the run: set it in the body; a durable function returns it."""
        self.state = RunState(self._running)
        self.thread = RunThread(
            self._running, Thread(engine.threads, run_id if thread is None else thread, user=user, ttl=None)
        )
        self._tokens: list[Token[OpenRun | None]] = []

    @property
    def _clock(self) -> Clock:
        return self._running.context.clock

    @property
    def user(self) -> str | None:
        """Return the user of the run."""
        return self._running.user

    @property
    def resumed(self) -> bool:
        """Return whether this run was started before."""
        return self._running.resumed or self._running.over

    @property
    def reused(self) -> int:
        """Return the number of finished steps in the log when the run was opened."""
        return sum(
            op.state == "done" and op.identity.kind in ("step", "map") for op in self._running.history.ops.values()
        )

    @overload
    def step(
        self, name: str, fn: Callable[[*Ts], Any], /, *args: *Ts, schema: type[S], **options: Unpack[StepOptions]
    ) -> S: ...
    @overload
    def step(
        self, name: str, fn: Callable[[*Ts], T], /, *args: *Ts, schema: None = None, **options: Unpack[StepOptions]
    ) -> T: ...
    @overload
    def step(
        self, name: str, fn: Callable[[*Ts], Any], /, *args: *Ts, schema: object, **options: Unpack[StepOptions]
    ) -> Any: ...
    @overload
    def step(
        self, name: str, fn: Callable[..., T], /, *args: Any, kwargs: Mapping[str, Any], **options: Unpack[StepOptions]
    ) -> T: ...
    @overload
    def step(self, name: str, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step(  # type: ignore[misc]  # noqa: PLR0913 - the words of the API
        self,
        name: Any,
        fn: Any = MISSING,
        /,
        *args: Any,
        key: str | None = None,
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schema: Any = None,
        errors: tuple[type[Exception], ...] = (),
        gate: str | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> Any:
        """Call `fn(*args, **named)` and record its result durably, or return the recorded result.

        The name defaults to the function's own: `run.step(fetch, url)`. Keywords other than the options are passed to
        the function; `kwargs` passes a dict of them, also such as have the name of an option.

        The intent is stored before the call, the result before this returns. `effect` says what a repeat does: "pure"
        nothing, so no intent is stored; "idempotent" nothing more, given the same `tenuto.idempotency_key()`; "once"
        harm, so it is repeated only if `verify` or people say that it did not happen. `key` identifies the step instead
        of arguments and order. `verify(intent)` is called before any repeat. After `timeout` a blocking function cannot
        be stopped: it continues in its thread. `schema` is the type of the result (default: `fn`'s annotation).
        `errors` are classes that a replay raises again as they are, without being registered. With `gate`, raise
        `Blocked` before the call if an open question blocks that resource.
        """
        name, fn, args = called(name, fn, args)
        named = {**kwargs, **named} if kwargs else named
        if key is None and schema is None and (value := recalled(self._running, name, fn, args, named)) is not MISSING:
            return value
        step = Step(name, fn, args, key, effect, verify, retry, timeout, schema, errors=errors, gate=gate, kwargs=named)
        return perform(run_step(self._running, step), self._clock)

    @overload
    def map(
        self, name: str, fn: Callable[[A], Any], items: Iterable[A], *, schema: type[S], **options: Unpack[MapOptions]
    ) -> list[S]: ...
    @overload
    def map(
        self, name: str, fn: Callable[[A], T], items: Iterable[A], *, schema: None = None, **options: Unpack[MapOptions]
    ) -> list[T]: ...
    @overload
    def map(
        self, name: str, fn: Callable[[A], Any], items: Iterable[A], *, schema: object, **options: Unpack[MapOptions]
    ) -> list[Any]: ...
    def map(  # noqa: PLR0913 - the words of the API
        self,
        name: str,
        fn: Callable[[Any], Any],
        items: Iterable[Any],
        *,
        concurrency: int = 4,
        on_error: OnError = "raise",
        effect: Effect = "idempotent",
        verify: Verify | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        schema: Any = None,
    ) -> list[Any]:
        """Call `fn(item)` for each item, up to `concurrency` at a time, each as a step; return the results in order.

        A step is identified by index and item, so changed items are detected. With `on_error="raise"` the first error
        by index is raised when the steps in flight have ended; with "keep" it takes the place of its result.
        """
        step = Step(name, fn, (), None, effect, verify, retry, timeout, schema, "map")
        lanes = Lanes(self._running, step, items, concurrency, on_error)
        return perform(lanes.all(), self._clock)

    @on_caller
    def sleep(self, duration: Duration) -> Work[None]:
        """Sleep durably: the time counts from the first call, also across crashes."""
        return (yield from waiting.sleeping(self._running, duration))

    @on_caller
    def wait(self, event: str, *, timeout: Duration | None = None) -> Work[Any]:
        """Wait for `agent.signal(run_id, event, payload)` and return its payload; `TimedOut` after `timeout`."""
        return (yield from waiting.signalled(self._running, event, timeout))

    @on_caller
    def ask(self, question: str, **options: Unpack[AskOptions]) -> Work[Any]:
        """Ask people through the inbox, wait, and return their answer; the options are those of `Tenuto.ask`.

        Without an answer in time: by default it keeps waiting; `on_timeout="fail"` raises `TimedOut`, "default" returns
        `default`, "deny" returns a `NoAnswer`, which is false. A cancelled question raises `Conflict`.
        """
        return (yield from waiting.asked(self._running, question, options))

    @on_caller
    def now(self) -> Work[datetime]:
        """Return the time, the same one on every replay."""
        at: datetime = yield from noted(self._running, "now", lambda: moment(self._running.context.kernel.now()))
        return at

    @on_caller
    def uuid(self) -> Work[uuids.UUID]:
        """Return a random UUID, the same one on every replay."""
        made: uuids.UUID = yield from noted(self._running, "uuid", uuids.uuid4)
        return made

    @on_caller
    def random(self) -> Work[float]:
        """Return a random number from 0 to 1, the same one on every replay."""
        number: float = yield from noted(self._running, "random", random.random)
        return number

    @on_caller
    def emit(self, value: Any, *, durable: bool = True) -> Work[None]:
        """Send a value durably to the watchers of the run, once across replays; inside a step, once per attempt.

        With `durable=False` it is sent to those who watch now, with at most ten commits a second, and is not kept: for
        the tokens of a model. Then emit the whole text durably: it replaces the live values of its step.
        """
        if not durable:
            yield from emit_live(self._running, value)
            return
        inside = current_step.get()
        if inside is not None and inside.run is self._running:
            line = self._running.log.line(EMITTED, inside.n, [value, inside.attempt])
            yield Store(self._running.write([], [line, *self._running.live.replaced(inside.n)]))
        else:
            yield from noted(self._running, "emit", lambda: value, more=lambda: self._running.live.replaced(0))

    @on_caller
    def heartbeat(self, detail: Any = None) -> Work[None]:
        """Report inside a long step that it still works; `runs show` and `tenuto doctor` read it. It is not recorded.

        It is stored at most once a second. Raise `Cancelled` or `StaleLease` if the run was cancelled or taken over: a
        blocking function learns it here and can stop.
        """
        yield from beat(self._running, detail)

    @on_caller
    def usage(
        self,
        model: Any,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cost: float | None = None,
    ) -> Work[None]:
        """Record the tokens and cost of a model call; inside a step, together with its result.

        `model` is its name, or a response of OpenAI, Anthropic or LangChain, which has the tokens. Without `cost` it is
        computed from `agent.costs.prices`, or by genai-prices if that is installed.
        """
        run, counts = self._running, (input_tokens, output_tokens, cached_tokens)
        used = recorded(model, counts, cost, run.engine.prices)
        inside = current_step.get()
        if inside is not None and inside.run is run:
            inside.usage.append(used)
            run.spend(used[3])
        else:
            yield from noted(run, "usage", lambda: run.spend(used[3]), usage=[used])

    @on_caller
    def remember(self, text: str, **fields: Unpack[MemoryFields]) -> Work[Memory]:
        """Store a memory and the run's log line in one commit, once across replays; see `Memories.remember`.

        It belongs to the run's user, unless another is given, and its source is this run.
        """
        return (yield from remembered(self._running, text, {**fields}))

    def progress(self) -> Any:
        """Return the progress document of this run, made from its record: steps as items, results as evidence."""
        make = self._running.engine.progress
        assert make is not None
        return make(self.id)

    def _taking(self) -> Work[None]:
        """Begin the body."""
        try:
            yield Store(self._running.take())
        except BaseException:  # cancelled just after opening: release the lease
            yield Store(self._running.let_go())
            raise
        self.state._held.clear()
        self._tokens.append(current.set(self._running))

    def _leaving(self, error: BaseException | None) -> Work[None]:
        """End the body."""
        if self._tokens:
            current.reset(self._tokens.pop())
        meant = paused_in(error)
        yield from self._running.leave(meant, self.result)
        if meant is not None and meant is not error and isinstance(meant, Paused):
            raise meant from error

    def __enter__(self) -> Self:
        """Start or resume the run."""
        perform(self._taking(), self._clock)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        """Leave the run: completed, failed, or paused."""
        perform(self._leaving(error), self._clock)

    def __str__(self) -> str:
        """Return the resume line: `resuming trip-42 at book (1 step reused, 4.1 s saved)`."""
        return str(self._running)

    def __repr__(self) -> str:
        """Name the run."""
        return f"<run {self.id!r}>"


def current_run() -> Any:
    """Return the run whose body or step calls this, also from threads and tasks started there; else None."""
    inside = current.get()
    return None if inside is None else inside.handle
