"""Heartbeats: a long step reports that it still works, and learns that its run was taken away."""

from dataclasses import replace
from datetime import timedelta

import pytest

from tenuto import Cancelled, InvalidInput
from tenuto.capabilities.runs import heartbeat
from tenuto.cli.examinations import _hung, _silent
from tenuto.cli.waterfall import waterfall


@pytest.fixture(autouse=True)
def no_pace(monkeypatch):
    monkeypatch.setattr(heartbeat, "PACE", 0.0)


def only(agent):
    return agent.runs.get("r").steps[-1]


def test_a_heartbeat_is_shown_while_its_step_runs_and_not_after(agent, clock):
    def crawl():
        assert only(agent).heartbeat is None
        run.heartbeat("page 1")
        first = only(agent)
        clock.advance(5)
        run.heartbeat({"page": 2})
        second = only(agent)
        assert (first.detail, second.detail) == ("page 1", {"page": 2})
        assert (second.heartbeat - first.heartbeat).total_seconds() >= 5
        assert any("last heartbeat" in line and "page" in line for line in waterfall(agent.runs.get("r")))

    with agent.run("r") as run:
        run.step("crawl", crawl)
    assert (only(agent).status, only(agent).heartbeat, only(agent).detail) == ("completed", None, None)


def test_the_doctor_finds_a_step_that_fell_silent_and_not_one_that_reports(agent):
    def crawl():
        now = agent.kernel.now()
        assert _hung(agent, "r", now + 3_000) == []
        assert _hung(agent, "r", now + 4_000) == ["crawl"]  # begun over an hour ago, and it never reports
        run.heartbeat()
        assert _hung(agent, "r", now + 200) == []
        assert _hung(agent, "r", now + 400) == ["crawl"]  # it reported, and then not for five minutes
        begun = only(agent)
        working = replace(begun, started=begun.started - timedelta(hours=2))
        assert not _silent(working, now + 10)

    with agent.run("r") as run:
        run.step("crawl", crawl)


def test_a_step_of_a_cancelled_run_learns_it_from_its_heartbeat(agent):
    def crawl():
        agent.runs.cancel("r")
        run.heartbeat()
        raise AssertionError("not reached")

    with pytest.raises(Cancelled), agent.run("r") as run:
        run.step("crawl", crawl)
    assert agent.runs.info("r").status == "cancelled"


def test_a_further_attempt_does_not_show_the_heartbeat_of_the_one_before(agent):
    attempts = []

    def crawl():
        attempts.append(only(agent).heartbeat)
        run.heartbeat("begun")
        if len(attempts) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), agent.run("r") as run:
        run.step("crawl", crawl)
    assert only(agent).detail == "begun"  # what the lost attempt said last
    with agent.run("r") as run:
        run.step("crawl", crawl)
    assert attempts == [None, None]


def test_heartbeats_are_written_at_most_once_a_second(agent, monkeypatch):
    monkeypatch.setattr(heartbeat, "PACE", 1_000.0)

    def crawl():
        run.heartbeat("first")
        version = agent.kernel.read([run._running.log.heartbeat_key])[0].version
        for n in range(20):
            run.heartbeat(n)
        assert agent.kernel.read([run._running.log.heartbeat_key])[0].version == version

    with agent.run("r") as run:
        run.step("crawl", crawl)


def test_a_heartbeat_outside_a_step_is_refused_and_a_deleted_run_leaves_none(agent):
    with agent.run("r") as run:
        with pytest.raises(InvalidInput, match=r"in a step"):
            run.heartbeat()
        run.step("crawl", run.heartbeat)
    key = run._running.log.heartbeat_key
    assert agent.kernel.read([key])[0] is not None
    agent.runs.delete("r")
    assert agent.kernel.read([key])[0] is None
