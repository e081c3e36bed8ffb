"""Recurring runs: each of their times once, however many workers there are."""

import asyncio
import threading
from typing import Any

import pytest

from tenuto import AsyncTenuto, InvalidInput, Tenuto
from tenuto.capabilities.runs import RunSource
from tenuto.kernel.work import perform


def register(agent: Tenuto) -> Any:
    @agent.durable(name="report")
    def report(run: Any, kind: str, pages: int = 1) -> str:
        return run.step("write", lambda: f"{kind} {pages}")

    return report


def worked(agent: Tenuto) -> list[str]:
    """Execute what is due; return the ids."""
    source, done = RunSource(agent._engine, agent._functions), []
    while (one := perform(source.take(), agent.clock)) is not None:
        perform(source.execute(one), agent.clock)
        done.append(one.id)
    return done


def test_a_run_comes_at_each_of_its_times(agent, clock):
    report = register(agent)
    info = report.using(user="ann", priority=3).every("tick", args=["full"], kwargs={"pages": 2}, interval="1m")
    assert report.every("tick", args=["full"], kwargs={"pages": 2}, interval="1m").next == info.next
    assert worked(agent) == []
    clock.advance(61)
    (first,) = worked(agent)
    assert first.startswith("report/tick@")
    assert agent.runs.result(first) == "full 2"
    assert worked(agent) == []
    clock.advance(60)
    (second,) = worked(agent)
    assert second != first
    (info,) = agent.runs.recurring()
    assert (info.name, info.owner, info.fired) == ("tick", "report", 2)
    assert agent.runs.stop_recurring("tick", "report")
    assert not agent.runs.stop_recurring("tick", "report")
    clock.advance(600)
    assert worked(agent) == []


def test_its_options_are_those_of_the_function(agent, clock):
    report = register(agent)
    report.using(user="ann", priority=3, deadline="1h").every("tick", args=["full"], interval="1m")
    clock.advance(61)
    perform(RunSource(agent._engine, agent._functions).take(), agent.clock)  # queues it, and reserves it here alone
    (run,) = agent.runs.list(user="ann")
    assert (run.status, run.function) == ("queued", "report")
    record = agent.runs.get(run.id)
    assert record.args == [["full"], {}]
    assert record.deadline is not None


@pytest.mark.parametrize(("missed", "runs"), [("once", 1), ("all", 6), ("skip", 0)])
def test_times_without_a_worker_are_fired_as_told(agent, clock, missed, runs):
    register(agent).every("tick", args=["full"], interval="10m", missed=missed, grace=5)
    clock.advance(3_650)
    assert len(worked(agent)) == runs


def test_of_several_workers_one_queues_it(client, clock):
    agents = [client(f"worker-{n}") for n in range(4)]
    report, *_ = [register(one) for one in agents]
    report.every("tick", args=["full"], interval="1m", missed="all")
    clock.advance(601)
    barrier, ids = threading.Barrier(4), []

    def work(agent: Tenuto) -> None:
        barrier.wait()
        ids.extend(worked(agent))

    threads = [threading.Thread(target=work, args=(one,)) for one in agents]
    [one.start() for one in threads]
    [one.join() for one in threads]
    worked(agents[0])
    done = agents[0].runs.list()
    assert len(done) == 10
    assert {one.status for one in done} == {"completed"}


def test_a_worker_that_dies_before_the_commit_leaves_it_due(agent, client, clock):
    register(agent).every("tick", args=["full"], interval="1m")
    clock.advance(61)
    dying = client("dying")
    register(dying)

    class Dead(BaseException):
        pass

    class Dies:
        def __getattr__(self, name):
            return getattr(dying.kernel, name)

        def commit(self, *_args, **_options):
            raise Dead

    source = RunSource(dying._engine._replace(context=dying._context._replace(kernel=Dies())), dying._functions)
    with pytest.raises(Dead):
        perform(source.take(), clock)
    assert len(worked(agent)) == 1


def test_a_worker_without_the_function_leaves_it(agent, client, clock):
    register(agent).every("tick", args=["full"], interval="1m")
    clock.advance(61)
    assert worked(client("other")) == []
    assert agent.runs.recurring()[0].fired == 0
    assert len(worked(agent)) == 1


def test_it_is_declared_rightly(agent):
    report = register(agent)
    with pytest.raises(TypeError, match="kind"):
        report.every("tick", interval="1m")
    for wrong in (
        {},
        {"cron": "* * * * *", "interval": "1m"},
        {"cron": "nonsense"},
        {"interval": "1m", "missed": "often"},
    ):
        with pytest.raises(InvalidInput):
            report.every("tick", args=["full"], **wrong)
    assert agent.runs.recurring() == []


def test_the_awaited_face_has_it_too(tmp_path):
    async def main() -> Any:
        async with AsyncTenuto("a", tmp_path / "a.db") as agent:

            @agent.durable(name="report")
            async def report(run: Any, kind: str) -> str:
                return kind

            await report.every("tick", args=["full"], interval="10m")
            (info,) = await agent.runs.recurring()
            return info.name, await agent.runs.stop_recurring("tick", "report")

    assert asyncio.run(main()) == ("tick", True)
