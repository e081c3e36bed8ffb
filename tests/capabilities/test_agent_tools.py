"""The tools of coding agents, called without the SDK, on every backend: what they store and what `resume` says of it."""

import json
from typing import Any

import pytest

from tenuto import Tenuto
from tenuto.errors import Conflict, InvalidInput, NotFound
from tenuto.servers.mcp.tools import TOOLS, chosen


@pytest.fixture
def call(agent: Tenuto):
    tools = {one.name: one for one in chosen("all,runs_list", "job")}
    return lambda tool, **given: tools[tool].call(agent, given)


def test_a_session_continues_with_what_another_stored(call: Any, agent: Tenuto) -> None:
    assert "Nothing is stored yet" in call("resume")
    call("progress", goal="Ship", add=["write", "test"], next="write")
    call("remember", text="The release is on Monday", kind="decision")
    call("state_set", key="branch", value="cart", ttl="1h")
    asked = json.loads(call("ask_human", question="Deploy?", choices=["yes", "no"]))
    with agent.run("nightly") as run:
        run.step("a", int)
    with pytest.raises(ZeroDivisionError), agent.run("broken") as run:
        run.step("b", lambda: 1 / 0)
    agent.state.set("session", "last", {"said": "I wrote half of it.\nTests next."})
    text = call("resume")
    assert all(one in text for one in ("Goal: Ship", "1. write", "The release is on Monday", "Deploy?", "broken"))
    assert "said: I wrote half of it. Tests next." in text
    assert "nightly" not in text, "a completed run is no open work"
    assert len(text.encode()) <= 2_000
    assert "branch" in call("state_get")
    agent.inbox.answer(asked["id"], "no")
    assert json.loads(call("answer_status", question=asked["id"]))["answer"] == "no"
    assert "nightly" in call("runs_list")


def test_values_are_saved_and_written_back_in_one_commit(call: Any, agent: Tenuto) -> None:
    for number in range(3):
        call("state_set", key=f"k{number}", value={"n": number})
    call("checkpoint", label="three")
    call("state_set", key="k0", value="changed")
    call("state_set", key="k3", value="new")
    before = agent.state.last("project")
    assert json.loads(call("restore", checkpoint="project#1", replace=True, scope="project"))["deleted"] == 1
    assert agent.state.items("project") == {f"k{number}": {"n": number} for number in range(3)}
    changes = list(agent.state.watch("project", after=before, timeout=0.01))
    assert sorted(one.key for one in changes) == ["k0", "k3"], "only what differs is written"
    with pytest.raises(Conflict, match="nothing was written"):
        call("restore", checkpoint="project#1", scope="project") if call("state_set", key="k0", value=1) else None
    with pytest.raises(NotFound, match="no checkpoint"):
        call("restore", checkpoint="nothing")
    assert agent.state.get("project", "k0") == 1


def test_progress_is_checked_before_anything_is_written(call: Any, agent: Tenuto) -> None:
    for given in ({"goal": "g", "done": "1"}, {"goal": "g", "evidence": "x"}, {"goal": "g", "add": [" "]}):
        with pytest.raises(InvalidInput, match="nothing was written"):
            call("progress", **given)
    assert agent.progress("job").get().version == 0
    call("progress", goal="g", add=["a"])
    version = agent.progress("job").get().version
    call("progress", goal="g", add=["a"])
    assert agent.progress("job").get().version == version, "repeating a call writes nothing"


def test_resume_stays_small_however_much_is_open(call: Any, agent: Tenuto) -> None:
    for number in range(8):
        call("progress", name=f"task {number} ü" * 3, goal="g" * 300, add=[f"{n} " + "é" * 150 for n in range(9)])
        call("ask_human", question=f"{number}? " + "ß" * 200)
        call("remember", text=f"{number} " + "漢" * 100)
    for limit in (200, 500, 2_000, 10_000):
        text = TOOLS["resume"].call(agent, {}) if limit == 2_000 else _resume(agent, limit)
        assert len(text.encode()) <= limit, limit
        text.encode().decode()
    assert "Waiting for an answer (8)" in call("resume"), "questions have their place beside long documents"
    with pytest.raises(InvalidInput, match="at least 200"):
        _resume(agent, 100)


def _resume(agent: Tenuto, limit: int) -> str:
    from tenuto.operations.resume import resume

    return resume(agent, limit=limit).text
