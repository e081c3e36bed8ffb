"""What is read in place of what was appended: repairs that providers accept, and summaries."""

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto import Conflict, InvalidInput, NotStorable, Tenuto
from tenuto.capabilities.threads.repair import INTERRUPTED, Repairs, border, woven
from tenuto.capabilities.threads.thread import Thread

from .provider_rules import RULES

SHAPES = list(RULES)


def says(shape: str, role: str, text: str) -> dict[str, Any]:
    return (
        {"type": "message", "role": role, "content": text} if shape == "responses" else {"role": role, "content": text}
    )


def calls(shape: str, *ids: str) -> list[dict[str, Any]]:
    if shape == "chat":
        made = [{"id": i, "type": "function", "function": {"name": f"tool-{i}", "arguments": "{}"}} for i in ids]
        return [{"role": "assistant", "content": None, "tool_calls": made}]
    if shape == "responses":
        return [{"type": "function_call", "call_id": i, "name": f"tool-{i}", "arguments": "{}"} for i in ids]
    used = [{"type": "tool_use", "id": i, "name": f"tool-{i}", "input": {}} for i in ids]
    return [{"role": "assistant", "content": [{"type": "text", "text": "let me see"}, *used]}]


def alone(call_id: str) -> dict[str, Any]:
    """A call that is a message of its own, as some store what came in a stream."""
    return {"role": "assistant", "content": [calls("anthropic", call_id)[0]["content"][1]]}


def results(shape: str, *ids: str, text: str | None = None) -> list[dict[str, Any]]:
    if shape == "chat":
        return [{"role": "tool", "tool_call_id": i, "content": f"result {i}"} for i in ids]
    if shape == "responses":
        return [{"type": "function_call_output", "call_id": i, "output": f"result {i}"} for i in ids]
    found = [{"type": "tool_result", "tool_use_id": i, "content": f"result {i}"} for i in ids]
    return [{"role": "user", "content": found + ([{"type": "text", "text": text}] if text else [])}]


def notes(repairs: Any) -> list[tuple[Any, ...]]:
    return [(note.what, note.number, note.call_id) for note in repairs]


# -- repair ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_a_call_that_a_crash_left_open_is_closed(agent: Tenuto, shape: str) -> None:
    t = agent.thread("t")
    t.append(says(shape, "user", "go"), *calls(shape, "a"), *results(shape, "a"), *calls(shape, "b"))
    before = t.messages()
    assert RULES[shape](before)
    (repair,) = t.repair()
    assert repair == ("closed", 4, "b", "tool-b")
    after = t.messages()
    assert RULES[shape](after) is None
    assert after[:-1] == before
    assert INTERRUPTED in str(after[-1])
    assert t.repair() == []
    assert t.messages() == after
    # the numbers stay, what was appended stays, and the next message follows
    assert t.count() == 4
    assert t.messages(original=True) == before
    assert t.append(says(shape, "user", "go on")) == 5
    assert RULES[shape](t.messages()) is None
    assert t.messages(after=3) == [before[-1], after[-1], says(shape, "user", "go on")]
    assert t.messages(last=1) == [says(shape, "user", "go on")]
    assert t.messages(after=4) == [says(shape, "user", "go on")]
    assert [e.kind for e in t.timeline()] == ["began", "messages", "repair", "messages"]
    assert t.timeline()[2].what == [repair]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_result_is_put_in_its_place_though_others_spoke_since(agent: Tenuto, shape: str) -> None:
    t = agent.thread("t")
    t.append(says(shape, "user", "go"), *calls(shape, "a", "b"), *results(shape, "a"))
    last = t.append(says(shape, "user", "hello?"), says(shape, "assistant", "yes"), *calls(shape, "c"))
    assert RULES[shape](t.messages())
    first = 3 if shape == "responses" else 2
    assert notes(t.repair()) == [("closed", first, "b"), ("closed", last, "c")]
    assert RULES[shape](t.messages()) is None
    assert t.repair() == []
    # what is found later is told, and what was told before is not told again
    t.append(*results(shape, "b"))
    assert notes(t.repair()) == [("moved", first, "b")]
    assert RULES[shape](t.messages()) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_a_result_without_a_call_is_left_out(agent: Tenuto, shape: str) -> None:
    t = agent.thread("t")
    t.append(*results(shape, "lost"), says(shape, "user", "go"), *calls(shape, "a"), *results(shape, "a"))
    t.append(*results(shape, "a"), says(shape, "user", "on"))
    assert notes(t.repair()) == [("left out", 1, "lost"), ("left out", 5, "a")]
    assert t.messages() == [
        says(shape, "user", "go"),
        *calls(shape, "a"),
        *results(shape, "a"),
        says(shape, "user", "on"),
    ]
    assert t.messages(last=2) == [says(shape, "user", "on")]
    assert t.messages(original=True)[0] == results(shape, "lost")[0]
    assert RULES[shape](t.messages()) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_a_result_that_came_late_is_read_behind_its_call(agent: Tenuto, shape: str) -> None:
    t = agent.thread("t")
    t.append(says(shape, "user", "go"), *calls(shape, "a"))
    t.append(says(shape, "user", "are you there?"))
    assert notes(t.repair()) == [("closed", 2, "a")]
    t.append(*results(shape, "a"))
    assert RULES[shape](t.messages())
    assert notes(t.repair()) == [("moved", 2, "a")]
    assert t.messages() == [
        says(shape, "user", "go"),
        *calls(shape, "a"),
        *results(shape, "a"),
        says(shape, "user", "are you there?"),
    ]
    assert t.repair() == []


