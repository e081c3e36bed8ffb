"""Goes on with one run, as told, and counts its effects in a file: one line each, with who did it.

    worker_run.py STORE EFFECTS RUN STEPS HELD

The step number HELD says so and waits for a line on stdin; -1 holds none. At the end it says how it ended.
"""

import os
import sys

import tenuto
from tenuto import Tenuto

store, effects, run_id, steps, held = sys.argv[1:]


def work(n):
    fd = os.open(effects, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{n} {os.getpid()} {tenuto.idempotency_key()}\n".encode())
    os.close(fd)
    if n == int(held):
        print(f"in step {n}", flush=True)
        sys.stdin.readline()
    return n * n


print("ready", flush=True)
sys.stdin.readline()
try:
    with Tenuto(f"process {os.getpid()}", store) as agent, agent.run(run_id, wait=30) as run:
        print(run, flush=True)
        run.result = [run.step("work", work, n) for n in range(int(steps))]
except BaseException as error:
    print(type(error).__name__, flush=True)
else:
    print(f"returned {run.result}", flush=True)
