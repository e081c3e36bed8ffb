"""A process among others on one store.

worker.py increments URL COUNT    waits for a line, then raises a counter so many times
worker.py writes URL PREFIX       appends 1, 2, 3, … and prints each number that was acknowledged
"""

import sys

from tenuto import Tenuto
from tenuto.backends.redis import RedisBackend
from tenuto.errors import StorageUnavailable
from tenuto.kernel import keys
from tenuto.kernel.contract import Append, Put


def increments(url, count):
    with Tenuto("counter", RedisBackend(url)) as agent:
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(int(count)):
            agent.state.update("s", "n", lambda n: n + 1, default=0)


def writes(url, name):
    store = RedisBackend(url)
    number = 0
    while True:
        try:
            done = store.commit(
                [], [Append(keys.pack("t", "s", name), b"%d" % number), Put(keys.pack("t", "s", "n"), b"")]
            )
        except StorageUnavailable:
            return
        number = done.versions[0]
        print(number, flush=True)


globals()[sys.argv[1]](*sys.argv[2:])
