"""Remembers in a run, one memory and one message for each number, until it is killed."""

import sys

from tenuto import Tenuto

path, first = sys.argv[1], int(sys.argv[2])
with Tenuto("worker", path) as agent:
    for number in range(first, first + 10_000):
        with agent.run(f"turn-{number}", user="ann", thread="chat") as run:
            run.remember(f"Fact number {number}")
            run.thread.append({"role": "user", "content": f"number {number}"})
        print(number, flush=True)
