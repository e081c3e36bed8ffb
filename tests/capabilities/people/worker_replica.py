"""A replica by a shared clock: fire and deliver what is due at each line of stdin: `worker_replica.py URL NAME CLOCK`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.http_server import FileClock

from tenuto import Tenuto

url, name, clock = sys.argv[1:]
with Tenuto(name, url, clock=FileClock(clock)) as agent:
    agent.open()
    print("ready", flush=True)
    for _ in sys.stdin:
        fired = 0
        while found := agent.inbox.fire():
            fired += found
        print(fired, agent.notify.deliver(limit=1_000), flush=True)
