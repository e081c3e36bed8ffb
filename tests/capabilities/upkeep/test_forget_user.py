"""Forgetting a user: nothing of theirs is left in the bytes of the store, and nothing of others is changed."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tenuto import AsyncTenuto, InvalidInput, Tenuto, Waiting
from tenuto.capabilities.store.rows import every_row
from tenuto.kernel.contract import Backend

SECRET = "SECRET-of-the-user"


def _fill(agent: Tenuto, user: str, text: str) -> None:
    """Put a text of a user into every capability."""
    agent.user(user).set("pref", text)
    agent.user(user).set("pref", text + " again")
    agent.state.set(user, "note", {"text": text})
    agent.state.delete(user, "note")
    thread = agent.thread(f"{user}-chat", user=user)
    thread.append({"role": "user", "content": text}, {"role": "assistant", "content": text * 8_000})
    thread.decide(text, why=text)
    thread.tool_call("search", {"q": text}, [text])
    thread.fork(f"{user}-fork").append({"role": "user", "content": text})
    gone = agent.thread(f"{user}-gone", user=user)
    gone.append({"role": "user", "content": text})
    agent.checkpoint.create("auto", {"text": text, "large": text * 8_000}, thread=f"{user}-chat")
    agent.memory.remember(f"Likes {text}", user=user, about="tea")
    with agent.run(f"{user}-run", user=user) as run:
        run.step("search", lambda: text)
        run.emit(text)
        run.state["k"] = text
        run.step("large", lambda: text * 8_000)
    with suppress(Waiting), agent.run(f"{user}-asks", user=user) as run:
        run.ask(f"Pay for {text}?", to="finance", context={"text": text})
    agent.ask(f"Is {text} right?", to="finance", about=[user], blocks=f"invoice:{user}")
    agent.tasks.enqueue("mails", {"text": text}, key=f"{user}-waits", user=user)
    agent.tasks.enqueue("mails", {"text": text}, key=f"{user}-dead", user=user, delay="1h")
    agent.workflows.create(
        f"{user}-flow", [{"action": "search", "status": "completed", "result": text}, "book"], user=user
    )
    agent.handoff.send("resolver", {"text": text, "user": user}, summary=text, key=f"{user}-handoff")


def _rows(agent: Tenuto) -> dict[Any, bytes]:
    return {row.place: row.content for row in every_row(agent.kernel)}


@pytest.fixture
def agent(backend: Backend) -> Tenuto:
    agent = Tenuto("agent", backend)
    _fill(agent, "u-123", SECRET)
    _fill(agent, "u-456", "text of another user")
    agent.state.set("shared", "k", "of nobody")
    return agent


def _values(agent: Tenuto) -> bytes:
    rows = every_row(agent.kernel)
    return b"".join(row.record.value if row.record else row.entry.value if row.entry else b"" for row in rows)


def test_nothing_of_the_user_is_left_and_nothing_of_others_is_changed(agent: Tenuto) -> None:
    before = _rows(agent)
    dry = agent.forget_user("u-123", dry_run=True)
    assert _rows(agent) == before, "a dry run changes nothing"
    assert dry.signature == ""
    done = agent.forget_user("u-123")
    assert (done.memories, done.runs, done.threads, done.workflows, done.tasks, done.questions) == dry[3:9]
    assert (done.memories, done.runs, done.threads, done.workflows, done.tasks, done.questions) == (1, 2, 3, 1, 2, 2)
    assert SECRET.encode() not in _values(agent)
    after = _rows(agent)
    others = {place for place in before if b"u-456" in place[1] or b"shared" in place[1]}
    assert len(others) > 30
    assert {place: after.get(place) for place in others} == {place: before[place] for place in others}
    assert agent.thread("u-456-chat").messages()[0]["content"] == "text of another user"
    assert agent.user("u-456").get("pref") == "text of another user again"
    assert agent.checkpoint.restore("auto", thread="u-456-chat")["text"] == "text of another user"
    assert agent.memory.list(user="u-123") == []
    assert agent.runs.list(user="u-123") == []
    assert agent.threads.list("u-123") == []
    agent.gate("invoice:u-123")  # open again
    assert agent.store.check().findings == []
    again = agent.forget_user("u-123")
    assert (again.runs, again.threads, again.records, again.entries) == (0, 0, 0, 0)


def test_the_receipt_is_signed(agent: Tenuto) -> None:
    done = agent.forget_user("u-123")
    assert agent.verify_receipt(done)
    assert not agent.verify_receipt(done._replace(records=done.records + 1))
    other = Tenuto("other", agent.kernel)
    assert not other.verify_receipt(done), "another tenant has another key"
    with pytest.raises(InvalidInput):
        agent.forget_user("")


def test_rows_of_others_that_mention_the_user_are_named_and_kept(agent: Tenuto) -> None:
    agent.state.set("shared", "list", ["u-123", "u-456"])
    done = agent.forget_user("u-123")
    assert "('shared', 'state', 'list')" in done.mentions
    assert agent.state.get("shared", "list") == ["u-123", "u-456"]


def test_the_awaited_face_forgets_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncTenuto("agent", tmp_path / "store.db") as agent:
            await agent.user("u-123").set("pref", SECRET)
            done = await agent.forget_user("u-123")
            assert done.records == 1
            assert await agent.verify_receipt(done)

    asyncio.run(main())


def _bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file())


def test_no_byte_of_file_log_or_backup_holds_a_value_of_the_user(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    with Tenuto("agent", folder / "store.db") as agent, Tenuto("reader", folder / "store.db") as reader:
        _fill(agent, "u-123", SECRET)
        _fill(agent, "u-456", "text of another user")
        assert reader.runs.list(user="u-123")
        assert _bytes(folder).count(SECRET.encode()) > 50
        done = agent.forget_user("u-123")
        assert done.erased
        assert _bytes(folder).count(SECRET.encode()) == 0, "while clients have it open"
        backup = tmp_path / "backup"
        backup.mkdir()
        agent.store.backup(backup / "copy.db")
        agent.store.export(backup / "all.jsonl")
    for place in (folder, backup):
        found = _bytes(place)
        assert found.count(SECRET.encode()) == 0
        assert found.count(b"text of another user") > 5


def test_checkpoints_made_for_the_user_are_forgotten_wherever_they_are(backend: Backend) -> None:
    agent = Tenuto("agent", backend)
    agent.checkpoint.create("analysis", {"text": SECRET}, user="u-123")
    agent.checkpoint.create("kept", {"text": "of another"}, thread="shared", user="u-456")
    agent.checkpoint.create("theirs", {"text": SECRET * 3}, thread="other", user="u-123")
    assert agent.forget_user("u-123", dry_run=True).checkpoints == 2
    assert agent.forget_user("u-123").checkpoints == 2
    assert SECRET.encode() not in _values(agent)
    assert agent.checkpoint.restore("kept", thread="shared") == {"text": "of another"}


@pytest.mark.parametrize("user", ["runs", "threads", "tasks", "upkeep", "inbox", "keys", "archive"])
def test_a_user_named_like_a_scope_of_tenuto_takes_nothing_of_others_along(user: str) -> None:
    with Tenuto("agent", "volatile:") as agent:
        _fill(agent, "u-456", "text of another user")
        before = _rows(agent)
        agent.user(user).set("pref", SECRET)
        agent.state.set(user, "note", SECRET)
        agent.forget_user(user)
        assert SECRET.encode() not in _values(agent)
        assert {place for place in before if place not in _rows(agent)} == set()
