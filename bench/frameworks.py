"""What a durable agent costs per call: agents of Pydantic AI and of the OpenAI Agents SDK, bare and in a run of tenuto.

Each agent makes 6 model calls and 6 tool calls, with models that answer at once. All that is measured is therefore the
framework, and on the other side the framework with two durable commits per call (intent and result) on SQLite.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from importlib.metadata import version
from pathlib import Path

from bench.measure import Row, Table, folder, take_turns
from tenuto.aio import AsyncTenuto

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/adapters"))
CALLS = 12


def run(*, quick: bool) -> Table:
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    from durable_agents import FRAMEWORKS

    rows = []
    with folder() as path, contextlib.closing(asyncio.new_event_loop()) as loop:
        agent = AsyncTenuto("bench", path / "agents.db")
        loop.run_until_complete(agent.__aenter__())
        for name, made in FRAMEWORKS.items():
            work, ids = made(lambda *_: None), itertools.count()

            async def durable(work=work, ids=ids, name=name) -> None:
                async with agent.run(f"{name}-{next(ids)}"):
                    await work("Book three flights.")

            contenders = {
                "bare": lambda _, work=work: loop.run_until_complete(work("Book three flights.")),
                "durable": lambda _, durable=durable: loop.run_until_complete(durable()),
            }
            found = take_turns(contenders, rounds=3 if quick else 9, calls=3 if quick else 10, warmup=3)
            rows += [found[kind].row(f"{name}: 12 calls, {kind}") for kind in contenders]
            more = (found["durable"].quantile(0.5) - found["bare"].quantile(0.5)) / CALLS
            rows.append(Row(f"{name}: more per call", more))
        loop.run_until_complete(agent.__aexit__(None, None, None))
    versions = [f"{name} {version(name)}" for name in ("pydantic-ai-slim", "openai-agents")]
    notes = ["A call of a model takes a second or more: compare the last row of each with that.", ", ".join(versions)]
    return Table("An agent with 6 model calls and 6 tool calls, bare and durable", rows, notes)
