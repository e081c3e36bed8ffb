"""Replay: the body runs again, what is on record is not done again, and changed code never gets a neighbour's value."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tenuto
from tenuto import Closed, InvalidInput, RunBusy, StepFailed, StepMismatch, Tenuto

from .runs_world import Killed, World, killed, resumed


@pytest.fixture
def world() -> World:
    return World()


def steps(world: World, *names: str) -> Callable[[Any], list[str]]:
    return lambda run: [run.step(name, world.do, name) for name in names]


# -- code that changed ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "first"),
    [
        (("new", "a", "b"), "a"),
        (("a", "new", "b"), "b"),
        (("a", "b2"), "b"),
        (("b", "a"), "a"),
        (("b",), "a"),
        (("a",), "b"),
        ((), "a"),
    ],
    ids=["in front", "between", "renamed", "swapped", "the first is gone", "the last is gone", "all are gone"],
)
def test_changed_code_is_told_the_first_step_that_differs(
    agent: Tenuto, world: World, now: tuple[str, ...], first: str
) -> None:
    killed(agent, steps(world, "a", "b"))
    with pytest.raises(StepMismatch, match=f"'{first}'") as caught:
        resumed(agent, steps(world, *now))
    assert caught.value.step == first
    assert world.names == ["a", "b"]  # nothing was run
    assert agent.runs.get("r").status == "failed"
    assert resumed(agent, steps(world, "a", "b", "c")) == ["a done", "b done", "c done"]  # the right code goes on


def test_a_step_added_behind_what_was_done_is_run(agent: Tenuto, world: World) -> None:
    killed(agent, steps(world, "a"))
    assert resumed(agent, steps(world, "a", "new")) == ["a done", "new done"]


def test_arguments_that_shifted_are_found_and_never_a_neighbours_value(agent: Tenuto, world: World) -> None:
    def body(items: list[str]) -> Callable[[Any], dict[str, str]]:
        return lambda run: {item: run.step("search", world.do, item) for item in items}

    killed(agent, body(["a", "b"]))
    with pytest.raises(StepMismatch, match="'a' became 'new'"):
        resumed(agent, body(["new", "a", "b"]))
    assert world.names == ["a", "b"]
    assert resumed(agent, body(["a", "b", "c"])) == {"a": "a done", "b": "b done", "c": "c done"}


def test_a_keyed_step_that_was_renamed_is_not_run_again(agent: Tenuto, world: World) -> None:
    killed(agent, lambda run: run.step("charge", world.do, "charge", key="order-1"))
    with pytest.raises(StepMismatch, match="'charge' with the key 'order-1' is recorded"):
        resumed(agent, lambda run: run.step("charge_card", world.do, "charge", key="order-1"))
    assert world.count("charge") == 1


def test_the_items_of_a_map_are_compared(agent: Tenuto, world: World) -> None:
    def body(items: list[str]) -> Callable[[Any], list[str]]:
        return lambda run: run.map("search", world.do, items)

    killed(agent, body(["a", "b"]))
    with pytest.raises(StepMismatch, match="'a' became 'new'"):
        resumed(agent, body(["new", "a"]))
    assert sorted(world.names) == ["a", "b"]
    assert resumed(agent, body(["a", "b", "c"])) == ["a done", "b done", "c done"]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_code_does_it_gets_its_own_values(agent: Tenuto, seed: int) -> None:
    """Random programs, killed, changed at random, and run again: a mismatch, or every value is the step's own."""
    chance = random.Random(seed)

    def program() -> list[tuple[str, str, str | None]]:
        return [
            (chance.choice("xyz"), chance.choice("123"), chance.choice([None, None, "k1", "k2"]))
            for _ in range(chance.randrange(1, 9))
        ]

    def body(lines: list[tuple[str, str, str | None]]) -> Callable[[Any], None]:
        def run_it(run: Any) -> None:
            for name, arg, key in lines:
                told = run.step(name, lambda a, name=name, key=key: [name, a, key], arg, key=key)
                assert told[0] == name
                assert told[2] == key
                assert key is not None or told[1] == arg

        return run_it

    for number in range(20):
        before = program()
        after = list(before)
        for _ in range(chance.randrange(3)):
            kind, at = chance.randrange(3), chance.randrange(len(after) + 1)
            if kind == 0:
                after.insert(at, program()[0])
            elif kind == 1 and at < len(after):
                del after[at]
            elif at < len(after):
                after[at] = program()[0]
        run_id = f"r{number}"
        try:
            killed(agent, body(before), run_id)
        except AssertionError:
            raise
        except StepMismatch:
            continue  # one key under two names: refused from the beginning
        try:
            resumed(agent, body(after), run_id)
        except StepMismatch:
            assert after != before
        else:
            done = [(name, None if key else arg, key) for name, arg, key in before if key is None]
            assert [(n, a, k) for n, a, k in after if k is None][: len(done)] == done


