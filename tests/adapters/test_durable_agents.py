"""Agents of Pydantic AI and of the OpenAI Agents SDK, killed with -9 at every model and tool call, go on without repeating one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from durable_agents import ANSWER, CALLS, FRAMEWORKS
from support.long import LONG
from support.stores import kinds, new_url

WORKER = Path(__file__).parent / "worker_agents.py"


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("kind", kinds("sqlite", *(("postgres", "valkey") if LONG else ())))
def test_killed_at_any_call_an_agent_resumes_and_repeats_no_recorded_call(
    kind: str, framework: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = new_url(kind, request, tmp_path / "agents.db")
    command = [sys.executable, str(WORKER), url, framework]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rounds) == 24
    for when, call, first, recorded, second in rounds:
        where = f"killed at the {when} of {call}: {first}, {recorded}, {second}"
        assert (call in first) == (when == "end"), where
        assert second[-1] == f"= {ANSWER}", where
        called = second[:-1]
        assert not set(called) & set(recorded), f"repeated, although recorded: {where}"
        assert sorted([*recorded, *called]) == sorted(CALLS), where
        lost = set(first) - set(recorded)
        beside = {"tool call-3", "tool call-4"} if call in ("tool call-3", "tool call-4") else set()
        assert lost <= ({call} if when == "end" else set()) | beside, f"not recorded when the next call began: {where}"
