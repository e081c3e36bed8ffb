"""Alerts: a condition that holds long enough asks people once, whatever the number of replicas, and is cancelled when it ends."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.receivers import http_receiver

from tenuto import InvalidInput, Tenuto
from tenuto.capabilities.alerts import condition_of
from tenuto.testing import HeldClock


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("lookup.p95 > 100ms for 5m", ("lookup.p95", ">", 0.1, 300.0)),
        ("storage.bytes>=2GB", ("storage.bytes", ">=", 2 * 1024**3, 0.0)),
        ("questions.age > 1.5h for 1h 30m", ("questions.age", ">", 5400.0, 5400.0)),
        ("runs.in_doubt == 1", ("runs.in_doubt", "==", 1.0, 0.0)),
    ],
)
def test_a_condition_is_parsed(text: str, expected: tuple[str, str, float, float]) -> None:
    assert tuple(condition_of(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "lookup.p95", "nonsense > 3", "lookup.p95 > 3 parsecs", "lookup.p95 > 1 for ever", "x; y"]
)
def test_what_is_no_condition_is_refused(agent: Tenuto, text: str) -> None:
    with pytest.raises(InvalidInput):
        agent.alerts.add(text, to="ops")
    assert agent.alerts.list() == []


def test_an_alert_asks_once_after_its_time_and_is_cancelled_when_it_ends(agent: Tenuto, clock: HeldClock) -> None:
    agent.notify.to("ops", "https://example.com/hook", secret="env:NO_SUCH")
    agent.alerts.add(when="questions.overdue > 0 for 5m", to="ops", name="late")
    late = agent.ask("Refund?", to="ann", deadline="1m")
    assert agent.alerts.check() == 0
    clock.advance(61)
    assert agent.alerts.check() == 0, "it holds, not long enough"
    assert agent.alerts.list()[0].since is not None
    clock.advance(200)
    assert agent.alerts.check() == 0
    clock.advance(101)
    assert agent.alerts.check() == 1
    asked = [one for one in agent.inbox.list() if one.text.startswith("Alert late")]
    assert len(asked) == 1
    assert asked[0].context["figures"]["questions.overdue"] == 1
    assert asked[0].context["when"] == "questions.overdue > 0 for 5m"
    assert [(one.name, one.event) for one in agent.notify.outbox()] == [("ops", "asked")]
    clock.advance(3_600)
    assert agent.alerts.check() == 0, "asked once"
    agent.inbox.answer(late.id, "yes", by="ann")
    assert agent.alerts.check() == 1
    assert agent.inbox.get(asked[0].id).status == "cancelled"
    assert agent.alerts.list()[0].since is None
    assert agent.alerts.remove("late")
    assert not agent.alerts.remove("late")


def test_a_break_starts_the_time_again(agent: Tenuto, clock: HeldClock) -> None:
    agent.alerts.add("questions.open > 0 for 5m", to="ops", name="open")
    for _ in range(3):
        question = agent.ask("?", to="ann")
        agent.alerts.check()
        clock.advance(200)
        assert agent.alerts.check() == 0
        agent.inbox.answer(question.id, "yes", by="ann")
        agent.alerts.check()
    assert [one for one in agent.inbox.list() if one.text.startswith("Alert")] == []


@pytest.mark.races
def test_of_many_replicas_one_asks(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    agents = [client(f"worker-{number}") for number in range(6)]
    agents[0].alerts.add("questions.open > 0", to="ops", name="open")
    agents[0].ask("?", to="ann")
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda one: one.alerts.check(), agents * 3))
    assert len([one for one in agents[0].inbox.list(None) if one.text.startswith("Alert")]) == 1


def test_a_worker_looks_and_the_outbox_delivers(
    agent: Tenuto, clock: HeldClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", "whsec_" + "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0")
    with http_receiver() as receiver:
        agent.notify.to("ops", receiver.url, secret="env:HOOK")
        agent.alerts.add("lookup.p95 > 0ms", to="ops", name="slow")
        from tenuto.kernel.work import perform

        done = perform(agent.tasks._chores(), clock)
        assert done >= 2, "asked and delivered"
        assert "Alert slow: lookup.p95" in receiver.got[0][1].decode()