@pytest.mark.parametrize("shape", SHAPES)
def test_a_result_that_came_to_a_closed_call_replaces_what_was_put_in(agent: Tenuto, shape: str) -> None:
    t = agent.thread("t")
    t.append(says(shape, "user", "go"), *calls(shape, "a"))
    assert len(t.repair()) == 1
    t.append(*results(shape, "a"))
    assert t.repair() == []
    assert t.messages() == t.messages(original=True)
    assert RULES[shape](t.messages()) is None


def test_blocks_are_taken_out_of_a_message_and_the_rest_stays(agent: Tenuto) -> None:
    t = agent.thread("t")
    mixed = results("anthropic", "a", "lost", text="by the way")[0]
    t.append(says("anthropic", "user", "go"), *calls("anthropic", "a"), mixed)
    t.append(
        *calls("anthropic", "b"),
        {"role": "user", "content": [{"type": "text", "text": "hm"}, *results("anthropic", "b")[0]["content"]]},
    )
    assert notes(t.repair()) == [("left out", 3, "lost"), ("moved", 4, "b")]
    assert t.messages()[2] == results("anthropic", "a", text="by the way")[0]
    assert t.messages()[4:] == [
        *results("anthropic", "b"),
        {"role": "user", "content": [{"type": "text", "text": "hm"}]},
    ]
    assert RULES["anthropic"](t.messages()) is None


