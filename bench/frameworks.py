"""What a durable agent costs per model call and per call: agents of Pydantic AI and of the OpenAI Agents SDK, bare and in a run.

The models answer at once, so all that is measured is the framework, and on the other side the framework with two durable
commits per call (intent and result) on SQLite. Bare and durable take turns; the processor time is that of the whole
process, with the threads that commit, and hardly depends on what else the machine does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.measure import Row, Table, folder, quantile
from tenuto.aio import AsyncTenuto

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/adapters"))
CALLS = 12
Work = Callable[[], Awaitable[Any]]


def run(*, quick: bool) -> Table:
    os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
    from durable_agents import FRAMEWORKS

    rows: list[Row] = []
    chance = random.Random(7)
    with folder() as path, contextlib.closing(asyncio.new_event_loop()) as loop:
        agent = AsyncTenuto("bench", path / "agents.db")
        loop.run_until_complete(agent.__aenter__())
        for name, made in FRAMEWORKS.items():
            ids = itertools.count()
            several, single = made(lambda *_: None), one_call(name)
            for what, calls, work in (("1 model call", 1, single), ("6 model and 6 tool calls", CALLS, several)):

                async def durable(work=work, name=name, ids=ids) -> None:
                    async with agent.run(f"{name}-{next(ids)}"):
                        await work("Book three flights.")

                kinds: dict[str, Work] = {"bare": lambda work=work: work("Book three flights."), "durable": durable}
                taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
                for number in range((30 if quick else 150) + 5):
                    for kind in chance.sample(list(kinds), 2):
                        began, used = time.perf_counter(), time.process_time()
                        loop.run_until_complete(kinds[kind]())
                        if number >= 5:  # the first ones import and open
                            taken[kind].append((time.perf_counter() - began, time.process_time() - used))
                found = {kind: row(f"{name}: {what}, {kind}", pairs) for kind, pairs in taken.items()}
                rows += found.values()
                rows.append(more(f"{name}: {what}, more per call", calls, found["bare"], found["durable"]))
        loop.run_until_complete(agent.__aexit__(None, None, None))
    versions = [f"{name} {version(name)}" for name in ("pydantic-ai-slim", "openai-agents")]
    notes = [
        "A call of a model takes a second or more: compare the rows of what is more with that.",
        ", ".join(versions),
    ]
    return Table("Agents of two frameworks, bare and durable", rows, notes)


def row(what: str, pairs: list[tuple[float, float]]) -> Row:
    walls, processor = [wall for wall, _ in pairs], statistics.fmean(used for _, used in pairs)
    return Row(what, quantile(walls, 0.5), p99=quantile(walls, 0.99), mean=statistics.fmean(walls), processor=processor)


def more(what: str, calls: int, bare: Row, durable: Row) -> Row:
    def per(name: str) -> float:
        return (getattr(durable, name) - getattr(bare, name)) / calls

    return Row(what, per("p50"), mean=per("mean"), processor=per("processor"))


def one_call(framework: str) -> Callable[[str], Awaitable[Any]]:
    """Return an agent that calls its model once."""
    if framework == "pydantic-ai":
        from pydantic_ai import Agent
        from pydantic_ai.messages import ModelResponse, TextPart
        from pydantic_ai.models.function import FunctionModel

        from tenuto.adapters.pydantic_ai import TenutoDurability

        model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("Done.")]))
        return Agent(model, name="one", capabilities=[TenutoDurability()]).run
    from agents import Agent as OpenAIAgent
    from agents.testing import ScriptedModel, assistant_message

    from tenuto.adapters.openai_agents import TenutoRunner

    async def run_once(prompt: str) -> Any:
        answers = ScriptedModel([[assistant_message("Done.")]])
        return await TenutoRunner().run(OpenAIAgent(name="one", model=answers), prompt)

    return run_once
