"""A turn of an agent with a session: the OpenAI Agents SDK's SQLiteSession compared with TenutoSession, in one run.

It needs the SDK: `make peers` installs it beside. A run reads all items, then adds the new ones: each is measured by
itself. Both wait for the disk (SQLite's default, `synchronous=FULL`). The conversation is as long as it says before the
first measured turn.
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
READ, ADD = "read", "add"
OURS, NEW, THEIRS = "TenutoSession", "TenutoSession, made anew each turn", "SQLiteSession"


def run(*, quick: bool) -> Table:
    rows = []
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        for length in LENGTHS:
            with folder() as path, contextlib.ExitStack() as stack:
                found = _measured(path, length, stack, loop, quick=quick)
            for what in (READ, ADD):
                rows += [
                    found[f"{what}, {name}"].row(f"turn {length:,}: {what}, {name}") for name in (THEIRS, OURS, NEW)
                ]
                ratio = found[f"{what}, {THEIRS}"].against(found[f"{what}, {OURS}"])
                rows.append(Row(f"turn {length:,}: {what}, times faster", ratio=str(ratio)))
    return Table(
        "One turn of a session: all items read; two of 480 bytes added and synced",
        rows,
        [
            "A ratio is the median over rounds of (median of SQLiteSession / median of TenutoSession) in the round.",
            "Made anew each turn: as a web server does it, one TenutoSession a request, on one client.",
            "A TenutoSession that is kept knows its items, and reads only what others have added since.",
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
    sessions: dict[str, Callable[[], Any]] = {
        THEIRS: lambda: sqlite,
        OURS: lambda: kept,
        NEW: lambda: TenutoSession("bench", agents[1]),
    }

    async def fill() -> None:
        for session in sessions.values():
            await session().add_items([item for number in range(length) for item in turn(number)])

    def reading(session: Callable[[], Any]) -> Callable[[int], None]:
        return lambda _: loop.run_until_complete(session().get_items())

    def adding(session: Callable[[], Any]) -> Callable[[int], None]:
        return lambda number: loop.run_until_complete(session().add_items(turn(length + number)))

    loop.run_until_complete(fill())
    contenders = {f"{READ}, {name}": reading(session) for name, session in sessions.items()}
    contenders |= {f"{ADD}, {name}": adding(session) for name, session in sessions.items()}
    return take_turns(contenders, rounds=5 if quick else 15, calls=5, warmup=3)
