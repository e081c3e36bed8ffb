"""Milestones and routes: a miss has its consequence once; a question finds its owner."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenuto import AsyncTenuto, Conflict, Happened, InDoubt, InvalidInput, NotFound, Tenuto, current_run
from tenuto.capabilities.runs import RunSource
from tenuto.kernel.work import perform

DAY = 86_400


class Until:
    """Stops a worker when a condition holds."""

    def __init__(self, holds: Callable[[], bool]) -> None:
        self.is_set = holds


def worked(agent: Tenuto) -> list[str]:
    """Execute what is due now, one run after the other; return the ids."""
    source = RunSource(agent._engine, agent._functions)
    done = []
    while (one := perform(source.take(), agent.clock)) is not None:
        perform(source.execute(one), agent.clock)
        done.append(one.id)
    return done


def test_a_milestone_is_met_with_evidence(agent: Tenuto, clock: Any) -> None:
    agent.milestone("samples", due="10d", on_miss={"question": "Switch?", "to": "ann"})
    clock.advance(DAY)
    assert agent.milestone("samples", due="10d", on_miss={"question": "Switch?", "to": "ann"}).due.timestamp() == (
        clock.time() + 9 * DAY
    ), "a restart does not postpone it"
    met = agent.milestones.meet("samples", evidence={"parcel": 12}, by="bob")
    assert (met.status, met.evidence, met.by) == ("met", {"parcel": 12}, "bob")
    clock.advance(20 * DAY)
    assert agent.milestones.fire() == 0
    assert agent.inbox.list() == []
    with pytest.raises(Conflict, match="already met"):
        agent.milestones.meet("samples")
    with pytest.raises(Conflict, match="another name"):
        agent.milestone("samples", due="2099-01-01")
    assert [one.what for one in agent.milestones.history("samples")] == ["set", "met"]


def test_a_miss_asks_once_and_meeting_it_then_is_late(agent: Tenuto, clock: Any) -> None:
    miss = {"question": "Switch?", "to": "ann", "context": {"cost": 5}}
    agent.milestone("samples", due="10d", on_miss=miss, context={"supplier": 7})
    clock.advance(10 * DAY)
    assert [agent.milestones.fire(), agent.milestones.fire()] == [1, 0]
    [asked] = agent.inbox.list(to="ann")
    assert (asked.text, asked.context["milestone"], asked.context["details"]) == ("Switch?", "samples", {"cost": 5})
    missed = agent.milestones.get("samples")
    assert (missed.status, missed.started) == ("missed", asked.id)
    assert agent.milestones.meet("samples").status == "met late"
    assert [one.name for one in agent.milestones.list("met late")] == ["samples"]


def test_meeting_it_after_the_date_is_late_also_before_anyone_noticed(agent: Tenuto, clock: Any) -> None:
    agent.milestone("samples", due="10d", on_miss="contingency")
    clock.advance(11 * DAY)
    assert agent.milestones.meet("samples").status == "met late"
    assert agent.milestones.fire() == 0


@pytest.mark.races
def test_a_miss_starts_a_durable_function_once(agent: Tenuto, client: Callable[..., Tenuto], clock: Any) -> None:
    started: list[Any] = []

    @agent.durable
    def contingency(run: Any, milestone: dict[str, Any]) -> None:
        started.append(run.step("switch", lambda: milestone["name"]))

    agent.milestone("samples", due="10d", on_miss=contingency)
    clock.advance(11 * DAY)
    replicas = [client(f"r{n}") for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda replica: replica.milestones.fire(), replicas)) == 1
    run_id = agent.milestones.get("samples").started
    assert [one.id for one in agent.runs.list()] == [run_id]
    contingency.run(str(run_id))
    assert started == ["samples"]


@pytest.mark.races
def test_a_miss_starts_a_playbook_once(agent: Tenuto, client: Callable[..., Tenuto], clock: Any) -> None:
    ordered: list[str] = []
    agent.action("order elsewhere")(lambda step: ordered.append(step.action))
    playbook = agent.playbooks.save("contingency", steps=[{"step": 1, "action": "order elsewhere"}])
    agent.milestone("samples", due="10d", on_miss=playbook)
    assert agent.milestone("samples", due="10d", on_miss={"playbook": "contingency"}).on_miss == {
        "playbook": "contingency"
    }
    clock.advance(11 * DAY)
    replicas = [client(f"r{n}") for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(lambda replica: replica.milestones.fire(), replicas)) == 1
    [workflow] = agent.workflows.list()
    assert workflow.name == agent.milestones.get("samples").started
    assert "samples" in agent.playbooks.case(workflow.name).situation
    agent.workflows.get(workflow.name).resume()
    assert ordered == ["order elsewhere"]


def test_a_playbook_that_is_missing_is_a_question_and_keeps_no_other_milestone_waiting(
    agent: Tenuto, clock: Any
) -> None:
    agent.routes.add(about="samples", to="ann")
    agent.milestone("samples", due="1h", on_miss={"playbook": "deleted"})
    agent.milestone("contract", due="2h", on_miss={"question": "Remind them?", "to": "bob"})
    clock.advance(3 * 3_600)
    assert [agent.milestones.fire(), agent.milestones.fire()] == [2, 0]
    [told] = agent.inbox.list(to="ann")
    assert "There is no playbook 'deleted'" in told.text
    assert [one.text for one in agent.inbox.list(to="bob")] == ["Remind them?"]
    assert agent.milestones.get("samples").started == told.id
    assert [one.what for one in agent.milestones.history("samples")] == ["set", "missed", "started"]


def test_a_record_that_cannot_be_read_keeps_nothing_else_from_what_is_due(agent: Tenuto, clock: Any) -> None:
    from tenuto.capabilities.people import question_key
    from tenuto.errors import TenutoError
    from tenuto.kernel.contract import Put

    broken, asked = (agent.ask("Pay?", to="ann", deadline="1h", escalate=["lead"]) for _ in range(2))
    agent.milestone("samples", due="1h")
    agent.kernel.commit([], [Put(question_key(broken.id), b"no question")])
    clock.advance(3_601)
    with pytest.raises(TenutoError):
        perform(agent.tasks._chores(), agent.clock)
    assert agent.inbox.get(asked.id).level == 1
    assert agent.milestones.get("samples").status == "missed"


def test_a_crash_after_the_miss_starts_the_playbook_once_also_if_it_was_met_meanwhile(
    agent: Tenuto, client: Callable[..., Tenuto], clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.playbooks.save("contingency", steps=["order"])
    agent.milestone("samples", due="1d", on_miss={"playbook": "contingency"})
    clock.advance(2 * DAY)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(agent.milestones._start, "playbook", killed)
        with pytest.raises(KeyboardInterrupt):
            agent.milestones.fire()
    assert agent.milestones.meet("samples", evidence="a parcel").status == "met late"
    other = client("other")
    for _ in range(2):
        assert other.milestones.fire() == 0, "it was missed before"
    [workflow] = agent.workflows.list()
    assert agent.milestones.get("samples").started == workflow.name
    assert [one.what for one in agent.milestones.history("samples")] == ["set", "missed", "met late", "started"]


def test_the_question_of_a_miss_that_is_noticed_late_still_gives_its_time(agent: Tenuto, clock: Any) -> None:
    now = datetime.fromtimestamp(clock.time(), UTC)
    due, end = now + timedelta(hours=1), now + timedelta(hours=3)
    with pytest.raises(InvalidInput, match="past"):
        agent.milestone("never", due=due, on_miss={"question": "?", "to": "ann", "deadline": due})
    miss = {"question": "?", "to": "ann", "deadline": end, "escalate": ["lead"], "key": "samples late"}
    agent.milestone("samples", due=due, on_miss=miss)
    clock.advance(DAY)
    assert agent.milestones.fire() == 1
    asked = agent.inbox.get("samples late")
    assert asked.deadline == datetime.fromtimestamp(clock.time(), UTC) + timedelta(hours=2)
    assert agent.milestone("samples", due=due, on_miss=miss).status == "missed", "the same call after a restart"
    with pytest.raises(InvalidInput, match="past"):
        agent.milestone("samples", due=end, on_miss=miss)


def test_bad_milestones_are_refused(agent: Tenuto) -> None:
    for options in (
        {"due": "2001-01-01"},
        {"due": "1d", "on_miss": 7},
        {"due": "1d", "on_miss": {"to": "ann"}},
        {"due": "1d", "on_miss": {"playbook": ""}},
        {"due": "1d", "on_miss": {"playbook": "p", "to": "ann"}},
        {"due": "1d", "on_miss": {"question": "?", "unknown": 1}},
        {"due": "1d", "on_miss": {"question": "?", "quorum": 0}},
    ):
        with pytest.raises(InvalidInput):
            agent.milestone("samples", **options)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        agent.milestones.meet("samples")
    agent.milestone("samples", due="1d")
    assert agent.milestones.cancel("samples", by="ann").status == "cancelled"
    with pytest.raises(InvalidInput):
        agent.milestones.list("done")  # type: ignore[arg-type]


def test_a_question_finds_its_owner_by_what_it_is_about(agent: Tenuto, clock: Any) -> None:
    agent.routes.add(about="*", to="ops")
    agent.routes.add(
        about="invoice:*", to="finance", deadline="24h", escalate=["lead", "cfo"], policy="Needs a receipt."
    )
    agent.routes.add(about="invoice:9*", to="legal")
    asked = agent.ask("No receipt", blocks="invoice:881")
    assert (asked.assignees, asked.policy, len(asked.levels)) == (["finance"], "Needs a receipt.", 3)
    assert agent.ask("No receipt", about="invoice:900").to == "legal"
    assert agent.ask("What now?", about="mood").to == "ops"
    assert agent.ask("What now?").to is None, "about nothing"
    to_ann = agent.ask("No receipt", about="invoice:881", to="ann")
    assert (to_ann.assignees, to_ann.policy, len(to_ann.levels)) == (["ann"], "Needs a receipt.", 1)
    assert agent.ask("No receipt", about="invoice:881", deadline="1h").deadline < asked.deadline  # type: ignore[operator]
    assert [one.about for one in agent.routes.list()] == ["*", "invoice:*", "invoice:9*"]
    assert agent.routes.remove("*") is True
    assert agent.routes.remove("*") is False
    assert agent.ask("What now?", about="mood").to is None
    with pytest.raises(InvalidInput, match="circular"):
        agent.routes.add(about="x", to="ann", deadline="1h", escalate=["ann"])
    with pytest.raises(InvalidInput, match="deadline"):
        agent.routes.add(about="x", to="ann", escalate=["bob"])


def test_the_outcome_of_last_time_is_attached(agent: Tenuto, clock: Any) -> None:
    first = agent.ask("No receipt", about=["invoice:1", "vendor:acme"])
    assert agent.ask("Still none", about="vendor:acme").last is None, "nothing is decided yet"
    agent.inbox.answer(first.id, "approve", by="ann")
    clock.advance(DAY)
    last = agent.ask("No receipt", about=["invoice:2", "vendor:acme"]).last
    assert last is not None
    assert (last["id"], last["answer"], last["by"]) == (first.id, "approve", "ann")
    assert agent.ask("No receipt", about="vendor:other").last is None


def test_what_memory_says_about_the_subject_is_attached(agent: Tenuto) -> None:
    agent.memory.remember("Acme sends receipts late; paying was right last time", about="vendor:acme")
    agent.memory.remember("Receipts of Globex were forged", about="vendor:globex")
    asked = agent.ask("The receipt is missing", about=["invoice:2", "vendor:acme"])
    assert asked.remembered == ["Acme sends receipts late; paying was right last time"]
    assert agent.inbox.get(asked.id).as_interrupt()["metadata"]["remembered"] == asked.remembered
    assert agent.ask("The receipt is missing", about="vendor:other").remembered == []


def test_a_question_about_a_step_in_doubt_is_routed_and_notified(agent: Tenuto, monkeypatch: Any) -> None:
    agent.routes.add(about="step:charge*", to="finance", deadline="1h", escalate=["lead"], policy="Ask the bank.")
    agent.notify.to("finance", "https://example.test/hook", secret="env:HOOK_SECRET")

    def charge() -> None:
        raise TimeoutError("no reply")

    def body() -> Any:
        with agent.run("r") as run:
            return run.step("charge card", charge, effect="once")

    with pytest.raises(TimeoutError):
        body()
    with pytest.raises(InDoubt):
        body()
    [asked] = agent.inbox.list()
    assert (asked.assignees, asked.policy, len(asked.levels)) == (["finance"], "Ask the bank.", 2)
    assert (asked.step, asked.run) == ("charge card", "r")
    assert [one.event for one in agent.notify.outbox()] == ["asked"]
    agent.inbox.acknowledge(asked.id, by="ann")
    with pytest.raises(InDoubt):
        body()
    assert [one.id for one in agent.inbox.list()] == [asked.id], "it is not asked again"
    agent.inbox.answer(asked.id, Happened("paid"), by="ann")
    assert body() == "paid"


@pytest.mark.races
def test_workers_execute_the_workflow_that_a_miss_starts_once(
    agent: Tenuto, client: Callable[..., Tenuto], clock: Any
) -> None:
    ordered: list[str] = []
    agent.playbooks.save("contingency", steps=["order elsewhere", "tell the customer"])
    agent.milestone("samples", due="10d", on_miss={"playbook": "contingency"})
    clock.advance(11 * DAY)
    idle, *replicas = [client(f"r{n}") for n in range(4)]
    idle.action("something else")(lambda step: None)
    for one in replicas:
        for name in ("order elsewhere", "tell the customer"):
            one.action(name)(lambda step: ordered.append(step.action))
    assert idle.milestones.fire() == 1
    assert idle.milestones.fire() == 0
    assert worked(idle) == []
    assert ordered == [], "a worker without the action leaves it to one that has it"
    with ThreadPoolExecutor(3) as pool:
        stop = Until(lambda: all(one.status == "completed" for one in agent.runs.list()))
        list(pool.map(lambda one: one.runs.work(stop=stop, poll=0.02), replicas))
    assert ordered == ["order elsewhere", "tell the customer"]
    [workflow] = agent.workflows.list()
    assert (workflow.name, workflow.status) == (agent.milestones.get("samples").started, "completed")
    assert {one.status for one in agent.runs.list()} == {"completed"}
    assert agent.playbooks.cases("contingency")[0].outcome == "completed"


def test_a_workflow_of_a_worker_that_waits_for_a_person_continues_after_the_answer(agent: Tenuto, clock: Any) -> None:
    @agent.action("ask")
    def ask(step: Any) -> Any:
        with agent.run("which supplier") as run:
            return run.ask("Which supplier?", choices=["a", "b"])

    agent.playbooks.save("contingency", steps=["ask"])
    agent.milestone("samples", due="1d", on_miss={"playbook": "contingency"})
    clock.advance(2 * DAY)
    agent.milestones.fire()
    worked(agent)
    [asked] = agent.inbox.list()
    agent.inbox.answer(asked.id, "b", by="ann")
    worked(agent)
    [workflow] = agent.workflows.list()
    assert (workflow.status, workflow.steps[0].result) == ("completed", "b")


def test_a_crash_between_workflow_and_queue_queues_it_once(agent: Tenuto, clock: Any) -> None:
    done: list[str] = []
    agent.action("order")(lambda step: done.append("order"))
    agent.playbooks.save("contingency", steps=["order"])
    agent.milestone("samples", due="1d", on_miss={"playbook": "contingency"})
    clock.advance(2 * DAY)
    due = agent.milestones.get("samples").due
    agent.playbooks.start("contingency", as_=f"milestone:samples:{int(due.timestamp())}")  # and then it was killed
    assert agent.milestones.fire() == 1
    worked(agent)
    assert done == ["order"]


def test_a_workflow_that_an_agent_resumed_is_not_executed_again(agent: Tenuto, clock: Any) -> None:
    done: list[str] = []
    agent.action("order")(lambda step: done.append("order"))
    agent.playbooks.save("contingency", steps=["order"])
    agent.milestone("samples", due="1d", on_miss={"playbook": "contingency"})
    clock.advance(2 * DAY)
    agent.milestones.fire()
    agent.workflows.list()[0].resume()
    worked(agent)
    assert done == ["order"]


def test_an_async_worker_executes_the_workflow_that_a_miss_starts(clock: Any) -> None:
    async def scene() -> None:
        async with AsyncTenuto("bot", "volatile:", clock=clock) as agent:
            done: list[str] = []

            @agent.action("order")
            async def order(step: Any) -> None:
                await asyncio.sleep(0)
                done.append(current_run().id)

            await agent.playbooks.save("contingency", steps=["order"])
            await agent.milestone("samples", due="1d", on_miss={"playbook": "contingency"})
            clock.advance(2 * DAY)
            await agent.runs.work(stop=Until(lambda: agent._sync.workflows.list("completed") != []), poll=0.02)
            assert done == [f"workflow:{(await agent.milestones.get('samples')).started}"]

    asyncio.run(scene())
