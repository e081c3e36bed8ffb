"""Taking the last message back, and reading only what is new: what sessions of frameworks stand on."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto import Tenuto
from tenuto.testing import HeldClock


def said(n: int) -> dict[str, Any]:
    return {"role": "user", "content": str(n)}


def test_the_last_message_is_no_longer_read_and_stays_in_the_log(agent: Tenuto) -> None:
    t = agent.thread("t")
    assert t.take_back() is None
    t.append(said(1), said(2), said(3))
    assert t.take_back() == said(3)
    assert t.messages() == [said(1), said(2)]
    assert t.messages(last=2) == [said(1), said(2)]
    assert (t.count(), t.messages(original=True)) == (3, [said(1), said(2), said(3)])
    t.append(said(4))
    assert t.messages(last=2) == [said(2), said(4)]
    assert [t.take_back() for _ in range(4)] == [said(4), said(2), said(1), None]
    assert t.messages() == []


def test_what_was_taken_back_is_not_repaired_and_stays_taken_back(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(said(1), {"type": "function_call", "call_id": "a", "name": "pay", "arguments": "{}"})
    t.take_back()
    assert t.repair() == []
    t.append({"type": "function_call", "call_id": "b", "name": "pay", "arguments": "{}"})
    assert [note.call_id for note in t.repair()] == ["b"]
    assert [m.get("call_id") for m in t.messages()] == [None, "b", "b"]
    assert t.take_back()["call_id"] == "b"  # the result that was put in
    assert [m.get("call_id") for m in t.messages()] == [None, "b"]
    t.repair()
    assert [m.get("call_id") for m in t.messages()] == [None, "b", "b"]


def test_something_may_be_read_instead_and_a_message_be_passed_over(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append({"role": "user", "content": "two parts"}, {"note": "of somebody else"})
    taken = t.take_back(lambda m: [{"role": "user", "content": "one part"}] if "role" in m else None)
    assert taken == {"role": "user", "content": "two parts"}
    assert t.messages() == [{"role": "user", "content": "one part"}, {"note": "of somebody else"}]
    assert t.take_back(lambda m: None) is None


def test_a_fork_and_a_summary_know_what_was_taken_back(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(*map(said, range(1, 6)))
    t.take_back()
    assert t.fork("other").messages() == list(map(said, range(1, 5)))
    given_to: list[Any] = []
    t.compact(lambda messages: given_to.extend(messages) or "all of it", keep_last=0)
    assert given_to == list(map(said, range(1, 5)))
    assert t.take_back() is None, "what was summarised is not taken apart"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-1, 4), max_size=25))
def test_pops_and_appends_are_those_of_a_list(script: list[int]) -> None:
    t, model, n = Tenuto("tester", "volatile:").thread("t"), [], 0
    for size in script:
        if size < 0:
            assert t.take_back() == (model.pop() if model else None)
        elif size:
            new = [said(n + at) for at in range(size)]
            n += size
            t.append(*new)
            model += new
        assert t.messages() == model
        for last in range(4):
            assert t.messages(last=last) == model[len(model) - min(last, len(model)) :]


def test_news_are_read_alone_unless_the_past_is_read_otherwise_now(client: Callable[..., Tenuto]) -> None:
    t, rival = client().thread("t"), client().thread("t")
    assert t.news(None) == (None, [], True)
    t.append(*map(said, range(50)))
    first = t.news(None)
    assert (first.goes_on, first.messages) == (False, t.messages())
    rival.append(said(50))
    rival.decide("something")
    more = t.news(first.seen)
    assert (more.goes_on, more.messages) == (True, [said(50)])
    assert t.news(more.seen) == (more.seen, [], True)
    rival.append(*map(said, range(51, 90)))
    assert t.news(more.seen).messages == list(map(said, range(51, 90)))
    rival.take_back()
    after = t.news(more.seen)
    assert (after.goes_on, after.messages) == (False, t.messages())
    rival.delete()
    assert t.news(after.seen) == (None, [], False)
    rival.append(said(1))
    assert t.news(after.seen)[1:] == ([said(1)], False)
    one = t.news(None)
    rival.delete()
    rival.append(said(2), said(3))
    assert t.news(one.seen)[1:] == ([said(2), said(3)], False), "it is another conversation now"


def test_news_of_a_thread_whose_time_is_over(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    t = client().thread("t", ttl="1h")
    t.append(said(1))
    seen = t.news(None).seen
    clock.advance(3_000)
    assert t.news(seen) == (seen, [], True)
    clock.advance(700)
    assert t.news(seen) == (None, [], False)
    t.append(said(2))
    assert t.news(seen)[1:] == ([said(2)], False)


@pytest.mark.slow
def test_two_that_take_back_take_different_ones(client: Callable[..., Tenuto]) -> None:
    import threading

    client().thread("t").append(*map(said, range(40)))
    taken: list[Any] = []

    def work() -> None:
        t = client().thread("t")
        taken.extend([t.take_back()["content"] for _ in range(20)])

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, taken)) == list(range(40))
