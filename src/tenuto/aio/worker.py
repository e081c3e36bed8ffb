"""The async performer of workers: each lane is an asyncio task."""

from __future__ import annotations

import asyncio
import signal as signals

from tenuto.aio.bridge import Pools, perform
from tenuto.capabilities._core.worker import IDLE_CLOCK, Worker, must_be_some
from tenuto.kernel.clock import Clock


async def work(pools: Pools, worker: Worker, clock: Clock, *, concurrency: int, grace: float, on_signal: bool) -> None:
    """Execute jobs in `concurrency` asyncio tasks until the worker stops; raise what ended a lane."""
    must_be_some(concurrency)
    loop = asyncio.get_running_loop()
    numbers = (signals.SIGTERM, signals.SIGINT) if on_signal else ()
    for number in numbers:
        loop.add_signal_handler(number, worker.set)
    lanes = [asyncio.ensure_future(perform(pools, worker.lane(), clock)) for _ in range(concurrency)]
    lanes.append(asyncio.ensure_future(perform(pools, worker.chores(), IDLE_CLOCK)))
    try:
        waiting = set(lanes)
        while waiting and not worker.is_set():
            done, waiting = await asyncio.wait(waiting, timeout=0.25, return_when=asyncio.FIRST_COMPLETED)
            if any(lane.exception() is not None for lane in done):
                break
    finally:
        worker.set()
        try:
            _, late = await asyncio.wait(lanes, timeout=grace)
        except asyncio.CancelledError:
            late = {lane for lane in lanes if not lane.done()}
            raise
        finally:
            for lane in lanes:
                lane.cancel()
            worker.finish()
            for number in numbers:
                loop.remove_signal_handler(number)
    if late:
        await asyncio.wait(late)
    for lane in lanes:
        if not lane.cancelled():
            lane.result()
