"""The stories of sessions and agents in `examples/`: killed with -9, resumed, and their effects counted outside."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.long import size
from support.story import EXAMPLES, Story

from tenuto import Tenuto

KILLED = Path(__file__).parents[1] / "support" / "killed_at.py"
POINTS = {
    "triage": ["sending", "sent"],
    "research": ["received", "found", "forwarded"],
    "resolution": ["received", "resolved", "accepted"],
}


@pytest.mark.slow
def test_cases_pass_three_processes_that_are_killed_at_every_boundary(tmp_path: Path) -> None:
    story = Story("handoffs", tmp_path)
    for role, points in POINTS.items():
        for point in points:
            story.killed(role, "--kill-at", point)
        last = story.run(role)
        if role == "triage":
            assert last[0].startswith("refused: data.number: Expected `int`, got `str`")
    chain = "triage -> research: accepted, research -> resolution: accepted"
    assert last == [f"case 881: {chain}", f"case 882: {chain}", f"case 883: {chain}"]
    assert sorted(story.lines("work.log")) == ["looked up 881", "looked up 882", "looked up 883"], (
        "each was looked up once"
    )
    with Tenuto("reader", tmp_path / ".tenuto" / "tenuto.db") as agent:
        assert agent.state.items("resolved") == {"881": ["order 881-B"], "882": ["order 882-B"], "883": ["order 883-B"]}
        handoffs = agent.handoff.list()
        assert len(handoffs) == 6
        assert {one.status for one in handoffs} == {"accepted"}
        assert [one.data["number"] for one in agent.handoff.chain("case-881")] == [881, 881]
        assert max(one.deliveries for one in handoffs) > 1, "the kills were real"


@pytest.mark.slow
@pytest.mark.parametrize("seed", size([7], list(range(20))))
def test_two_agents_killed_twenty_times_do_every_item_once(tmp_path: Path, seed: int) -> None:
    kills, finished = 0, 0
    chance = random.Random(seed)
    environment = {key: value for key, value in os.environ.items() if key != "TENUTO_URL"}
    while kills < 20:
        # given a session that is killed at a random boundary: a commit, a command of git, before or after it
        at = str(chance.randint(1, 8 if finished > 8 else 40))
        done = subprocess.run(
            [sys.executable, KILLED, at, EXAMPLES / "two_agents.py"],
            cwd=tmp_path, capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        kills += done.returncode != 0
        finished += done.returncode == 0
        assert finished < 40
    story = Story("two_agents", tmp_path)
    story.run("--all")
    log = subprocess.run(
        ["git", "-C", tmp_path / "work", "log", "--reverse", "--format=%s"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert [line for line in log if line.startswith("Completed")] == [f"Completed: square {n}" for n in range(1, 11)]
    text = (tmp_path / "work" / "PROGRESS.md").read_text()
    assert text.count("[x]") == text.count("Evidence:") == 10
    with Tenuto("reader", tmp_path / ".tenuto" / "tenuto.db") as agent:
        done = [one.text for one in agent.progress("squares").history() if one.what == "completed"]
        assert done == [f"square {n}" for n in range(1, 11)], "each item was completed once"
        assert agent.progress("squares").markdown() == text
    built = story.lines("built.log")
    assert set(built) == {str(n) for n in range(1, 11)}
    assert len(built) <= 10 + kills, "only the step that was running may be repeated"
