"""The async API of memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from tenuto.aio.bridge import Mirror, awaitable, in_thread
from tenuto.capabilities.memory import Memories, Shape


class AsyncMemories(Mirror[Memories]):
    """`Memories`, awaited."""

    remember = awaitable(Memories.remember)
    recall = awaitable(Memories.recall)
    get = awaitable(Memories.get)
    list = awaitable(Memories.list)
    history = awaitable(Memories.history)
    supersede = awaitable(Memories.supersede)
    forget = awaitable(Memories.forget)
    absorb = awaitable(Memories.absorb)
    load = awaitable(Memories.load)
    embed = awaitable(Memories.embed)

    def tool(
        self, user: str | None = None, shape: Shape = "openai", k: int = 5
    ) -> tuple[dict[str, Any], Callable[..., Coroutine[Any, Any, str]]]:
        """Return recall as a tool for a model; its function is awaited. See `Memories.tool`."""
        schema, answer = self._sync.tool(user, shape, k)

        async def recall_memory(*args: Any, **named: Any) -> str:
            return await in_thread(self._pool, lambda: answer(*args, **named))

        return schema, recall_memory
