"""An agent that reads 60 pages with a tool, saves its state every ten calls, and is killed after call 47.

    python examples/tool_calls.py --url store.db --die-after 47      # exits with 137
    python examples/tool_calls.py --url store.db                     # resumes at call 48

The state holds the task, the conversation, a log of tool calls, a step counter and the working memory. It is saved as
a checkpoint at every tenth call; each call is recorded in the thread when it is done. The second run restores call 40,
replays calls 41 to 47 from the thread without calling the tool again, and makes call 48.
"""

import argparse
import os
from typing import Any

from tenuto import Tenuto

PAGES = 60
TASK = "survey-2026"


def read_page(page: int) -> str:
    """The tool. It costs money, so it must not run twice for one page."""
    print(f"tool called for page {page}", flush=True)
    return f"page {page} mentions {page * page} apples"


def take_in(state: dict[str, Any], page: int, found: str) -> None:
    """Add a result to the state, whether it is new or replayed."""
    state["conversation"] += [
        {"role": "assistant", "content": f"Reading page {page}."},
        {"role": "tool", "content": found},
    ]
    state["tool_log"].append({"tool": "read_page", "page": page, "result": found})
    state["step"] = page
    state["memory"]["apples"] = state["memory"].get("apples", 0) + int(found.split()[-2])


def main(url: str, die_after: int | None) -> None:
    with Tenuto("surveyor", url) as agent:
        thread = agent.thread(TASK)
        fresh = {"task_id": TASK, "conversation": [], "tool_log": [], "step": 0, "memory": {}}
        state = agent.checkpoint.restore(thread=TASK, default=fresh)
        saver = agent.checkpoint.every(10, thread=TASK)
        print(f"restored call {state['step']}", flush=True)
        for call in thread.tool_calls(after=state["step"]):
            take_in(state, call.args["page"], call.result)
            saver.tick(state)
            print(f"call {call.number} taken from the log", flush=True)
        while state["step"] < PAGES:
            page = state["step"] + 1
            found = read_page(page)
            thread.tool_call("read_page", {"page": page}, found)
            take_in(state, page, found)
            saver.tick(state)
            if page == die_after:
                os._exit(137)
        print(f"done: {len(state['tool_log'])} calls, {state['memory']['apples']} apples", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--die-after", type=int)
    given = parser.parse_args()
    main(given.url, given.die_after)
