"""The async API of checkpoints."""

from __future__ import annotations

from typing import Any

from tenuto.aio.bridge import Mirror, awaitable
from tenuto.capabilities.checkpoints import Checkpoint, Checkpoints, Saver
from tenuto.kernel import codec


class AsyncCheckpoints(Mirror[Checkpoints]):
    """`Checkpoints`, awaited."""

    @property
    def limit(self) -> int:
        """Return the maximum size of a state in bytes; see `Checkpoints.limit`."""
        return self._sync.limit

    @limit.setter
    def limit(self, most: int) -> None:
        self._sync.limit = most

    _create = awaitable(Checkpoints.create)
    restore = awaitable(Checkpoints.restore)
    restore_as = awaitable(Checkpoints.restore_as)
    get = awaitable(Checkpoints.get)
    list = awaitable(Checkpoints.list)
    diff = awaitable(Checkpoints.diff)
    fork = awaitable(Checkpoints.fork)
    delete = awaitable(Checkpoints.delete)
    prune = awaitable(Checkpoints.prune)

    async def create(
        self, name: str, state: dict[str, Any], *, thread: str | None = None, user: str | None = None, meta: Any = None
    ) -> Checkpoint:
        """Save a state as of this call; later changes by other tasks are not included. See `Checkpoints.create`."""
        return await self._create(name, _copied(state), thread=thread, user=user, meta=meta)

    def every(self, count: int, *, thread: str | None = None, name: str = "auto") -> AsyncSaver:
        """Return a saver that saves at every `count`-th tick."""
        return AsyncSaver(self._sync.every(count, thread=thread, name=name), self._pools)


class AsyncSaver(Mirror[Saver]):
    """`Saver`, awaited."""

    ticks = awaitable(Saver.ticks)
    _tick = awaitable(Saver.tick)

    async def tick(self, state: dict[str, Any]) -> Checkpoint | None:
        """Count one tick; at every `count`-th, save the state and return the checkpoint."""
        return await self._tick(_copied(state))


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    """Return a deep copy, made before the first await, so that other tasks cannot change it."""
    copy: dict[str, Any] = codec.unpack(codec.pack(dict(state))) if isinstance(state, dict) else state
    return copy
