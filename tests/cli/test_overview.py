"""Where attention is needed: the overview of runs, their counts, their history, and what changes."""

from collections.abc import Callable

import pytest

import tenuto
from tenuto import InvalidInput, NotFound, Tenuto
from tenuto.capabilities.audits import AuditFinding, AuditSummary
from tenuto.kernel.durations import moment
from tenuto.operations import OPERATIONS, called
from tenuto.testing import HeldClock


def do(agent: Tenuto, name: str, **given: object) -> object:
    operation = OPERATIONS[name]
    return called(operation, agent, {**{one.name: one.default for one in operation.parameters}, **given})


@pytest.fixture
def filled(client: Callable[..., Tenuto], clock: HeldClock) -> Tenuto:
    agent = client()
    for number in range(3):
        with agent.run(f"done-{number}", user="ann") as run:
            run.step("work", lambda: clock.advance(10))
    for kind in (ValueError, OSError):
        with (
            pytest.raises(tenuto.StepFailed if kind is ValueError else kind),
            agent.run(f"failed-{kind.__name__}") as run,
        ):
            run.step("first", int)
            run.step("second", _raise, kind.__name__, key="k")
        clock.advance(86_400)
    with pytest.raises(tenuto.Waiting), agent.run("asks") as run:
        run.ask("May I?")
    return agent


class Own(Exception):
    pass


def _raise(kind: str) -> None:
    raise Own("out of paper") if kind == "ValueError" else OSError("out of paper")


def test_what_waits_on_a_person_comes_first_then_what_failed(filled: Tenuto) -> None:
    rows = do(filled, "runs overview")
    assert [row.id for row in rows] == ["asks", "failed-OSError", "failed-ValueError", "done-2", "done-1", "done-0"]
    assert [row.attention for row in rows[:4]] == ["person", "failed", "failed", None]
    assert (rows[0].question, rows[0].asks) == (filled.inbox.list()[0].id, "May I?")
    assert (rows[1].step, rows[1].done, rows[1].steps, rows[1].error) == ("second", 1, 2, "OSError: out of paper")
    assert rows[2].error == "Own: out of paper", "the error of the step, not the one that wraps it"


def test_the_overview_is_filtered_and_paged(filled: Tenuto) -> None:
    assert [row.id for row in do(filled, "runs overview", search="ANN")] == ["done-2", "done-1", "done-0"]
    assert [row.id for row in do(filled, "runs overview", status="person")] == ["asks"]
    yesterday = do(filled, "runs overview", since="36h", before="12h")
    assert [row.id for row in yesterday] == ["failed-OSError"]
    first = do(filled, "runs overview", limit=2)
    assert [row.id for row in do(filled, "runs overview", limit=2, after=first[-1].id)] == [
        "failed-ValueError",
        "done-2",
    ]
    assert first.more == 4
    with pytest.raises(InvalidInput, match="status must be one of person"):
        do(filled, "runs overview", status="broken")


def test_an_answered_question_no_longer_waits_on_a_person(filled: Tenuto) -> None:
    assert do(filled, "runs counts") == (1, 0, 0, 1, 0, 0, 2, 3, 0)
    filled.inbox.answer(filled.inbox.list()[0].id, "yes")
    assert do(filled, "runs counts") == (0, 0, 0, 1, 0, 0, 2, 3, 0)
    assert do(filled, "runs overview")[0].id == "failed-OSError"


def test_the_history_of_a_run_says_who_wrote_what(client: Callable[..., Tenuto]) -> None:
    agent = client("booker")
    keys = []
    with agent.correlation("req-1"), agent.run("trip") as run:
        run.step("same", lambda: keys.append(tenuto.idempotency_key()))
        run.step("same", lambda: keys.append(tenuto.idempotency_key()))
        run.step("keyed", lambda: keys.append(tenuto.idempotency_key()), key="k")
    events = do(agent, "runs history", run="trip")
    assert [(one.what, one.step) for one in events] == [
        ("started", None), ("intent", "same"), ("result", "same"), ("intent", "same"), ("result", "same"),
        ("intent", "keyed"), ("result", "keyed"), ("completed", None),
    ]  # fmt: skip
    assert {(one.writer, one.correlation_id) for one in events} == {("booker", "req-1")}
    assert [one.what for one in do(agent, "runs history", run="trip", after=events[-2].number)] == ["completed"]
    assert [one.idempotency_key for one in agent.runs.get("trip").steps] == keys
    with pytest.raises(NotFound):
        do(agent, "runs history", run="another")


def test_a_run_is_followed_from_a_number_on(client: Callable[..., Tenuto]) -> None:
    agent = client()
    with agent.run("trip") as run:
        run.step("one", int)
    found = list(do(agent, "runs follow", run="trip", after=0, timeout="0s"))
    assert [one.what for one in found] == ["started", "intent", "result", "completed"]
    assert [one.what for one in do(agent, "runs follow", run="trip", after=found[1].number, timeout="0s")] == [
        "result",
        "completed",
    ]
    assert list(do(agent, "runs follow", run="trip", timeout="0s")) == []


