"""Streams as server-sent events: one event for each item, numbered, so that `Last-Event-ID` resumes after it.

No thread is held while a stream waits. A comment every few seconds keeps proxies from closing the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

from tenuto.aio.bridge import in_thread, iterate
from tenuto.errors import TenutoError
from tenuto.kernel.work import Item, Items, Sleep, Stream
from tenuto.servers.http.exchange import Exchange
from tenuto.servers.http.json_api import encoded
from tenuto.servers.http.problems import problem_of

MEDIA: Final = "text/event-stream"
_BEAT: Final = 10.0


def begun(items: Items[Any]) -> Items[Any]:
    """Take the first step of a stream, so that its errors are replies and not events. It blocks."""
    first = next(items.stream, None)
    return Items(_continued(first, items.stream), items.clock)


def _continued(first: Sleep | Item[Any] | None, stream: Stream[Any]) -> Stream[Any]:
    try:
        if first is not None:
            yield first
            yield from stream
    finally:
        stream.close()


async def streamed(
    exchange: Exchange,
    items: Items[Any],
    pool: ThreadPoolExecutor,
    stopping: asyncio.Event,
    verify: Callable[[], object],
) -> None:
    """Send the items as they arrive, until the stream or the client ends, or the server stops.

    `verify` raises an error if the API key is no longer valid: it is called before an item is sent, and at each beat.
    """
    await exchange.begin(200, MEDIA, {"X-Accel-Buffering": "no"})
    await exchange.part(b": open\n\n", more=True)
    iterator = iterate(pool, items.stream, items.clock)
    gone = asyncio.ensure_future(exchange.disconnected())
    stop = asyncio.ensure_future(stopping.wait())
    following: asyncio.Future[Any] | None = None
    try:
        while not gone.done() and not stop.done():
            following = following or asyncio.ensure_future(anext(iterator))
            await asyncio.wait({following, gone, stop}, timeout=_BEAT, return_when=asyncio.FIRST_COMPLETED)
            try:
                await in_thread(pool, verify)
                if not following.done():
                    await exchange.part(b": still here\n\n", more=True)
                    continue
                done, following = following, None
                await exchange.part(_event(done.result()), more=True)
            except StopAsyncIteration:
                break
            except TenutoError as error:
                await exchange.part(b"event: error\ndata: " + encoded(problem_of(error)) + b"\n\n", more=True)
                break
        await exchange.part(b"", more=False)
    finally:
        for task in (following, gone, stop):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration, TenutoError):
                    await task
        await iterator.aclose()  # type: ignore[attr-defined]


def _event(item: Any) -> bytes:
    number = getattr(item, "number", None)
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"data: " + encoded(item) + b"\n\n"
