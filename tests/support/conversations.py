"""Conversations of agents, made up: the same at every call."""

import random
from typing import Any

from tenuto import Tenuto

WORDS = [
    "please",
    "check",
    "the",
    "invoice",
    "of",
    "supplier",
    "seven",
    "and",
    "compare",
    "prices",
    "with",
    "last",
    "month",
    "then",
    "write",
    "the",
    "report",
    "for",
    "finance",
    "tests",
    "fail",
    "in",
    "module",
    "parser",
    "after",
    "merge",
    "fix",
    "the",
    "import",
    "order",
    "update",
    "docs",
    "deploy",
    "to",
    "staging",
    "rollback",
    "error",
    "timeout",
]
Message = dict[str, Any]


def words(source: random.Random, count: int) -> str:
    return " ".join(source.choice(WORDS) for _ in range(count))


def log(source: random.Random, size: int) -> str:
    """Make a test log of about `size` characters."""
    lines: list[str] = []
    length = 0
    while length < size:
        line = f"2026-05-{source.randint(1, 28):02} 12:{source.randint(0, 59):02}:07 [{source.choice(('INFO', 'WARN'))}] tests/test_{source.choice(WORDS)}.py::{source.randint(1, 999)} PASSED {source.random():.4f}s"
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)


def turn(number: int, size: int, shape: str = "chat") -> list[Message]:
    """Make one turn: a question, a tool call, its output, an answer."""
    source = random.Random(number)
    ask, reply, output = words(source, 20), words(source, 30), log(source, size)
    if shape == "anthropic":
        return [
            {"role": "user", "content": ask},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "Running."},
                    {"type": "tool_use", "id": f"c{number}", "name": "run_tests", "input": {"path": f"tests/{number}"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"c{number}", "content": output}]},
            {"role": "assistant", "content": reply},
        ]
    call = {"id": f"c{number}", "type": "function", "function": {"name": "run_tests", "arguments": '{"path": "tests"}'}}
    return [
        {"role": "user", "content": ask},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": output},
        {"role": "assistant", "content": reply},
    ]


def fill(agent: Tenuto, thread: str, turns: int, size: int, shape: str = "chat") -> None:
    handle = agent.thread(thread)
    for number in range(turns):
        handle.append(*turn(number, size, shape))


def pairs_are_whole(messages: list[Message]) -> bool:
    """Whether each tool call is followed by its result, and each result follows its call, in either format."""
    waiting: set[str] = set()
    for message in messages:
        blocks = message["content"] if isinstance(message.get("content"), list) else []
        results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
        results += [message["tool_call_id"]] if message["role"] == "tool" else []
        for result in results:
            if result not in waiting:
                return False
            waiting.remove(result)
        if waiting and not results:
            return False
        waiting |= {call["id"] for call in message.get("tool_calls") or ()}
        waiting |= {block["id"] for block in blocks if block["type"] == "tool_use"}
    return not waiting
