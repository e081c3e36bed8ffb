"""A nursery of workers on one queue: each line on stdin forks one, which works until the queue is empty or it is killed.

Each notes in a file of its own what it was given, before it does anything, and pays for each task in the outside world,
by adding a byte to a file of that task. Paying is done by `once`, whose `verify` looks at that file.

    worker_tasks.py STORE FOLDER honest|unchecked|unfenced
"""

import logging
import os
import signal
import sys
from pathlib import Path

from tenuto import Happened, NotHappened, Tenuto
from tenuto.backends import connect
from tenuto.capabilities.tasks import claimed as task
from tenuto.capabilities.tasks import queue


def plant(mode):
    """Plant a bug: a claim that does not check, or an end that does not."""
    if mode == "unchecked":
        honest = queue.commit_once
        queue.commit_once = lambda kernel, checks, writes: honest(kernel, [], writes)
    if mode == "unfenced":
        task.Task._ending = lambda self, writes: task.Ending(self, [], writes)
        task.Task.lost = property(lambda self: False)


def work(store, folder, who):
    notes = os.open(folder / f"{who}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handler(one):
        os.write(notes, f"{one.id} {one.priority} {one.attempt} {int(one.redelivered)}\n".encode())
        outside = folder / f"{one.id}.paid"

        def pay():
            fd = os.open(outside, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, b"$")
            os.close(fd)
            return one.payload

        def verify(intent):  # the byte is the effect: a file that is there and empty is none
            paid = outside.exists() and outside.stat().st_size > 0
            return Happened(one.payload) if paid else NotHappened()

        return agent.once(f"pay/{one.id}", pay, verify=verify)

    logging.disable(logging.WARNING)  # deliveries again are expected here
    with Tenuto(who, store) as agent:
        agent.tasks.work("q", handler, concurrency=1, lease=5, until_empty=True)


def main():
    store, folder, mode = sys.argv[1:]
    plant(mode)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead need no waiting for
    connect(store).close()  # the driver is loaded once, not by each of them
    for line in sys.stdin:
        who = line.strip()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            code = 1
            try:
                work(store, Path(folder), who)
                code = 0
            finally:
                os._exit(code)
        print(pid, flush=True)


main()
