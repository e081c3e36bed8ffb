"""Pruning by age: what is old goes, what stays verifies, and nothing that is needed is removed."""

from contextlib import suppress
from datetime import timedelta

import pytest

from tenuto import NotFound, Retention, Tenuto, Waiting
from tenuto.kernel import keys
from tenuto.kernel.contract import Backend
from tenuto.kernel.durations import moment
from tenuto.testing import HeldClock

DAY = 86_400.0


@pytest.fixture
def agent(backend: Backend, clock: HeldClock) -> Tenuto:
    return Tenuto("agent", backend, clock=clock)


def _is_whole(agent: Tenuto) -> None:
    assert agent.store.check().findings == []


def test_history_older_than_the_rule_goes_and_values_stay(agent: Tenuto, clock: HeldClock) -> None:
    agent.state.set("s", "old", "kept value")
    for n in range(30):
        agent.state.set("s", "k", n)
        agent.user("ann").set("pref", n)
        clock.advance(DAY)
    middle = moment(clock.time() - 5.5 * DAY)
    dry = agent.store.prune("10d", dry_run=True)
    assert dry.journals == 1 + 20 + 20
    assert len(list(agent.state.history("s", "k"))) == 30
    assert agent.store.prune("10d") == dry
    assert [change.value for change in agent.state.history("s", "k")] == list(range(29, 19, -1))
    assert (agent.state.get("s", "old"), agent.state.get("s", "k")) == ("kept value", 29)
    assert agent.state.at("s", "k", time=middle) == 24
    assert agent.state.at("s", "old", time=middle) == "kept value", "unchanged since before the history begins"
    with pytest.raises(NotFound):
        agent.state.at("s", "k", time=middle - timedelta(days=20))
    with pytest.raises(NotFound):  # it may have expired or been deleted before the history begins
        agent.state.at("s", "never", time=middle)
    assert agent.state.set("s", "k", "next") == 31
    assert agent.store.prune("11d").total == 0
    _is_whole(agent)


def test_one_scope_can_be_pruned_alone(agent: Tenuto, clock: HeldClock) -> None:
    for n in range(3):
        agent.state.set("a", "k", n)
        agent.state.set("b", "k", n)
    clock.advance(DAY)
    assert agent.store.prune("1h", scope="a").journals == 2
    assert len(list(agent.state.history("a", "k"))) == 1, "the last entry stays"
    assert len(list(agent.state.history("b", "k"))) == 3


def test_finished_runs_go_and_others_stay(agent: Tenuto, clock: HeldClock) -> None:
    with agent.run("done") as run:
        run.step("work", lambda: "x" * 100_000)
    with suppress(Waiting), agent.run("waits") as run:
        run.ask("Pay?", to="ann")
    assert agent.once("key", lambda: 1) == 1
    clock.advance(3 * DAY)
    with agent.run("new") as run:
        run.step("work", lambda: 1)
    assert agent.store.prune(retention=Retention(runs="2d"), dry_run=True).runs == 1
    assert agent.store.prune(retention=Retention(runs="2d")).runs == 1
    assert {one.id for one in agent.runs.list()} == {"waits", "new", "once:key"}
    assert agent.once("key", lambda: 2) == 1, "a recorded call is not repeated"
    left = agent.kernel.entries(keys.pack("done", "run"))
    assert [entry.value for entry in left] == [b""]
    _is_whole(agent)


def test_ended_tasks_and_old_checkpoints_go(agent: Tenuto, clock: HeldClock) -> None:
    agent.tasks.enqueue("mails", 1, key="dead")
    claimed = agent.tasks.claim("mails")
    assert claimed is not None
    claimed.fail("no", retry=False)
    agent.tasks.enqueue("mails", 2, key="waiting")
    for n in range(4):
        agent.checkpoint.create("c", {"n": n}, thread="t")
    clock.advance(3 * DAY)
    done = agent.store.prune("2d", dry_run=True)
    assert (done.tasks, done.checkpoints) == (1, 3)
    assert agent.store.prune("2d")[2:4] == (1, 3)
    with pytest.raises(NotFound):
        agent.tasks.get("dead")
    assert agent.tasks.get("waiting").status == "waiting"
    assert agent.checkpoint.restore("c", thread="t") == {"n": 3}
    _is_whole(agent)


def test_expired_and_deleted_threads_lose_their_contents(agent: Tenuto, clock: HeldClock) -> None:
    expiring = agent.thread("short", ttl="1h")
    for n in range(5):
        expiring.append({"role": "user", "content": f"secret-{n}"})
    agent.thread("long").append({"role": "user", "content": "stays"})
    gone = agent.thread("gone")
    gone.append({"role": "user", "content": "x"})
    gone.delete()
    clock.advance(3 * DAY)
    assert agent.store.prune(retention=Retention(threads="1d"), dry_run=True).threads == 2
    assert agent.store.prune(retention=Retention(threads="1d")).threads == 2
    for name in ("short", "gone"):
        assert len(agent.kernel.entries(keys.pack(name, "thread"))) == 1
    assert b"secret" not in b"".join(entry.value for entry in agent.kernel.entries(keys.pack("short", "thread")))
    assert agent.thread("long").messages()[0]["content"] == "stays"
    assert agent.store.prune(retention=Retention(threads="1d")).threads == 0
    again = agent.thread("short")
    again.append({"role": "user", "content": "again"})
    assert [message["content"] for message in again.messages()] == ["again"]
    assert again.delete()
    _is_whole(agent)


def test_a_fork_keeps_the_lines_that_it_shares(agent: Tenuto, clock: HeldClock) -> None:
    first = agent.thread("first", ttl="1h")
    for n in range(4):
        first.append({"role": "user", "content": f"m{n}"})
    fork = first.fork("fork", ttl="90d")
    clock.advance(3 * DAY)
    agent.store.prune(retention=Retention(threads="1d"))
    assert [message["content"] for message in fork.messages()] == ["m0", "m1", "m2", "m3"]
    _is_whole(agent)


def test_a_client_prunes_by_its_own_rule(backend: Backend, clock: HeldClock) -> None:
    agent = Tenuto("agent", backend, clock=clock, retention=Retention(journals="1d"))
    agent.checkpoint.create("c", {"n": 1}, thread="t")
    for n in range(3):
        agent.state.set("s", "k", n)
    clock.advance(2 * DAY)
    assert agent.store.prune().journals == 2
    assert agent.checkpoint.restore("c", thread="t") == {"n": 1}
