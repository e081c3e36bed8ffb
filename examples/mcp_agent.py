"""An agent that is killed in every session, and finishes the task by `resume` alone.

Each session is a process of its own with an MCP server of its own. Its model is scripted: it knows nothing but what the tool
`resume` returns. It works until the process and its server are killed with -9; the next session continues.

    pip install "tenuto[mcp]"
    python examples/mcp_agent.py
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from mcp import Client, StdioServerParameters

GOAL = "Publish the report"
ITEMS = ["collect figures", "draw the chart", "write the summary", "publish"]


def think(digest: str) -> tuple[str, dict[str, object]]:
    """The scripted model: decide on the next tool call from the digest, and from nothing else."""
    if GOAL not in digest:
        return "plan", {"goal": GOAL, "add": ITEMS}
    found = re.search(r"^- \d+\. (.+)$", digest.partition("Open (")[2].partition("Done (")[0], re.MULTILINE)
    return ("finish", {}) if found is None else ("work", {"item": found[1]})


async def session(folder: Path, survives: int) -> None:
    """Work until the task is finished, or until this process is killed after `survives` tool calls."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "tenuto", "mcp", "--folder", str(folder)])
    async with Client(server) as client:
        calls = 0

        async def call(tool: str, **given: object) -> str:
            nonlocal calls
            if calls == survives:
                os.killpg(0, signal.SIGKILL)  # this process and its server
            calls += 1
            found = await client.call_tool(tool, given)
            assert not found.is_error, found.content
            return str(found.content[0].text)

        while True:
            what, given = think(await call("resume"))
            print(f"session {os.getpid()}: {what} {given.get('item', '')}", flush=True)
            if what == "finish":
                return
            if what == "plan":
                await call("progress", **given)
                continue
            item = given["item"]
            with (folder / "work.log").open("a") as log:
                print(item, file=log)
            await call("progress", done=item, evidence=f"{item}: logged", next="the next open item")


def main(folder: Path) -> int:
    """Start sessions until one finishes; return how many there were."""
    (folder / ".git").mkdir(exist_ok=True)  # a project, so that the store is in its .tenuto
    for number in range(1, 20):
        words = [sys.executable, __file__, str(folder), str(3 + number % 3)]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("TENUTO_", "CLAUDE_"))}
        done = subprocess.run(words, start_new_session=True, check=False, stderr=subprocess.DEVNULL, env=env)
        if done.returncode == 0:
            print(f"finished in session {number}; the others were killed")
            return number
    raise SystemExit("not finished")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(session(Path(sys.argv[1]), int(sys.argv[2])))
    else:
        with tempfile.TemporaryDirectory() as place:
            main(Path(place))
