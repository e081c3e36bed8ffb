"""Embeds the memories of a user with a new model, and stops inside of the batch at which it is to be killed."""

import sys

from tenuto import Tenuto

url, stop_at = sys.argv[1], int(sys.argv[2])
batches = 0


def newer(texts: list[str]) -> list[list[float]]:
    global batches
    batches += 1
    if batches == stop_at:
        print("killed here", flush=True)
        sys.stdin.read()
    return [[float(len(text)), 1.0] for text in texts]


newer.model = "newer"  # type: ignore[attr-defined]
with Tenuto("worker", url, embed=newer) as agent:
    agent.memory._embedding.wake = lambda user: None  # type: ignore[method-assign]
    print("embedded", agent.memory.embed(user="ann"), flush=True)
