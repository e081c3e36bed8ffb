"""A worker that is spoken to: it prints the id of each task that it is given, and stops gracefully on SIGTERM.

worker_queue.py STORE SECONDS
"""

import os
import sys
import time

from tenuto import Tenuto

store, seconds = sys.argv[1:]


def handler(task):
    os.write(1, f"{task.id} {time.time():.6f}\n".encode())  # whole lines: two threads do it
    time.sleep(float(seconds))
    return "whole"


with Tenuto("worker", store) as agent:
    agent.open()
    print("ready", flush=True)
    done = agent.tasks.work("q", handler, concurrency=2, on_signal=True)
    print(f"stopped after {done}", flush=True)
