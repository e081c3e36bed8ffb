"""A supplier misses a milestone, and the contingency playbook starts: once, by whichever worker looks first.

    python supplier.py

The clock is held by the program, so that no one has to wait.
"""

from typing import Any

from tenuto import Tenuto
from tenuto.testing import HeldClock

clock = HeldClock()
agent = Tenuto("purchasing", "volatile:", clock=clock)


@agent.action("order_samples", effect="once")
def order_samples(step: Any) -> str:
    print(f"  {step.step}: ordering samples from supplier 9")
    return "order-1"


@agent.action("tell_project")
def tell_project(step: Any) -> None:
    print(f"  {step.step}: telling the project")


agent.playbooks.save(
    "second-source", steps=[{"step": 1, "action": "order_samples"}, {"step": 2, "action": "tell_project"}]
)
agent.milestone("supplier-7/contract", due="10d")
agent.milestone("supplier-7/samples", due="30d", on_miss={"playbook": "second-source"})
agent.milestones.meet("supplier-7/contract", evidence={"signed": "contract-7.pdf"}, by="ann")

clock.advance(31 * 86_400)
print("missed:", agent.milestones.fire(), "and then:", agent.milestones.fire())
started = str(agent.milestones.get("supplier-7/samples").started)
agent.workflows.get(started).resume()  # killed here, it resumes; the order is placed once
print(agent.playbooks.finish(started, lesson="Ask supplier 7 for samples earlier.").situation)

agent.milestones.meet("supplier-7/samples", evidence={"parcel": 12})
for one in agent.milestones.list():
    print(f"{one.name}: {one.status}, {one.evidence}")
