"""Playbooks: versions, cases, how they ended, and what happened last time."""

from collections.abc import Callable

import pytest

from tenuto import InvalidInput, NotFound, Tenuto


def test_a_playbook_has_versions(agent: Tenuto) -> None:
    first = agent.playbooks.save("refund", ["check", "pay"], lessons=["ask"], designed_by="big", cost=0.5)
    assert (first.version, first.steps, first.lessons, first.designed_by, first.cost) == (
        1,
        ["check", "pay"],
        ["ask"],
        "big",
        0.5,
    )
    assert agent.playbooks.save("refund", ["check", "pay"], lessons=["ask"], designed_by="big", cost=0.5).version == 1
    assert agent.playbooks.save("refund", ["check", "call", "pay"]).version == 2
    assert agent.playbooks.get("refund").steps == ["check", "call", "pay"]
    assert agent.playbooks.get("refund", 1).steps == ["check", "pay"]
    assert [one.name for one in agent.playbooks.list()] == ["refund"]
    for call in (lambda: agent.playbooks.get("none"), lambda: agent.playbooks.get("refund", 9)):
        with pytest.raises(NotFound):
            call()
    with pytest.raises(NotFound, match="no version 0"):
        agent.playbooks.get("refund", 0)
    for steps in ([], "check", None, [7], [{"step": 1}]):
        with pytest.raises(InvalidInput, match="list of steps"):
            agent.playbooks.save("wrong", steps)  # type: ignore[arg-type]
    for fields in (
        {"lessons": "ask"},
        {"lessons": [7]},
        {"description": 7},
        {"cost": -1},
        {"cost": "1"},
        {"designed_by": 7},
    ):
        with pytest.raises(InvalidInput):
            agent.playbooks.save("wrong", ["check"], **fields)  # type: ignore[arg-type]
    assert [one.name for one in agent.playbooks.list()] == ["refund"]


def test_how_a_case_ended_flows_back(agent: Tenuto) -> None:
    agent.playbooks.save("refund", ["check", "pay"])
    good = agent.playbooks.start("refund", as_="r-1", situation="late train")
    good.complete(1)
    assert agent.playbooks.get("refund").success_rate is None
    good.complete(2)
    bad = agent.playbooks.start("refund", as_="r-2", situation="lost luggage")
    bad.complete(1)
    bad.fail(2, error="account closed")
    found = agent.playbooks.get("refund")
    assert (found.started, found.completed, found.failed, found.success_rate) == (2, 1, 1, 0.5)
    assert found.failing_steps == {"pay": 1}
    case = agent.playbooks.finish("r-2", lesson="ask for another account", cost=2.0)
    assert (case.outcome, case.failed_step, case.cost) == ("failed", "pay", 2.0)
    found = agent.playbooks.get("refund")
    assert found.lessons == ["ask for another account"]
    assert found.average_cost == 2.0
    assert agent.playbooks.finish("r-2", lesson="ask for another account").lesson == "ask for another account"
    assert agent.playbooks.get("refund").lessons == ["ask for another account"]


def test_a_case_is_started_once(client: Callable[..., Tenuto]) -> None:
    agent = client()
    agent.playbooks.save("refund", ["check"])
    agent.playbooks.start("refund", as_="r", situation="a").complete(1)
    again = agent.playbooks.start("refund", as_="r", situation="a")
    assert again.status == "completed"
    assert agent.playbooks.get("refund").started == 1
    with pytest.raises(NotFound):
        agent.playbooks.finish("nothing")
    agent.playbooks.start("refund", as_="open")
    with pytest.raises(InvalidInput, match="still running"):
        agent.playbooks.finish("open")


def test_suggest_finds_playbooks_and_what_happened_last_time(agent: Tenuto) -> None:
    agent.playbooks.save("refund", ["check", "pay"], description="Refund a late train")
    agent.playbooks.save("cello", ["tune", "play"], description="Tune an instrument")
    agent.playbooks.start("refund", as_="r-1", situation="The vendor Acme sent no receipt").fail(1, error="no answer")
    agent.playbooks.finish("r-1", lesson="call Acme by phone")
    found = agent.playbooks.suggest("an issue with Acme")
    assert found[0].case is not None
    assert (found[0].case.id, found[0].case.outcome, found[0].case.lesson) == ("r-1", "failed", "call Acme by phone")
    assert [one.playbook.name for one in agent.playbooks.suggest("late train") if one.case is None] == ["refund"]
    assert agent.playbooks.suggest("zebra") == []


def test_a_users_case_is_theirs(agent: Tenuto) -> None:
    agent.playbooks.save("refund", ["check"])
    agent.playbooks.start("refund", as_="r-1", situation="secret illness", user="ann")
    assert [one.case for one in agent.playbooks.suggest("illness", user="bob")] == []
    assert [one.case.id for one in agent.playbooks.suggest("illness", user="ann") if one.case] == ["r-1"]
