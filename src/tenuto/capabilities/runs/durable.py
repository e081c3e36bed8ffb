"""Durable functions: registered by name, so that another process can go on with their runs.

Calling one is a run whose body is the function. Its arguments are in the first line of the log, so whoever takes
the run over needs the name alone. `start` writes that line and a head that says queued, in one commit; a worker
takes it from there.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from tenuto.capabilities import outcomes
from tenuto.capabilities.messages import plain
from tenuto.capabilities.run import Run
from tenuto.capabilities.runlog import LOWERED, RunLog, user_key
from tenuto.capabilities.running import Engine, Given, Running, begun, current
from tenuto.errors import Conflict, InvalidInput, NotStorable
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Check, CheckEnd, Put, Write
from tenuto.kernel.durations import seconds
from tenuto.kernel.transact import Steps, drive, settle
from tenuto.kernel.work import Call, Work, perform

P = ParamSpec("P")
R = TypeVar("R")
Face = Callable[[Run], Any]
"""Returns the run as the function gets it."""
_OPTIONS = frozenset({"user", "wait", "block", "deadline", "thread"})


class Durable(Generic[P, R]):
    """A function whose calls are runs. Calling it as it is runs it plainly, with a run that was given to it."""

    def __init__(
        self, engine: Engine, name: str, fn: Callable[Concatenate[Any, P], R], options: dict[str, Any] | None = None
    ) -> None:
        self.name = keys.name(name, "function's name")
        self.fn = fn
        self._engine = engine
        self._options = options or {}
        functools.update_wrapper(self, fn)

    @property
    def clock(self) -> Clock:
        """Return the clock by which calls wait."""
        return self._engine.context.clock

    def __call__(self, run: Run, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function inside of a run that is open already; its steps are that run's."""
        must_be_run(self.name, run)
        return self.fn(run, *args, **kwargs)

    def using(self, **options: Any) -> Durable[P, R]:
        """Return the same function with options for its runs: `user`, `wait`, `block`, `deadline`, `thread`."""
        wrong = set(options) - _OPTIONS
        if wrong:
            raise InvalidInput(f"A run's options are {', '.join(sorted(_OPTIONS))}; not {', '.join(sorted(wrong))}.")
        return Durable(self._engine, self.name, self.fn, {**self._options, **options})

    def run(self, run_id: str, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run it under this id and return its result: begun, resumed, or what it came to before."""
        return perform(self.running(run_id, args, kwargs), self.clock)

    def start(self, run_id: str, /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Let a worker run it: durably queued when this returns. False if there is a run of this id already."""
        return drive(self.queueing(run_id, args, kwargs), self.clock)

    # -- what both faces do ------------------------------------------------------------------------------------

    def running(
        self,
        run_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        face: Face | None = None,
        prepared: Callable[[Running], None] | None = None,
    ) -> Work[R]:
        """Run it to its end, or to where it pauses."""
        yield self._fitting(run_id, args, kwargs)
        run = Run(self._engine, run_id, **self._options)
        inner = run._running
        inner.given = Given(self.name, [_stored(one) for one in args], {k: _stored(v) for k, v in kwargs.items()})
        if prepared is not None:
            prepared(inner)
        yield from run.taking()
        schema = outcomes.schema_of(self.fn, None)
        try:
            if inner.over:
                told = inner.told
                value = inner.log.whole(told.form, told.value, told.raw, 1)
                result = outcomes.lifted(value, bool(told.form & LOWERED), schema)
            else:
                stored_args, stored_kwargs = inner.told.started["args"] or [[], {}]
                call = functools.partial(self.fn, **stored_kwargs) if stored_kwargs else self.fn
                given = (run if face is None else face(run), *stored_args)
                result = yield Call(call, given, lambda: _Inside(inner), f"The function {self.name!r}")
                run.result = result
        except BaseException as error:
            yield from run.leaving(error)
            raise
        if inner.over:  # what it came to stands: the function was not called
            yield from run.leaving(Replayed())
            return result  # type: ignore[no-any-return]
        yield from run.leaving(None)
        value, lowered = outcomes.kept(result)
        return outcomes.lifted(codec.unpack(codec.pack(value)), lowered, schema)  # type: ignore[no-any-return]

    def queueing(self, run_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[bool]:
        """Write down that it is to be run."""
        yield from self._fitting(run_id, args, kwargs)
        given = Given(self.name, [_stored(one) for one in args], {k: _stored(v) for k, v in kwargs.items()})
        log = RunLog(self._engine.context, run_id)
        deadline = self._options.get("deadline")
        running = Running(self._engine, run_id, user=self._options.get("user"), given=given)
        kernel = self._engine.context.kernel
        while True:
            head, version = log.head()
            if head is not None and head.status != "deleting":
                running._fits(head, log.told(head.first))
                return False
            now, last = kernel.now(), log.last()
            fresh, _, line = begun(running, log, given, now, last)
            fresh = fresh._replace(
                status="queued", deadline=None if deadline is None else now + seconds(deadline, "deadline")
            )
            writes: list[Write] = [line, *log.placed(fresh)]
            if fresh.user is not None:
                writes.append(Put(user_key(fresh.user, run_id), codec.encode(None)))
            if fresh.parent is not None:
                writes.append(Put(RunLog(self._engine.context, fresh.parent).child_key(run_id), codec.encode(None)))
            try:
                yield from settle(kernel, [Check(log.head_key, version), CheckEnd(log.own, last)], writes)
            except Conflict:
                yield 0.005
            else:
                return True

    def _fitting(self, run_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[None]:
        """Raise where the function cannot take these arguments, before they are on record as a run's; none are its own."""
        try:
            inspect.signature(self.fn).bind(None, *args, **kwargs)
        except TypeError as error:
            if args or kwargs or RunLog(self._engine.context, run_id).head()[0] is None:
                raise TypeError(f"{self.name} does not take these arguments: {error}. No run was begun.") from error
        yield from ()

    def __repr__(self) -> str:
        """Say which function this is."""
        return f"<durable {self.name!r}>"


class Replayed(BaseException):
    """A run is left without its body having run: there is nothing to compare."""


class _Inside:
    """The surroundings of a run's body: runs begun in it know whose they are."""

    def __init__(self, running: Running) -> None:
        self._running = running

    def __enter__(self) -> None:
        self._token = current.set(self._running)

    def __exit__(self, *_: object) -> None:
        current.reset(self._token)


def must_be_run(name: str, run: object) -> None:
    """Raise where a durable function is called as if it were an ordinary one."""
    if not hasattr(run, "step"):
        raise TypeError(
            f"{name} is durable: call {name}.run(RUN_ID, …), or {name}.start(RUN_ID, …) for a worker. Inside of a run, "
            f"{name}(run, …) makes its steps that run's."
        )


def _stored(value: Any) -> Any:
    try:
        return plain(value, "argument")
    except NotStorable as error:
        raise NotStorable(
            f"{error} A durable function is called with plain data, so that another process can go on with it.",
            error.path,
        ) from error


def name_of(fn: Callable[..., Any], name: str | None) -> str:
    """Return the name under which a function is registered: its own, unless another is given."""
    if not callable(fn):
        raise InvalidInput(f"A durable function is a function, not {type(fn).__name__}.")
    parameters = list(inspect.signature(fn).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL,
    ):  # fmt: skip
        raise InvalidInput(f"The first argument of a durable function is its run: def {fn.__name__}(run, …).")
    return name or fn.__qualname__.rpartition("<locals>.")[2]
