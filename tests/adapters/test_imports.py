"""`tenuto import openai-sessions` and `json`: everything as in the source, once, also after it was cut off."""

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from agents import SQLiteSession
from click.testing import CliRunner

from tenuto import Tenuto
from tenuto.adapters.openai_agents import TenutoSession
from tenuto.cli import group


def run(*given: Any, expected: int = 0) -> str:
    done = CliRunner().invoke(group, ["import", *map(str, given)])
    assert done.exit_code == expected, done.output
    return done.output


def said(n: int) -> Any:
    return {"role": "user", "content": f"message {n}"}


@pytest.fixture
def sessions(tmp_path: Path) -> Path:
    async def fill() -> None:
        for name, count in (("short", 3), ("long", 250)):
            session = SQLiteSession(name, tmp_path / "agents.db")
            await session.add_items([said(n) for n in range(count)])
            await session.add_items([{"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}])
            session.close()

    asyncio.run(fill())
    return tmp_path / "agents.db"


def test_sessions_are_brought_in_and_go_on(sessions: Path, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    before = sessions.read_bytes()
    told = [json.loads(line) for line in run("openai-sessions", sessions, "--url", store, "--json").splitlines()]
    assert told == [{"thread": "short", "messages": 4, "new": 4}, {"thread": "long", "messages": 251, "new": 251}]
    assert sessions.read_bytes() == before
    with Tenuto("tester", store) as agent:
        session = TenutoSession("long", agent)
        assert asyncio.run(session.get_items(2)) == [
            said(249),
            {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"},
        ]
    assert "251 messages (0 new)" in run("openai-sessions", sessions, "--url", store)


def test_an_import_that_was_cut_off_goes_on_and_another_conversation_is_left_alone(
    sessions: Path, tmp_path: Path
) -> None:
    store = tmp_path / "store.db"
    with Tenuto("tester", store) as agent:
        agent.thread("long").append(*[said(n) for n in range(120)])
        agent.thread("short").append({"role": "user", "content": "something else"})
    assert "251 messages (131 new)" in run("openai-sessions", sessions, "--url", store, "--session", "long")
    assert "messages that differ from the source" in run("openai-sessions", sessions, "--url", store, expected=4)
    with Tenuto("tester", store) as agent:
        assert agent.thread("short").count() == 1
        assert agent.thread("long").count() == 251


def test_what_is_missing_or_damaged_in_the_source_is_told(sessions: Path, tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    run("openai-sessions", tmp_path / "none.db", "--url", store, expected=3)
    run("openai-sessions", sessions, "--url", store, "--session", "other", expected=3)
    assert "--messages-table" in run(
        "openai-sessions", sessions, "--url", store, "--messages-table", "mine", expected=2
    )
    with contextlib.closing(sqlite3.connect(sessions)) as connection, connection:
        connection.execute("UPDATE agent_messages SET message_data = '{' WHERE id = 2")
    assert "Item 2 of the session 'short' is not JSON" in run("openai-sessions", sessions, "--url", store, expected=1)
    assert not store.exists()


MESSAGES = [said(1), {"role": "assistant", "content": "yes"}]


@pytest.mark.parametrize(
    ("name", "text", "given", "threads"),
    [
        ("trip.json", json.dumps(MESSAGES), [], ["trip"]),
        ("trip.json", json.dumps({"messages": MESSAGES}), ["--thread", "t"], ["t"]),
        ("all.json", json.dumps({"a": MESSAGES, "b": {"messages": MESSAGES}}), [], ["a", "b"]),
        ("trip.jsonl", "\n".join(map(json.dumps, MESSAGES)) + "\n\n", ["--thread", "t"], ["t"]),
        ("all.jsonl", "\n".join(json.dumps({"thread": t, "messages": MESSAGES}) for t in "ab"), [], ["a", "b"]),
    ],
)
def test_json_of_every_kind(name: str, text: str, given: list[str], threads: list[str], tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    store = tmp_path / "store.db"
    told = run("json", tmp_path / name, "--url", store, "--json", *given)
    assert [json.loads(line)["thread"] for line in told.splitlines()] == threads
    with Tenuto("tester", store) as agent:
        assert [agent.thread(thread).messages() for thread in threads] == [MESSAGES] * len(threads)
    assert all(
        json.loads(line)["new"] == 0
        for line in run("json", tmp_path / name, "--url", store, "--json", *given).splitlines()
    )


@pytest.mark.parametrize(
    ("text", "given", "why"),
    [
        ("nonsense", [], "neither JSON"),
        ("[1, 2]", [], "no list of messages"),
        ('{"messages": [], "step": 3}', [], "no list of messages for the thread 'step'"),
        ('{"a": []}', ["--thread", "t"], "names its own threads"),
    ],
)
def test_what_is_no_conversation_is_refused(text: str, given: list[str], why: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text)
    assert why in run("json", tmp_path / "x.json", "--url", tmp_path / "store.db", *given, expected=2)
    assert not (tmp_path / "store.db").exists()
