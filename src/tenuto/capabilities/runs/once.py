"""Once: one execution of something, across threads, processes and restarts; everybody gets what came of it.

It is a run of one step, `once:KEY`, whose effect is "once", so there are no keys and no commits of its own: the run is
taken (one commit), its intent is written, the function is called, its result is written, the run is completed. Whoever
comes meanwhile waits for the run, and then reads the result from its log.

A crash before the intent leaves a run that has done nothing: the next caller does it. One between intent and result
leaves a step in doubt: `verify` is asked, and where that cannot say, people are. An error that the function raised is
not a result. It is raised to whoever called it, and the next caller calls the function again, after `verify` was asked
if there is one: without a `verify`, raise only where nothing has happened.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tenuto.capabilities.run import Run
from tenuto.capabilities.running import Engine
from tenuto.capabilities.stepping import Step, Verify, stepping
from tenuto.kernel import keys
from tenuto.kernel.durations import Duration, seconds
from tenuto.kernel.work import Work


def once(
    engine: Engine,
    key: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    *,
    verify: Verify | None = None,
    schema: Any = None,
    wait: Duration | None = None,
) -> Work[Any]:
    """Return what came of `fn(*args)`, called now if it was not before."""
    step = Step("once", fn, args, keys.name(key, "key"), "once", verify, None, None, schema, forgiving=True)
    run = Run(engine, f"once:{key}")
    inner = run._running
    inner._wait = math.inf if wait is None else seconds(wait, "wait")
    yield from run.taking()
    try:
        value = yield from stepping(inner, step)
    except BaseException as error:
        yield from run.leaving(error)
        raise
    yield from run.leaving(None)
    return value
