"""`run.remember`: a memory and the run's log line in one commit, once across replays.

The log holds the id of the memory, not its text: forgetting a memory leaves nothing of it in the log of a run.
"""

from __future__ import annotations

from typing import Any

from tenuto.capabilities.memory import TRUST, Memory, New, Source, new
from tenuto.capabilities.runs.arguments import Described
from tenuto.capabilities.runs.log import RESULT, Identity, Op
from tenuto.capabilities.runs.open_run import OpenRun
from tenuto.capabilities.runs.replay import LENIENT
from tenuto.errors import NotFound
from tenuto.kernel.contract import AnyCheck, Append
from tenuto.kernel.work import Store, Work


def remembered(run: OpenRun, text: str, fields: dict[str, Any]) -> Work[Memory]:
    """Store a memory, or return the one that was stored at this point of the run."""
    run.must_go_on("run.remember")
    identity = Identity("remember", "remember", None, Described(LENIENT), together=run.beside())
    op = yield from run.recall(identity)
    n = run.number() if op is None else op.n
    given = new(text, trust=TRUST["model"], source=Source(run=run.id, step=n), **{"user": run.user, **fields})
    if op is not None:
        known: Memory = yield Store(lambda: _again(run, op, given))
        return known
    run.may_begin("run.remember")

    def along(memory: Memory) -> tuple[list[AnyCheck], list[Append]]:
        value = [memory.id, memory.duplicate, list(memory.near)]
        return [], [run.log.line(RESULT, n, [identity.stored(), 0, value, False, 0.0, [], False])]

    with run.busy():
        work = run.engine.memories._remembering(given, fence=run.lease, along=along)
        memory: Memory = yield Store(run.guarded(work))
    return memory


def _again(run: OpenRun, op: Op, given: New) -> Memory:
    """Return a recorded memory; one that was forgotten or expired since, as the code states it."""
    memory_id, duplicate, near = op.value
    try:
        memory = run.engine.memories.get(memory_id)
    except NotFound:
        memory = run.engine.memories._as_stated(given, memory_id, op.at)
    return memory._replace(duplicate=duplicate, near=tuple(near))
