"""The async API of contexts."""

from __future__ import annotations

from tenuto.aio.bridge import Mirror, awaitable
from tenuto.capabilities.context import ContextBuilder, Guard, Turns


class AsyncContextBuilder(Mirror[ContextBuilder]):
    """`ContextBuilder`, awaited. `summarize` may be a coroutine function."""

    build_context = awaitable(ContextBuilder.build_context)
    calibrate = awaitable(ContextBuilder.calibrate)


class AsyncTurns(Mirror[Turns]):
    """`Turns`, awaited. The model and the tools may be coroutine functions."""

    turn = awaitable(Turns.turn)


class AsyncGuard(Mirror[Guard]):
    """`Guard`, awaited."""

    tool_call = awaitable(Guard.tool_call)
    say = awaitable(Guard.say)
    scan = awaitable(Guard.scan)
