"""Once: one execution, one result, for everybody; doubt is never hidden."""

import threading
from dataclasses import dataclass

import pytest

from tenuto import Happened, InDoubt, InvalidInput, NotHappened, RunBusy, Tenuto, Unknown


class Died(BaseException):
    """The process ends here: nothing more is written."""


def dies_in(agent, key, fn, *args):
    """Begin it, and die while the function runs: the intent is on record, and no result."""

    def dying():
        fn(*args)
        raise Died

    with pytest.raises(Died):
        agent.once(key, dying)


def test_it_is_done_once_and_everybody_gets_the_result(agent, client):
    calls = []

    def post(n):
        calls.append(n)
        return {"comment": n}

    assert agent.once("pr-9/comment-31", post, 31) == {"comment": 31}
    assert client("other").once("pr-9/comment-31", post, 31) == {"comment": 31}
    assert agent.once("pr-9/comment-31", post, "other arguments, same key") == {"comment": 31}
    assert calls == [31]
    assert agent.once("pr-9/comment-32", post, 32) == {"comment": 32}
    assert agent.runs.get("once:pr-9/comment-31").status == "completed"


def test_none_is_a_result_too(agent):
    calls = []
    assert agent.once("k", lambda: calls.append(1)) is None
    assert agent.once("k", lambda: calls.append(1)) is None
    assert calls == [1]


def test_a_failure_is_in_doubt_as_in_a_step_with_that_effect(agent, client):
    def fails():
        raise ConnectionError("away")

    with pytest.raises(ConnectionError, match="away"):
        agent.once("k", fails)
    with pytest.raises(InDoubt) as doubt:
        client("other").once("k", lambda: "came")
    agent.inbox.answer(doubt.value.question, NotHappened(), by="ann")
    assert client("other").once("k", lambda: "came") == "came"
    assert agent.once("k", fails) == "came"
    assert agent.runs.get("once:k").steps[0].attempts == 2


def test_a_failure_that_verify_knows_to_be_harmless_is_tried_again(agent):
    def fails():
        raise ConnectionError("away")

    def verify(intent):
        return NotHappened() if intent.error is not None else Unknown()

    for _ in range(2):
        with pytest.raises(ConnectionError, match="away"):
            agent.once("k", fails, verify=verify)
    assert agent.once("k", lambda: "came", verify=verify) == "came"


def test_verify_is_asked_after_a_failure_and_may_know_better(agent):
    asked = []

    def fails():
        raise ConnectionError("the reply was lost")

    def verify(intent):
        asked.append((intent.attempt, intent.error))
        return Happened("it had happened")

    with pytest.raises(ConnectionError):
        agent.once("k", fails, verify=verify)
    assert agent.once("k", fails, verify=verify) == "it had happened"
    assert asked == [(1, "ConnectionError: the reply was lost")]


@pytest.mark.parametrize("answer", [Happened("paid"), NotHappened()])
def test_after_a_crash_verify_decides(agent, answer):
    # given a process that died while it paid
    paid = []
    dies_in(agent, "k", paid.append, 1)
    # when another one asks for the same
    assert agent.once("k", lambda: paid.append(2) or "now", verify=lambda intent: answer) in ("paid", "now")
    # then it is done again only if it was not done
    assert paid == ([1] if isinstance(answer, Happened) else [1, 2])
    assert agent.once("k", lambda: "other") == ("paid" if isinstance(answer, Happened) else "now")


def test_where_nobody_can_say_it_is_in_doubt_and_people_are_asked(agent):
    paid = []
    dies_in(agent, "k", paid.append, 1)
    for verify in (None, lambda intent: Unknown("no access")):
        with pytest.raises(InDoubt) as pause:
            agent.once("k", lambda: paid.append(2), verify=verify)
    assert paid == [1]
    agent.inbox.answer(pause.value.question, Happened("by hand"))
    assert agent.once("k", lambda: paid.append(3)) == "by hand"
    assert paid == [1]


def test_an_error_before_a_crash_does_not_hide_the_doubt(agent):
    # given a first attempt that failed, and a second one that died
    def fails():
        raise OSError("away")

    with pytest.raises(OSError):
        agent.once("k", fails)
    with pytest.raises(InDoubt) as doubt:
        agent.once("k", fails)
    agent.inbox.answer(doubt.value.question, NotHappened())
    dies_in(agent, "k", lambda: None)
    # then the third is not simply made
    with pytest.raises(InDoubt):
        agent.once("k", lambda: "again")


@pytest.mark.parametrize("url", ["volatile:", "store.db"])
def test_threads_that_come_meanwhile_wait_and_get_the_result(url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = Tenuto("tester", url)  # by the machine's clock: who waits by a held one moves it for all
    calls, gate, found = [], threading.Barrier(16), []

    def slow():
        calls.append(threading.get_ident())
        return len(calls)

    def call():
        gate.wait()
        found.append(agent.once("k", slow))

    threads = [threading.Thread(target=call) for _ in range(16)]
    [one.start() for one in threads]
    [one.join() for one in threads]
    agent.close()
    assert found == [1] * 16
    assert len(calls) == 1


def test_a_wait_may_be_limited(agent, client):
    def outer():
        with pytest.raises(RunBusy):
            client("other").once("k", lambda: "inner", wait=0)
        return "outer"

    assert agent.once("k", outer) == "outer"


def test_a_result_has_its_type_again_where_it_is_said(agent):
    @dataclass
    class Ticket:
        number: int

    def buy() -> Ticket:
        return Ticket(7)

    assert agent.once("k", buy) == Ticket(7)
    assert agent.once("k", buy) == Ticket(7)
    assert agent.once("k", buy, schema=dict) == {"number": 7}


def test_once_inside_of_a_step_and_of_a_task(agent):
    calls = []

    def step():
        return agent.once("inner", lambda: calls.append(1) or "x")

    with agent.run("r") as run:
        assert run.step("a", step) == "x"
        assert run.step("b", step) == "x"
    agent.tasks.enqueue("q", 1)
    agent.tasks.work("q", lambda task: step(), until_empty=True, lease="1000h", concurrency=1)
    assert calls == [1]


def test_a_wrong_argument_is_refused(agent):
    for wrong in (("", print), ("k", "no function")):
        with pytest.raises(InvalidInput):
            agent.once(*wrong)
    with pytest.raises(InvalidInput):
        agent.once("k", print, verify="no function")
