"""Resumes the workflow of the documentation; in step 3 it dies with -9, if it is told to, once its effect has happened.

worker_workflow.py STORE OUTSIDE idempotent|once|verified die|live
"""

import json
import os
import signal
import sys
from pathlib import Path

from tenuto import Happened, InDoubt, NotHappened, Tenuto, idempotency_key

store, outside, how, end = sys.argv[1:]
STEPS = ["scrape_websites", "extract_features", "compare_pricing", "generate_report"]
outside = Path(outside)


def act(step):
    fd = os.open(outside, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, f"{step.action} {idempotency_key()}\n".encode())
    os.close(fd)
    if step.action == "compare_pricing" and end == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{step.action} by {end}"


def verify(intent):
    there = outside.exists() and any(line.startswith(intent.step) for line in outside.read_text().splitlines())
    return Happened("found outside") if there else NotHappened()


with Tenuto("analyst", store) as agent:
    for name in STEPS:
        careful = name == "compare_pricing" and how != "idempotent"
        agent.action(
            name,
            effect="once" if careful else "idempotent",
            verify=verify if careful and how == "verified" else None,
        )(act)
    wf = agent.workflows.create(name="competitor-analysis", steps=[{"action": name} for name in STEPS])
    try:
        wf.resume()
        told = "done"
    except InDoubt:
        told = "in doubt"
    print(json.dumps([told, [[one.status, one.result, one.attempts] for one in wf.refresh().steps]]))
