"""Durable functions: registered by name, so that another process can resume their runs.

A call is a run whose body is the function. The first line of its log has the arguments, so another process needs only
the name to resume it. `start` writes that line and a queued head in one commit; a worker executes it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from tenuto.capabilities._core import schedules
from tenuto.capabilities._core.base import Context
from tenuto.capabilities._core.schedules import Missed, ScheduleInfo
from tenuto.capabilities._core.values import plain
from tenuto.capabilities.runs.engine import Engine, Given, current, must_fit, new_id, queued
from tenuto.capabilities.runs.handle import RunHandle
from tenuto.capabilities.runs.log import LOWERED, RunLog
from tenuto.capabilities.runs.open_run import OpenRun
from tenuto.capabilities.runs.options import Retry
from tenuto.capabilities.runs.recurring import prefix
from tenuto.capabilities.runs.results import from_stored, schema_of, to_stored
from tenuto.capabilities.runs.run import Run
from tenuto.errors import Conflict, InvalidInput, NotStorable
from tenuto.kernel import codec, keys
from tenuto.kernel.clock import Clock
from tenuto.kernel.contract import Check, CheckEnd
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Call, Sleep, Store, Work, perform

P = ParamSpec("P")
R = TypeVar("R")
Face = Callable[[Run], Any]
"""Returns the handle that the function gets: a `Run` or an `AsyncRun`."""
_OPTIONS = frozenset({"user", "wait", "block", "deadline", "thread", "priority"})


class Durable(Generic[P, R]):
    """A function whose calls are runs. Calling it directly executes it inside the run that it is passed."""

    def __init__(
        self, engine: Engine, name: str, fn: Callable[Concatenate[Any, P], R], options: dict[str, Any] | None = None
    ) -> None:
        self.name = keys.name(name, "function's name")
        self.fn = fn
        self._engine = engine
        self._options = options or {}
        functools.update_wrapper(self, fn)

    @property
    def _clock(self) -> Clock:
        return self._engine.context.clock

    def __call__(self, run: Run, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function inside an open run; its steps belong to that run."""
        must_be_run(self.name, run)
        return self.fn(run, *args, **kwargs)

    def using(self, **options: Any) -> Durable[P, R]:
        """Return the same function with options for its runs: `user`, `wait`, `block`, `deadline`, `thread`, `priority`.

        Among queued runs workers execute the highest priority first.
        """
        wrong = set(options) - _OPTIONS
        if wrong:
            raise InvalidInput(f"Unknown options: {', '.join(sorted(wrong))}. Pass {', '.join(sorted(_OPTIONS))}.")
        must_be_priority(options.get("priority", 0))
        return Durable(self._engine, self.name, self.fn, {**self._options, **options})

    def _with_policy(self, retry: Retry | None, priority: int) -> Durable[P, R]:
        """Register how workers retry failed runs of this function; return it with this priority for its runs."""
        if retry is not None and not isinstance(retry, Retry):
            raise InvalidInput("retry must be a tenuto.Retry.")
        if retry is None:
            self._engine.policies.pop(self.name, None)
        else:
            self._engine.policies[self.name] = retry
        return self.using(priority=priority) if priority else self

    def run(self, run_id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Start or resume the run of this id and return its result; return the recorded one if it is completed.

        With None as the id, start a new run.
        """
        return perform(self._running(run_id, args, kwargs), self._clock)

    def start(self, run_id: str | None, /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Queue a run durably for a worker; return its handle, which is false if there is already a run of this id.

        With None as the id, start a new run; the handle has its id.
        """
        return perform(self._queueing(run_id, args, kwargs), self._clock)

    def every(  # noqa: PLR0913 - the words of the API
        self,
        name: str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        cron: str | None = None,
        interval: Duration | None = None,
        timezone: str = "UTC",
        missed: Missed = "once",
        grace: Duration = 60,
    ) -> ScheduleInfo:
        """Schedule recurring runs of this function durably, by a cron expression or an interval. Idempotent.

        Workers that know the function queue a run once per time, with the id `function/name@time`. For times missed
        without a worker, `missed="once"` queues the last, "all" each, "skip" none that is more than `grace` late.
        """
        work = self._scheduling(name, args, kwargs or {}, cron, interval, timezone, missed, grace)
        return perform(work, self._clock)

    def _scheduling(  # noqa: PLR0913
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        cron: str | None,
        interval: Duration | None,
        timezone: str,
        missed: Missed,
        grace: Duration,
    ) -> Work[ScheduleInfo]:
        inspect.signature(self.fn).bind(None, *args, **kwargs)
        deadline = self._options.get("deadline")
        payload = {
            "args": [_stored(one) for one in args],
            "kwargs": {key: _stored(value) for key, value in kwargs.items()},
            "deadline": None if deadline is None else seconds(deadline, "deadline"),
        }
        fresh = schedules.new(
            self._engine.context,
            payload,
            cron=cron,
            interval=interval,
            timezone=timezone,
            missed=missed,
            grace=grace,
            priority=self._options.get("priority", 0),
            user=self._options.get("user"),
            rules=None,
        )
        stored = yield from schedules.put(self._engine.context, prefix(self.name), name, fresh)
        return schedules.info(self.name, name, stored)

    def _running(
        self,
        run_id: str | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        face: Face | None = None,
        prepared: Callable[[OpenRun], None] | None = None,
    ) -> Work[R]:
        """Execute the run until it ends or pauses."""
        run_id = new_id(self.name) if run_id is None else run_id
        yield Store(self._fitting(run_id, args, kwargs))
        options = {name: value for name, value in self._options.items() if name != "priority"}
        run = Run(self._engine, run_id, **options)
        inner = run._running
        inner.given = Given(self.name, [_stored(one) for one in args], {k: _stored(v) for k, v in kwargs.items()})
        if prepared is not None:
            prepared(inner)
        yield from run._taking()
        schema = schema_of(self.fn, None)
        try:
            if inner.over:
                history = inner.history
                value = yield Store(lambda: inner.log.whole(history.form, history.value, history.raw, 1))
                result = from_stored(value, bool(history.form & LOWERED), schema)
            else:
                stored_args, stored_kwargs = inner.history.started["args"] or [[], {}]
                call = functools.partial(self.fn, **stored_kwargs) if stored_kwargs else self.fn
                given = (run if face is None else face(run), *stored_args)
                result = yield Call(call, given, lambda: _Inside(inner), f"The function {self.name!r}")
                run.result = result
        except BaseException as error:
            yield from run._leaving(error)
            raise
        if inner.over:  # completed before: the function was not called
            yield from run._leaving(Replayed())
            return result  # type: ignore[no-any-return]
        yield from run._leaving(None)
        value, lowered = to_stored(result)
        return from_stored(codec.unpack(codec.pack(value)), lowered, schema)  # type: ignore[no-any-return]

    def _queueing(self, run_id: str | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work[RunHandle[R]]:
        run_id = new_id(self.name) if run_id is None else run_id
        created = yield from self._queued(run_id, args, kwargs)
        return RunHandle(self._engine, run_id, schema_of(self.fn, None), created=created)

    def _queued(self, run_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work[bool]:
        yield from self._fitting(run_id, args, kwargs)
        given = Given(self.name, [_stored(one) for one in args], {k: _stored(v) for k, v in kwargs.items()})
        log = RunLog(self._engine.context, run_id)
        deadline = self._options.get("deadline")
        running = OpenRun(self._engine, run_id, user=self._options.get("user"), given=given)
        kernel = self._engine.context.kernel
        while True:
            head, version = log.head()
            if head is not None and head.status != "deleting":
                must_fit(running, head, log.read(head.first))
                return False
            now, last = kernel.now(), log.last()
            writes = queued(
                running,
                log,
                given,
                now,
                last,
                self._options.get("priority", 0),
                None if deadline is None else seconds(deadline, "deadline"),
            )
            try:
                yield from commit_once(kernel, [Check(log.head_key, version), CheckEnd(log.own, last)], writes)
            except Conflict:
                yield Sleep(0.005)
            else:
                return True

    def _fitting(self, run_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Work[None]:
        """Raise `TypeError` if the arguments do not fit, before a run is stored; no arguments fit an existing run."""
        try:
            inspect.signature(self.fn).bind(None, *args, **kwargs)
        except TypeError as error:
            if args or kwargs or RunLog(self._engine.context, run_id).head()[0] is None:
                raise TypeError(
                    f"{self.name} does not accept these arguments: {error}. No run was started. The first argument "
                    "of run and start is the run's id, or None for a new run."
                ) from error
        yield from ()

    def __repr__(self) -> str:
        """Name the function."""
        return f"<durable {self.name!r}>"


def has_run(context: Context, run_id: str) -> bool:
    """Return whether there is a run of this id."""
    return RunLog(context, run_id).head()[0] is not None


class Replayed(BaseException):
    """The run was completed before, so its body was not executed: there is nothing to compare."""


class _Inside:
    """Makes a run the current one, so that runs started in its body know their parent."""

    def __init__(self, running: OpenRun) -> None:
        self._running = running

    def __enter__(self) -> None:
        self._token = current.set(self._running)

    def __exit__(self, *_: object) -> None:
        current.reset(self._token)


def must_be_run(name: str, run: object) -> None:
    """Raise `TypeError` if a durable function is called without a run."""
    if not hasattr(run, "step"):
        raise TypeError(
            f"{name} is durable: call {name}.run(RUN_ID, …), or {name}.start(RUN_ID, …) for a worker. Inside a run, "
            f"call {name}(run, …)."
        )


def must_be_priority(priority: Any) -> int:
    """Return a priority; raise `InvalidInput` unless it is a 32-bit int."""
    if type(priority) is not int or not -(1 << 31) <= priority < 1 << 31:
        raise InvalidInput(f"priority must be a 32-bit int (higher is sooner), not {priority!r}.")
    return priority


def _stored(value: Any) -> Any:
    try:
        return plain(value, "argument")
    except NotStorable as error:
        raise NotStorable(
            f"{error} Call a durable function with plain data, so that another process can resume it.",
            error.path,
        ) from error


def name_of(fn: Callable[..., Any], name: str | None) -> str:
    """Return the name under which to register a function: `name`, or its own."""
    if not callable(fn):
        raise InvalidInput(f"A durable function must be a function, not {type(fn).__name__}.")
    parameters = list(inspect.signature(fn).parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL,
    ):  # fmt: skip
        raise InvalidInput(f"A durable function needs its run as first argument: def {fn.__name__}(run, …).")
    return name or fn.__qualname__.rpartition("<locals>.")[2]


def register_function(functions: dict[str, Callable[..., Any]], fn: Callable[..., Any], name: str | None) -> str:
    """Register a durable function and return its name; `InvalidInput` if another function has the name."""
    name = name_of(fn, name)
    known = functions.get(name)
    if known is not None and (known.__module__, known.__qualname__) != (fn.__module__, fn.__qualname__):
        raise InvalidInput(f"The name {name!r} belongs to {known.__module__}.{known.__qualname__}. Pass another name=.")
    functions[name] = fn
    return name
