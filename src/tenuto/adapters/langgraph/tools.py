"""Durable tools: a completed tool call is not repeated when a graph runs its node again.

LangGraph saves the result of a node, not its tool calls: a node that is killed, fails or interrupts after its third
tool call runs again from its first line. A durable tool is a step of a separate run (`capabilities/runs/runs.py`):
intent before, result after, in the store of the graph's checkpoints.

The run id is `tool:` with the thread, the task and a digest of the tool's name and arguments. A repeated task has the
same id, so the call finds its run. Two equal calls in one task are one call; to make two, let the arguments differ,
for example by the id of the tool call.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, overload

from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool

from tenuto.adapters.langgraph.saver import TenutoSaver
from tenuto.capabilities.runs import Effect, Retry, current_run, describe
from tenuto.errors import InvalidInput
from tenuto.kernel import codec
from tenuto.kernel.durations import Duration

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=BaseTool)


@overload
def durable_tool(
    fn: T,
    *,
    effect: Effect = "idempotent",
    verify: Callable[[Any], Any] | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    name: str | None = None,
) -> T: ...
@overload
def durable_tool(
    fn: Callable[P, R],
    *,
    effect: Effect = "idempotent",
    verify: Callable[[Any], Any] | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    name: str | None = None,
) -> Callable[P, R]: ...
def durable_tool(
    fn: Any,
    *,
    effect: Effect = "idempotent",
    verify: Callable[[Any], Any] | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    name: str | None = None,
) -> Any:
    """Return a tool like `fn` whose completed calls are not repeated when a graph runs its node again.

    `fn` is a function, or a tool made by LangChain's `@tool`. The intent is recorded before the call and the result
    before it returns, in the store of the graph's `TenutoSaver`. `effect`, `verify`, `retry` and `timeout` are those of
    `run.step`. Called inside a run, the tool is a step of that run.
    """
    steps = {"effect": effect, "verify": verify, "retry": retry, "timeout": timeout}
    if not isinstance(fn, BaseTool):
        return _durable(fn, steps, name)
    if not isinstance(fn, StructuredTool):
        raise InvalidInput(
            f"durable_tool takes a function or a tool of @tool, not a {type(fn).__name__}. "
            "Make the function that the tool calls durable."
        )
    named = name or fn.name
    calls = {"func": fn.func, "coroutine": fn.coroutine}
    return fn.model_copy(
        update={kind: _durable(call, steps, named) for kind, call in calls.items() if call is not None}
    )


def _durable(fn: Callable[P, R], steps: dict[str, Any], name: str | None) -> Callable[P, R]:
    """Return a function like `fn` whose every call in a graph is a step of a separate run."""
    tool_name: str = name or str(getattr(fn, "__name__", type(fn).__name__))

    def place(bound: Callable[..., Any], args: tuple[Any, ...]) -> tuple[TenutoSaver, str]:
        given = (var_child_runnable_config.get() or {}).get("configurable") or {}
        saver = given.get("__pregel_checkpointer")
        task = given.get("__pregel_task_id")
        if not isinstance(saver, TenutoSaver) or task is None:
            raise InvalidInput(
                f"The durable tool {tool_name!r} was called outside a graph with a TenutoSaver, so it cannot be "
                "recorded and did not run. Call it from a node or in a run, or call the function itself."
            )
        digest = codec.digest(tool_name.encode(), describe(bound, args, b"").digest).hex()[:16]
        return saver, f"tool:{given.get('thread_id')}:{task}:{digest}"

    if inspect.iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def acall(*args: P.args, **kwargs: P.kwargs) -> Any:
            bound = functools.partial(fn, **kwargs) if kwargs else fn
            inside = current_run()
            if inside is not None:
                return await inside.step(tool_name, bound, *args, **steps)
            saver, run_id = place(bound, args)
            async with saver._async_agent.run(run_id) as run:
                return await run.step(tool_name, bound, *args, **steps)

        return acall  # type: ignore[return-value]

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = functools.partial(fn, **kwargs) if kwargs else fn
        inside = current_run()
        if inside is not None:
            return inside.step(tool_name, bound, *args, **steps)  # type: ignore[no-any-return]
        saver, run_id = place(bound, args)
        with saver._agent.run(run_id) as run:
            return run.step(tool_name, bound, *args, **steps)  # type: ignore[no-any-return]

    return call
