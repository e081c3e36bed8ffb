"""A process among others on one store: for each line `seed count` it makes random calls and writes them out.

worker_calls.py URL CLIENTS [leases|tasks]
"""

import pickle
import sys

from owned_calls import random_steps

from tenuto.backends import connect
from tenuto.testing.history import random_calls

url, clients, *kind = sys.argv[1:]
stores = [connect(url) for _ in range(int(clients))]
for store in stores:
    store.now()
print("ready", flush=True)
for line in sys.stdin:
    seed, count = line.rsplit(maxsplit=1)
    if kind:
        made = random_steps([url] * int(clients), seed, kind[0], int(count), who="other")
    else:
        made = random_calls(stores, seed, int(count), who="other")
    pickle.dump(made, sys.stdout.buffer)
    sys.stdout.buffer.flush()