# -- what is the same on every replay -------------------------------------------------------------------------------


def test_times_and_chance_are_the_same_on_every_replay(agent: Tenuto, clock: Any) -> None:
    def body(run: Any) -> list[Any]:
        found = [run.now(), run.uuid(), run.random(), run.now()]
        clock.advance(100)
        return found

    seen = []
    killed(agent, lambda run: seen.append(body(run)))
    assert resumed(agent, body) == seen[0]
    assert 0 <= seen[0][2] < 1


def test_the_state_of_a_run_is_shown_as_it_was_at_that_point(agent: Tenuto, world: World) -> None:
    seen: list[Any] = []

    def body(run: Any) -> None:
        shown: list[Any] = [run.state.items()]
        run.state["page"] = 1
        shown.append(run.state.items())
        run.state.set("page", {"deep": [1]})
        run.state["page"]["deep"].append(2)  # a copy: only writes count
        shown.append(run.state.get("page"))
        del run.state["page"]
        shown += ["page" in run.state, run.state.get("page", "gone"), len(run.state), list(run.state)]
        run.state["left"] = world.do("write")
        shown.append(run.state.items())
        seen.append(shown)

    killed(agent, body)
    killed(agent, body)
    assert seen[0] == seen[1] == [{}, {"page": 1}, {"deep": [1]}, False, "gone", 0, [], {"left": "write done"}]
    assert agent.runs.get("r").state == {"left": "write done"}
    with agent.run("r2") as run, pytest.raises(KeyError):
        del run.state["nothing"]


def test_the_thread_of_a_run_is_appended_to_once_and_shown_as_it_was(agent: Tenuto) -> None:
    agent.thread("chat").append({"role": "system", "content": "be kind"})
    seen: list[Any] = []

    def body(run: Any) -> None:
        shown: list[Any] = [run.thread.count()]
        shown.append(run.thread.append({"role": "user", "content": "hi"}))
        shown.append([m["content"] for m in run.thread.messages()])
        shown.append(run.thread.append({"role": "assistant", "content": "hello"}, {"role": "user", "content": "bye"}))
        shown.append([m["content"] for m in run.thread.messages(last=2)])
        seen.append(shown)

    for _ in range(3):
        with pytest.raises(Killed), agent.run("r", thread="chat") as run:
            body(run)
            raise Killed
    assert seen[0] == seen[1] == seen[2] == [1, 2, ["be kind", "hi"], 4, ["hello", "bye"]]
    assert agent.thread("chat").count() == 4
    with agent.run("own") as run:
        run.thread.append({"role": "user", "content": "hi"})
    assert agent.thread("own").count() == 1


def test_what_is_emitted_is_given_once_and_in_order(agent: Tenuto) -> None:
    def body(run: Any) -> None:
        run.emit({"page": 1})
        run.step("stream", lambda: [run.emit("token"), run.emit("token")][1])
        run.emit("end")

    killed(agent, body)
    killed(agent, body)
    watched = list(agent.runs.watch("r", timeout=0.01))
    assert [one.value for one in watched] == [{"page": 1}, "token", "token", "end"]
    assert [one.attempt for one in watched] == [0, 1, 1, 0]
    assert [one.value for one in agent.runs.watch("r", after=watched[1].number, timeout=0.01)] == ["token", "end"]
    resumed(agent, body)
    assert [one.value for one in agent.runs.watch("r")] == [{"page": 1}, "token", "token", "end"]  # it ends by itself


