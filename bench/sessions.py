"""A turn of an agent with a session: the OpenAI Agents SDK's SQLiteSession beside TenutoSession, in one run.

It needs the SDK: `make peers` installs it beside. A turn is what a run does: read the items, add the new ones. Both wait
for the disk (SQLite's default, `synchronous=FULL`). The conversation is as long as it says before the first measured turn.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.measure import Row, Samples, Table, folder, take_turns
from bench.peers import turn
from tenuto import Tenuto

LENGTHS = (10, 100, 1_000)
OURS, NEW, THEIRS = "TenutoSession", "TenutoSession, made anew each turn", "SQLiteSession"


def run(*, quick: bool) -> Table:
    rows = []
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        for length in LENGTHS:
            with folder() as path, contextlib.ExitStack() as stack:
                found = _measured(path, length, stack, loop, quick=quick)
            rows += [found[name].row(f"turn {length:,}: {name}") for name in (THEIRS, OURS, NEW)]
            ratio = found[THEIRS].against(found[OURS])
            target, met = (">= 5x", ratio.value >= 5) if length == 1_000 else (">= 1x", ratio.value >= 1)
            rows.append(Row(f"turn {length:,}: times faster", ratio=str(ratio), target=target, met=met))
    return Table(
        "One turn of a session (all items read, two of 480 bytes added), everything synced",
        rows,
        [
            "A ratio is the median over rounds of (median of SQLiteSession / median of TenutoSession) in the round.",
            "Made anew each turn: as a web server does it, one TenutoSession a request, on one client.",
            f"openai-agents {version('openai-agents')}.",
        ],
    )


def _measured(
    path: Path, length: int, stack: contextlib.ExitStack, loop: asyncio.AbstractEventLoop, *, quick: bool
) -> dict[str, Samples]:
    from agents import SQLiteSession

    from tenuto.adapters.openai_agents import TenutoSession

    sqlite = SQLiteSession("bench", path / "sqlite.db")
    stack.callback(sqlite.close)
    agents = [stack.enter_context(Tenuto("bench", path / f"tenuto-{name}.db")) for name in ("kept", "anew")]
    kept = TenutoSession("bench", agents[0])

    def taking(session: Callable[[], Any]) -> Callable[[int], None]:
        async def one(number: int) -> None:
            own = session()
            await own.get_items()
            await own.add_items(turn(number))

        return lambda number: loop.run_until_complete(one(length + number))

    async def fill() -> None:
        for session in (sqlite, kept, TenutoSession("bench", agents[1])):
            await session.add_items([item for number in range(length) for item in turn(number)])

    loop.run_until_complete(fill())
    contenders = {
        THEIRS: taking(lambda: sqlite),
        OURS: taking(lambda: kept),
        NEW: taking(lambda: TenutoSession("bench", agents[1])),
    }
    return take_turns(contenders, rounds=5 if quick else 15, calls=5, warmup=3)
