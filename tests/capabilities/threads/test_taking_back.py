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
    assert t._news(None) == (None, [], True)
    t.append(*map(said, range(50)))
    first = t._news(None)
    assert (first.goes_on, first.messages) == (False, t.messages())
    rival.append(said(50))
    rival.decide("something")
    more = t._news(first.seen)
    assert (more.goes_on, more.messages) == (True, [said(50)])
    assert t._news(more.seen) == (more.seen, [], True)
    rival.append(*map(said, range(51, 90)))
    assert t._news(more.seen).messages == list(map(said, range(51, 90)))
    rival.take_back()
    after = t._news(more.seen)
    assert (after.goes_on, after.messages) == (False, t.messages())
    rival.delete()
    assert t._news(after.seen) == (None, [], False)
    rival.append(said(1))
    assert t._news(after.seen)[1:] == ([said(1)], False)
    one = t._news(None)
    rival.delete()
    rival.append(said(2), said(3))
    assert t._news(one.seen)[1:] == ([said(2), said(3)], False), "it is another conversation now"


CALL: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "pay", "arguments": "{}"}
CHANGES: dict[str, Callable[[Any], Any]] = {
    "say": lambda t: t.append(said(1), said(2)),
    "call": lambda t: t.append(CALL),
    "answer": lambda t: t.append({"type": "function_call_output", "call_id": "c", "output": "late"}),
    "note": lambda t: t.decide("something"),
    "take back": lambda t: t.take_back(),
    "repair": lambda t: t.repair(),
    "compact": lambda t: t.compact(lambda messages: "shorter", keep_last=2),
    "end": lambda t: t.delete(),
}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(sorted(CHANGES)), max_size=4), max_size=8))
def test_who_reads_only_what_is_new_has_what_everybody_reads(rounds: list[list[str]]) -> None:
    t = Tenuto("tester", "volatile:").thread("t")
    seen, held = None, []
    for changes in rounds:
        for change in changes:
            CHANGES[change](t)
        news = t._news(seen)
        seen, held = news.seen, [*held, *news.messages] if news.goes_on else news.messages
        assert held == t.messages()


def test_a_thread_that_was_set_back_and_went_on_otherwise_is_read_anew(client: Callable[..., Tenuto]) -> None:
    t = client().thread("t")
    t.append(said(1))
    for behind in range(3):
        seen = t._news(None).seen
        assert seen is not None
        for n in range(behind):
            t.append(said(n))
        other = seen._replace(digest=b"another line of this number")
        assert t._news(other)[1:] == (t.messages(), False), "what is held in memory is not what is in the store"
        assert t._news(seen)[1:] == (t.messages(after=seen.place.messages), True)
    ahead = seen._replace(number=seen.number + 9)
    assert t._news(ahead)[1:] == (t.messages(), False)


def test_what_is_new_costs_one_line_read_and_nothing_else(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(*map(said, range(9)))
    t.append(said(9), said(10))
    t.take_back()  # repairs in force are not read again for what came later
    seen, read = t._news(None).seen, []
    kernel = agent.kernel
    entries = kernel.entries

    def noted(*args: Any, **given: Any) -> Any:
        found = entries(*args, **given)
        read.append(len(found))
        return found

    kernel.entries = noted  # type: ignore[method-assign]
    assert t._news(seen) == (seen, [], True)
    t.append(said(11))
    assert t._news(seen)[1:] == ([said(11)], True)
    assert read == [1, 1]
    for n in (12, 13):
        t.append(said(n))
    assert t._news(seen)[1:] == ([said(n) for n in (11, 12, 13)], True)
    assert read == [1, 1, 1, 3]


def test_news_of_a_thread_whose_time_is_over(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    t = client().thread("t", ttl="1h")
    t.append(said(1))
    seen = t._news(None).seen
    clock.advance(3_000)
    assert t._news(seen) == (seen, [], True)
    clock.advance(700)
    assert t._news(seen) == (None, [], False)
    t.append(said(2))
    assert t._news(seen)[1:] == ([said(2)], False)


@pytest.mark.races
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
