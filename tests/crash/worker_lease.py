"""Holds a lease, as told line by line.

worker_lease.py STORE TTL
"""

import sys

from tenuto import Tenuto, TenutoError

store, ttl = sys.argv[1:]
agent = Tenuto("child", store)
lease = agent.lease("work", ttl=float(ttl)).acquire()
print(lease.token, flush=True)
for line in sys.stdin:
    fence = lease if line.strip() == "fenced" else None
    try:
        agent.state.set("s", "by", ["child", lease.token], fence=fence)
    except TenutoError as error:
        print(type(error).__name__, flush=True)
    else:
        print("written", flush=True)
