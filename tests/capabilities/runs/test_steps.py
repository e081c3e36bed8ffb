"""Steps: on record before and after they happen; what a repeat does is what was declared."""

import dataclasses
import functools
import itertools
import logging
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

import tenuto
from tenuto import (
    AmbiguousStep,
    Happened,
    InDoubt,
    InvalidInput,
    NotHappened,
    NotStorable,
    Paused,
    Retry,
    StepFailed,
    StepMismatch,
    Tenuto,
    TimedOut,
    Unknown,
)
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Backend

from .runs_world import Killed, World, killed, resumed


@pytest.fixture
def world() -> World:
    return World()


def test_a_finished_step_is_not_run_again(client: Callable[..., Tenuto], world: World) -> None:
    def body(run: Any) -> list[str]:
        found = [run.step("a", world.do, "a"), run.step("b", world.do, "b")]
        world.do("end")
        return found

    world.dies["end"] = 1
    killed(client(), body)
    assert resumed(client("another"), body) == ["a done", "b done"]
    assert world.count("a") == world.count("b") == 1


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
def test_a_step_in_doubt_is_run_again_with_the_same_key(
    agent: Tenuto, world: World, effect: Any, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []

    def charge(name: str) -> str:
        seen.append(tenuto.idempotency_key())
        return world.do(name)

    def body(run: Any) -> str:
        return run.step("charge", charge, "charge", effect=effect)

    world.dies["charge"] = 2
    killed(agent, body)
    killed(agent, body)
    with caplog.at_level(logging.WARNING, "tenuto.runs"):
        assert resumed(agent, body) == "charge done"
    assert len(seen) == 3
    assert len(set(seen)) == 1
    step = agent.runs.get("r").steps[0]
    if effect == "idempotent":
        assert (step.attempts, step.repeated_in_doubt, step.status) == (3, 2, "completed")
        assert "is unknown; it runs again" in caplog.text
    else:
        assert (step.repeated_in_doubt, step.status, caplog.text) == (0, "completed", "")


def test_a_once_step_in_doubt_is_not_run_again_and_asks_people(agent: Tenuto, world: World) -> None:
    def body(run: Any) -> str:
        run.step("before", world.do, "before")
        return run.step("charge", world.do, "charge", effect="once")

    world.dies["charge"] = 1
    killed(agent, body)
    for _ in range(2):
        with pytest.raises(InDoubt) as caught:
            resumed(agent, body)
    assert world.count("charge") == 1
    assert agent.runs.get("r").status == "in_doubt"
    assert agent.runs.get("r").steps[1].status == "in_doubt"
    [question] = agent.inbox.list()
    assert question.id == caught.value.question
    assert (question.run, question.step) == ("r", "charge")
    agent.inbox.answer(question.id, Happened("ticket-7"), by="ann")
    assert resumed(agent, body) == "ticket-7"
    assert world.count("charge") == 1
    assert agent.runs.get("r").steps[1].verified
    assert agent.inbox.list() == []


def test_people_may_say_that_it_did_not_happen(agent: Tenuto, world: World) -> None:
    def body(run: Any) -> str:
        return run.step("charge", world.do, "charge", effect="once")

    world.dies["charge"] = 1
    killed(agent, body)
    with pytest.raises(InDoubt) as caught:
        resumed(agent, body)
    agent.inbox.answer(caught.value.question, "not happened")
    assert resumed(agent, body) == "charge done"
    assert world.count("charge") == 2
    # and if that attempt is cut off too, it is a new question
    other = "r2"
    world.dies["charge"] = 1
    killed(agent, body, other)
    with pytest.raises(InDoubt) as first:
        resumed(agent, body, other)
    agent.inbox.answer(first.value.question, NotHappened())
    world.dies["charge"] = 1
    killed(agent, body, other)
    with pytest.raises(InDoubt) as second:
        resumed(agent, body, other)
    assert second.value.question != first.value.question


@pytest.mark.parametrize("effect", ["idempotent", "once"])
@pytest.mark.parametrize(
    ("answer", "value", "charges"),
    [(Happened("found"), "found", 1), (NotHappened(), "charge done", 2), (Unknown("the bank is closed"), None, 1)],
    ids=["happened", "not happened", "unknown"],
)
def test_verify_is_asked_before_a_repeat(
    agent: Tenuto, world: World, effect: Any, answer: Any, value: str | None, charges: int
) -> None:
    asked: list[tenuto.Intent] = []

    def verify(intent: tenuto.Intent) -> Any:
        asked.append(intent)
        return answer

    def body(run: Any) -> str:
        return run.step("charge", world.do, "charge", 30, effect=effect, verify=verify)

    world.dies["charge"] = 1
    killed(agent, body)
    assert asked == []  # never before the first attempt
    if isinstance(answer, Unknown) and effect == "once":
        with pytest.raises(InDoubt, match="the bank is closed"):
            resumed(agent, body)
    elif isinstance(answer, Unknown):
        assert resumed(agent, body) == "charge done"
        charges = 2
    else:
        assert resumed(agent, body) == value
    assert world.count("charge") == charges
    assert [(one.run, one.step, one.args, one.attempt) for one in asked] == [("r", "charge", ("charge", 30), 1)]


def test_verify_that_answers_otherwise_is_told_so(agent: Tenuto, world: World) -> None:
    def body(run: Any) -> str:
        return run.step("charge", world.do, "charge", effect="once", verify=lambda intent: True)

    world.dies["charge"] = 1
    killed(agent, body)
    with pytest.raises(InvalidInput, match="Happened"):
        resumed(agent, body)
    assert world.count("charge") == 1


def test_a_result_comes_back_as_it_was_the_first_time(agent: Tenuto) -> None:
    value = {"t": (1, 2), "s": {3}, "d": Decimal("1.5"), "b": b"x", "n": [None, True, 1.0]}

    def body(run: Any) -> Any:
        first = run.step("give", lambda: value)
        assert first == value
        assert first is not value
        assert type(first["t"]) is tuple
        return first

    assert resumed(agent, body) == resumed(agent, body) == value


@dataclasses.dataclass
class Hit:
    title: str
    score: float


class Struct(msgspec.Struct):
    name: str


class Model(pydantic.BaseModel):
    name: str


def hit() -> Hit:
    return Hit("a", 0.5)


def hits() -> list[Hit]:
    return [Hit("a", 0.5)]


def struct() -> Struct:
    return Struct("a")


def model() -> Model:
    return Model(name="a")


def models() -> list[Model]:
    return [Model(name="a")]


@pytest.mark.parametrize("make", [hit, hits, struct, model, models])
def test_a_result_has_the_type_of_its_annotation(agent: Tenuto, make: Callable[[], Any]) -> None:
    def body(run: Any) -> Any:
        return run.step("make", make)

    with agent.run("r") as run:
        first = body(run)
    with agent.run("r") as run:
        assert body(run) == first == make()
        assert type(first) is type(make())


def test_an_object_without_a_schema_is_a_dict_also_the_first_time(agent: Tenuto) -> None:
    def body(run: Any) -> Any:
        return run.step("make", lambda: Hit("a", 0.5))

    assert resumed(agent, body) == resumed(agent, body) == {"title": "a", "score": 0.5}


def test_a_schema_makes_an_object_of_plain_data_and_a_wrong_one_loses_nothing(agent: Tenuto, world: World) -> None:
    def paid() -> dict[str, Any]:
        world.do("paid")
        return {"title": "a", "score": 1}

    with pytest.raises(InvalidInput, match="not a valid Struct"), agent.run("r") as run:
        run.step("make", paid, schema=Struct)
    with agent.run("r") as run:
        assert run.step("make", paid, schema=Hit) == Hit("a", 1)
    assert world.count("paid") == 1


def test_a_result_without_a_stored_form_is_kept_as_text(agent: Tenuto, world: World) -> None:
    def body(run: Any, effect: str) -> Any:
        world.do("paid")
        return run.step("open", threading.Lock, effect=effect)

    for effect in ("once", "idempotent"):
        for _ in range(2):
            with pytest.raises(NotStorable, match="has its repr"), agent.run(effect) as run:
                body(run, effect)
        [step] = agent.runs.get(effect).steps
        assert "lock" in step.result
        assert step.attempts == (1 if effect == "once" else 2)
        assert agent.runs.get(effect).status == "failed"


@pytest.mark.slow
def test_a_large_result_is_held_apart_and_comes_back(agent: Tenuto, check_nothing_left: Callable[..., None]) -> None:
    pages = ["p" * 100_000, b"b" * 200_000]
    small_parts = {str(n): [n] * 20 for n in range(60_000)}  # many small parts, over the limit of a line

    def body(run: Any) -> Any:
        found = run.step("read", lambda: {"pages": pages, "text": "t" * 70_000})
        return found, run.step("many", lambda: small_parts)

    with agent.run("r") as run:
        first = body(run)
    assert first[0]["pages"] == pages
    with agent.run("r") as run:
        assert body(run) == first
    assert agent.runs.get("r").steps[1].result == small_parts
    agent.runs.delete("r")
    check_nothing_left(agent)


# -- errors ---------------------------------------------------------------------------------------------------------


class Odd(Exception):
    """An application's error."""


@tenuto.register
class Declined(Exception):
    """A registered one."""


def raises(error: Exception) -> Callable[..., Any]:
    def fn(*_: Any) -> None:
        raise error

    return fn


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no"), ValueError),
        (TimeoutError("late"), TimeoutError),
        (KeyError("k"), KeyError),
        (Declined("no money", 7), Declined),
        (Odd("what"), StepFailed),
        (StopIteration(3), StepFailed),
        (tenuto.NotFound("gone"), tenuto.NotFound),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_an_error_that_was_handled_is_raised_again(agent: Tenuto, error: Exception, kind: type) -> None:
    seen = []

    def body(run: Any) -> None:
        try:
            run.step("try", raises(error))
        except Exception as caught:
            seen.append(caught)
        run.step("after", lambda: 1)
        raise Killed

    killed(agent, body)
    killed(agent, body)
    assert [type(one) for one in seen] == [kind, kind]
    if kind is not StepFailed:
        assert seen[0].args == seen[1].args == error.args
    else:
        assert seen[0].type == seen[1].type == type(error).__name__
    assert agent.runs.get("r").steps[0].status == "failed"


def test_an_error_that_left_the_run_is_no_result(agent: Tenuto, world: World) -> None:
    fails = [ValueError("first"), None]

    def flaky() -> str:
        error = fails.pop(0)
        if error:
            raise error
        return "fine"

    def body(run: Any) -> str:
        run.step("before", world.do, "before")
        return run.step("flaky", flaky)

    with pytest.raises(ValueError, match="first"):
        resumed(agent, body)
    run = agent.runs.get("r")
    assert (run.status, str(run.error)) == ("failed", "ValueError: first")
    assert resumed(agent, body) == "fine"
    assert world.count("before") == 1
    assert agent.runs.get("r").steps[1].attempts == 2


def test_a_once_step_that_raised_is_in_doubt_on_the_next_call(agent: Tenuto) -> None:
    def body(run: Any) -> None:
        run.step("charge", raises(ConnectionError("cut off")), effect="once")

    with pytest.raises(ConnectionError):
        resumed(agent, body)
    with pytest.raises(InDoubt):
        resumed(agent, body)
    assert "ConnectionError: cut off" in agent.inbox.list()[0].text


# -- retries --------------------------------------------------------------------------------------------------------


def test_attempts_wait_longer_each_time_and_their_count_survives(agent: Tenuto, clock: Any) -> None:
    tries = []

    def flaky() -> str:
        tries.append(clock.time())
        if len(tries) == 3:
            raise Killed
        if len(tries) < 5:
            raise TimeoutError(f"try {len(tries)}")
        return "fine"

    def body(run: Any) -> str:
        return run.step("flaky", flaky, retry=Retry(attempts=5, first=1.0, factor=2.0, on=(TimeoutError,)))

    killed(agent, body)
    assert [round(b - a, 3) for a, b in itertools.pairwise(tries)] == [1.0, 2.0]
    assert resumed(agent, body) == "fine"  # its fourth attempt fails, its fifth is the last
    assert agent.runs.get("r").steps[0].attempts == 5
    assert round(tries[4] - tries[3], 3) == 8.0


@pytest.mark.parametrize("effect", ["pure", "idempotent"])
def test_after_the_last_attempt_the_error_is_raised(agent: Tenuto, effect: Any) -> None:
    tries = []

    def fails() -> None:
        tries.append(1)
        raise ValueError(f"try {len(tries)}")

    with pytest.raises(ValueError, match="try 3"), agent.run("r") as run:
        run.step("fails", fails, effect=effect, retry=Retry(attempts=3, first=0.01))
    with pytest.raises(ZeroDivisionError), agent.run("r2") as run:
        run.step("fails", lambda: 1 / 0, effect=effect, retry=Retry(attempts=3, on=(ValueError,)))
    assert agent.runs.get("r").steps[0].attempts == 3
    assert agent.runs.get("r2").steps[0].attempts == 1


def test_a_once_step_is_retried_if_verify_says_that_it_did_not_happen(agent: Tenuto) -> None:
    tries = []

    def fails() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise TimeoutError
        return "fine"

    with agent.run("r") as run:
        options: Any = {"effect": "once", "retry": Retry(first=0.01)}
        assert run.step("fails", fails, verify=lambda intent: NotHappened(), **options) == "fine"
    assert len(tries) == 3
    tries.clear()
    with agent.run("r2") as run:
        assert run.step("fails", fails, verify=lambda intent: Happened("found"), **options) == "found"
    assert len(tries) == 1


def test_a_step_that_takes_too_long_is_left_behind(agent: Tenuto) -> None:
    release = threading.Event()
    with pytest.raises(TimedOut, match="may still happen"), agent.run("r") as run:
        run.step("slow", release.wait, timeout=0.05)
    release.set()
    assert isinstance(TimedOut("x"), TimeoutError)
    with agent.run("r") as run:
        assert run.step("slow", lambda: True, timeout=5) is True


@pytest.mark.parametrize(
    "wrong",
    [
        {"effect": "sometimes"},
        {"retry": 5},
        {"verify": "yes"},
        {"key": ""},
        {"timeout": "soon"},
    ],
)
def test_wrong_options_are_refused_and_nothing_runs(agent: Tenuto, world: World, wrong: Any) -> None:
    with pytest.raises(InvalidInput), agent.run("r") as run:
        run.step("a", world.do, "a", **wrong)
    assert world.calls == []
    with pytest.raises(InvalidInput):
        Retry(attempts=0)


# -- arguments ------------------------------------------------------------------------------------------------------


def test_arguments_that_changed_are_named(agent: Tenuto, world: World) -> None:
    def body(run: Any, city: str) -> None:
        run.step("search", world.do, "search", {"city": city, "days": [1, 2]})
        raise Killed

    killed(agent, lambda run: body(run, "Lisbon"))
    with pytest.raises(StepMismatch, match=r"\['city'\]: 'Lisbon' became 'Porto'") as caught:
        resumed(agent, lambda run: body(run, "Porto"))
    assert caught.value.step == "search"
    assert world.count("search") == 1


def test_with_a_key_arguments_do_not_count_and_are_not_stored(agent: Tenuto, backend: Backend, world: World) -> None:
    def body(run: Any, prompt: str, order: str) -> list[str]:
        return [run.step("ask", world.do, prompt, object(), key=path) for path in order]

    killed(agent, lambda run: [body(run, "first prompt", "ab"), world.dies.update(end=1), world.do("end")])
    with agent.run("r") as run:
        got = body(run, "edited prompt", "bca")
    assert got == ["first prompt done", "edited prompt done", "first prompt done"]
    assert all(step.args is None for step in agent.runs.get("r").steps)


def test_what_a_partial_has_bound_counts(agent: Tenuto, world: World) -> None:
    def call(run: Any, **bound: Any) -> None:
        run.step("ask", functools.partial(lambda name, **rest: world.do(name), "ask", **bound))
        raise Killed

    killed(agent, lambda run: call(run, model="m1"))
    killed(agent, lambda run: call(run, model="m1"))
    with pytest.raises(StepMismatch, match="m2"):
        resumed(agent, lambda run: call(run, model="m2"))
    assert world.count("ask") == 1


def test_arguments_without_a_stored_form_need_a_key(agent: Tenuto, world: World) -> None:
    with pytest.raises(NotStorable, match="key="), agent.run("r") as run:
        run.step("ask", world.do, "ask", threading.Lock())
    assert world.calls == []


def test_a_secret_is_stored_nowhere_and_counts(agent: Tenuto, backend: Backend) -> None:
    got = []

    def body(run: Any, word: str) -> None:
        run.step("call", got.append, [{"token": tenuto.secret(word)}])
        raise Killed

    killed(agent, lambda run: body(run, "hunter2-hunter2"))
    killed(agent, lambda run: body(run, "hunter2-hunter2"))
    assert got == [[{"token": "hunter2-hunter2"}]]
    with agent.run("bound") as run:
        run.step("bound", functools.partial(got.append, tenuto.secret("hunter2-bound")))
    assert got[1] == "hunter2-bound"
    with pytest.raises(StepMismatch) as caught:
        resumed(agent, lambda run: body(run, "another"))
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in repr(tenuto.secret("hunter2"))
    stored = b"".join(entry.value for entry in agent.kernel.entries(codec_stream("r"), limit=1_000))
    assert b"hunter2" not in stored


def codec_stream(run_id: str) -> bytes:
    return keys.pack(run_id, "run")


def test_large_arguments_are_kept_as_their_size_and_how_they_begin(agent: Tenuto) -> None:
    conversation = [{"role": "user", "content": "x" * 90} for _ in range(100)]

    def body(run: Any, said: str) -> None:
        run.step("model", len, [*conversation, {"role": "user", "content": said}])
        raise Killed

    killed(agent, lambda run: body(run, "a"))
    killed(agent, lambda run: body(run, "a"))
    with pytest.raises(StepMismatch, match=r"1.,... bytes that begin"):
        resumed(agent, lambda run: body(run, "b"))
    assert len(agent.runs.get("r").steps[0].args) <= 200


def test_a_loop_over_a_growing_conversation_stores_what_is_new(agent: Tenuto) -> None:
    messages: list[dict[str, str]] = []
    with agent.run("r") as run:
        for turn in range(200):
            messages.append({"role": "user", "content": f"{turn} " + "u" * 400})
            messages.append(run.step("model", lambda seen: {"role": "assistant", "content": "a" * 600}, messages))
    new = len(codec.encode(messages))
    stored = sum(len(entry.value) for entry in agent.kernel.entries(codec_stream("r"), limit=10_000))
    assert stored < 3 * new


# -- shape ----------------------------------------------------------------------------------------------------------


def test_a_pause_is_no_exception() -> None:
    assert not issubclass(Paused, Exception)
    assert issubclass(InDoubt, Paused)
    assert issubclass(tenuto.Waiting, Paused)


def test_a_step_inside_of_a_step_is_refused(agent: Tenuto) -> None:
    with pytest.raises(InvalidInput, match="inside a step"), agent.run("r") as run:
        run.step("outer", lambda: run.step("inner", lambda: 1))


@pytest.mark.races
def test_two_steps_of_one_name_in_flight_are_refused_at_once(agent: Tenuto) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        release.wait(10)

    with agent.run("r") as run:
        first = threading.Thread(target=run.step, args=("slow", slow))
        first.start()
        begun.wait(10)
        with pytest.raises(AmbiguousStep, match=r"run\.map"):
            run.step("slow", slow)
        with pytest.raises(AmbiguousStep):
            run.step("slow", slow, key=None)
        release.set()
        first.join()
        run.step("slow", lambda: None, key="other")


def test_there_is_no_idempotency_key_outside_of_a_step() -> None:
    with pytest.raises(InvalidInput, match="inside a step"):
        tenuto.idempotency_key()


def test_a_coroutine_function_is_refused_in_a_blocking_run(agent: Tenuto) -> None:
    async def later() -> None: ...

    with pytest.raises(TypeError, match="AsyncTenuto"), agent.run("r") as run:
        run.step("later", later)
    with pytest.raises(TypeError, match="AsyncTenuto"):

        @agent.durable
        async def job(run: Any) -> None: ...


def test_usage_is_recorded_with_its_step_and_shown_as_saved(agent: Tenuto) -> None:
    def model(run: Any) -> str:
        run.usage("large", input_tokens=1_000, output_tokens=20, cost=0.03)
        return "text"

    def body(run: Any) -> None:
        run.step("model", lambda: model(run))
        raise Killed

    killed(agent, body)
    with agent.run("r") as run:
        assert str(run).startswith("resuming r after model (1 step reused, $0.03 saved)")
        assert (run.resumed, run.reused) == (True, 1)
        run.step("model", lambda: model(run))
        run.usage("small", cost=0.01)
    assert agent.runs.get("r").cost == pytest.approx(0.04)
