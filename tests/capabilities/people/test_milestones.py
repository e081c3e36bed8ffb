"""Milestones and routes: a miss has its consequence once; a question finds its owner."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tenuto import Conflict, Happened, InDoubt, InvalidInput, NotFound, Tenuto

DAY = 86_400


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
    assert agent.ask("No receipt", about="invoice:881", to="ann").assignees == ["ann"]
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
