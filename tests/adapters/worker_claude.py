"""Runs a session of the Claude Agent SDK and kills itself with -9 when a tool call of a name ends.

python worker_claude.py URL CLAUDE SESSION PROMPT TOOL
"""

import asyncio
import os
import signal
import sys

from claude_agent_sdk import ClaudeAgentOptions, HookMatcher, query

from tenuto import Tenuto
from tenuto.adapters.claude_agent import TenutoHooks

url, claude, session, prompt, tool = sys.argv[1:]


async def dies(given, *_):
    if given["tool_name"] == tool:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


async def main():
    hooks = TenutoHooks(Tenuto("worker", url), every=3).matchers()
    hooks["PostToolUse"].append(HookMatcher(hooks=[dies]))
    async for _ in query(prompt=prompt, options=ClaudeAgentOptions(cli_path=claude, session_id=session, hooks=hooks)):
        pass


asyncio.run(main())
