"""Calls `once` for one key from many threads at once. It says "ready", waits for a line, and prints the results as JSON.

worker_once.py STORE OUTSIDE COUNT
"""

import json
import os
import sys
import threading
import time

from tenuto import Tenuto

store, outside, count = sys.argv[1:]
gate, found, guard = threading.Barrier(int(count)), [], threading.Lock()


def effect():
    fd = os.open(outside, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, b"$")
    os.close(fd)
    time.sleep(0.05)  # long enough for everybody to meet
    return {"by": os.getpid(), "at": time.time()}


def call():
    gate.wait()
    result = agent.once("pr-9/comment-31", effect)
    with guard:
        found.append(json.dumps(result))


with Tenuto("caller", store) as agent:
    print("ready", flush=True)
    sys.stdin.readline()
    threads = [threading.Thread(target=call) for _ in range(int(count))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps([len(found), sorted(set(found))]), flush=True)
