"""Two agents build something over many sessions: the first plans, then a worker does one item a session.

    python examples/two_agents.py            # one session; repeat it until all is done
    python examples/two_agents.py --all      # sessions until all is done

Kill it anywhere and start it again: each item is done once, and `git log` in `work/` shows what happened.
"""

import argparse
import subprocess
from pathlib import Path

from tenuto import Tenuto
from tenuto.capabilities.sessions import ProgressItem, Session

WORK = Path("work")
FILE = WORK / "PROGRESS.md"
ITEMS = [f"square {number}" for number in range(1, 11)]


def initialise(session: Session) -> None:
    """Plan the work: every item with its acceptance test."""
    session.progress.plan((item, f"{item}.txt holds the number") for item in ITEMS)
    session.progress.next(f"do {ITEMS[0]}")
    session.progress.write(FILE, commit=True)
    print(f"planned {len(ITEMS)} items")


def work(agent: Tenuto, session: Session, item: ProgressItem) -> None:
    """Do one item, test it, and record the evidence."""
    number = int(item.text.split()[1])
    with agent.run(f"build/{item.text}") as run:
        built = run.step("build", build, number)
        evidence = run.step("test", check, number)
    session.progress.complete(item.number, evidence=evidence)
    session.progress.write(FILE, commit=True)
    print(f"{item.text}: {built}")


def build(number: int) -> int:
    """Write the file. A repeat after a kill writes the same."""
    with Path("built.log").open("a") as log:
        log.write(f"{number}\n")
    (WORK / f"square {number}.txt").write_text(str(number * number))
    return number * number


def check(number: int) -> str:
    """Run the acceptance test of an item."""
    found = (WORK / f"square {number}.txt").read_text()
    if found != str(number * number):
        raise ValueError(f"square {number}.txt holds {found!r}")
    return f"square {number}.txt holds {found}"


def one_session() -> bool:
    """Return whether a session found something to do."""
    goal = "Write ten squares"
    with Tenuto("worker") as agent, agent.session("squares", goal=goal, file=FILE, commit=True) as session:
        assert session.info is not None
        if not session.info.items:
            initialise(session)
        elif session.info.open:
            work(agent, session, session.info.open[0])
        else:
            return False
    return True


def repository() -> None:
    WORK.mkdir(exist_ok=True)
    if not (WORK / ".git" / "HEAD").exists():
        subprocess.run(["git", "init", "-q", WORK], check=True)
    for setting in ("user.name=worker", "user.email=worker@example.com"):
        subprocess.run(["git", "-C", WORK, "config", *setting.split("=")], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", action="store_true", help="work until all is done")
    options = parser.parse_args()
    repository()
    while one_session() and options.all:
        pass
