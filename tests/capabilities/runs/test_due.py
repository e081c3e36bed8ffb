"""The index of due runs: a worker finds what can continue, at a cost that does not depend on how many runs wait."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tenuto import Tenuto, Waiting
from tenuto.capabilities.runs import RunSource, due
from tenuto.kernel.contract import Record
from tenuto.kernel.work import perform


class Counting:
    """A store that counts the records that it returns."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.records = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, keys: Sequence[bytes]) -> list[Record | None]:
        self.records += len(keys)
        found: list[Record | None] = self._inner.read(keys)
        return found

    def scan(self, *args: Any, **options: Any) -> list[Record]:
        found: list[Record] = self._inner.scan(*args, **options)
        self.records += len(found)
        return found


def waiting(agent: Tenuto, count: int, **ask: Any) -> Any:
    @agent.durable
    def job(run: Any) -> Any:
        return run.ask("ok?", **ask)

    for n in range(count):
        with pytest.raises(Waiting):
            job.run(f"job-{n}")
    return job


def looked_at(agent: Tenuto) -> int:
    """Return how many records a worker reads that finds nothing to do."""
    counting = Counting(agent.kernel)
    engine = agent._engine._replace(context=agent._context._replace(kernel=counting))
    assert perform(RunSource(engine, agent._functions).take(), agent.clock) is None
    return counting.records


def index(agent: Tenuto) -> list[tuple[Any, ...]]:
    from tenuto.kernel import keys

    found = agent.kernel.scan(due.DUE_RUNS, limit=1_000)
    return [keys.unpack(one.key)[2:] for one in found if keys.unpack(one.key)[2] != "idle"]


@pytest.mark.parametrize("ask", [{}, {"deadline": "1h"}], ids=["for ever", "with a deadline"])
def test_an_idle_worker_reads_as_much_with_many_waiting_runs_as_with_a_few(agent: Tenuto, ask: dict[str, Any]) -> None:
    waiting(agent, 5, **ask)
    few = looked_at(agent)
    waiting(agent, 40, **ask)
    assert looked_at(agent) == few <= 10


def test_an_answer_makes_its_run_due_in_the_same_commit(client: Callable[..., Tenuto], agent: Tenuto) -> None:
    waiting(agent, 1)
    assert index(agent) == []
    agent.inbox.answer(agent.inbox.list()[0].id, "yes")
    assert index(agent) == [("woken", "job-0")]
    assert agent.runs.recover() == {"job-0": "completed"}
    assert index(agent) == []


def test_a_signal_that_the_run_does_not_wait_for_leaves_nothing_to_look_at(agent: Tenuto) -> None:
    waiting(agent, 1)
    agent.signal("job-0", "other")
    agent.signal("nobody", "other")
    assert sorted(index(agent)) == [("woken", "job-0"), ("woken", "nobody")]
    assert agent.runs.recover() == {}
    assert index(agent) == []


def test_an_answer_to_an_inner_run_wakes_the_run_around_it(agent: Tenuto) -> None:
    @agent.durable
    def outer(_: Any) -> Any:
        with agent.run("inner") as inner:  # no worker can execute it: it has no function
            inner.result = inner.ask("ok?")
        return agent.runs.get("inner").result

    with pytest.raises(Waiting):
        outer.run("outer")
    agent.inbox.answer(agent.inbox.list()[0].id, "yes")
    assert agent.runs.recover() == {"outer": "completed"}
    assert index(agent) == []


def test_a_sleep_in_an_inner_run_wakes_the_run_around_it(agent: Tenuto, clock: Any) -> None:
    @agent.durable
    def outer(_: Any) -> str:
        with agent.run("inner") as inner:
            inner.sleep("1h")
        return "slept"

    with pytest.raises(Waiting):
        outer.run("outer")
    assert agent.runs.recover() == {}
    clock.advance(3_601)
    assert agent.runs.recover() == {"outer": "completed"}


def test_the_index_follows_a_run_through_its_life(agent: Tenuto) -> None:
    seen: list[str] = []

    @agent.durable
    def job(run: Any) -> None:
        seen.append(str(index(agent)[0][0]))
        run.sleep("1h")

    job.start("a")
    assert index(agent)[0][:3] == ("ready", index(agent)[0][1], 0)
    with pytest.raises(Waiting):
        job.run("a")
    assert seen == ["held"]
    assert [place[0] for place in index(agent)] == ["timer"]
    agent.runs.cancel("a")
    assert index(agent) == []
    agent.runs.retry("a")
    assert [place[0] for place in index(agent)] == ["ready"]
    agent.runs.delete("a")
    assert index(agent) == []


def test_runs_of_functions_of_other_workers_do_not_hide_those_of_this_one(
    client: Callable[..., Tenuto], agent: Tenuto
) -> None:
    theirs = client("theirs")

    @theirs.durable
    def another(_: Any) -> None: ...

    @agent.durable
    def mine(_: Any) -> str:
        return "done"

    for n in range(30):
        another.start(f"another-{n}")
    mine.start("mine-1")
    source = RunSource(agent._engine, agent._functions)
    one = perform(source.take(), agent.clock)
    assert one is not None
    assert one.id == "mine-1"
    assert perform(source.take(), agent.clock) is None  # it is reserved


def test_an_answered_run_that_no_worker_took_says_so(agent: Tenuto, clock: Any) -> None:
    waiting(agent, 2)
    assert [one.due for one in agent.runs.list()] == [None, None]
    agent.signal("job-0", "not awaited")
    question = agent.inbox.list(run="job-1")[0].id
    agent.inbox.answer(question, "yes")
    assert [one.due for one in agent.runs.list()] == [None, "answered"]
    assert agent.runs.get("job-1").due == agent.runs.info("job-1").due == "answered"
    assert agent.runs._overdue(60) == []
    clock.advance(61)
    assert [one.id for one in agent.runs._overdue(60)] == ["job-1"]
    agent.runs.recover()
    assert agent.runs.info("job-1").due is None
    assert agent.runs._overdue(60) == []
