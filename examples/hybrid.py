"""The hybrid pattern: stateless tool workers pull from a queue, one stateful coordinator owns the workflow.

    python examples/hybrid.py --demo                          # ten workers and the coordinator, killed at random
    python examples/hybrid.py --url store.db --worker         # one worker; start as many as you like, anywhere
    python examples/hybrid.py --url store.db                  # the coordinator

A coordinator compares prices in twelve cities. It is a workflow: fan out, gather, report. It holds no state in memory,
so it may be killed at any line. The tools run in workers that do not know the workflow: each claims a task, calls the
tool and returns the result. A call of the tool is charged, so it goes through `once`, whose `verify` asks the ledger.
Whichever process is killed, each city is charged once, and the report has all of them.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tenuto import Happened, Intent, NotHappened, Task, Tenuto
from tenuto.capabilities.workflows.document import WorkflowStep

CITIES = [
    "Lisbon", "Porto", "Faro", "Braga", "Coimbra", "Évora", "Aveiro", "Setúbal", "Funchal", "Leiria", "Viseu", "Guarda"
]  # fmt: skip
WORKERS, KILLS = 10, 25


def ledger(url: str, city: str) -> Path:
    """The outside world: one byte for each charge of the tool."""
    return Path(url).with_name(f"charged-{city}")


# -- the workers: stateless --------------------------------------------------------------------------------------------


def worker(url: str) -> None:
    with Tenuto(f"worker-{os.getpid()}", url) as agent:

        def look_up(task: Task) -> dict[str, Any]:
            city = task.payload["city"]
            book = ledger(url, city)

            def call_the_tool() -> dict[str, Any]:
                time.sleep(0.2)  # a slow tool
                with book.open("ab") as file:
                    file.write(b"$")
                return {"city": city, "price": 40 + len(city) * 7}

            def charged(_: Intent) -> Happened | NotHappened:
                there = book.exists() and book.stat().st_size > 0
                return Happened({"city": city, "price": 40 + len(city) * 7}) if there else NotHappened()

            return agent.once(f"price/{city}", call_the_tool, verify=charged)

        agent.tasks.work("prices", look_up, concurrency=2, lease=5, on_signal=True)


# -- the coordinator: a workflow ---------------------------------------------------------------------------------------


def coordinator(url: str) -> None:
    with Tenuto("coordinator", url) as agent:

        @agent.action("fan_out")
        def fan_out(step: WorkflowStep) -> list[str]:
            names = [f"price-of-{city}" for city in step["cities"]]
            agent.tasks.enqueue_many("prices", [{"city": city} for city in step["cities"]], keys=names)
            return names  # the keys make this safe to run again

        @agent.action("gather")
        def gather(step: WorkflowStep) -> dict[str, int]:
            found = [agent.tasks.result(name, wait="2m") for name in step.results["fan_out"]]
            return {one["city"]: one["price"] for one in found}

        @agent.action("report")
        def report(step: WorkflowStep) -> str:
            prices = step.results["gather"]
            cheapest = min(prices, key=prices.get)
            return f"{len(prices)} cities; the cheapest is {cheapest} at {prices[cheapest]}"

        steps = [{"action": "fan_out", "cities": CITIES}, {"action": "gather"}, {"action": "report"}]
        workflow = agent.workflows.create("price-comparison", steps)
        workflow.resume()
        print(workflow.step(3).result, flush=True)


# -- the demonstration -------------------------------------------------------------------------------------------------


def demo() -> int:
    chance = random.Random()
    kills = 0
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder) / "hybrid.db")

        def start(*options: str) -> subprocess.Popen[str]:
            return subprocess.Popen(
                [sys.executable, __file__, "--url", url, *options], stdout=subprocess.PIPE, text=True
            )

        workers = [start("--worker") for _ in range(WORKERS)]
        owner = start()
        with Tenuto("reader", url) as agent:
            while owner.poll() != 0:
                time.sleep(chance.uniform(0.05, 0.2))
                if owner.poll() not in (None, 0):  # it was killed: start another one
                    owner = start()
                busy = {str(one.by) for one in agent.tasks.running("prices")}
                at_work = [one for one in workers if f"worker-{one.pid}" in busy]
                if kills >= KILLS or not at_work:
                    continue
                victim = chance.choice([*at_work, owner])
                if victim.poll() is not None:
                    continue
                victim.kill()
                victim.wait()
                kills += 1
                if victim is not owner:
                    workers[workers.index(victim)] = start("--worker")
        assert owner.stdout is not None
        print(owner.stdout.read().strip())
        for one in workers:
            one.send_signal(signal.SIGTERM)
        for one in workers:
            one.wait()
        with Tenuto("reader", url) as agent:
            again = sum(agent.tasks.get(f"price-of-{city}").redeliveries for city in CITIES)
            whole = agent.workflows.get("price-comparison").status == "completed" and agent.store.check().ok
        charged = [ledger(url, city).stat().st_size for city in CITIES]
    print(f"{kills} kills; {again} tasks were delivered again; charged: {charged}")
    right = whole and charged == [1] * len(CITIES)
    print("Every city was charged once, and none is missing." if right else "SOMETHING IS WRONG.")
    return 0 if right else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default=None, help="store path or URL (default: .tenuto/tenuto.db)")
    parser.add_argument("--worker", action="store_true", help="run a worker instead of the coordinator")
    parser.add_argument("--demo", action="store_true", help="run all processes and kill them at random")
    given = parser.parse_args()
    if given.demo:
        sys.exit(demo())
    (worker if given.worker else coordinator)(given.url or ".tenuto/tenuto.db")
