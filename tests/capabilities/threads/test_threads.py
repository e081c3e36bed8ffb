"""Threads: conversations that only grow, on every backend."""

import contextlib
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tenuto import Conflict, InvalidInput, NotStorable, StaleLease, StateConflict, StorageUnavailable, Tenuto, TooLarge
from tenuto.kernel import codec, keys
from tenuto.kernel.contract import Backend
from tenuto.testing import Faults, HeldClock


def said(*texts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


def test_what_was_appended_is_there_for_every_client(client: Callable[..., Tenuto]) -> None:
    one, two = client("one").thread("t"), client("two").thread("t")
    assert one.append(*said("a", "b")) == 2
    assert two.messages() == said("a", "b")
    assert two.append(*said("c")) == 3
    assert one.append(*said("d")) == 4
    assert one.messages() == two.messages() == said("a", "b", "c", "d")
    assert one.count() == two.count() == 4


def test_a_thread_that_was_never_written_to_is_empty(agent: Tenuto) -> None:
    t = agent.thread("t")
    assert (t.messages(), t.messages(last=3), t.count(), t.decisions(), t.tool_calls()) == ([], [], 0, [], [])
    assert (t.timeline(), t.repair(), t.compact(lambda _: "x"), t.delete()) == ([], [], 0, False)
    assert agent.threads.list() == []


def test_a_message_comes_back_verbatim(agent: Tenuto) -> None:
    message = {
        "role": "assistant",
        "content": [{"type": "image", "source": {"data": b"\x00\xff"}}, None, 1.5, True],
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "cost": Decimal("0.003"),
        "tags": ("a", {"b"}),
        7: "odd",
    }
    agent.thread("t").append(message)
    found = agent.thread("t").messages()
    assert found == [message]
    assert type(found[0]["tags"]) is tuple
    found[0]["content"].append("changed")
    assert agent.thread("t").messages() == [message]


def test_ranges_are_by_number(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(*said(1, 2, 3))
    t.decide("something")
    t.append(*said(4))
    t.append(*said(5, 6, 7, 8))

    def numbers(**span: Any) -> list[int]:
        return [message["content"] for message in t.messages(**span)]

    assert numbers() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert numbers(last=3) == [6, 7, 8]
    assert numbers(last=0) == []
    assert numbers(last=99) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert numbers(after=2) == [3, 4, 5, 6, 7, 8]
    assert numbers(after=8) == numbers(after=99) == []
    assert numbers(before=3) == [1, 2]
    assert numbers(before=1) == numbers(before=0) == []
    assert numbers(before=99) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert numbers(after=2, before=6) == [3, 4, 5]
    assert numbers(after=5, before=5) == []
    assert numbers(last=2, before=5) == [3, 4]
    assert numbers(last=2, after=2, before=5) == [3, 4]
    assert numbers(last=5, after=6) == [7, 8]
    for wrong in ({"last": -1}, {"after": -1}, {"before": "x"}, {"last": 1.5}):
        with pytest.raises(InvalidInput):
            t.messages(**wrong)


@pytest.mark.parametrize("backend", ["volatile", "sqlite"], indirect=True)
def test_any_range_of_a_long_thread_is_found(agent: Tenuto) -> None:
    # given a thread long enough that its middle is found by bisection, of lines of every kind and size
    t = agent.thread("t")
    number = 0
    for line in range(700):
        size = line % 4
        if size:
            t.append(*said(*range(number + 1, number + 1 + size)))
            number += size
        elif line % 3:
            t.decide(f"decision {line}")
        else:
            t.tool_call("tool", line, line)
    assert t.count() == number == 1_050
    # then every range is what it would be of a list
    everything = list(range(1, number + 1))
    assert [m["content"] for m in t.messages()] == everything
    for low in range(0, number, 97):
        assert [m["content"] for m in t.messages(after=low)] == everything[low:]
        assert [m["content"] for m in t.messages(before=low + 1)] == everything[:low]
        assert [m["content"] for m in t.messages(last=low)] == everything[number - low :]
        assert [m["content"] for m in t.messages(after=low, before=low + 40)] == everything[low : low + 39]
        assert [m["content"] for m in t.messages(last=40, before=low + 1)] == everything[max(0, low - 40) : low]
    calls = [call.args for call in t.tool_calls()]
    assert [call.number for call in t.tool_calls()] == list(range(1, len(calls) + 1))
    for after in range(len(calls)):
        assert [call.args for call in t.tool_calls(after=after)] == calls[after:]
    decisions = t.decisions()
    assert [d.number for d in decisions] == list(range(1, len(decisions) + 1))
    assert t.decisions(after=100) == decisions[100:]


def test_the_last_messages_are_read_without_the_others(backend: Backend, clock: HeldClock) -> None:
    read: list[int] = []
    agent = Tenuto(
        "a", backend, clock=clock, hooks=[lambda call: read.append(call.count) if call.verb != "commit" else 0]
    )
    t = agent.thread("t")
    for n in range(300):
        t.append(*said(n))
    read.clear()
    assert len(t.messages(last=50)) == 50
    assert sum(read) <= 60
    read.clear()
    assert len(t.messages(after=100, before=111)) == 10
    assert sum(read) <= 32 + 10 + 60
    read.clear()
    assert t.count() == 300
    assert sum(read) == 1
    read.clear()
    t.append(*said("one more"))
    assert read == []


def test_a_whole_append_is_one_line_and_one_write(backend: Backend, clock: HeldClock) -> None:
    writes: list[int] = []
    hook = lambda call: writes.append(call.count) if call.verb == "commit" else None
    t = Tenuto("a", backend, clock=clock, hooks=[hook]).thread("t", user="u")
    t.append(*said(1))
    t.append(*said(2, 3, 4))
    t.append(*said(5))
    assert writes == [4, 1, 1]
    assert [event.kind for event in t.timeline()] == ["began", "messages", "messages", "messages"]


@pytest.mark.races
def test_two_writers_both_land_in_order(client: Callable[..., Tenuto]) -> None:
    def work(who: int) -> None:
        t = client(f"w{who}").thread("t")
        numbers = [t.append({"who": who, "n": n}) for n in range(25)]
        assert numbers == sorted(numbers)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    t = client().thread("t")
    found = t.messages()
    assert t.count() == len(found) == 100
    for who in range(4):
        assert [m["n"] for m in found if m["who"] == who] == list(range(25))


@pytest.mark.races
def test_one_client_serves_many_threads_at_once(agent: Tenuto) -> None:
    t = agent.thread("t")
    numbers: list[int] = []
    workers = [threading.Thread(target=lambda: numbers.append(t.append(*said("x")))) for _ in range(20)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(numbers) == list(range(1, 21))


def test_expect_guards_an_append(client: Callable[..., Tenuto]) -> None:
    one, two = client().thread("t"), client().thread("t")
    assert one.append(*said("a"), expect=0) == 1
    with pytest.raises(StateConflict, match="has 1 messages, not 0"):
        two.append(*said("b"), expect=0)
    assert two.append(*said("b"), expect=1) == 2
    with pytest.raises(StateConflict):
        one.append(*said("c"), expect=1)
    assert one.append(*said("c"), expect=2) == 3
    two.decide("no message")
    assert one.append(*said("d"), expect=3) == 4
    assert one.messages() == said("a", "b", "c", "d")


def test_the_same_key_appends_once(client: Callable[..., Tenuto]) -> None:
    one, two = client("one").thread("t"), client("two").thread("t")
    assert one.append(*said("a", "b"), key="turn-1") == 2
    one.append(*said("c"))
    assert one.append(*said("a", "b"), key="turn-1") == 2
    assert two.append(*said("a", "b"), key="turn-1") == 2
    assert two.append(*said("a", "b"), key="turn-1", expect=0) == 2
    assert two.append(*said("d"), key="turn-2", expect=3) == 4
    assert one.messages() == said("a", "b", "c", "d")
    assert client().thread("other").append(*said("x"), key="turn-1") == 1


def test_the_same_key_with_other_messages_is_a_conflict(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append({"role": "user", "content": "a"}, key="k")
    assert t.append({"content": "a", "role": "user"}, key="k") == 1
    with pytest.raises(Conflict, match="other messages"):
        t.append(*said("b"), key="k")
    with pytest.raises(Conflict, match="other messages"):
        t.append(*said("b"), key="k", expect=0)
    assert t.messages() == said("a")


def test_an_append_whose_reply_is_lost_lands_once(backend: Backend, clock: HeldClock) -> None:
    faults = Faults(backend, clock=clock)
    t = Tenuto("a", faults, clock=clock).thread("t")
    t.append(*said("a"))
    faults.lose_reply()
    assert t.append(*said("b")) == 2
    # and with a key also when the caller was given up on
    for _ in range(4):
        faults.lose_reply()
    with pytest.raises(StorageUnavailable):
        t.append(*said("c"), key="k")
    assert t.append(*said("c"), key="k") == 3
    assert t.messages() == said("a", "b", "c")
    faults.fail_before()
    with pytest.raises(StorageUnavailable):
        t.append(*said("d"))
    assert t.append(*said("d")) == 4


def test_a_stale_lease_appends_nothing(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    agent = client()
    old = agent.lease("t", ttl=10).acquire()
    assert agent.thread("t").append(*said("a"), fence=old) == 1
    clock.advance(11)
    client().lease("t").acquire()
    for call in (
        lambda: agent.thread("t").append(*said("b"), fence=old),
        lambda: agent.thread("t").decide("b", fence=old),
        lambda: agent.thread("t").tool_call("b", 1, 2, fence=old),
    ):
        with pytest.raises(StaleLease):
            call()
    assert len(agent.thread("t").timeline()) == 2


def test_decisions_are_kept_with_their_reasons(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    agent = client("planner")
    t = agent.thread("t")
    t.append(*said("book a flight"))
    with agent.correlation("req-1"):
        assert t.decide("use LGA", why="user asked") == 1
    t.append(*said("fine"))
    assert t.decide("aisle seat") == 2
    first, second = t.decisions()
    now = datetime.fromtimestamp(clock.time(), UTC)
    assert first == (1, "use LGA", "user asked", 1, now, "planner", "req-1")
    assert (second.text, second.why, second.after, second.correlation_id) == ("aisle seat", None, 2, None)
    assert t.messages() == said("book a flight", "fine")
    for wrong in ((5,), ("x", 5), (None,)):
        with pytest.raises(InvalidInput):
            t.decide(*wrong)


def test_tool_calls_are_a_log_of_their_own(agent: Tenuto) -> None:
    t = agent.thread("t")
    for n in range(1, 48):
        if n % 3 == 0:
            t.append(*said(n))
        assert t.tool_call("search", {"page": n}, [n, n * 2]) == n
    calls = t.tool_calls(after=40)
    assert [(call.number, call.name, call.args, call.result) for call in calls] == [
        (n, "search", {"page": n}, [n, n * 2]) for n in range(41, 48)
    ]
    assert calls[-1].after == 15
    assert [call.number for call in t.tool_calls()] == list(range(1, 48))
    with pytest.raises(InvalidInput):
        t.tool_calls(after=-1)


def test_the_timeline_tells_everything_in_order(client: Callable[..., Tenuto]) -> None:
    one, two = client("one"), client("two")
    one.thread("t", user="u").append(*said("a", "b"))
    with two.correlation("req-7"):
        two.thread("t").tool_call("search", 1, 2)
    two.thread("t").decide("x", "y")
    one.thread("t").append(*said("c"))
    one.thread("t").compact(lambda messages: "sum", keep_last=1)
    events = one.thread("t").timeline()
    assert [(e.number, e.kind, e.after, e.writer) for e in events] == [
        (1, "began", 0, "one"),
        (2, "messages", 0, "one"),
        (3, "tool call", 2, "two"),
        (4, "decision", 2, "two"),
        (5, "messages", 2, "one"),
        (6, "summary", 3, "one"),
    ]
    assert events[0].what == {"user": "u", "forked_from": None, "at": 0}
    assert events[1].what == said("a", "b")
    assert events[2].what == {"name": "search", "args": 1, "result": 2}
    assert events[2].correlation_id == "req-7"
    assert one.thread("t").timeline(after=4) == events[4:]
    assert one.thread("t").timeline(after=99) == []


def test_watch_tells_what_lands(client: Callable[..., Tenuto]) -> None:
    one, two = client("one").thread("t"), client("two").thread("t")
    watcher = one.watch(timeout=1)
    assert list(one.watch(after=0, timeout=0.01)) == []
    two.append(*said("a"))
    assert [e.number for e in one.watch(after=0, timeout=0.01)] == [1, 2]
    two.append(*said("b"))
    watching = one.watch(after=2, timeout=5)
    assert (event := next(watching)).what == said("b")
    assert (event.number, event.after) == (3, 1)
    two.decide("c")
    assert next(watching).number == 4
    assert [e.kind for e in watcher] == []  # it had not begun to look: what came before is not its own
    two.delete()
    two.append(*said("new"))
    assert [(e.number, e.kind) for e in watching] == [(5, "ended"), (1, "began"), (2, "messages")]
    assert [e.kind for e in one.watch(after=5, timeout=0.01)] == ["began", "messages"]
    with pytest.raises(InvalidInput):
        next(one.watch(after=-1))


def test_the_scratch_is_one_dict_a_client_and_thread(client: Callable[..., Tenuto]) -> None:
    one, two = client(), client()
    one.thread("t").scratch["draft"] = [1]
    assert one.thread("t").scratch == {"draft": [1]}
    assert one.thread("t").scratch is one.thread("t").scratch
    assert one.thread("other").scratch == two.thread("t").scratch == {}
    assert one.for_tenant("acme").thread("t").scratch == {}
    assert one.threads.list() == []


def test_threads_are_listed_by_user(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    agent = client()
    agent.thread("b", user="u-1").append(*said(1))
    clock.advance(5)
    agent.thread("a", user="u-2").append(*said(1))
    agent.thread("c", user="u-1").decide("x")
    agent.thread("d").append(*said(1))
    agent.thread("e", user="u-1").messages()
    assert [t.id for t in agent.threads.list()] == ["a", "b", "c", "d"]
    assert [t.id for t in agent.threads.list("u-1")] == ["b", "c"]
    assert agent.threads.list(user="u-3") == agent.for_tenant("acme").threads.list() == []
    assert agent.threads.list(limit=2) == agent.threads.list()[:2]
    assert agent.threads.list(after="b", limit=1) == agent.threads.list()[2:3]
    assert agent.threads.list("u-1", after="b") == agent.threads.list("u-1")[1:]
    (first,) = agent.threads.list("u-2")
    assert first == ("a", "u-2", datetime.fromtimestamp(clock.time(), UTC), None, None)
    with pytest.raises(InvalidInput):
        agent.threads.list(limit=0)


def test_a_thread_takes_up_the_user_it_is_given_later_and_keeps_it(client: Callable[..., Tenuto]) -> None:
    one, two = client(), client()
    one.thread("t").append(*said(1))
    two.thread("t", user="u-1").append(*said(2))
    two.thread("t", user="u-1").append(*said(3))
    assert [t.id for t in one.threads.list("u-1")] == ["t"]
    for agent in (one, two):
        with pytest.raises(Conflict, match="belongs to the user 'u-1'"):
            agent.thread("t", user="u-2").append(*said(4))
    one.thread("t").append(*said(4))
    assert [t.user for t in one.threads.list()] == ["u-1"]
    assert one.thread("t").messages() == said(1, 2, 3, 4)


def test_the_listing_meets_no_name_of_other_capabilities(agent: Tenuto) -> None:
    for name in ("threads", "index", "thread"):
        agent.thread(name, user=name).append(*said(name))
        agent.state.set(name, "index", 1)
        agent.user(name)["thread"] = 2
        agent.lease(name).acquire()
    assert agent.user("threads").items() == {"thread": 2}
    assert agent.state.items("threads") == {"index": 1}
    assert [t.id for t in agent.threads.list()] == ["index", "thread", "threads"]


@pytest.mark.parametrize("wrong", ["", "x" * 513, "a\x00b", 5, None])
def test_a_wrong_name_is_refused_before_anything_happens(agent: Tenuto, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        agent.thread(wrong)
    if wrong is not None:
        with pytest.raises(InvalidInput):
            agent.thread("t", user=wrong)
        with pytest.raises(InvalidInput):
            agent.thread("t").append(*said(1), key=wrong)
    with pytest.raises(InvalidInput):
        agent.thread("t").append()
    assert agent.threads.list() == []


def test_nothing_is_written_of_an_append_that_cannot_be_stored(agent: Tenuto) -> None:
    t = agent.thread("t")
    for wrong, path in (
        (["hello"], "messages[0]"),
        ([5], "messages[0]"),
        ([{"a": 1}, {"content": [{"x": object()}]}], "messages[1].content[0].x"),
        ([{"content": float("nan")}], "messages[0].content"),
        ([{"content": 1 << 70}], "messages[0].content"),
    ):
        with pytest.raises(NotStorable) as error:
            t.append(*wrong)
        assert error.value.path == path
        assert str(error.value).startswith(path)
    with pytest.raises(TooLarge):
        t.append({"content": ["x" * 60_000] * 200})
    with pytest.raises(NotStorable, match=r"result\.a"):
        t.tool_call("x", {}, {"a": object()})
    assert (t.timeline(), agent.threads.list()) == ([], [])


def test_tenants_do_not_see_each_others_threads(agent: Tenuto) -> None:
    agent.thread("t").append(*said(1))
    assert agent.for_tenant("acme").thread("t").messages() == []
    assert agent.for_tenant("acme").thread("t").append(*said(2)) == 1
    assert agent.thread("t").messages() == said(1)


def test_more_threads_than_a_client_remembers(client: Callable[..., Tenuto], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenuto.capabilities.threads.writer._CACHED", 3)
    agent = client()
    for turn in range(1, 4):
        for n in range(6):
            assert agent.thread(f"t{n}").append(*said(turn)) == turn
    assert len(agent.threads._ends._known) == 3


def test_a_large_part_of_a_message_is_stored_once_and_read_as_it_was(agent: Tenuto) -> None:
    output = "x" * 100_000
    thread = agent.thread("t")
    message = {
        "role": "tool",
        "content": [{"type": "text", "text": output}, {"type": "file", "data": os.urandom(80_000)}],
    }
    thread.append(message, {"role": "user", "content": "short"})
    thread.append(message, key="again")
    assert thread.append(message, key="again") == 3
    agent.thread("other").append(message)
    assert thread.messages() == [message, {"role": "user", "content": "short"}, message]
    heads = agent.kernel.scan(keys.pack("blobs", "head"), limit=100)
    assert [codec.decode(record.value)[2] for record in heads] == [3, 3], (
        "two contents, each referred to by three lines"
    )
    assert max(len(entry.value) for entry in agent.kernel.entries(keys.pack("t", "thread"))) < 1_000
    assert agent.thread("t").fork("fork").messages() == thread.messages()
    with pytest.raises(Conflict):
        thread.append({**message, "content": "y" * 100_000}, key="again")


def stored(agent: Tenuto, thread: str) -> bytes:
    """Everything that the stream of a thread still says."""
    return b"".join(entry.value for entry in agent.kernel.entries(keys.pack(thread, "thread"), limit=10_000))


def references(agent: Tenuto) -> list[int]:
    heads = agent.kernel.scan(keys.pack("blobs", "head"), limit=100)
    return [codec.decode(record.value)[2] for record in heads]


def test_what_was_said_in_a_deleted_thread_is_gone_from_the_store(agent: Tenuto) -> None:
    thread = agent.thread("t")
    for number in range(450):
        thread.append({"role": "user", "content": f"swordfish {number}"})
    thread.append({"role": "tool", "content": "x" * 70_000})
    thread.tool_call("search", {"q": "swordfish"}, "swordfish")
    assert references(agent) == [1]
    assert thread.delete()
    assert b"swordfish" not in stored(agent, "t")
    assert references(agent) == [0]
    assert thread.append({"role": "user", "content": "anew"}) == 1
    assert thread.messages() == [{"role": "user", "content": "anew"}]
    assert agent.store.check().findings == []


def test_a_fork_keeps_the_past_of_a_deleted_thread_until_it_is_deleted_too(agent: Tenuto) -> None:
    thread = agent.thread("t")
    thread.append({"role": "user", "content": "swordfish"}, {"role": "tool", "content": "x" * 70_000})
    first, second = thread.fork("one"), thread.fork("two")
    thread.delete()
    assert first.messages()[0]["content"] == "swordfish"
    first.delete()
    assert second.messages()[0]["content"] == "swordfish"
    assert references(agent) == [1]
    second.delete()
    assert b"swordfish" not in stored(agent, "t")
    assert references(agent) == [0]


@pytest.mark.races
def test_two_that_end_at_once_count_a_reference_down_once(client: Callable[..., Tenuto]) -> None:
    agent = client()
    agent.thread("t").append({"role": "tool", "content": "x" * 70_000})
    agent.thread("other").append({"role": "tool", "content": "x" * 70_000})
    forks = [agent.thread("t").fork(f"fork-{n}").id for n in range(4)]
    agent.thread("t").delete()
    enders = [threading.Thread(target=lambda name=name: client().thread(name).delete()) for name in forks]
    for ender in enders:
        ender.start()
    for ender in enders:
        ender.join()
    assert references(agent) == [1], "the other thread's"
    assert agent.thread("other").messages() == [{"role": "tool", "content": "x" * 70_000}]


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("at", range(1, 6))
def test_a_deletion_that_was_cut_off_is_brought_to_its_end_by_another(backend: Backend, at: int) -> None:
    agent = Tenuto("first", backend)
    thread = agent.thread("t")
    thread.append(*({"role": "user", "content": f"swordfish {n}"} for n in range(3)), key="k")
    for number in range(450):
        thread.append({"role": "user", "content": f"swordfish {number}"})
    faults = Faults(backend)
    for _ in range(at - 1):
        faults.delay(0.0)
    faults.fail_after(Killed())
    with contextlib.suppress(Killed):
        Tenuto("killed", faults).thread("t").delete()
    Tenuto("second", backend).thread("t").delete()
    assert b"swordfish" not in stored(agent, "t")
    assert thread.messages() == []
