"""Runs a durable agent again and again, each time killed with -9 at another call, and then again without that.

    python worker_agents.py URL FRAMEWORK

Each of its 12 calls is a place to die twice: before its effect, so behind everything before it, and between its effect and
its record. The two processes of a round are forked from this one before it has opened anything. A line says of each round
what was recorded when the first one died, what the second one called, and how it ended.
"""

import asyncio
import json
import os
import signal
import sys

os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"

from durable_agents import CALLS, FRAMEWORKS

from tenuto import Tenuto
from tenuto.aio import AsyncTenuto


def recorded(url: str, run_id: str) -> list[str]:
    """Return the calls of a run that are recorded as completed."""
    with Tenuto("reader", url) as agent:
        if not agent.runs.info(run_id):
            return []
        done = [step for step in agent.runs.get(run_id).steps if step.status == "completed"]
        last = [(step.name, str(step.key).rpartition("/")[2]) for step in done]
    return [f"{'model' if name.endswith('.model') else 'tool'} {which}" for name, which in last]


def run(url: str, framework: str, run_id: str, note: int, dies: tuple[str, str] | None) -> None:
    def act(when: str, kind: str, which: str) -> None:
        if when == "end":
            os.write(note, f"{kind} {which}\n".encode())
        if dies == (when, f"{kind} {which}"):
            os.kill(os.getpid(), signal.SIGKILL)

    async def main() -> str:
        agent_run = FRAMEWORKS[framework](act)
        async with AsyncTenuto("worker", url) as agent, agent.run(run_id):
            return await agent_run("Book three flights.")

    os.write(note, f"= {asyncio.run(main())}\n".encode())


def forked(*given) -> list[str]:
    reading, note = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            run(*given[:3], note, *given[3:])
        except BaseException as error:
            os.write(note, f"! {error!r}\n".encode())
        finally:
            os._exit(0)
    os.close(note)
    noted = b""
    while part := os.read(reading, 10_000):
        noted += part
    os.close(reading)
    os.waitpid(child, 0)
    return noted.decode().splitlines()


url, framework = sys.argv[1:]
FRAMEWORKS[framework](lambda *_: None)  # imports it, once for all
for call in CALLS:
    for when in ("begin", "end"):
        run_id = f"{framework} {when} {call}"
        first = forked(url, framework, run_id, (when, call))
        noted = recorded(url, run_id)
        second = forked(url, framework, run_id, None)
        print(json.dumps([when, call, first, noted, second]), flush=True)
