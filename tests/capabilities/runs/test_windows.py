"""The narrow places of runs: where two things happen at once, or the store goes away in between."""

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tenuto
from tenuto import Cancelled, Closed, StaleLease, StorageFull, StorageUnavailable, Tenuto, TimedOut, Waiting
from tenuto.capabilities.runs.log import AGAIN, COMPLETED, INTENT, RESULT
from tenuto.capabilities.runs.worker import TAKEOVERS
from tenuto.kernel import codec
from tenuto.kernel.contract import Append, Backend

from .runs_world import Killed, World, killed, resumed

LARGE = "large " * 40_000


@pytest.fixture
def world() -> World:
    return World()


class Between:
    """A store in which something happens right before, after, or instead of a commit that holds a line of some kind."""

    def __init__(self, agent: Tenuto, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commits: list[list[int]] = []
        self._real = agent.kernel.commit
        self._happens: list[tuple[int, Callable[[], None], bool]] = []
        monkeypatch.setattr(agent.kernel, "commit", self._commit)

    def happens(self, kind: int, what: Callable[[], None], *, after: bool = False) -> None:
        self._happens.append((kind, what, after))

    def _commit(self, checks: Any, writes: Any, *, request: bytes | None = None) -> Any:
        kinds = [codec.decode(one.value)[2] for one in writes if type(one) is Append]
        due = [one for one in self._happens if one[0] in kinds][:1]
        for one in due:
            self._happens.remove(one)
            if not one[2]:
                one[1]()
        done = self._real(checks, writes, request=request)
        self.commits.append(kinds)
        for one in due:
            if one[2]:
                one[1]()
        return done


@pytest.fixture
def between(agent: Tenuto, monkeypatch: pytest.MonkeyPatch) -> Between:
    return Between(agent, monkeypatch)


def away() -> None:
    raise StorageUnavailable("The store is away.")


def reply_lost() -> None:
    raise StorageUnavailable("The reply was lost.", outcome="unknown")


# -- large results ----------------------------------------------------------------------------------------------------


@pytest.mark.races
def test_the_same_large_result_of_several_items_at_once_is_kept_for_each(agent: Tenuto) -> None:
    together = threading.Barrier(4)

    def fetch(_: int) -> str:
        together.wait(20)
        return LARGE

    with agent.run("r") as run:
        assert run.map("fetch", fetch, range(8), concurrency=4) == [LARGE] * 8
    assert all(step.attempts == 1 for step in agent.runs.get("r").steps)


def test_a_run_ends_although_another_refers_to_the_same_large_result_just_then(
    client: Callable[..., Tenuto], agent: Tenuto, between: Between
) -> None:
    def other() -> None:
        resumed(client("other"), lambda run: run.step("fetch", lambda: LARGE), "another")

    between.happens(COMPLETED, other)
    assert resumed(agent, lambda _: LARGE) == LARGE
    assert agent.runs.get("r").status == "completed"
    assert agent.runs.get("r").result == LARGE


# -- the store is away ------------------------------------------------------------------------------------------------


def test_a_result_whose_reply_is_lost_again_and_again_is_recorded_once(agent: Tenuto, between: Between) -> None:
    def ask() -> str:
        run = tenuto.current_run()
        run.usage("model", cost=1.5)
        return "answer"

    for _ in range(8):  # longer than one commit asks by itself
        between.happens(RESULT, reply_lost, after=True)
    assert resumed(agent, lambda run: run.step("ask", ask)) == "answer"
    assert agent.runs.get("r").cost == 1.5
    assert agent.runs.get("r").steps[0].attempts == 1


def test_a_large_result_is_tried_to_be_stored_while_the_store_is_away(
    agent: Tenuto, monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    real, failures = agent.kernel.commit, [3]

    def commit(checks: Any, writes: Any, *, request: bytes | None = None) -> Any:
        if failures[0] and world.calls and any(b"blobs" in one[0] for one in writes):
            failures[0] -= 1
            away()
        return real(checks, writes, request=request)

    monkeypatch.setattr(agent.kernel, "commit", commit)
    assert resumed(agent, lambda run: run.step("fetch", lambda: world.do("fetch") and LARGE)) == LARGE
    assert world.names == ["fetch"]
    assert failures == [0]


@pytest.mark.parametrize("kind", [INTENT, RESULT])
def test_a_run_does_not_go_on_behind_a_step_that_could_not_be_recorded(
    agent: Tenuto, between: Between, world: World, kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.capabilities.runs.open_run.PATIENCE", 0.0)

    def body(run: Any) -> str:
        try:
            run.step("enrich", world.do, "enrich")
        except Exception:  # what is optional is often treated so
            world.calls.append(("went on",))
        return run.step("post", world.do, "post")

    between.happens(kind, away)
    with pytest.raises(StorageUnavailable):
        resumed(agent, body)
    assert "post" not in world.names
    world.calls.clear()
    assert agent.runs.get("r").status == "interrupted"
    assert resumed(agent, body) == "post done"
    assert world.names == ["enrich", "post"]


def test_a_full_store_between_effect_and_record_is_told_as_full(
    agent: Tenuto, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenuto.capabilities.runs.open_run.PATIENCE", 0.2)
    real, full = agent.kernel.commit, [False]

    def commit(checks: Any, writes: Any, *, request: bytes | None = None) -> Any:
        if full[0]:
            raise StorageFull("The disk is full.")
        return real(checks, writes, request=request)

    monkeypatch.setattr(agent.kernel, "commit", commit)

    def pay(lease: Any) -> str:
        full[0] = True
        lease._renewed -= 1_000  # no renewal has got through for a long time
        assert lease.renew()
        return world.do("pay")

    with pytest.raises(StorageFull), agent.run("r") as run:
        run.step("pay", pay, run._running.lease, key="k", effect="once")
    full[0] = False
    assert world.names == ["pay"]


def test_a_run_goes_on_when_the_store_was_full_for_longer_than_its_lease(
    agent: Tenuto, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = agent.kernel.commit, [0]

    def commit(checks: Any, writes: Any, *, request: bytes | None = None) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise StorageFull("The disk is full.")
        return real(checks, writes, request=request)

    monkeypatch.setattr(agent.kernel, "commit", commit)

    def pay(lease: Any) -> str:
        failures[0] = 3
        lease._renewed -= 1_000
        assert lease.renew()
        return world.do("pay")

    with agent.run("r") as run:
        assert run.step("pay", pay, run._running.lease, key="k", effect="once") == "pay done"
        assert run.step("mail", world.do, "mail") == "mail done"
    assert agent.runs.get("r").status == "completed"
    assert world.names == ["pay", "mail"]


def test_an_item_that_could_not_be_recorded_is_no_result_of_a_map(
    agent: Tenuto, between: Between, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    between.happens(INTENT, away)

    def body(run: Any) -> list[str]:
        return run.map("item", lambda n: world.do("item", n), range(3), concurrency=1, on_error="keep")

    with pytest.raises(StorageUnavailable):
        resumed(agent, body)
    assert resumed(agent, body) == ["item done"] * 3
    assert world.calls == [("item", 0), ("item", 1), ("item", 2)]


# -- maps -------------------------------------------------------------------------------------------------------------


@pytest.mark.races
def test_the_result_of_an_item_is_on_record_before_the_next_one_in_doubt_is_looked_at(
    agent: Tenuto, between: Between, world: World
) -> None:
    both = threading.Barrier(2)

    def dies(_: int) -> str:
        both.wait(20)
        raise Killed

    with pytest.raises(Killed), agent.run("r") as run:
        run.map("item", dies, [0, 1], concurrency=2)
    seen: list[list[str]] = []

    def verify(_: Any) -> Any:
        seen.append([step.status for step in agent.runs.get("r").steps])
        return tenuto.NotHappened()

    def item(n: int) -> str:
        seen.append([step.status for step in agent.runs.get("r").steps])
        return f"{n}"

    with agent.run("r") as run:
        assert run.map("item", item, [0, 1], concurrency=1, verify=verify) == ["0", "1"]
    assert seen[2][0] == "completed", "it was finished when verify was asked about its neighbour"
    assert seen[3][0] == "completed", "it was finished when its neighbour was run"


def test_two_maps_of_one_name_are_told_apart_also_where_the_first_was_cut_short(agent: Tenuto, world: World) -> None:
    broken = [True]

    def item(n: int) -> str:
        if n == 1 and broken[0]:
            raise ValueError("broken")
        return world.do("item", n)

    def body(run: Any) -> list[str]:
        try:
            run.map("item", item, range(4), concurrency=1)
        except ValueError:
            broken[0] = False
        return run.map("item", item, range(4), concurrency=2)

    killed(agent, body)
    broken[0] = True
    assert resumed(agent, body) == ["item done"] * 4
    assert sorted(world.calls) == [("item", 0), ("item", 0), ("item", 1), ("item", 2), ("item", 3)]


def test_an_item_whose_error_left_the_run_runs_again_although_its_neighbour_had_gone_on(
    agent: Tenuto, between: Between, world: World
) -> None:
    fails, failed = [True], threading.Event()

    def item(n: int) -> str:
        if n == 0 and fails[0]:
            raise ValueError("not now")
        if n == 1 and fails[0]:
            assert failed.wait(20)
        return world.do("item", n)

    def beside() -> None:  # item 0's error is numbered, and not seen yet by the other lane: it begins one more
        failed.set()
        deadline = threading.Event()
        for _ in range(4_000):
            if [RESULT, INTENT] in between.commits:
                return
            deadline.wait(0.005)

    between.happens(5 + 1, beside)  # ERROR
    with pytest.raises(ValueError, match="not now"), agent.run("r") as run:
        run.map("item", item, range(6), concurrency=2)
    fails[0] = False
    with agent.run("r") as run:
        assert run.map("item", item, range(6), concurrency=2) == ["item done"] * 6
    assert sorted(world.calls) == [("item", n) for n in range(6)]


# -- runs in runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside_a_step", [False, True])
def test_a_run_goes_on_when_what_the_run_inside_of_it_waits_for_has_come(agent: Tenuto, inside_a_step: bool) -> None:
    @agent.durable
    def child(run: Any) -> int:
        return int(run.wait("go"))

    @agent.durable
    def parent(run: Any) -> int:
        found = run.step("child", child.run, "c") if inside_a_step else child.run("c")
        return int(found) + 1

    with pytest.raises(Waiting):
        parent.run("p")
    assert agent.runs.recover() == {}
    assert agent.runs.get("p").waits_for == (("run", "c"),)
    agent.signal("c", "go", 41)
    agent.runs.recover()
    agent.runs.recover()  # whichever of the two was taken first
    assert agent.runs.get("p").result == 42


def test_a_run_waits_for_the_one_inside_of_it_that_another_process_has_in_hand(
    client: Callable[..., Tenuto], agent: Tenuto, clock: Any
) -> None:
    @agent.durable
    def parent(_: Any) -> str:
        with agent.run("c", wait=0) as child:
            return child.step("work", lambda: "by the parent")

    other = client("other")
    with other.run("c") as theirs:
        assert theirs.step("work", lambda: "by the other") == "by the other"
        with pytest.raises(tenuto.RunBusy):
            parent.run("p")
        assert agent.runs.get("p").status == "waiting"
        assert agent.runs.recover() == {}
    clock.advance(1.1)
    assert agent.runs.recover() == {"p": "completed"}
    assert agent.runs.get("p").result == "by the other"


def test_a_run_whose_child_was_cancelled_fails_and_is_not_tried_for_ever(agent: Tenuto) -> None:
    @agent.durable
    def child(run: Any) -> None:
        run.wait("go")

    @agent.durable
    def parent(_: Any) -> None:
        child.run("c")

    with pytest.raises(Waiting):
        parent.run("p")
    agent.runs.cancel("c")
    agent.runs.recover()
    assert agent.runs.get("p").status == "failed"
    assert "Cancelled" in str(agent.runs.get("p").error)
    assert agent.runs.recover() == {}


def test_a_run_inside_of_another_clients_run_does_not_strand_it(
    client: Callable[..., Tenuto], agent: Tenuto, clock: Any
) -> None:
    other = client("other")

    @other.durable
    def child(run: Any) -> int:
        return int(run.wait("go"))

    @agent.durable
    def parent(_: Any) -> int:
        return child.run("c") + 1

    with pytest.raises(Waiting):
        parent.run("p")
    assert agent.runs.recover() == {}
    agent.signal("c", "go", 41)
    clock.advance(6)
    assert agent.runs.recover() == {"p": "completed"}
    assert agent.runs.get("p").result == 42


@pytest.mark.races
def test_runs_that_wait_for_each_other_are_gone_on_with(agent: Tenuto, client: Callable[..., Tenuto]) -> None:
    met = threading.Barrier(2, timeout=20)
    first = [True]

    def body(mine: str, other: str) -> Callable[[Any], str]:
        def both(_: Any) -> str:
            if first[0]:
                met.wait()
            with agent.run(other, wait=0):
                return f"{mine} has {other}"

        return both

    one = agent.durable(name="one")(body("a", "b"))
    two = agent.durable(name="two")(body("b", "a"))
    problems: list[BaseException] = []

    def begin(function: Any, run_id: str) -> None:
        try:
            function.run(run_id)
        except tenuto.RunBusy as error:
            problems.append(error)

    threads = [threading.Thread(target=begin, args=given) for given in ((one, "a"), (two, "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first[0] = False
    assert problems
    for _ in range(3):
        agent.runs.recover()  # it ends, and the worker stands
    assert {"a", "b"} == {run.id for run in agent.runs.list()}


@pytest.mark.races
def test_a_worker_that_is_to_stop_stops_between_the_steps_of_a_run_inside_of_a_run(agent: Tenuto, world: World) -> None:
    stop, begun = threading.Event(), threading.Event()

    def first() -> str:
        begun.set()
        assert stop.wait(20)
        return world.do("first")

    @agent.durable
    def child(run: Any) -> list[str]:
        return [run.step("first", first), run.step("second", world.do, "second")]

    @agent.durable
    def parent(run: Any) -> list[str]:
        found = child.run("c")
        return [*found, run.step("last", world.do, "last")]

    parent.start("p")
    worker = threading.Thread(target=lambda: agent.runs.work(stop=stop, poll=0.005))
    worker.start()
    assert begun.wait(20)
    stop.set()
    worker.join(20)
    assert world.names == ["first"]
    assert (agent.runs.get("p").status, agent.runs.get("c").status) == ("queued", "queued")
    assert parent.run("p") == ["first done", "second done", "last done"]
    assert world.names == ["first", "second", "last"]


# -- time, takeovers, signals -----------------------------------------------------------------------------------------


def test_a_run_that_waits_beyond_its_deadline_fails_then_and_is_not_woken_again_and_again(
    agent: Tenuto, clock: Any
) -> None:
    @agent.durable
    def nap(run: Any) -> None:
        run.sleep(3_600)

    with pytest.raises(Waiting):
        nap.using(deadline=60).run("r")
    clock.advance(61)
    assert agent.runs.recover() == {"r": "failed"}
    assert str(agent.runs.get("r").error).startswith("TimedOut")
    with pytest.raises(TimedOut):
        nap.run("r")


def test_a_step_that_ends_its_process_each_time_is_given_up(agent: Tenuto, world: World) -> None:
    @agent.durable
    def poison(run: Any) -> None:
        run.step("fine", world.do, "fine")
        run.step("poison", world.do, "poison")

    world.dies["poison"] = 1_000
    with pytest.raises(Killed):
        poison.run("r")
    for _ in range(TAKEOVERS + 5):
        agent.runs.recover()
    assert agent.runs.get("r").status == "failed"
    assert "without progress" in str(agent.runs.get("r").error)
    assert world.count("poison") == TAKEOVERS + 2  # the first takeover found that it had got on until there
    assert world.count("fine") == 1


def test_a_step_that_is_retried_gets_on(agent: Tenuto, world: World) -> None:
    @agent.durable
    def long(run: Any) -> None:
        for n in range(TAKEOVERS + 5):
            world.dies[f"{n}"] = 1 - world.count(f"{n}")
            run.step(f"{n}", world.do, f"{n}")

    with pytest.raises(Killed):
        long.run("r")
    for _ in range(TAKEOVERS + 5):
        agent.runs.recover()
    assert agent.runs.get("r").status == "completed"


def test_a_signal_that_comes_while_a_run_is_taken_does_not_make_it_busy(agent: Tenuto, between: Between) -> None:
    def body(run: Any) -> Any:
        return run.wait("go")

    with pytest.raises(Waiting):
        resumed(agent, body)
    between.happens(2, lambda: agent.signal("r", "go", 7) and None)  # RESUMED
    assert resumed(agent, body, wait=0) == 7


def test_whoever_lost_the_run_while_its_signal_came_is_told_so(
    client: Callable[..., Tenuto], agent: Tenuto, between: Between, clock: Any
) -> None:
    def take_over() -> None:
        clock.advance(3_600)
        killed(client("other"), lambda _: None)

    agent.signal("r", "go", 7)
    between.happens(RESULT, take_over)
    with pytest.raises(StaleLease):
        resumed(agent, lambda run: run.wait("go"))
    assert resumed(client("other"), lambda run: run.wait("go")) == 7


# -- what outlives the body -------------------------------------------------------------------------------------------


@pytest.mark.races
def test_a_step_that_a_thread_asks_for_after_the_body_has_ended_is_not_run(agent: Tenuto, world: World) -> None:
    asked, over, problems = threading.Event(), threading.Event(), []

    def straggler(run: Any) -> None:
        asked.set()
        over.wait(20)
        try:
            run.step("late", world.do, "late")
        except Closed as error:
            problems.append(error)

    with agent.run("r") as run:
        thread = threading.Thread(target=straggler, args=(run,))
        thread.start()
        asked.wait(20)
    over.set()
    thread.join()
    assert world.calls == []
    assert len(problems) == 1


@pytest.mark.races
def test_a_body_that_ends_waits_for_steps_in_flight_and_lets_none_slip_in_behind(agent: Tenuto, world: World) -> None:
    for number in range(20):
        outcomes: list[str] = []

        def straggler(run: Any, outcomes: list[str] = outcomes) -> None:
            try:
                outcomes.append(run.step("late", world.do, "late"))
            except Closed:
                outcomes.append("closed")

        with agent.run(f"r{number}") as run:
            thread = threading.Thread(target=straggler, args=(run,))
            thread.start()
        thread.join()
        steps = agent.runs.get(f"r{number}").steps
        assert [step.status for step in steps] == (["completed"] if outcomes == ["late done"] else [])


def test_a_forked_child_does_not_go_on_with_its_parents_run(agent: Tenuto, backend: Backend, world: World) -> None:
    with agent.run("r") as run:
        run.step("one", world.do, "one")
        pid = os.fork()
        if pid == 0:
            try:
                run.step("two", world.do, "two")
            except Closed:
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert [step.name for step in agent.runs.get("r").steps] == ["one"]


def test_a_cancelled_run_keeps_what_was_done_and_its_caller_is_told(agent: Tenuto, world: World) -> None:
    def step() -> str:
        world.do("step")
        agent.runs.cancel("r")
        return "done"

    with pytest.raises(Cancelled):
        resumed(agent, lambda run: run.step("step", step))
    info = agent.runs.get("r")
    assert (info.status, info.steps[0].status) == ("cancelled", "completed")


def test_again_is_written_before_a_step_in_doubt_runs_again(agent: Tenuto, between: Between, world: World) -> None:
    world.dies["step"] = 1
    with pytest.raises(Killed):
        resumed(agent, lambda run: run.step("step", world.do, "step"))
    between.happens(AGAIN, lambda: world.calls.append(("again",)))
    resumed(agent, lambda run: run.step("step", world.do, "step"))
    assert world.names == ["step", "again", "step"]
