"""Durable tools: a tool call that happened is not made again when a graph runs its node again.

LangGraph saves what a node returned, not what it did on the way: a node that was killed, or that failed or asked
after its third tool call, is run again from its first line. A durable tool is a step of a run of its own
(`capabilities/runs.py`): intent before, result after, in the agent that keeps the graph's checkpoints.

The run is `tool:` and the thread, the task and a digest of the tool's name and arguments. A task that is run again
has the id it had, so the call finds its run. The same call twice in one task is one call; where two are meant,
something in the arguments must tell them apart, such as the id of the tool call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from langchain_core.runnables.config import var_child_runnable_config

from tenuto.capabilities.arguments import describe
from tenuto.capabilities.run import current_run
from tenuto.errors import InvalidInput
from tenuto.kernel import codec

P = ParamSpec("P")
R = TypeVar("R")
Agents = Callable[[Any], Any]
"""Returns the client behind a saver, or None if it is another's."""


def durable(fn: Callable[P, R], steps: dict[str, Any], agents: Agents, name: str | None) -> Callable[P, R]:
    """Return a function like `fn` whose every call in a graph is a step of a run of its own."""
    told: str = name or str(getattr(fn, "__name__", type(fn).__name__))

    def place(bound: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, str]:
        given = (var_child_runnable_config.get() or {}).get("configurable") or {}
        agent = agents(given.get("__pregel_checkpointer"))
        task = given.get("__pregel_task_id")
        if agent is None or task is None:
            raise InvalidInput(
                f"The durable tool {told!r} was called outside of a graph that has a TenutoSaver, so there is nowhere "
                "to note that it was. Call it from a node, or in a run, or call the function itself."
            )
        digest = codec.digest(told.encode(), describe(bound, args, b"").digest).hex()[:16]
        return agent, f"tool:{given.get('thread_id')}:{task}:{digest}"

    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
            bound = functools.partial(fn, **kwargs) if kwargs else fn
            inside = current_run()
            if inside is not None:
                return await inside.step(told, bound, *args, **steps)
            agent, run_id = place(bound, args)
            async with agent.awaited.run(run_id) as run:
                return await run.step(told, bound, *args, **steps)

        return acall  # type: ignore[return-value]

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = functools.partial(fn, **kwargs) if kwargs else fn
        inside = current_run()
        if inside is not None:
            return inside.step(told, bound, *args, **steps)  # type: ignore[no-any-return]
        agent, run_id = place(bound, args)
        with agent.sync.run(run_id) as run:
            return run.step(told, bound, *args, **steps)  # type: ignore[no-any-return]

    return call
