"""The table of suites: what it counts, what it excuses, and that what stands in for others looks at ours."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import suites
import suites_of_sdks
from stand_in_openai import SQLiteSession, sqlite3

from tenuto import Damaged

GUIDE = Path(__file__).parent.parent.parent / "docs" / "guides" / "frameworks.md"


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_the_guide_names_every_test_that_fails_with_its_reason() -> None:
    guide = GUIDE.read_text()
    for name, reason in {name: why for suite in suites_of_sdks.SUITES for name, why in suite.why.items()}.items():
        assert any(line.startswith("- ") and f"`{name}`" in line and reason in line for line in guide.splitlines()), (
            name
        )
    for what, reason in suites.REFERENCE.items():
        assert any(what in line and reason in line for line in guide.splitlines()), what


def test_a_failure_without_a_reason_is_told_and_a_reason_without_a_failure_too() -> None:
    found = {"A::test_one": True, "A::test_two": False, "B::test_two": False, "test_three": False}
    row = suites.counted("s", found, {"test_two": "why", "test_four": "why"})
    assert row[:4] == ("s", 4, 4, 1)
    assert row.others == ("`test_two`, twice: why.", "`test_three`: FAILED.")
    assert row.unexplained == ("test_three", "test_four")
    assert suites.shown([row])[2:] == ["| s | 4 | 4 | 1 |", "", "- `test_two`, twice: why.", "- `test_three`: FAILED."]


def test_a_test_that_fails_with_the_frameworks_own_backend_cannot_run() -> None:
    row = suites.counted("s", {"test_one": False, "test_two": True}, own={"test_one": False, "test_two": True})
    assert row[:4] == ("s", 2, 1, 1)
    assert row.others == ("cannot run, since the framework's own backend fails, too: `test_one`.",)
    assert row.unexplained == ()


def test_a_suite_in_which_nothing_was_replaced_is_not_run() -> None:
    with pytest.raises(SystemExit, match="The suite has changed"):
        suites_of_sdks.swapped("from agents import Runner\n", "import SQLiteSession", "")


def test_the_contracts_of_claudes_store_are_counted_as_they_are_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    assert suites.claude()[1:] == (14, 14, 14, (), ())
    from tenuto.adapters.claude_agent import TenutoSessionStore

    async def none(self: TenutoSessionStore, key: Any) -> list[str]:
        return []

    monkeypatch.setattr(TenutoSessionStore, "list_subkeys", none)
    assert suites.claude().passed < 14
    assert suites.claude().unexplained


def test_what_a_test_does_to_the_file_of_a_session_it_does_to_our_store(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    session = SQLiteSession("s", path)
    run(session.add_items([{"role": "user", "content": "kept"}]))
    outside = sqlite3.connect(str(path), timeout=0)
    count = "SELECT COUNT(*) FROM agent_sessions WHERE session_id = '{}'"
    assert [outside.execute(count.format(name)).fetchone()[0] > 0 for name in ("s", "other")] == [True, False]
    connections = list(session._connections)
    assert connections
    assert not any(one.in_transaction for one in connections)
    outside.execute("DROP TABLE agent_messages")
    outside.commit()
    outside.close()
    with pytest.raises(Damaged, match="no such table: entries"):
        run(session.get_items())
    session.close()
    assert session._connections == set()
    with pytest.raises(sqlite3.ProgrammingError):
        connections[0].execute("SELECT 1")
