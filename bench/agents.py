"""Agents of one process: each a thread with a scope of its own. They share one client, as the workers of a process do.

`python -m bench.agents KIND URL AGENTS SECONDS PAUSE` prints the seconds of each call as JSON. `PAUSE` is the time that an agent
thinks between two calls; $TENUTO_API_KEY opens a server.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from bench.measure import text
from tenuto import Tenuto

KEYS = 20


def work(kind: str, agent: Tenuto, number: int, until: float, pause: float) -> list[float]:
    took = []
    scope, n = f"agent-{number}", 0
    time.sleep(pause * (number % 25) / 25)
    while time.monotonic() < until:
        n += 1
        key = f"k{n % KEYS}"
        began = time.perf_counter()
        if kind == "set":
            agent.state.set(scope, key, text(n))
        else:
            agent.state.get(scope, key)
        took.append(time.perf_counter() - began)
        if pause:
            time.sleep(pause)
    return took


def main(kind: str, url: str, count: str, seconds: str, pause: str, first: str) -> None:
    client = Tenuto("agents", url)
    agents = [client] * int(count)
    for number, agent in enumerate(agents, start=int(first)):
        agent.state.set(f"agent-{number}", "k1", text(1))
    print("ready", flush=True)
    sys.stdin.readline()
    until = time.monotonic() + float(seconds)
    found: list[float] = []
    threads = [
        threading.Thread(target=lambda a=a, n=n: found.extend(work(kind, a, n, until, float(pause))))
        for n, a in enumerate(agents, start=int(first))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
