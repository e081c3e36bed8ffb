"""Room for the bodies of requests: together they take a limited amount of memory, however many clients send at once."""

from __future__ import annotations

import asyncio
from typing import Final

from tenuto.errors import StorageUnavailable

SMALL: Final = 65_536
"""Bytes of a body that are always read: the server's buffer of a connection holds as many."""


class Room:
    """Count the bytes of the bodies in memory. A body that does not fit waits, unread."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._waiting: list[asyncio.Future[None]] = []

    async def take(self, size: int, seconds: float) -> None:
        """Wait until there is room for this many bytes, at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                while self._held + size > self._most:
                    freed = asyncio.get_running_loop().create_future()
                    self._waiting.append(freed)
                    await freed
        except TimeoutError:
            raise StorageUnavailable(
                "The server has too many large requests at once. Nothing was done; try again."
            ) from None
        self._held += size

    def free(self, size: int) -> None:
        """Give bytes back."""
        self._held -= size
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if not one.done():
                one.set_result(None)
