"""Runs from outside: durable functions, recovery, listing, cancelling, forking, deleting."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import tenuto
from tenuto import (
    Cancelled,
    Conflict,
    Happened,
    InDoubt,
    InvalidInput,
    NotFound,
    NotStorable,
    RunBusy,
    StaleLease,
    StepMismatch,
    Tenuto,
    Waiting,
)
from tenuto.capabilities.runs.log import RunLog
from tenuto.capabilities.runs.worker import TAKEOVERS
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Put
from tenuto.kernel.transact import commit_once

from .runs_world import Killed, World, killed, resumed


@pytest.fixture
def world() -> World:
    return World()


def work(agent: Tenuto, until: Callable[[], bool], **options: Any) -> None:
    """Let a worker go on until something holds."""
    stop = threading.Event()
    worker = threading.Thread(target=lambda: agent.runs.work(stop=stop, poll=0.005, **options))
    worker.start()
    try:
        for _ in range(2_000):
            if until():
                return
            threading.Event().wait(0.005)
        raise AssertionError("it did not come to that")
    finally:
        stop.set()
        worker.join()


# -- durable functions ----------------------------------------------------------------------------------------------


def test_a_durable_function_is_run_once_under_an_id(agent: Tenuto, world: World) -> None:
    @agent.durable
    def deploy(run: Any, version: str, *, region: str = "eu") -> list[str]:
        return [run.step("build", world.do, "build", version), region]

    assert deploy.run("d-1", "1.2.3", region="us") == ["build done", "us"]
    assert deploy.run("d-1", "1.2.3", region="us") == ["build done", "us"]
    assert deploy.run("d-1") == ["build done", "us"]  # what it was called with is on record
    assert world.calls == [("build", "1.2.3")]
    with pytest.raises(StepMismatch, match="other arguments"):
        deploy.run("d-1", "1.2.4")
    info = agent.runs.get("d-1")
    assert (info.function, info.status, info.args) == ("deploy", "completed", [["1.2.3"], {"region": "us"}])
    with pytest.raises(NotStorable, match="plain data"):
        deploy.run("d-2", threading.Lock())  # type: ignore[arg-type]

    @agent.durable(name="other")
    def renamed(run: Any) -> str:
        return deploy(run, "9")[0]

    assert renamed.run("o-1") == "build done"
    with pytest.raises(StepMismatch, match="'deploy'"):
        renamed.run("d-1")
    with pytest.raises(InvalidInput, match="Pass another name="):

        @agent.durable(name="other")
        def third(run: Any) -> None: ...

    with pytest.raises(InvalidInput, match="its run"):

        @agent.durable
        def nothing() -> None: ...

    with pytest.raises(InvalidInput):
        deploy.using(colour="red")


def test_what_was_interrupted_is_recovered_by_another_process(client: Callable[..., Tenuto], world: World) -> None:
    def register(agent: Tenuto) -> Any:
        @agent.durable
        def job(run: Any, n: int) -> str:
            run.step("a", world.do, f"a{n}")
            return run.step("b", world.do, f"b{n}")

        return job

    first, second = client("first"), client("second")
    job = register(first)
    for n in range(3):
        world.dies[f"b{n}"] = 1
        with pytest.raises(Killed):
            job.run(f"j{n}", n)
    assert [one.status for one in first.runs.list()] == ["interrupted"] * 3
    assert second.runs.recover() == {}  # it does not know the function, and says so in its log
    register(second)
    assert second.runs.recover() == {"j0": "completed", "j1": "completed", "j2": "completed"}
    assert second.runs.recover() == {}
    assert [world.count(f"a{n}") for n in range(3)] == [1, 1, 1]
    assert [one.status for one in first.runs.list(status="completed")] == ["completed"] * 3


def test_a_worker_takes_what_is_queued_and_wakes_what_waits(agent: Tenuto, clock: Any, world: World) -> None:
    @agent.durable
    def job(run: Any, kind: str) -> str:
        run.step("begin", world.do, f"begin {kind}")
        if kind == "sleeps":
            run.sleep(100)
        elif kind == "signalled":
            return run.wait("go")
        elif kind == "asks":
            return run.ask("Well?")
        elif kind == "fails":
            raise ValueError("no")
        return "done"

    def status(run_id: str) -> str:
        return agent.runs.get(run_id).status

    kinds = ["plain", "sleeps", "signalled", "asks", "fails"]
    assert all(job.start(kind, kind) for kind in kinds)
    assert not job.start("plain", "plain")
    with pytest.raises(StepMismatch):
        job.start("plain", "other")
    assert {one.status for one in agent.runs.list()} == {"queued"}
    work(agent, lambda: [status(k) for k in kinds] == ["completed", "waiting", "waiting", "waiting", "failed"])
    assert str(agent.runs.get("fails").error) == "ValueError: no"
    clock.advance(101)
    agent.signal("signalled", "go", "went")
    agent.inbox.answer(agent.inbox.list()[0].id, "well")
    work(agent, lambda: [status(k) for k in kinds[1:4]] == ["completed"] * 3)
    assert [agent.runs.get(k).result for k in kinds[:4]] == ["done", "done", "went", "well"]
    assert sorted(world.names) == sorted(f"begin {kind}" for kind in kinds)
    agent.runs.retry("fails")
    assert status("fails") == "queued"
    work(agent, lambda: status("fails") == "failed")


@pytest.mark.races
def test_a_worker_that_stops_ends_its_step_and_leaves_the_run_to_others(agent: Tenuto) -> None:
    begun, go_on = threading.Event(), threading.Event()

    @agent.durable
    def job(run: Any) -> str:
        run.step("slow", lambda: (begun.set(), go_on.wait(10), "x")[2])
        return run.step("next", lambda: "y")

    job.start("j")
    stop = threading.Event()
    worker = threading.Thread(target=lambda: agent.runs.work(stop=stop, poll=0.005))
    worker.start()
    begun.wait(10)
    stop.set()
    go_on.set()
    worker.join(10)
    info = agent.runs.get("j")
    assert info.status == "queued"
    assert [(step.name, step.status) for step in info.steps] == [("slow", "completed")]
    work(agent, lambda: agent.runs.get("j").status == "completed")


def test_a_step_in_doubt_in_a_worker_waits_for_people(agent: Tenuto, world: World) -> None:
    @agent.durable
    def job(run: Any) -> str:
        return run.step("charge", world.do, "charge", effect="once")

    world.dies["charge"] = 1
    with pytest.raises(Killed):
        job.run("j")
    assert agent.runs.recover() == {"j": "paused"}
    assert agent.runs.recover() == {}
    [question] = agent.inbox.list()
    agent.inbox.answer(question.id, Happened("paid"))
    assert agent.runs.recover() == {"j": "completed"}
    assert agent.runs.get("j").result == "paid"
    assert world.count("charge") == 1


def test_a_run_that_never_gets_on_is_given_up(agent: Tenuto) -> None:
    @agent.durable
    def job(run: Any) -> None:
        raise Killed

    with pytest.raises(Killed):
        job.run("j")
    for _ in range(TAKEOVERS):
        assert agent.runs.recover() == {"j": "interrupted"}
    assert agent.runs.recover() == {}
    info = agent.runs.get("j")
    assert info.status == "failed"
    assert "without progress" in str(info.error)


def test_a_run_begun_in_another_is_its_child_and_is_found_by_its_result(agent: Tenuto, world: World) -> None:
    @agent.durable
    def part(run: Any, n: int) -> str:
        return run.step("work", world.do, f"part {n}")

    @agent.durable
    def whole(run: Any) -> list[str]:
        found = [part.run(f"{run.id}/part-{n}", n) for n in range(3)]
        run.step("end", world.do, "end")
        return found

    world.dies["end"] = 1
    with pytest.raises(Killed):
        whole.run("w")
    assert whole.run("w") == ["part 0 done", "part 1 done", "part 2 done"]
    assert [world.count(f"part {n}") for n in range(3)] == [1, 1, 1]
    assert agent.runs.get("w/part-1").parent == "w"


def test_a_run_that_pauses_inside_of_a_step_is_not_in_doubt(agent: Tenuto) -> None:
    @agent.durable
    def inner(run: Any) -> str:
        return run.wait("go")

    @agent.durable
    def outer(run: Any) -> str:
        return run.step("inner", lambda: inner.run("inner"), effect="once")

    with pytest.raises(Waiting):
        outer.run("outer")
    assert agent.runs.get("outer").steps[0].status == "waiting"
    agent.signal("inner", "go", "went")
    assert outer.run("outer") == "went"


# -- listing --------------------------------------------------------------------------------------------------------


def test_runs_are_listed_by_status_and_user(agent: Tenuto) -> None:
    for n in range(5):
        with agent.run(f"r{n}", user="ann" if n % 2 else None):
            pass
    killed(agent, lambda run: None, "cut off")
    assert [one.id for one in agent.runs.list()] == ["cut off", "r0", "r1", "r2", "r3", "r4"]
    assert [one.id for one in agent.runs.list(user="ann")] == ["r1", "r3"]
    assert [one.id for one in agent.runs.list(status="interrupted")] == ["cut off"]
    assert [one.id for one in agent.runs.list(after="r0", limit=2)] == ["r1", "r2"]
    with agent.run("held"):
        assert agent.runs.get("held").status == "running"
    with pytest.raises(NotFound):
        agent.runs.get("nothing")
    with pytest.raises(InvalidInput):
        agent.runs.list(status="busy")


def test_tenants_do_not_see_each_others_runs(agent: Tenuto) -> None:
    other = agent.for_tenant("acme")
    with agent.run("r") as run, other.run("r") as theirs:
        run.step("a", lambda: 1)
        theirs.step("a", lambda: 2)
    assert agent.runs.get("r").steps[0].result == 1
    assert other.runs.get("r").steps[0].result == 2


# -- cancelling -----------------------------------------------------------------------------------------------------


def test_a_run_that_is_cancelled_begins_nothing_more(agent: Tenuto, world: World) -> None:
    with pytest.raises(Cancelled), agent.run("r") as run:
        run.step("a", world.do, "a")
        assert agent.runs.cancel("r") is True
        try:
            run.step("b", world.do, "b")
        except Exception:
            world.do("swallowed")
    assert world.names == ["a"]
    assert agent.runs.get("r").status == "cancelled"
    assert agent.runs.cancel("r") is False
    with pytest.raises(Cancelled, match="retry"):
        resumed(agent, lambda run: None)
    agent.runs.retry("r")
    assert resumed(agent, lambda run: [run.step(n, world.do, n) for n in "ab"]) == ["a done", "b done"]
    assert world.names == ["a", "b"]
    assert agent.runs.cancel("r") is False
    with pytest.raises(InvalidInput, match="completed"):
        agent.runs.retry("r")


def test_what_was_done_when_it_was_cancelled_is_still_recorded(agent: Tenuto) -> None:
    with pytest.raises(Cancelled), agent.run("r") as run:
        run.step("charge", lambda: agent.runs.cancel("r"), effect="once")
    [step] = agent.runs.get("r").steps
    assert (step.status, step.result) == ("completed", True)


def test_cancelling_reaches_what_waits_its_children_and_its_questions(agent: Tenuto) -> None:
    with pytest.raises(Waiting), agent.run("parent") as run:
        with pytest.raises(Waiting), agent.run("child") as child:
            child.sleep("1h")
        run.ask("Go on?")
    agent.runs.cancel("parent")
    assert {one.id: one.status for one in agent.runs.list()} == {"parent": "cancelled", "child": "cancelled"}
    assert agent.inbox.list() == []


def test_a_holder_that_was_replaced_can_write_nothing(client: Callable[..., Tenuto], clock: Any, world: World) -> None:
    one, two = client("one"), client("two")
    with pytest.raises(StaleLease), one.run("r") as zombie:
        zombie.step("a", world.do, "a")
        one._renewer.remove(zombie._running.lease)  # it stands still
        clock.advance(11)  # and its lease runs out
        with two.run("r", wait=0) as run:
            run.step("a", world.do, "a")
            with pytest.raises(StaleLease):
                zombie.step("b", world.do, "never")
            with pytest.raises(StaleLease):
                zombie.state.set("k", 1)
            run.step("b", world.do, "b")
    assert world.names == ["a", "b"]
    assert two.runs.get("r").status == "completed"
    assert two.runs.get("r").state == {}


# -- fork, delete ---------------------------------------------------------------------------------------------------


def trip(world: World, seen: list[Any]) -> Callable[[Any], list[Any]]:
    def body(run: Any) -> list[Any]:
        plan = run.step("plan", world.do, "plan")
        run.state["plan"] = plan
        found = [run.step("search", world.do, "search", n) for n in range(2)]
        booked = run.step("book", lambda what: seen.append(tenuto.idempotency_key()) or world.do("book", what), "TP1")
        return [plan, *found, booked, run.state.items()]

    return body


def test_a_fork_goes_on_from_a_step_and_the_original_stays(agent: Tenuto, world: World) -> None:
    seen: list[Any] = []
    body = trip(world, seen)
    first = resumed(agent, body)
    before = agent.runs.get("r")
    told = agent.runs.fork("r", "r2", at="book")
    assert (told.id, told.status) == ("r2", "queued")
    assert resumed(agent, body, "r2") == first
    assert world.count("plan") == 1
    assert world.count("book") == 2
    assert seen[0] != seen[1]
    assert agent.runs.get("r") == before
    assert agent.runs.get("r2").forked_from == "r"
    agent.runs.fork("r", "r3", at="search", occurrence=2)
    resumed(agent, body, "r3")
    assert (world.count("plan"), world.count("search")) == (1, 3)
    with pytest.raises(Conflict, match="already"):
        agent.runs.fork("r", "r2")
    for wrong in ({"at": "nothing"}, {"at": "search", "occurrence": 3}, {"at": "book", "results": {"x": 1}}):
        with pytest.raises(NotFound):
            agent.runs.fork("r", "r4", **wrong)
    for bad in ({"args": [1]}, {"at": "plan", "results": {"book": 1}}, {"at": "book", "args": 7}):
        with pytest.raises(InvalidInput):
            agent.runs.fork("r", "r4", **bad)
    with pytest.raises(InvalidInput):
        agent.runs.fork("r", "r")
    with pytest.raises(NotFound):
        agent.runs.fork("nothing", "r4")
    assert {one.id for one in agent.runs.list()} == {"r", "r2", "r3"}


def test_a_fork_with_other_arguments_and_results(agent: Tenuto, world: World) -> None:
    seen: list[Any] = []
    body = trip(world, seen)
    resumed(agent, body)
    agent.runs.fork("r", "r2", at="book", args=("LH9",), results={"plan": "Porto", ("search", 2): "nothing"})
    world.dies["book"] = 1
    with pytest.raises(Killed):
        resumed(agent, body, "r2")
    assert resumed(agent, body, "r2") == ["Porto", "search done", "nothing", "book done", {"plan": "plan done"}]
    assert [call for call in world.calls if call[0] == "book"] == [("book", "TP1"), ("book", "LH9"), ("book", "LH9")]
    assert [one.given for one in agent.runs.get("r2").steps if one.given is not None or one.name == "book"] == [["LH9"]]
    assert all(one.given is None for one in agent.runs.get("r").steps)


def test_a_run_whose_code_changed_goes_on_as_a_fork(agent: Tenuto, world: World) -> None:
    killed(agent, lambda run: [run.step(n, world.do, n) for n in ("a", "old")])
    with pytest.raises(StepMismatch, match=r"runs\.fork\('r', NEW_ID, at='old'\)"):
        resumed(agent, lambda run: [run.step(n, world.do, n) for n in ("a", "new")])
    agent.runs.fork("r", "r2", at="old")
    assert resumed(agent, lambda run: [run.step(n, world.do, n) for n in ("a", "new")], "r2") == ["a done", "new done"]
    assert world.names == ["a", "old", "new"]


def test_a_large_fork_and_its_large_parts(agent: Tenuto, check_nothing_left: Callable[..., None]) -> None:
    def body(run: Any) -> list[Any]:
        large = [run.step("page", lambda n: f"{n}" * 70_000, n) for n in range(3)]
        return [*large, *[run.step("small", lambda n: n, n) for n in range(300)]]

    first = resumed(agent, body)
    agent.runs.fork("r", "r2")
    assert agent.runs.delete("r") is True
    assert agent.runs.delete("r") is False
    assert resumed(agent, body, "r2") == first
    assert agent.runs.delete("r2") is True
    check_nothing_left(agent)
    assert agent.runs.list() == []


@pytest.mark.parametrize("dies", [None, 2, 4])
def test_a_run_with_many_children_is_deleted_whole(
    agent: Tenuto, monkeypatch: pytest.MonkeyPatch, dies: int | None
) -> None:
    keyed = RunLog(agent._context, "parent")
    with agent.run("parent") as run:
        run.step("a", str, 1)
    for first in range(0, 950, 150):
        some = [keyed.child_key(f"child-{n}") for n in range(first, min(first + 150, 950))]
        agent.kernel.commit([], [Put(key, codec.encode(None)) for key in some])
    agent.signal("parent", "late", 1)
    commits = 0

    def commit(*given: Any) -> Any:
        nonlocal commits
        commits += 1
        if commits == dies:
            raise Killed
        return commit_once(*given)

    monkeypatch.setattr("tenuto.capabilities.runs.delete.commit_once", commit)
    if dies is not None:
        with pytest.raises(Killed):
            agent.runs.delete("parent")
        assert agent.runs.list() == []  # absent from the first commit on
    assert agent.runs.delete("parent") is True
    left = {str(keys.unpack(one.key)[-1]) for one in agent.kernel.scan(keys.pack("parent"), limit=1_000)}
    assert left <= {"token"}
    assert agent.runs.delete("parent") is False


def test_a_deleted_run_is_gone_and_its_id_is_free(agent: Tenuto, world: World) -> None:
    killed(agent, lambda run: run.step("a", world.do, "a"))
    agent.signal("r", "go")
    with pytest.raises(RunBusy), agent.run("r"):
        agent.runs.delete("r")
    assert agent.runs.delete("r") is True
    with pytest.raises(NotFound):
        agent.runs.get("r")
    for call in (agent.runs.cancel, agent.runs.retry):
        with pytest.raises(NotFound):
            call("r")
    with pytest.raises(Waiting):
        resumed(agent, lambda run: [run.step("a", world.do, "a"), run.wait("go")])
    assert world.count("a") == 2  # it is another run
    assert not agent.runs.get("r").resumes


def test_a_deletion_that_was_cut_off_is_brought_to_its_end(agent: Tenuto, monkeypatch: Any, world: World) -> None:

    killed(agent, lambda run: run.step("a", world.do, "a" * 70_000))

    def stop(*_: Any) -> Any:
        raise Killed

    monkeypatch.setattr("tenuto.capabilities.runs.delete.clear", stop)
    with pytest.raises(Killed):
        agent.runs.delete("r")
    monkeypatch.undo()
    with pytest.raises(NotFound):
        agent.runs.get("r")
    assert agent.runs.list() == []
    assert resumed(agent, lambda run: run.step("b", world.do, "b")) == "b done"
    assert [step.name for step in agent.runs.get("r").steps] == ["b"]


def test_what_is_in_doubt_can_be_cancelled(agent: Tenuto, world: World) -> None:
    world.dies["charge"] = 1

    def body(run: Any) -> str:
        return run.step("charge", world.do, "charge", effect="once")

    with pytest.raises(Killed):
        resumed(agent, body)
    with pytest.raises(InDoubt):
        resumed(agent, body)
    agent.runs.cancel("r")
    assert agent.inbox.list() == []
