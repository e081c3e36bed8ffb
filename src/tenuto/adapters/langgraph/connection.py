"""Shared by the saver and the store: a client, a thread pool for its async calls, and closing both."""

from __future__ import annotations

from typing import Final, Self

from tenuto.aio import AsyncTenuto
from tenuto.aio.bridge import Pool, in_thread
from tenuto.client import Tenuto

_THREADS: Final = 8


class Connection:
    """Connects to an agent or a URL; closes only what it opened."""

    def _connect(self, agent: Tenuto | AsyncTenuto | str | None) -> None:
        self._opened_store = not isinstance(agent, Tenuto | AsyncTenuto)
        self._opened_threads = not isinstance(agent, AsyncTenuto)
        if isinstance(agent, AsyncTenuto):
            self._agent, self._pool = agent._sync, agent._pool
            return
        self._agent = agent if isinstance(agent, Tenuto) else Tenuto("langgraph", agent)
        self._pool = Pool(_THREADS, "tenuto-langgraph")

    def close(self) -> None:
        """Close what this object opened: the store, if it was given as a URL or path, and its threads."""
        if self._opened_store:
            self._agent.close()
        if self._opened_threads:
            self._pool.shutdown(wait=False)

    def __enter__(self) -> Self:
        """Open the store."""
        self._agent.open()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the store, if this object opened it."""
        self.close()

    async def __aenter__(self) -> Self:
        """Open the store."""
        await in_thread(self._pool, self._agent.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the store, if this object opened it."""
        await in_thread(self._pool, self.close)