def test_a_watch_sees_runs_and_questions_change(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    agent = client()
    watch = do(agent, "watch", timeout="10s")
    stream = watch.stream
    next(stream)  # it has looked, and pauses
    with pytest.raises(tenuto.Waiting), agent.run("asks") as run:
        run.ask("May I?")
    asked = agent.inbox.list()[0].id
    clock.advance(1)
    assert {(one.value.kind, one.value.id, one.value.status) for one in (next(stream), next(stream))} == {
        ("run", "asks", "waiting"), ("question", asked, "pending"),
    }  # fmt: skip
    next(stream)
    agent.inbox.answer(asked, "yes")
    clock.advance(1)
    closed = next(stream).value
    assert (closed.kind, closed.id, closed.status) in {("question", asked, "closed"), ("run", "asks", "waiting")}
    stream.close()
    again = do(agent, "watch", after=closed.number - 2_000, timeout="0s")
    assert [one.id for one in again if one.kind == "run"] == ["asks"]


# -- what the other pages of the inspector read ------------------------------------------------


def test_a_part_of_a_thread_is_read_with_its_numbers(client: Callable[..., Tenuto]) -> None:
    agent = client()
    thread = agent.thread("t")
    thread.append(*({"role": "user", "content": str(number)} for number in range(1, 8)))
    thread.decide("stop")
    thread.compact(lambda messages: f"{len(messages)} earlier", keep_last=2)
    assert [(one.number, one.message["content"]) for one in do(agent, "thread read", thread="t", after=2, limit=3)] == [
        (3, "3"), (4, "4"), (5, "5"),
    ]  # fmt: skip
    assert do(agent, "thread read", thread="t", after=7) == []
    assert do(agent, "thread info", thread="t") == ("t", 7, 1, 0)


def test_threads_are_listed_with_their_last_message(client: Callable[..., Tenuto]) -> None:
    agent = client()
    agent.thread("a", user="ann").append(
        {"role": "user", "content": "first"}, {"role": "assistant", "content": "x" * 500}
    )
    agent.thread("b").append({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "look"}, "here"]})
    agent.thread("c").append({"type": "reasoning", "content": {"odd": 1}})
    rows = do(agent, "thread overview")
    assert [(one.id, one.user, one.messages, one.role, one.last) for one in rows] == [
        ("a", "ann", 2, "assistant", "x" * 200), ("b", None, 1, "user", "look here"), ("c", None, 1, None, None),
    ]  # fmt: skip
    assert [one.id for one in do(agent, "thread overview", limit=1, after="a")] == ["b"]
    assert [one.id for one in do(agent, "thread overview", user="ann")] == ["a"]


def test_audits_are_kept_for_a_year_newest_first(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    agent = client()
    assert do(agent, "audit list") == []
    for failed in (3, 1):
        at = moment(agent.kernel.now())
        agent.audits.record(
            AuditSummary(
                at, "s", "store", 1.0, "1", {"failed": failed}, [AuditFinding("T001", "failed", "low", "t", "e")]
            )
        )
        clock.advance(300 * 86_400)
    assert [one.counts["failed"] for one in do(agent, "audit list")] == [1]
    last = agent.audits.last()
    assert last is not None
    assert agent.audits.list(1) == [last]
    with pytest.raises(InvalidInput):
        agent.audits.list(0)


def test_a_preview_of_a_context_stores_nothing(client: Callable[..., Tenuto]) -> None:
    agent = client()
    agent.thread("t").append(*({"role": "user", "content": f"{number} " + "word " * 200} for number in range(40)))
    agent.memory.remember("Ann likes tea", user="ann")
    before = [(one.key, one.version) for one in agent.kernel.scan(b"", limit=1_000)]
    shown = do(agent, "thread context", thread="t", user="ann", query="tea", budget=2_000)
    assert [(one.key, one.version) for one in agent.kernel.scan(b"", limit=1_000)] == before
    assert shown.left_out
    assert any("tea" in part.why for part in shown.parts)
    built = agent.build_context("t", user="ann", query="tea", budget=2_000)
    assert (built.messages, built.tokens) == (shown.messages, shown.tokens), "the preview is what is built then"
    assert [(one.key, one.version) for one in agent.kernel.scan(b"", limit=1_000)] != before


def test_the_history_of_a_key_shows_where_it_changed(client: Callable[..., Tenuto]) -> None:
    agent = client()
    for state in ({"a": {"b": [1]}}, {"a": {"b": [1]}, "c": 1}, {"a": {"b": [2]}}, {"a": {}}):
        agent.checkpoint.create("s", state, thread="t")
    found = do(agent, "checkpoint history", key="a/b/0", thread="t")
    assert [(one.checkpoint, one.present, one.value) for one in found] == [
        ("t@4", False, None), ("t@3", True, 2), ("t@1", True, 1),
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match="--thread or --name"):
        do(agent, "checkpoint history", key="a")


def test_memories_that_say_almost_the_same_are_found(client: Callable[..., Tenuto]) -> None:
    agent = client()
    texts = ("Ann prefers aisle seats on flights", "Ann prefers aisle seats on long flights", "Ben likes tea")
    for text in texts:
        agent.memory.remember(text)
    (pair,) = do(agent, "memory duplicates")
    assert {pair.first.text, pair.second.text} == set(texts[:2])
    assert pair.share == 0.86
    assert do(agent, "memory duplicates", share=0.9) == []


def test_queues_and_who_works_on_them(client: Callable[..., Tenuto]) -> None:
    agent = client("shop")
    for queue in ("b", "a", "a"):
        agent.tasks.enqueue(queue, 1)
    task = agent.tasks.claim("a")
    assert task is not None
    assert do(agent, "tasks queues") == [("a", 1, 0, 1, 0), ("b", 1, 0, 0, 0)]
    with agent.run("trip"):
        rows = do(agent, "workers")
    assert {(one.kind, one.id, one.what) for one in rows} == {("run", "trip", None), ("task", task.id, "a")}
    assert all(one.by.startswith("shop") for one in rows)
    task.complete()
    assert do(agent, "workers") == []
