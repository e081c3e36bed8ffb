"""A session begins with the digest of the last one and ends with its progress, however it ends."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tenuto import AsyncTenuto, Tenuto, Waiting


def test_a_session_hands_over_to_the_next_one(client: Callable[..., Tenuto], tmp_path: Path) -> None:
    file = tmp_path / "PROGRESS.md"
    with client("one").session("job", goal="Ship it", file=file) as first:
        assert first.info is not None
        assert first.info.version == 0
        first.progress.plan(["write", "test"])
        first.progress.complete("write", evidence="main.py")
        first.progress.next("run the tests")
    assert file.read_text() == first.progress.markdown()
    file.write_text(file.read_text() + "\n## Mine\n- [ ] by hand\n")
    client("other").handoff.send("two", 1, summary="look at this")
    with client("two").session("job", file=file) as second:
        for part in (
            "Ship it",
            "run the tests",
            "2. test",
            "3. by hand",
            "1. write (evidence: main.py)",
            "look at this",
        ):
            assert part in second.digest
        assert len(second.digest.encode()) <= 2000
        assert len(second.handoffs) == 1


def test_a_session_that_ends_by_an_exception_says_so_until_one_ends_well(agent: Tenuto, tmp_path: Path) -> None:
    file = tmp_path / "PROGRESS.md"
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            with agent.session("job", goal="x", file=file) as session:
                session.progress.block("no key yet")
                _ = 1 / 0
    blocker = agent.progress("job").get().blocker
    assert blocker == "no key yet\nThe last session ended by ZeroDivisionError: division by zero"
    assert "ZeroDivisionError" in file.read_text()
    with agent.session("job", file=file) as session:
        assert "ZeroDivisionError" in session.digest
    assert agent.progress("job").get().blocker == "no key yet"
    assert "ZeroDivisionError" not in file.read_text()


def test_the_error_of_the_body_is_raised_also_if_the_file_cannot_be_written(agent: Tenuto, tmp_path: Path) -> None:
    file = tmp_path / "PROGRESS.md"
    with pytest.raises(ZeroDivisionError):
        with agent.session("job", goal="x", file=file, commit=True):  # no git repository
            _ = 1 / 0
    assert "ZeroDivisionError" in agent.progress("job").get().blocker


def test_a_run_has_its_progress_without_being_asked(agent: Tenuto) -> None:
    with pytest.raises(Waiting):
        with agent.run("trip") as run:
            run.step("plan", lambda: ["fly", "eat"])
            run.map("price", len, ["a", "bb"])
            for city in ("Lisbon", "Porto"):
                run.step("book", str.upper, city)
            half = run.progress().get()
            assert [(one.text, one.done, one.evidence) for one in half.items] == [
                ("plan", True, '["fly", "eat"]'),
                ("price", True, "2 items"),
                ("book", True, "LISBON"),
                ("book number 2", True, "PORTO"),
            ]
            run.ask("Really?")
    p = agent.progress("trip")
    info = p.follow(agent.runs.get("trip"))
    assert info.blocker is not None
    assert info.blocker.startswith("Run 'trip' waits: ")
    assert [one.done for one in info.items] == [True] * 4 + [False]
    assert "Really?" in p.digest(), "an open question"
    agent.inbox.answer(agent.inbox.list()[0].id, "yes")
    with agent.run("trip") as run:
        run.step("plan", lambda: None)
        run.map("price", len, ["a", "bb"])
        for city in ("Lisbon", "Porto"):
            run.step("book", str.upper, city)
        run.ask("Really?")
    done = p.follow(agent.runs.get("trip"))
    assert (done.blocker, done.next_action, done.open) == (None, None, [])
    version = p.get().version
    assert p.follow(agent.runs.get("trip")).version == version, "nothing new"


def test_a_failed_run_is_a_blocker_but_not_over_that_of_a_person(agent: Tenuto) -> None:
    def broken() -> None:
        raise ValueError("no seats")

    with pytest.raises(ValueError, match="no seats"):
        with agent.run("r") as run:
            run.step("book", broken)
    p = agent.progress("r")
    assert "no seats" in str(p.follow(agent.runs.get("r")).blocker)
    p.block("a person's")
    assert p.follow(agent.runs.get("r")).blocker == "a person's"


def test_a_workflow_is_followed_too(agent: Tenuto) -> None:
    wf = agent.workflows.create("move", [{"step": 1, "action": "pack"}, {"step": 2, "action": "drive"}])
    wf.complete(1, result="12 boxes")
    wf.block(2, reason="no truck")
    info = agent.progress("move").follow(agent.workflows.get("move"))
    assert [(one.text, one.done, one.evidence) for one in info.items] == [
        ("1. pack", True, "12 boxes"),
        ("2. drive", False, None),
    ]
    assert info.blocker == "Workflow 'move': drive blocked: no truck"
    assert info.next_action == "Workflow 'move': 2. drive"


def test_sessions_work_awaited(tmp_path: Path) -> None:
    async def story() -> None:
        async with AsyncTenuto("a", "volatile:") as agent:
            async with agent.session("job", goal="Ship", file=tmp_path / "P.md") as session:
                await session.progress.complete("one", evidence="e")
                assert "Ship" in session.digest
            with pytest.raises(ZeroDivisionError):
                async with agent.session("job"):
                    _ = 1 / 0
            assert "ZeroDivisionError" in str((await agent.progress("job").get()).blocker)
            async with agent.run("r") as run:
                await run.step("s", lambda: 1)
                assert (await (await run.progress()).get()).items[0].done

    asyncio.run(story())
