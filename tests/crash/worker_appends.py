"""A writer of one thread: it appends and says the number it was given, line by line, until its count is reached.

    worker_appends.py STORE WHO FIRST LAST plain|keys|early

With `plain` all begin at once, and at half its way each waits until another one has appended something: they meet.
With `keys` each append has one, and FIRST lies before what was said last: what is there already must come back with
its first number. `early` has the bug that the tests must find: it goes on under new keys after a restart.
"""

import sys
import time

from tenuto import Tenuto


def main():
    store, who, first, last, mode = sys.argv[1:]
    with Tenuto(who, store) as agent:
        thread = agent.thread("t")
        if mode == "plain":  # all begin at once
            print("ready", flush=True)
            input()
        for n in range(int(first), int(last)):
            key = {"plain": None, "keys": f"{who}-{n}", "early": f"{who}-{first}-{n}"}[mode]
            number = thread.append({"who": who, "n": n}, {"who": who, "n": n, "answer": True}, key=key)
            print(n, number, flush=True)
            while mode == "plain" and n == int(last) // 2 and all(m["who"] == who for m in thread.messages()):
                time.sleep(0.002)


main()
