"""A client whose every call is interrupted: interrupted.py URL SECONDS. Prints what is left when it is over.

Control-C may come between any two instructions of a call. Whatever it meets, no connection may be lost for later calls.
"""

import gc
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

from tenuto import Tenuto
from tenuto.backends import connect


def storm_of_signals(parent):
    """Send Control-C to a process, from a child of it, until it ends."""
    child = os.fork()
    if child == 0:
        chance = random.Random(1)
        try:
            while os.getppid() == parent:
                time.sleep(chance.uniform(0.001, 0.006))
                os.kill(parent, signal.SIGINT)
        finally:
            os._exit(0)
    return child


def open_files():
    return len(list(Path("/dev/fd").iterdir()))


def main(url, seconds):
    backend = connect(url)
    agent = Tenuto("worker", backend)
    agent.state.set("s", "k", 0)
    begun = open_files()
    inside = False

    def interrupt(*_):
        if inside:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    sys.unraisablehook = lambda _: None  # an interrupted __del__ has nowhere to raise to
    child = storm_of_signals(os.getpid())
    calls = interrupted = 0
    failed = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        calls += 1
        try:
            try:
                inside = True
                agent.state.set("s", "k", calls)
                agent.state.get("s", "k")
                agent.state.items("s")
            finally:
                inside = False
        except KeyboardInterrupt:
            interrupted += 1
        except Exception as error:
            failed.append(repr(error))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    gc.collect()

    def call():
        try:
            agent.state.set("s", "k", -1)
        except Exception as error:
            failed.append(repr(error))

    threads = [threading.Thread(target=call) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_use = dict(backend.stats()).get("pool", {}).get("in_use", 0)
    left = open_files() - begun
    agent.close()
    after = open_files() - begun
    print(json.dumps({"calls": calls, "interrupted": interrupted, "failed": failed[:5], "in_use": in_use,
                      "left": left, "after": after}))  # fmt: skip


main(sys.argv[1], float(sys.argv[2]))
