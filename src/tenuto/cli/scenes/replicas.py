"""One of several replicas that share one file: they increment one counter, and one at a time is the leader."""

import os
import sys

from tenuto import Tenuto

with Tenuto(f"replica-{sys.argv[1]}") as agent:
    for _ in range(200):
        agent.state.update("shared", "count", lambda n: n + 1, default=0)
    with agent.leader("nightly-report") as lead:
        done = agent.state.get("shared", "report")
        if done is None:
            agent.state.set("shared", "report", agent.name, fence=lead)
        print(f"  {agent.name} (process {os.getpid()}): report {'is mine' if done is None else f'was made by {done}'}")
