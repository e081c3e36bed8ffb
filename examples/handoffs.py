"""Three agents hand cases on, each in a process of its own: triage, research, resolution. Kill any of them anywhere.

python examples/handoffs.py triage
python examples/handoffs.py research --kill-at received     # dies with kill -9; start it again
python examples/handoffs.py research
python examples/handoffs.py resolution
"""

import argparse
import os
import signal
from pathlib import Path

import msgspec

from tenuto import InvalidInput, Tenuto

CASES = {881: "no receipt", 882: "wrong vendor", 883: "paid twice"}


class Case(msgspec.Struct):
    """A case, as one agent hands it to the next."""

    number: int
    problem: str
    findings: list[str] = []


def triage(agent: Tenuto) -> None:
    try:
        agent.handoff.send("research", {"number": "881", "problem": "no receipt"}, schema=Case)
    except InvalidInput as error:
        print("refused:", error)
    for number, problem in CASES.items():
        with agent.correlation(f"case-{number}"):
            point("sending")
            agent.handoff.send("research", Case(number, problem), schema=Case, summary=problem, key=f"case-{number}")
            point("sent")


def research(agent: Tenuto) -> None:
    while h := agent.handoff.receive(Case):
        point("received")
        found = agent.once(f"look up {h.id}", look_up, h.data.number)
        point("found")
        h.forward("resolution", Case(h.data.number, h.data.problem, [found]), schema=Case, decisions=["ask the vendor"])
        point("forwarded")


def look_up(number: int) -> str:
    with Path("work.log").open("a") as log:
        log.write(f"looked up {number}\n")
    return f"order {number}-B"


def resolution(agent: Tenuto) -> None:
    while h := agent.handoff.receive(Case):
        point("received")
        agent.state.set("resolved", str(h.data.number), h.data.findings)
        point("resolved")
        h.accept()
        point("accepted")
    for number in CASES:
        steps = [f"{one.sender} -> {one.to}: {one.status}" for one in agent.handoff.chain(f"case-{number}")]
        print(f"case {number}:", ", ".join(steps))


def point(name: str) -> None:
    """Die here, if that is what the command line says."""
    if name == options.kill_at:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=["triage", "research", "resolution"])
    parser.add_argument("--kill-at", help="die with kill -9 at this point")
    options = parser.parse_args()
    with Tenuto(options.role) as me:
        {"triage": triage, "research": research, "resolution": resolution}[options.role](me)
