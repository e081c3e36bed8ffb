"""A supplier misses a milestone, and the contingency playbook starts: once, by whichever worker looks first.

    python supplier.py

The clock is held by the program, so that no one has to wait.
"""

from typing import Any

from tenuto import Run, Tenuto
from tenuto.testing import HeldClock

clock = HeldClock()
agent = Tenuto("purchasing", "volatile:", clock=clock)


@agent.durable
def contingency(run: Run, milestone: dict[str, Any]) -> str:
    run.step("order", print, "  ordering samples from", milestone["context"]["second source"])
    run.step("tell", print, "  telling the project about", milestone["name"])
    return "second source ordered"


agent.milestone("supplier-7/contract", due="10d")
agent.milestone("supplier-7/samples", due="30d", on_miss=contingency, context={"second source": "supplier 9"})
agent.milestones.meet("supplier-7/contract", evidence={"signed": "contract-7.pdf"}, by="ann")

clock.advance(31 * 86_400)
print("missed:", agent.milestones.fire(), "and then:", agent.milestones.fire())
contingency.run(str(agent.milestones.get("supplier-7/samples").started))  # a worker does this by itself

agent.milestones.meet("supplier-7/samples", evidence={"parcel": 12})
for one in agent.milestones.list():
    print(f"{one.name}: {one.status}, {one.evidence}")
