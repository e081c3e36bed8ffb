"""A nursery of writers: each line on stdin forks one, which writes and acknowledges until it is killed.

Forking saves the interpreter's start, so that hundreds of kills take seconds; nothing is opened before
the fork. Each writer notes in its own file what it is about to write and, after the call has
returned, that it was acknowledged.

    worker_writes.py STORE FOLDER honest|early
"""

import itertools
import json
import os
import random
import signal
import sys
from pathlib import Path

from tenuto import Tenuto
from tenuto.backends import connect


def write(store, notes, who, honest):
    fd = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    chance = random.Random(who)

    def note(kind, **what):
        os.write(fd, (json.dumps([kind, what]) + "\n").encode())

    def acknowledged(scope, values, call):
        note("intent", scope=scope, values=values)
        if not honest and chance.random() < 0.2:  # the planted bug, and the kill that brings it to light
            note("ack", scope=scope, values=values, version=None)
            os.kill(os.getpid(), signal.SIGKILL)
        version = call()
        note("ack", scope=scope, values=values, version=version)

    with Tenuto(who, store) as agent:
        for number in itertools.count():
            value = f"{who}/{number}"
            kind = chance.randrange(3)
            if kind == 0:
                key = chance.choice(["a", "b"])
                acknowledged("single", {key: value}, lambda: agent.state.set("single", key, value))  # noqa: B023
            elif kind == 1:

                def call():
                    grown = agent.state.update(
                        "grown",
                        "n",
                        lambda old: [old[0] + 1, value],  # noqa: B023
                        default=[0, ""],
                        attempts=10_000,
                    )
                    return grown[0]

                acknowledged("grown", {"n": value}, call)
            else:

                def call():
                    with agent.state.transaction("pair") as pair:
                        pair["left"] = value  # noqa: B023
                        pair["right"] = value  # noqa: B023

                acknowledged("pair", {"left": value, "right": value}, call)


def main():
    store, folder, mode = sys.argv[1:]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead need no waiting for
    connect(store).close()  # the driver is loaded once, not by each of them
    for line in sys.stdin:
        who = line.strip()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            write(store, Path(folder, f"{who}.notes"), who, mode == "honest")
        print(pid, flush=True)


main()
