"""Importing what agents noted elsewhere: graphs of the memory server, progress files, notes."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tenuto import Tenuto
from tenuto.cli import group

GRAPH = [
    {"type": "entity", "name": "Ann", "entityType": "person", "observations": ["Likes green tea", "Lives in Faro"]},
    {"type": "entity", "name": "shop", "entityType": "project", "observations": []},
    {"type": "relation", "from": "Ann", "to": "shop", "relationType": "works_on"},
]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TENUTO_URL", str(tmp_path / "store.db"))

    def run(*words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(group, ["import", *words])
        assert done.exit_code == code, done.output
        return done

    return run


def test_a_graph_becomes_memories_and_one_bad_line_stops_nothing(call, tmp_path: Path) -> None:
    lines = [json.dumps(one) for one in GRAPH]
    bad = ['{"type": "entity", "na', '{"type": "thing"}', '{"type": "entity", "name": 7}', "[]", '"x"', "null"]
    (tmp_path / "memory.json").write_text("\ufeff" + "\n".join([lines[0], *bad, "", *lines[1:]]) + "\n")
    done = json.loads(call("mcp-memory", "memory.json", "--json").stdout)
    assert (done["memories"], done["new"]) == (5, 5)
    assert [one["line"] for one in done["skipped"]] == [2, 3, 4, 5, 6, 7]
    again = call("mcp-memory", "memory.json")
    assert "5 memories (0 new)" in again.stdout
    assert "skipped line 2" in again.stderr
    with Tenuto("x", tmp_path / "store.db") as agent:
        found = agent.memory.list()
        assert {(one.about, one.text) for one in found} == {
            ("Ann", "Ann is of the type person"),
            ("Ann", "Likes green tea"),
            ("Ann", "Lives in Faro"),
            ("shop", "shop is of the type project"),
            ("Ann", "Ann works on shop"),
        }
        assert {one.trust for one in found} == {"model"}
        assert agent.memory.recall("what does Ann drink? tea")[0].memory.text == "Likes green tea"
    call("mcp-memory", "none.json", code=3)
    call("mcp-memory", ".", code=2)


def test_a_statement_that_cannot_be_stored_stops_no_other_one(call, tmp_path: Path) -> None:
    said = ["before", "x" * 70_000, "lone \ud800", 7, " ", "line\u2028separator", "after"]
    graph = [
        {"type": "entity", "name": "Ann", "observations": said},
        {"type": "entity", "name": "N" * 600, "observations": ["x"]},
        *GRAPH[1:],
    ]
    lines = [json.dumps(one, ensure_ascii=number == 0) for number, one in enumerate(graph)]
    (tmp_path / "memory.json").write_text("\n".join(lines).replace("\\u2028", "\u2028"))
    done = json.loads(call("mcp-memory", "memory.json", "--json").stdout)
    assert [one["line"] for one in done["skipped"]] == [1, 1, 1, 1, 2]
    with Tenuto("x", tmp_path / "store.db") as agent:
        assert [one.text for one in agent.memory.list(about="Ann")] == [
            "before",
            "line\u2028separator",
            "after",
            "Ann works on shop",
        ]


def test_a_project_of_a_progress_file_and_a_feature_list(call, tmp_path: Path) -> None:
    project = tmp_path / "shop"
    project.mkdir()
    text = "Session 1\n=========\nBuilt the login form.\nNext: colours\n\nSession 2\n- fixed colours\nNEXT STEPS:\n- wire the cart\n"
    (project / "claude-progress.txt").write_text(text)
    features = [
        {"category": "functional", "description": "A user logs in", "steps": ["open", "log in"], "passes": True},
        {"category": "functional", "description": "A user fills the cart", "steps": ["add"], "passes": False},
    ]
    (project / "feature_list.json").write_text(json.dumps(features))
    done = json.loads(call("claude-progress", "shop", "--json").stdout)
    assert done == {"name": "shop", "items": 2, "done": 1, "next_action": "wire the cart"}
    with Tenuto("x", tmp_path / "store.db") as agent:
        assert all(line in agent.progress("shop").markdown() for line in text.splitlines()), "no line is lost"
        agent.progress("shop").next("pay")
        assert "A user fills the cart" in agent.progress("shop").digest()
    (project / "claude-progress.txt").write_text(text + "Session 3: cart works\n")
    features[1]["passes"] = True
    (project / "feature_list.json").write_text(json.dumps(features))
    assert "shop: 2 of 2 items done; next: pay" in call("claude-progress", "shop").stdout, "what was set stays"
    with Tenuto("x", tmp_path / "store.db") as agent:
        assert "Session 3: cart works" in agent.progress("shop").markdown()
    assert "other: 2 of 2" in call("claude-progress", "shop/feature_list.json", "--name", "other").stdout
    assert "Nothing was imported" in call("claude-progress", ".", code=3).output


def test_notes_become_memories_by_heading(call, tmp_path: Path) -> None:
    (tmp_path / "CLAUDE.md").write_text("# Shop\n\n## Style\n- tabs, never spaces\n\n## Tests\nRun make check.\n")
    first = json.loads(call("notes", "CLAUDE.md", "--kind", "policy", "--json").stdout)
    assert first["added"] == 2
    (tmp_path / "CLAUDE.md").write_text("# Shop\n\n## Style\n- spaces\n\n## Tests\nRun make check.\n")
    assert call("notes", "CLAUDE.md", "--kind", "policy").stdout == "1 memories added, 1 unchanged, 1 removed\n"
    with Tenuto("x", tmp_path / "store.db") as agent:
        assert "make check" in agent.memory.recall("how to run the tests")[0].memory.text
    call("notes", "missing.md", code=2)
