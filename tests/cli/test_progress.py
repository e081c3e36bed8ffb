"""The commands of sessions: progress documents and the digest for hooks."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tenuto.cli import group


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENUTO_URL", str(tmp_path / "store.db"))

    def run(*words: str) -> Result:
        return CliRunner().invoke(group, list(words))

    return run


def test_a_hook_without_a_store_or_open_work_prints_nothing(call, tmp_path: Path) -> None:
    done = call("resume")
    assert (done.exit_code, done.output) == (0, "")
    assert not (tmp_path / "store.db").exists()
    call("state", "set", "a", "b", "1")
    done = call("resume")
    assert (done.exit_code, done.output) == (0, "")
    assert call("resume", "missing").exit_code == 3
    assert call("progress", "show", "missing").exit_code == 3


def test_a_document_is_kept_from_a_shell(call, tmp_path: Path) -> None:
    assert call("progress", "set", "job", "--goal", "Ship", "--blocker", "no key").exit_code == 0
    assert call("progress", "add", "job", "write", "--test", "it reads").exit_code == 0
    assert call("progress", "done", "job", "1").exit_code == 2, "without evidence"
    assert call("progress", "next", "job").output == "write\n"
    assert call("progress", "done", "job", "1", "--evidence", '{"passed": 3}').exit_code == 0
    call("progress", "set", "job", "--blocker", "none", "--next", "tell Ann")
    found = json.loads(call("progress", "show", "job", "--json").output)
    assert (found["goal"], found["blocker"], found["next_action"]) == ("Ship", None, "tell Ann")
    assert found["items"][0]["evidence"] == '{"passed": 3}'
    assert call("progress", "write", "job").exit_code == 0
    file = tmp_path / "PROGRESS.md"
    assert file.read_text() == found["markdown"] == call("progress", "show", "job").output
    file.write_text(file.read_text() + "\n## Mine\n- [ ] by hand\n")
    assert call("progress", "read", "PROGRESS.md").exit_code == 0
    assert "by hand" in call("resume", "job").output
    assert "tell Ann" in call("resume").output
    assert json.loads(call("progress", "list", "--json").output)[0]["items"] == 2


def test_handoffs_are_answered_from_a_shell(call, tmp_path: Path) -> None:
    from tenuto import Tenuto

    with Tenuto("triage", tmp_path / "store.db") as agent:
        for number in (1, 2, 3):
            agent.handoff.send("resolver", {"number": number}, summary="a case", key=f"case-{number}")
        held = Tenuto("resolver", agent._backend).handoff.receive(id="case-3")
        assert held is not None
        assert call("handoff", "accept", "case-1").exit_code == 0
        assert call("handoff", "accept", "case-1").exit_code == 4, "once"
        assert call("handoff", "accept", "case-3").exit_code == 4, "an agent has it"
        assert call("handoff", "reject", "case-2", "no").exit_code == 0
    found = {one["id"]: one for one in json.loads(call("handoff", "list", "--sender", "triage", "--json").output)}
    assert {name: one["status"] for name, one in found.items()} == {
        "case-1": "accepted",
        "case-2": "rejected",
        "case-3": "pending",
    }
    assert found["case-2"]["reason"] == "no"
    assert call("handoff", "show", "missing").exit_code == 3