def test_a_watcher_goes_on_behind_a_failure_that_was_mended(agent: Tenuto) -> None:
    with pytest.raises(ValueError), agent.run("r") as run:
        run.emit(1)
        run.step("fails", int, "x")
    assert [one.value for one in agent.runs.watch("r")] == [1]
    with agent.run("r") as run:
        run.emit(1)
        run.step("fails", lambda _: 7, "x")
        run.emit(2)
    assert [one.value for one in agent.runs.watch("r")] == [1, 2]


def test_a_completed_run_is_replayed_and_does_nothing_more(agent: Tenuto, world: World) -> None:
    assert resumed(agent, steps(world, "a", "b")) == ["a done", "b done"]
    with agent.run("r") as run:
        assert str(run).startswith("replaying r (2 steps reused")
        assert steps(world, "a", "b")(run) == ["a done", "b done"]
        assert run.resumed
    with pytest.raises(StepMismatch, match="is completed"):
        resumed(agent, steps(world, "a", "b", "c"))
    with pytest.raises(StepMismatch, match="'b'"):
        resumed(agent, steps(world, "a"))
    assert world.names == ["a", "b"]
    assert agent.runs.get("r").status == "completed"
    assert agent.runs.get("r").result == ["a done", "b done"]


def test_an_error_that_was_handled_is_raised_again_in_a_completed_run(agent: Tenuto) -> None:
    def body(run: Any) -> str:
        try:
            run.step("fails", int, "x")
        except ValueError as error:
            return str(error)
        return ""

    assert resumed(agent, body) == resumed(agent, body) != ""


# -- several at once ------------------------------------------------------------------------------------------------


@pytest.mark.races
def test_a_map_runs_some_at_once_and_returns_results_in_order(agent: Tenuto) -> None:
    together, most = [], []

    def item(n: int) -> int:
        together.append(n)
        most.append(len(together))
        barrier.wait(10) if n < 3 else None
        together.remove(n)
        return n * n

    barrier = threading.Barrier(3)
    with agent.run("r") as run:
        assert run.map("square", item, range(10), concurrency=3) == [n * n for n in range(10)]
    assert 3 <= max(most) <= 3
    assert len(agent.runs.get("r").steps) == 10
    with agent.run("none") as run:
        assert run.map("square", item, []) == []
        with pytest.raises(InvalidInput):
            run.map("square", item, [1], concurrency=0)
        with pytest.raises(InvalidInput):
            run.map("square", item, [1], on_error="ignore")  # type: ignore[arg-type]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_map_that_was_cut_off_repeats_only_what_was_in_flight(agent: Tenuto, world: World, concurrency: int) -> None:
    def body(run: Any) -> list[str]:
        return run.map("review", world.do, [f"file-{n}" for n in range(50)], concurrency=concurrency)

    world.dies["file-30"] = 1
    with pytest.raises(Killed), agent.run("r") as run:
        body(run)
    assert resumed(agent, body) == [f"file-{n} done" for n in range(50)]
    repeated = [name for name in set(world.names) if world.count(name) > 1]
    assert repeated == ["file-30"]
    assert [s.name for s in agent.runs.get("r").steps if s.repeated_in_doubt] == ["review"]


def test_a_map_raises_the_first_error_or_keeps_them(agent: Tenuto) -> None:
    def item(n: int) -> int:
        if n % 4 == 3:
            raise ValueError(f"item {n}")
        return n

    with agent.run("keep") as run:
        found = run.map("some", item, range(8), on_error="keep", concurrency=2)
    assert found[:3] == [0, 1, 2]
    assert [str(one) for one in found if isinstance(one, Exception)] == ["item 3", "item 7"]
    with pytest.raises(ValueError, match="item 3"), agent.run("raise") as run:
        run.map("some", item, range(8), concurrency=1)
    assert len(agent.runs.get("raise").steps) == 4  # what comes behind the error was not begun
    with agent.run("raise") as run:
        assert run.map("some", lambda n: n * 10, range(8), concurrency=1) == [0, 1, 2, 30, 40, 50, 60, 70]


