"""Building a context: the time at turn 10 and at turn 1,000, and what masking alone saves on a thread of a coding agent.

Each turn of the thread is a question, a tool call, 50 KB of test log and an answer; it is built at every turn, as an agent does.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from bench.measure import Samples, Table, folder
from tenuto import Tenuto

GOAL = 2.0
LINE = "2026-05-{:02} 12:{:02}:07 [INFO] tests/test_parser.py::test_{} PASSED {:.4f}s"


def turn(number: int, size: int) -> list[dict[str, Any]]:
    source = random.Random(number)
    lines: list[str] = []
    while len(lines) * 70 < size:
        lines.append(LINE.format(source.randint(1, 28), source.randint(0, 59), source.randint(1, 999), source.random()))
    call = {"id": f"c{number}", "type": "function", "function": {"name": "run_tests", "arguments": "{}"}}
    return [
        {"role": "user", "content": f"Fix the failing test number {number} and run all of them again, please."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": "\n".join(lines)},
        {"role": "assistant", "content": f"The test number {number} passes now; the parser had dropped the last line."},
    ]


def run(*, quick: bool) -> Table:
    rows = []
    turns, size = (200 if quick else 1_000), 50_000
    for budget in (8_000, 100_000):
        with folder() as path, Tenuto("bench", path / "store.db") as agent:
            early, late = Samples([[]]), Samples([[]])
            processor: tuple[list[float], list[float]] = [], []
            for number in range(turns):
                ask, *rest = turn(number, size)
                agent.thread("t").append(ask)
                began, busy = time.perf_counter(), time.process_time()
                agent.build_context("t", budget=budget, instructions="You fix tests.")
                took, worked = time.perf_counter() - began, time.process_time() - busy
                if 5 <= number < 15:
                    early.rounds[0].append(took)
                    processor[0].append(worked)
                if number >= turns - 10:
                    late.rounds[0].append(took)
                    processor[1].append(worked)
                agent.thread("t").append(*rest)
            first, last = early.row(f"budget {budget:,}: turn 10"), late.row(f"budget {budget:,}: turn {turns:,}")
            first.processor, last.processor = map(statistics.median, processor)
            last.ratio, last.target = f"{last.processor / first.processor:.2f}x", f"<= {GOAL:g}x of the processor time"
            last.met = last.processor <= GOAL * first.processor
            rows += [first, last]
    return Table("Build the context of a turn; each has 50 KB of tool output", rows, [_saved()])


def _saved() -> str:
    with Tenuto("bench", "volatile:") as agent:
        for number in range(30):
            agent.thread("t").append(*turn(number, 12_000))
        agent.thread("t").append({"role": "user", "content": "And now?"})
        whole = agent.build_context("t", budget=10_000_000, mask=False).tokens
        masked = agent.build_context("t", budget=whole // 2).tokens
    return f"Masking alone: 30 turns with 12 KB of output each have {whole:,} tokens; masked {masked:,} ({masked / whole:.0%})."
