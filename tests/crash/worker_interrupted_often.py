"""A program that is interrupted at any moment, again and again, while it and its threads write.

worker_interrupted_often.py STORE INTERRUPTS: prints, as JSON, what each thread appended and how it was answered.
"""

import json
import logging
import random
import signal
import sys
import threading

from tenuto import StorageUnavailable, Tenuto
from tenuto.kernel import keys
from tenuto.kernel.contract import Append

LINES = keys.pack("s", "lines")


def write(agent, value, told):
    told.append([value, None])
    try:
        told[-1][1] = agent.kernel.commit([], [Append(LINES, value.encode())]).versions[0]
    except StorageUnavailable as error:
        if error.outcome != "unknown":
            raise
    assert agent.kernel.entries(LINES, limit=1, reverse=True)


def main():
    logging.disable(logging.WARNING)  # upkeep that was interrupted says so, and is done later
    agent = Tenuto("interrupted", sys.argv[1], durability="process").open()
    write(agent, "first", [])
    told = {name: [] for name in ("main", "one", "two")}
    over = threading.Event()

    def beside(name):
        number = 0
        while not over.is_set():
            write(agent, f"{name} {number}", told[name])
            number += 1

    threads = [threading.Thread(target=beside, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    chance, number, interrupts = random.Random(3), 0, 0
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    while interrupts < int(sys.argv[2]):
        try:
            signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0001, 0.003))
            while True:
                write(agent, f"main {number}", told["main"])
                number += 1
        except KeyboardInterrupt:
            interrupts += 1
            number += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    over.set()
    for thread in threads:
        thread.join()
    write(agent, "last", told["main"])
    agent.close()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