@pytest.mark.races
def test_steps_from_threads_are_found_again_in_any_order(agent: Tenuto, world: World) -> None:
    def body(order: list[str]) -> Callable[[Any], dict[str, str]]:
        def run_it(run: Any) -> dict[str, str]:
            found: dict[str, str] = {}
            for name in order:
                one = threading.Thread(target=lambda n=name: found.update({n: run.step(n, world.do, n)}))
                one.start()
                one.join()
            return found

        return run_it

    killed(agent, body(["a", "b", "c"]))
    assert resumed(agent, body(["c", "a", "b", "d"])) == {n: f"{n} done" for n in "abcd"}
    assert sorted(world.names) == ["a", "b", "c", "d"]


@pytest.mark.races
def test_a_step_beside_others_that_was_renamed_is_not_run_again(agent: Tenuto, world: World) -> None:
    def body(name: str) -> Callable[[Any], None]:
        def run_it(run: Any) -> None:
            problem: list[BaseException] = []

            def go() -> None:
                try:
                    run.step(name, world.do, "charge")
                except StepMismatch as error:
                    problem.append(error)

            one = threading.Thread(target=go)
            one.start()
            one.join()
            if problem:
                raise problem[0]

        return run_it

    killed(agent, body("charge"))
    with pytest.raises(StepMismatch, match="'charge' is recorded"):
        resumed(agent, body("charge_card"))
    assert world.count("charge") == 1


# -- around it ------------------------------------------------------------------------------------------------------


def test_a_run_is_used_inside_of_with(agent: Tenuto) -> None:
    run = agent.run("r")
    with pytest.raises(Closed, match="with"):
        run.step("a", lambda: 1)
    with run:
        with pytest.raises(InvalidInput, match="already opened"):
            run.__enter__()
    with pytest.raises(Closed):
        run.step("a", lambda: 1)


def test_an_interrupt_leaves_the_run_interrupted_and_free(agent: Tenuto, world: World) -> None:
    with pytest.raises(KeyboardInterrupt), agent.run("r") as run:
        run.step("a", world.do, "a")
        raise KeyboardInterrupt
    assert agent.runs.get("r").status == "interrupted"
    assert resumed(agent, steps(world, "a", "b"), wait=0) == ["a done", "b done"]


def test_somebody_else_who_has_the_run_is_waited_for(client: Callable[..., Tenuto]) -> None:
    one, two = client("one"), client("two")
    with one.run("r"), pytest.raises(RunBusy, match="one"), two.run("r", wait=0):
        pass
    with two.run("r2"):
        with pytest.raises(RunBusy, match="already open in this process"), two.run("r2"):
            pass


@pytest.mark.races
def test_a_run_inside_of_another_knows_whose_it_is(agent: Tenuto) -> None:
    with agent.run("parent", user="u-1") as run:
        assert tenuto.current_run() is run
        with agent.run("child") as child:
            assert tenuto.current_run() is child
            child.step("a", lambda: 1)
        assert run.step("inner", lambda: tenuto.current_run().id) == "parent"
        seen: list[Any] = []
        import contextvars

        one = threading.Thread(target=contextvars.copy_context().run, args=(lambda: seen.append(tenuto.current_run()),))
        one.start()
        one.join()
        assert seen == [run]
    assert tenuto.current_run() is None
    info = agent.runs.get("child")
    assert (info.parent, info.user) == ("parent", "u-1")


def test_a_run_of_another_user_is_not_taken(agent: Tenuto) -> None:
    with agent.run("r", user="ann"):
        pass
    with pytest.raises(tenuto.Conflict, match="'ann'"), agent.run("r", user="bob"):
        pass


def test_an_unstorable_result_of_a_run_fails_it_and_keeps_its_steps(agent: Tenuto, world: World) -> None:
    with pytest.raises(tenuto.NotStorable), agent.run("r") as run:
        run.step("a", world.do, "a")
        run.result = threading.Lock()
    assert agent.runs.get("r").status == "failed"
    resumed(agent, steps(world, "a"))
    assert world.count("a") == 1


def test_an_error_of_the_body_is_on_record(agent: Tenuto) -> None:
    class Strange(Exception):
        pass

    with pytest.raises(Strange), agent.run("r"):
        raise Strange("what")
    error = agent.runs.get("r").error
    assert error is not None
    assert (error.type.rpartition(".")[2], error.message) == ("Strange", "what")
    with pytest.raises(StepFailed, match="Strange"), agent.run("r2") as run:

        def fails() -> None:
            raise Strange("again")

        run.step("fails", fails)
