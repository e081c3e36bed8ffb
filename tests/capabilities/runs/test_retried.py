"""Retry policy and priority of durable functions: a worker retries a failed run, and takes the most urgent one first."""

import asyncio
import threading
from typing import Any

import pytest

from tenuto import AsyncTenuto, InvalidInput, Retry, Tenuto, Waiting
from tenuto.capabilities.runs import RunSource
from tenuto.kernel.work import perform

from .runs_world import Killed


def worked(agent: Tenuto) -> list[str]:
    """Execute what is due now, one run after the other; return the ids."""
    source = RunSource(agent._engine, agent._functions)
    done = []
    while (one := perform(source.take(), agent.clock)) is not None:
        perform(source.execute(one), agent.clock)
        done.append(one.id)
    return done


def flaky(agent: Tenuto, failures: int, **options: Any) -> tuple[Any, list[str]]:
    calls: list[str] = []

    def charge() -> str:
        calls.append("charge")
        if calls.count("charge") <= failures:
            raise ConnectionError("refused")
        return "paid"

    @agent.durable(name="pay", **options)
    def pay(run: Any) -> str:
        run.step("plan", calls.append, "plan")
        return run.step("charge", charge)

    return pay, calls


def test_a_failed_run_is_retried_later_and_reuses_its_steps(agent, clock):
    pay, calls = flaky(agent, 2, retry=Retry(attempts=3, first=10, factor=2))
    handle = pay.start("r")
    assert worked(agent) == ["r"]
    shown = agent.runs.get("r")
    assert (shown.status, shown.failures, shown.error.type) == ("waiting", 1, "ConnectionError")
    assert round((shown.wakes - shown.updated_at).total_seconds()) == 10
    assert worked(agent) == []
    clock.advance(10.5)
    assert worked(agent) == ["r"]
    assert round((agent.runs.info("r").wakes - agent.runs.info("r").updated_at).total_seconds()) == 20
    clock.advance(20.5)
    assert worked(agent) == ["r"]
    assert handle.result() == "paid"
    assert calls == ["plan", "charge", "charge", "charge"]
    assert agent.runs.get("r").failures == 2


def test_after_its_last_attempt_it_is_failed_and_a_manual_retry_has_them_all_again(agent, clock):
    pay, calls = flaky(agent, 9, retry=Retry(attempts=2, first=1, factor=1))
    pay.start("r")
    for _ in range(5):
        worked(agent)
        clock.advance(2)
    assert (agent.runs.info("r").status, calls.count("charge")) == ("failed", 2)
    agent.runs.retry("r")
    assert agent.runs.info("r").failures == 0
    for _ in range(5):
        worked(agent)
        clock.advance(2)
    assert (agent.runs.info("r").status, calls.count("charge")) == ("failed", 4)


def test_other_errors_and_a_near_deadline_are_not_retried(agent, clock):
    pay, _ = flaky(agent, 9, retry=Retry(attempts=5, first=10, on=(KeyError,)))
    pay.start("other")
    worked(agent)
    assert agent.runs.info("other").status == "failed"
    pay, _ = flaky(agent, 9, retry=Retry(attempts=5, first=10))
    pay.using(deadline=5).start("late")
    worked(agent)
    assert agent.runs.info("late").status == "failed"


def test_a_direct_call_raises_and_is_not_retried(agent):
    pay, _ = flaky(agent, 1, retry=Retry(attempts=5))
    with pytest.raises(ConnectionError):
        pay.run("r")
    assert agent.runs.info("r").status == "failed"


def test_a_watcher_sees_what_comes_after_a_retry(agent, clock):
    tries: list[int] = []

    @agent.durable(retry=Retry(attempts=2, first=1))
    def job(run: Any) -> None:
        run.emit("begun")
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        run.emit("ended")

    job.start("r")
    worked(agent)
    clock.advance(2)
    worked(agent)
    assert [one.value for one in agent.runs.watch("r", timeout=0)] == ["begun", "ended"]


def test_the_highest_priority_comes_first_then_the_oldest(agent, clock):
    @agent.durable(priority=1)
    def job(run: Any) -> None: ...

    for run_id, priority in (("a", None), ("b", 5), ("c", -2), ("d", 5)):
        (job if priority is None else job.using(priority=priority)).start(run_id)
        clock.advance(0.01)
    assert agent.runs.info("b").priority == 5
    assert worked(agent) == ["b", "d", "a", "c"]


@pytest.mark.parametrize("wrong", [1.5, True, 1 << 40, "high"])
def test_a_wrong_policy_is_refused(agent, wrong):
    with pytest.raises(InvalidInput, match="priority"):
        agent.durable(priority=wrong)(lambda run: None)
    with pytest.raises(InvalidInput, match="retry"):
        agent.durable(retry=wrong)(lambda run: None)


def test_a_process_that_dies_in_a_retry_leaves_the_count_and_the_steps(agent, clock):
    calls: list[int] = []

    def charge() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError
        if len(calls) == 2:
            raise Killed
        return "paid"

    @agent.durable(retry=Retry(attempts=2, first=1))
    def pay(run: Any) -> str:
        return run.step("charge", charge, effect="pure")

    pay.start("r")
    worked(agent)
    clock.advance(2)
    source = RunSource(agent._engine, agent._functions)
    perform(source.execute(perform(source.take(), agent.clock)), agent.clock)
    assert (agent.runs.info("r").status, agent.runs.info("r").failures) == ("interrupted", 1)
    worked(agent)
    assert agent.runs.result("r") == "paid"


def test_the_awaited_face_has_the_same_policy(tmp_path):
    async def main() -> Any:
        async with AsyncTenuto("a", tmp_path / "a.db") as agent:
            tries: list[int] = []

            @agent.durable(retry=Retry(attempts=2, first=0.01), priority=3)
            async def job(run: Any) -> str:
                tries.append(1)
                if len(tries) == 1:
                    raise ConnectionError
                return "done"

            handle, stop = await job.start("r"), threading.Event()
            working = asyncio.ensure_future(agent.runs.work(stop=stop, poll=0.02))
            try:
                result = await handle.result(wait=60)
            finally:
                stop.set()
                await working
            shown = await agent.runs.info("r")
            return result, shown.priority, shown.failures

    assert asyncio.run(main()) == ("done", 3, 1)


def test_the_inbox_says_that_the_run_of_an_answered_question_waits_for_a_worker(agent):
    @agent.durable
    def ask(run: Any) -> Any:
        return run.ask("ok?", key="q")

    with pytest.raises(Waiting):
        ask.run("r")
    assert agent.inbox.get("q").due is None
    agent.inbox.answer("q", "yes")
    assert agent.inbox.get("q").due == "answered, due, no worker"
    assert [one.due for one in agent.inbox.list(status="answered")] == ["answered, due, no worker"]
    assert worked(agent) == ["r"]
    assert agent.inbox.get("q").due is None
