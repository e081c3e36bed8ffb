"""Design with the expensive model, execute with the cheap one: a playbook keeps what the first one worked out.

    python examples/playbook.py

Two fake models stand in for real ones. The expensive one is asked once, to design a procedure. Every further case looks
for a playbook first and lets the cheap model follow it. Both bills are printed.
"""

import tempfile
from pathlib import Path

from tenuto import Tenuto
from tenuto.capabilities.workflows import WorkflowStep

PRICES = {"expensive": 0.50, "cheap": 0.01}


class Model:
    """A model that always knows the answer, and what it costs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.bill = 0.0

    def __call__(self, prompt: str) -> str:
        self.bill += PRICES[self.name]
        return f"{self.name} did: {prompt}"


def design(model: Model, situation: str) -> list[str]:
    model(f"Design a procedure for: {situation}")
    return ["find_order", "ask_vendor", "book"]


def main(url: str) -> tuple[Model, Model]:
    expensive, cheap = Model("expensive"), Model("cheap")
    with Tenuto("office", url) as agent:
        for action in ("find_order", "ask_vendor", "book"):

            @agent.action(action)
            def execute(step: WorkflowStep) -> str:
                return cheap(step.action)

        for number in range(881, 886):
            situation = f"Invoice {number} of the vendor Acme has no receipt"
            found = [one for one in agent.playbooks.suggest(situation) if one.case is None]
            if not found:
                steps = design(expensive, situation)
                agent.playbooks.save(
                    "invoice-exception",
                    steps,
                    description="An invoice of a vendor without a receipt",
                    designed_by=expensive.name,
                    cost=expensive.bill,
                )
            case = agent.playbooks.start("invoice-exception", as_=f"invoice-{number}", situation=situation)
            case.resume()
            agent.playbooks.finish(case.name, cost=3 * PRICES["cheap"])
        playbook = agent.playbooks.get("invoice-exception")
    print(f"{playbook.name}: {playbook.completed} cases, success rate {playbook.success_rate:.0%}")
    print(f"designed by {playbook.designed_by} for ${playbook.cost:.2f}")
    print(f"bill of the expensive model: ${expensive.bill:.2f}")
    print(f"bill of the cheap model:     ${cheap.bill:.2f}")
    return expensive, cheap


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(str(Path(folder) / "office.db"))