def test_a_result_behind_what_the_user_said_is_moved(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(*calls("anthropic", "a", "b"), *results("anthropic", "a", text="wait"), *results("anthropic", "b"))
    assert notes(t.repair()) == [("moved", 1, "b")]
    assert RULES["anthropic"](t.messages()) is None


def test_parallel_calls_that_are_messages_of_their_own_are_answered_behind_the_last(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(says("anthropic", "user", "go"), *calls("anthropic", "a"), alone("b"), alone("c"))
    t.append(*results("anthropic", "b"))
    assert notes(t.repair()) == [("closed", 2, "a"), ("closed", 4, "c")]
    assert RULES["anthropic"](t.messages()) is None
    assert t.messages()[:4] == t.messages(original=True)[:4]
    assert [block["tool_use_id"] for block in t.messages()[4]["content"]] == ["a", "c"]
    # and no summary ends between them
    t.append(says("anthropic", "user", "on"))
    assert [border(t.messages(original=True), wanted) for wanted in range(7)] == [0, 1, 1, 1, 1, 5, 6]


def test_custom_tools_and_reasoning_of_the_responses_api(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(
        {"type": "reasoning", "summary": []},
        {"type": "custom_tool_call", "call_id": "a", "name": "code", "input": "1+1"},
        {"type": "reasoning", "summary": []},
        *calls("responses", "b"),
        *results("responses", "b"),
    )
    assert notes(t.repair()) == [("closed", 2, "a")]
    assert t.messages()[2] == {"type": "custom_tool_call_output", "call_id": "a", "output": INTERRUPTED}
    t.append(*calls("responses", "c"), {"type": "reasoning", "summary": []}, *results("responses", "c"))
    assert t.repair() == []
    assert RULES["responses"](t.messages()) is None


def test_a_conversation_without_tools_needs_no_repair(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append({"anything": 1}, {"role": 5, "content": [None, "x"], "tool_calls": "none"}, {"type": ["odd"]})
    t.append({"role": "assistant", "tool_calls": None}, {"role": "user", "content": [{"type": "text"}, "y"]})
    assert t.repair() == []
    assert [e.kind for e in t.timeline()] == ["began", "messages", "messages"]


def test_a_repair_sees_what_was_appended_while_it_looked(client: Callable[..., Tenuto], monkeypatch: Any) -> None:
    t, rival = client().thread("t"), client().thread("t")
    t.append(says("chat", "user", "go"), *calls("chat", "a"))
    late = [results("chat", "a")]

    class Watched(Repairs):
        def __init__(self, messages: Any, *taken: Any) -> None:
            super().__init__(messages, *taken)
            if late:
                rival.append(*late.pop())

    monkeypatch.setattr("tenuto.capabilities.threads.thread.Repairs", Watched)
    assert t.repair() == []
    assert t.messages() == t.messages(original=True)


def test_a_fork_reads_the_repairs_of_its_past(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(says("chat", "user", "go"), *calls("chat", "a"))
    t.append(says("chat", "user", "hm"), *calls("chat", "b"))
    t.repair()
    t.append(says("chat", "user", "on"))
    fork, early = t.fork("f"), t.fork("e", at=3)
    assert RULES["chat"](fork.messages()) is None
    assert fork.messages() == t.messages()
    assert fork.repair() == []
    # the repair came after message 3: a fork at that message has to do its own
    assert notes(early.repair()) == [("closed", 2, "a")]
    assert early.messages() == t.messages()[:4]
    t.delete()
    fork.append(*calls("chat", "c"))
    assert notes(fork.repair()) == [("closed", 6, "c")]
    assert RULES["chat"](fork.messages()) is None


@st.composite
def conversations(draw: Any) -> tuple[str, list[dict[str, Any]]]:
    shape = draw(st.sampled_from(SHAPES))
    some_id = st.sampled_from(["a", "b", "c"])
    ids = st.lists(some_id, min_size=1, max_size=3, unique=True)
    piece = (
        st.builds(
            lambda role, n: [says(shape, role, f"text {n}")], st.sampled_from(["user", "assistant"]), st.integers()
        )
        | st.builds(lambda ids: calls(shape, *ids), ids)
        | st.builds(lambda ids: results(shape, *ids), ids)
    )
    if shape == "anthropic":
        piece |= st.builds(lambda ids, n: results(shape, *ids, text=f"text {n}"), ids, st.integers())
        piece |= st.builds(lambda ids: [alone(i) for i in ids], ids)
    elif shape == "responses":
        piece |= st.just([{"type": "reasoning", "summary": []}])
    found = [message for messages in draw(st.lists(piece, max_size=12)) for message in messages]
    return shape, found


def texts(messages: list[dict[str, Any]]) -> list[str]:
    found = []
    for message in messages:
        content = message.get("content")
        blocks = content if isinstance(content, list) else [{"text": content}]
        found += [b["text"] for b in blocks if isinstance(b.get("text"), str) and b["text"].startswith("text")]
    return found


@settings(max_examples=400, deadline=None, derandomize=True)
@given(conversations())
def test_any_repaired_conversation_is_accepted(conversation: tuple[str, list[dict[str, Any]]]) -> None:
    shape, messages = conversation
    untouched = copy.deepcopy(messages)
    repairs = Repairs(messages)
    read = woven(messages, 1, repairs.edits)
    assert RULES[shape](read) is None
    assert messages == untouched
    assert texts(read) == texts(messages)
    # one that was accepted stays as it is, and so does a repaired one
    assert Repairs(read).edits == {}
    if RULES[shape](messages) is None:
        assert repairs.edits == {}
    # every result that had a call is still there, once
    for note in repairs.notes:
        assert 1 <= note.number <= len(messages)


# -- summaries -------------------------------------------------------------------------------------------


def said(*texts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


def filled(thread: Thread, count: int) -> Thread:
    for n in range(1, count + 1):
        thread.append(*said(n))
    return thread


def test_older_messages_are_read_as_their_summary(agent: Tenuto) -> None:
    t = filled(agent.thread("t"), 30)
    given_to: list[Any] = []

    def summarize(messages: list[dict[str, Any]]) -> str:
        given_to.append(messages)
        return "ten things"

    assert t.compact(summarize) == 10
    assert given_to == [said(*range(1, 11))]
    read = t.messages()
    assert read[0]["role"] == "user"
    assert read[0]["content"].endswith("ten things")
    assert read[1:] == said(*range(11, 31))
    assert t.count() == 30
    assert t.messages(original=True) == said(*range(1, 31))
    assert t.append(*said(31)) == 31
    # where a range reaches into what was summarised the summary stands for it
    assert t.messages(last=21) == said(*range(11, 32))
    assert t.messages(last=22) == t.messages() == [read[0], *said(*range(11, 32))]
    assert t.messages(after=5, before=13) == [read[0], *said(11, 12)]
    assert t.messages(before=5) == [read[0]]
    assert t.messages(after=10, before=13) == said(11, 12)
    assert t.messages(after=5, before=13, original=True) == said(*range(6, 13))


def test_a_summary_is_summed_up_again_with_what_came_since(agent: Tenuto) -> None:
    t = filled(agent.thread("t"), 10)
    assert t.compact(lambda messages: {"role": "system", "content": len(messages)}, keep_last=4) == 6
    assert t.compact(lambda messages: pytest.fail("nothing to do"), keep_last=4) == 0
    assert t.compact(lambda messages: pytest.fail("nothing to do"), keep_last=9) == 0
    filled(t, 3)
    given_to: list[Any] = []
    assert t.compact(lambda messages: given_to.append(messages) or [{"a": 1}, {"b": 2}], keep_last=5) == 2
    assert given_to == [[{"role": "system", "content": 6}, *said(7, 8)]]
    assert t.messages() == [{"a": 1}, {"b": 2}, *said(9, 10, 1, 2, 3)]
    assert t.messages(original=True) == said(*range(1, 11), 1, 2, 3)
    assert t.compact(lambda messages: "all", keep_last=0) == 5
    assert len(t.messages()) == 1


def test_instructions_at_the_beginning_stay(agent: Tenuto) -> None:
    t = agent.thread("t")
    rules = [{"role": "system", "content": "be kind"}, {"role": "developer", "content": "be brief"}]
    t.append(*rules, *said(1, 2, 3))
    assert t.compact(lambda messages: {"sum": messages}, keep_last=1) == 2
    assert t.messages() == [*rules, {"sum": said(1, 2)}, *said(3)]
    t.append(*said(4, 5))
    assert t.compact(lambda messages: {"sum": len(messages)}, keep_last=1) == 2
    assert t.messages() == [*rules, {"sum": 3}, *said(5)]
    assert t.messages(after=1, before=4) == [rules[1], {"sum": 3}]
    assert t.messages(before=3) == rules
    assert t.compact(lambda messages: {"sum": 0}, keep_last=9) == 0
    assert agent.thread("t").messages(last=1) == said(5)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_call_is_parted_from_its_result(agent: Tenuto, shape: str) -> None:
    for keep in range(8):
        t = agent.thread(f"t{keep}")
        t.append(says(shape, "user", "go"), *calls(shape, "a"), *results(shape, "a"))
        t.append(says(shape, "user", "on"), *calls(shape, "b", "c"), *results(shape, "b", "c"))
        t.append(says(shape, "assistant", "done"), *calls(shape, "d"))
        t.compact(lambda messages: says(shape, "user", f"{len(messages)} messages"), keep_last=keep)
        assert len(t.messages()) > keep
        t.append(*results(shape, "d"))
        assert RULES[shape](t.messages()) is None


def test_reasoning_stays_with_what_it_led_to() -> None:
    messages = [
        *said(1),
        {"type": "reasoning"},
        {"type": "reasoning"},
        *calls("responses", "a"),
        *results("responses", "a"),
    ]
    assert [border(messages, wanted) for wanted in range(6)] == [0, 1, 1, 1, 1, 5]


def test_a_call_that_was_given_up_does_not_stop_summaries(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(*calls("chat", "a"), *said(1, 2, 3))
    t.repair()
    given_to: list[Any] = []
    assert t.compact(lambda messages: given_to.append(messages) or "x", keep_last=1) == 3
    assert RULES["chat"](given_to[0]) is None
    assert t.messages()[1:] == said(3)


def test_somebody_else_compacted_meanwhile(client: Callable[..., Tenuto]) -> None:
    one, two = client().thread("t"), client().thread("t")
    filled(one, 10)
    with pytest.raises(Conflict, match="compacted"):
        one.compact(lambda messages: str(two.compact(lambda _: {"two": 1}, keep_last=5)), keep_last=2)
    assert one.messages() == [{"two": 1}, *said(*range(6, 11))]
    # what is appended meanwhile is kept
    assert one.compact(lambda messages: {"n": two.append(*said(11))}, keep_last=2) == 3
    assert one.messages() == [{"n": 11}, *said(9, 10, 11)]
    with pytest.raises(Conflict, match="deleted"):
        one.compact(lambda messages: {"gone": two.delete()}, keep_last=0)
    assert one.messages() == []


def test_a_summary_that_fails_changes_nothing(agent: Tenuto) -> None:
    t = filled(agent.thread("t"), 5)

    async def wrong(messages: Any) -> str:
        return "x"

    with pytest.raises(TypeError, match="coroutine"):
        t.compact(wrong, keep_last=1)
    with pytest.raises(ZeroDivisionError):
        t.compact(lambda _: 1 / 0, keep_last=1)
    for unfit in (None, 5, [5], object()):
        with pytest.raises(NotStorable):
            t.compact(lambda _, unfit=unfit: unfit, keep_last=1)
    for keep in (-1, "x", 1.5):
        with pytest.raises(InvalidInput):
            t.compact(lambda _: "x", keep_last=keep)
    assert t.messages() == said(1, 2, 3, 4, 5)


def test_a_fork_reads_the_summary_of_its_past(agent: Tenuto) -> None:
    t = filled(agent.thread("t"), 6)
    t.compact(lambda messages: {"sum": len(messages)}, keep_last=2)
    t.append(*said(7))
    fork, early = t.fork("f"), t.fork("e", at=5)
    assert fork.messages() == [{"sum": 4}, *said(5, 6, 7)]
    assert early.messages() == said(1, 2, 3, 4, 5)  # the summary was made after message 6
    t.delete()
    fork.append(*said(8))
    assert fork.compact(lambda messages: {"sum": messages}, keep_last=1) == 3
    assert fork.messages() == [{"sum": [{"sum": 4}, *said(5, 6, 7)]}, *said(8)]
    assert fork.fork("g").messages() == fork.messages()
    assert fork.messages(original=True) == said(*range(1, 9))


def test_only_what_is_kept_is_read(backend: Any, clock: Any) -> None:
    read: list[int] = []
    hook = lambda call: read.append(call.count) if call.verb == "entries" else None
    agent = Tenuto("a", backend, clock=clock, hooks=[hook])
    t = filled(agent.thread("t"), 200)
    t.compact(lambda messages: "x", keep_last=10)
    filled(t, 3)
    read.clear()
    assert len(t.messages()) == 14
    assert sum(read) <= 40


@pytest.mark.races
def test_one_of_many_compactions_at_once_is_made(client: Callable[..., Tenuto]) -> None:
    filled(client().thread("t"), 20)
    outcomes: list[Any] = []
    gate = threading.Barrier(3)

    def work() -> None:
        try:
            outcomes.append(client().thread("t").compact(lambda messages: {"n": gate.wait()}, keep_last=5))
        except Conflict:
            outcomes.append("conflict")

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(map(str, outcomes)) == ["15", "conflict", "conflict"]
    assert client().thread("t").messages()[1:] == said(*range(16, 21))
