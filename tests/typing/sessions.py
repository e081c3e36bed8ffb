"""Sessions as a type checker sees them: progress, handoffs, merges. Never run."""

from dataclasses import dataclass
from typing import assert_type

from tenuto import AsyncTenuto, Tenuto, Verdict
from tenuto.aio import AsyncHandoff, AsyncProgress, AsyncSession
from tenuto.capabilities.sessions import (
    Handoff,
    HandoffInfo,
    MergeConflict,
    Merged,
    Progress,
    ProgressEvent,
    ProgressInfo,
    ProgressItem,
    Session,
)


@dataclass
class Case:
    number: int


def judge(conflict: MergeConflict) -> Verdict:
    return Verdict(next(iter(conflict.values.values())), "the first")


async def slow_judge(conflict: MergeConflict) -> int:
    return len(conflict.values)


def blocking() -> None:
    with Tenuto("a", "volatile:") as agent:
        p = agent.progress("job", goal="Ship")
        assert_type(p, Progress)
        assert_type(p.get(), ProgressInfo)
        assert_type(p.get().open, list[ProgressItem])
        assert_type(p.plan(["one", ("two", "its test")]), list[ProgressItem])
        assert_type(p.complete("one", evidence={"passed": 3}), ProgressItem)
        p.complete("one")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        assert_type(p.markdown(), str)
        assert_type(p.digest(limit=500), str)
        assert_type(p.history(), list[ProgressEvent])
        assert_type(p.write("PROGRESS.md", commit=True), bool)
        assert_type(p.follow(agent.runs.get("r")), ProgressInfo)
        p.goal("x")
        p.block("x")
        p.unblock()
        p.next("x")
        p.note("k", 1)
        p.question("why?")
        p.rule_out("x", why="y")
        p.decide("x", why="y")
        assert_type(agent.read_progress("PROGRESS.md"), Progress)
        with agent.session("job", file="PROGRESS.md") as session:
            assert_type(session, Session)
            assert_type(session.digest, str)
        session.open()
        session.close()
        with agent.run("r") as run:
            run.progress()
        assert_type(agent.handoff.send("b", Case(1), schema=Case, summary="s", key="k"), HandoffInfo)
        h = agent.handoff.receive(schema=Case, wait="1m")
        assert_type(h, Handoff | None)
        if h is not None:
            assert_type(h.accept(), HandoffInfo)
            assert_type(h.reject("no"), HandoffInfo)
            assert_type(h.forward("c", {}), HandoffInfo)
            h.release()
        assert_type(agent.handoff.list("b", status="rejected"), list[HandoffInfo])
        assert_type(agent.handoff.chain("req-17"), list[HandoffInfo])
        assert_type(agent.handoff.get("k"), HandoffInfo)
        assert_type(agent.handoff.outcome("k", wait=5), HandoffInfo)
        assert_type(agent.handoff.withdraw("k"), bool)
        merged = agent.merge("m", {"a": {"x": 1}, "b": {"x": 2}}, rules={"x": "min"}, judge=judge)
        assert_type(merged, Merged)
        agent.merge("m", {"a": 1}, rules={"x": "best"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]


async def awaited() -> None:
    async with AsyncTenuto("a", "volatile:") as agent:
        p = agent.progress("job")
        assert_type(p, AsyncProgress)
        assert_type(await p.complete(1, evidence="e"), ProgressItem)
        async with agent.session("job") as session:
            assert_type(session, AsyncSession)
        assert_type(await agent.handoff.receive(Case), AsyncHandoff | None)
        assert_type(await agent.merge("m", {"a": 1, "b": 2}, judge=slow_judge), Merged)
