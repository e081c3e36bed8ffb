"""What runs report to hooks: that they were opened, left, and how each step ended. Without hooks nothing here is called.

Key, below the tenant: `(id, "run", "trace")`, what a hook answered when the run was last opened, such as a traceparent, for
30 days. It has a commit of its own after the opening: a crash in between loses the link to a trace, nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from tenuto.capabilities._core.base import Context
from tenuto.errors import InDoubt, Paused, TenutoError
from tenuto.hooks.events import RunLeft, RunOpened, StepEnded
from tenuto.kernel import correlation
from tenuto.kernel.contract import Put
from tenuto.kernel.transact import commit_once
from tenuto.kernel.work import Work

if TYPE_CHECKING:
    from tenuto.capabilities.runs.open_run import OpenRun

_LIFE: Final = 30 * 86_400.0


def opening(run: OpenRun) -> Work[None]:
    """Report that a run was opened; store what the hooks answer for its next opening."""
    context, head = run.context, run._head
    if not context.observed or run.over or head is None:
        return
    try:
        record = context.kernel.read([run.log.trace_key])[0] if run.resumed else None
        before = None if record is None else record.value.decode()
        function = run.history.started["fn"]
        answer = context.report(
            RunOpened(run.id, function, run.resumed, head.takeovers > 0, before, correlation.current())
        )
        if isinstance(answer, str):
            yield from commit_once(context.kernel, [], [Put(run.log.trace_key, answer.encode(), _LIFE)])
    except TenutoError:
        return  # the run is open: its next write finds out what is wrong with the store


def leaving(run: OpenRun, status: str) -> None:
    """Report that a run was left."""
    if run.context.observed:
        ops = run.history.ops.values()  # as of the opening
        done = sum(op.state == "done" and op.identity.kind in ("step", "map") for op in ops) if run.resumed else 0
        took = run.context.kernel.now() - (run._head.changed if run._head is not None else 0.0)
        run.context.report(RunLeft(run.id, status, took, done, correlation.current()))


def stepping(context: Context, run_id: str, name: str, work: Work[Any], made: Callable[[], int]) -> Work[Any]:
    """Do a step, and report its end with the number of attempts that it made."""
    began = time.perf_counter()
    outcome: Literal["completed", "failed", "in_doubt", "paused"] = "completed"
    error: str | None = None
    try:
        return (yield from work)
    except BaseException as problem:
        outcome = "in_doubt" if isinstance(problem, InDoubt) else "paused" if isinstance(problem, Paused) else "failed"
        error = type(problem).__name__
        raise
    finally:
        took = time.perf_counter() - began
        context.report(StepEnded(run_id, name, outcome, took, error, correlation.current(), made()))
