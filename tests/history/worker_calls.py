"""A process among others on one store: for each line `seed count` it makes random calls and writes them out.

worker_calls.py URL CLIENTS
"""

import pickle
import sys

from tenuto.backends import connect
from tenuto.testing.history import random_calls

url, clients = sys.argv[1:]
stores = [connect(url) for _ in range(int(clients))]
for store in stores:
    store.now()
print("ready", flush=True)
for line in sys.stdin:
    seed, count = line.rsplit(maxsplit=1)
    pickle.dump(random_calls(stores, seed, int(count), who="other"), sys.stdout.buffer)
    sys.stdout.buffer.flush()
