"""Executing a workflow: each step by its action, as a durable step of the run `workflow:NAME`.

The run's log is the source of truth, and the document follows it: one commit marks a step as in progress, the step
runs, another commit writes its result. A crash before the last one leaves a step in progress in the document and done
in the log: resuming finds its result there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenuto.capabilities.runs import INTENT, Described, Identity, Op, OpenRun, Replay, Run, Step, run_step, to_stored
from tenuto.capabilities.tasks import owner
from tenuto.capabilities.workflows.document import StepRecord, WorkflowStep
from tenuto.errors import Conflict, InDoubt, InvalidInput, Paused, StorageUnavailable, Waiting
from tenuto.kernel.durations import Duration
from tenuto.kernel.work import Store, Work

if TYPE_CHECKING:
    from tenuto.capabilities.workflows.workflows import Action, Workflow


def resume_workflow(workflow: Workflow, wait: Duration) -> Work[Workflow]:
    """Execute the remaining steps; return the workflow, or raise the error of a failed step."""
    yield Store(workflow.refresh)
    run = Run(workflow._engine, workflow.run_id, user=workflow.user, wait=wait)
    yield from run._taking()
    try:
        while (left := (yield Store(workflow.refresh))._doc.next()) is not None:
            yield from _carry_out(workflow, run._running, left)
    except _Blocked as pause:
        yield from run._leaving(pause)
        return workflow
    except BaseException as error:
        yield from run._leaving(error)
        raise
    yield from run._leaving(None)
    return workflow


def _carry_out(workflow: Workflow, run: OpenRun, left: StepRecord) -> Work[None]:
    if left.status == "blocked":
        raise _Blocked(f"Step {left.label!r} of the workflow {workflow.name!r} is blocked: {left.reason}.", run.id)
    action = workflow._actions.get(left.action)
    if action is None:
        raise InvalidInput(
            f"The action {left.action!r} of step {left.label!r} of the workflow {workflow.name!r} is not registered here. "
            f"Register it with @agent.action({left.action!r}), or complete the step with complete({left.label!r}, …)."
        )
    known = any((op.identity.name, op.identity.key) == (left.action, left.uid) for op in run.history.ops.values())
    if left.status == "in_progress" and not known and "run" not in (left.by or {}):
        yield from _begun_by_hand(run, left, action)
    by = {**owner(workflow._context.writer), "run": run.id}
    given: WorkflowStep = yield Store(
        workflow._step(left.label, "started", lambda old: workflow._started(old, by), known=left)
    )
    if workflow._doc.by_uid(left.uid) is None:
        return  # removed just now
    step = Step(left.action, action.fn, (given,), left.uid, action.effect, action.verify, action.retry, action.timeout)
    try:
        result = yield from run_step(run, step)
    except InDoubt as pause:
        said = f"in doubt: {pause}"
        yield Store(
            workflow._step(left.label, "in doubt", lambda old: old._replace(reason=said), detail=said, known=left)
        )
        raise
    except (Paused, StorageUnavailable):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        yield Store(
            workflow._step(left.label, "failed", lambda old: workflow._failed(old, said), detail=said, known=left)
        )
        raise
    stored = to_stored(result)[0]
    yield Store(_ended(workflow, left, stored))


def _ended(workflow: Workflow, left: StepRecord, result: Any) -> Work[None]:
    try:
        yield from workflow._step(left.label, "completed", workflow._completed, result=result, known=left)
    except Conflict:
        return  # another process ended the step meanwhile


class _Blocked(Waiting):
    """A step is blocked; the run waits for `unblock`."""


def _begun_by_hand(run: OpenRun, left: StepRecord, action: Action) -> Work[None]:
    """Log the intent of a step that was started by hand and not ended: it is in doubt."""
    identity = Identity("step", left.action, left.uid, Described(b""), action.effect)
    n = run.number()
    yield Store(run.write([], [run.log.line(INTENT, n, identity.stored())]))
    run.history.ops[n] = Op(n, identity, left.started if left.started is not None else run.context.kernel.now())
    run.past = Replay(run.id, run.history)
