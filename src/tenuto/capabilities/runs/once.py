"""Once: execute a function once across threads, processes and restarts; every caller gets its result.

It is a run `once:KEY` of one step with the effect "once", so it has no keys or commits of its own. Concurrent callers
wait for the run, then read the result from its log.

After a crash before the intent, the next caller executes the function. A crash between intent and result leaves a step
in doubt, for `verify` or people to decide. So does an error, which may come after the effect: its caller gets it, and
the next caller asks `verify`, then people.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tenuto.capabilities.runs.engine import Engine
from tenuto.capabilities.runs.options import Step, Verify
from tenuto.capabilities.runs.run import Run
from tenuto.capabilities.runs.step import run_step
from tenuto.kernel import keys
from tenuto.kernel.durations import Duration, patience
from tenuto.kernel.work import Work


def run_once(
    engine: Engine,
    key: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    verify: Verify | None = None,
    schema: Any = None,
    wait: Duration | None = math.inf,
) -> Work[Any]:
    """Return the recorded result of `fn(*args)`; call it if there is none."""
    step = Step("once", fn, args, keys.name(key, "key"), "once", verify, None, None, schema)
    run = Run(engine, f"once:{key}")
    inner = run._running
    inner._wait = patience(wait)
    yield from run._taking()
    try:
        value = yield from run_step(inner, step)
    except BaseException as error:
        yield from run._leaving(error)
        raise
    yield from run._leaving(None)
    return value
