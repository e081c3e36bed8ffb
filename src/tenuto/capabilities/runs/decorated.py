"""`@agent.step`: a function whose calls inside a run are steps of that run. It owns no keys."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from tenuto.capabilities.runs.engine import current_step
from tenuto.capabilities.runs.options import Step
from tenuto.capabilities.runs.run import current_run

P = ParamSpec("P")
R = TypeVar("R")


def step_function(fn: Callable[P, R], name: str | None, options: dict[str, Any]) -> Callable[P, R]:
    """Return the function as a step: recorded in the body of a run, an ordinary call inside steps and outside runs."""
    called: str = name or getattr(fn, "__name__", "") or repr(fn)
    Step(called, fn, (), **options)  # wrong options raise here, not in the first run

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        run = current_run()
        if run is None or current_step.get() is not None:
            return fn(*args, **kwargs)
        result: R = run.step(called, fn, *args, kwargs=kwargs, **options)  # a coroutine in an async run
        return result

    return call
