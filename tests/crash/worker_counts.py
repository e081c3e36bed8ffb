"""A writer among others. It says "ready", waits for a line, works, and prints what came of it as JSON.

worker_counts.py increments STORE COUNT
worker_counts.py careless STORE COUNT    (a planted bug: it reads, then writes)
worker_counts.py steady STORE SECONDS
"""

import json
import sys
import time

from tenuto import Tenuto


def increments(agent, count):
    for _ in range(int(count)):
        agent.state.update("s", "n", lambda n: n + 1, default=0)
    return {}


def careless(agent, count):
    for _ in range(int(count)):
        agent.state.set("s", "n", agent.state.get("s", "n", 0) + 1)
    return {}


def steady(agent, seconds):
    made, worst = 0, 0.0
    end = time.monotonic() + float(seconds)
    while (began := time.monotonic()) < end:
        agent.state.set("s", "n", made)
        worst = max(worst, time.monotonic() - began)
        made += 1
    return {"made": made, "worst": worst}


kind, store, much = sys.argv[1:]
with Tenuto("counter", store) as agent:
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(globals()[kind](agent, much)), flush=True)
