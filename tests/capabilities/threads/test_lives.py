"""Forks share the past, ends are final, a time to live is kept: on every backend."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tenuto import Conflict, InvalidInput, NotFound, StateConflict, Tenuto
from tenuto.kernel import keys
from tenuto.kernel.contract import Backend
from tenuto.testing import Faults, HeldClock


def said(*texts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


# -- forks ---------------------------------------------------------------------------------------------


def test_a_fork_shares_the_past_and_goes_its_own_way(client: Callable[..., Tenuto]) -> None:
    agent = client()
    t = agent.thread("t")
    t.append(*said(1, 2, 3))
    t.append(*said(4))
    end, middle = t.fork("end"), t.fork("middle", at=2)
    assert end.id == "end"
    assert end.messages() == said(1, 2, 3, 4)
    assert middle.messages() == client().thread("middle").messages() == said(1, 2)
    t.append(*said("t"))
    assert end.append(*said("e")) == 5
    assert middle.append(*said("m"), expect=2) == 3
    assert t.messages() == said(1, 2, 3, 4, "t")
    assert end.messages() == said(1, 2, 3, 4, "e")
    assert middle.messages() == said(1, 2, "m")
    assert (end.count(), middle.count()) == (5, 3)


@pytest.mark.parametrize("at", range(10))
def test_every_range_of_a_fork_of_a_fork_is_found(agent: Tenuto, at: int) -> None:
    t = agent.thread("t")
    t.append(*said(1, 2, 3))
    one = t.fork("one", at=2)
    one.append(*said(3, 4))
    one.append(*said(5))
    two = one.fork("two")
    two.append(*said(6, 7, 8, 9))
    three = two.fork("three", at=at)
    three.append(*said("x"))
    expected = [*range(1, at + 1), "x"]
    assert [m["content"] for m in three.messages()] == expected
    for low in range(at + 2):
        assert [m["content"] for m in three.messages(after=low)] == expected[low:]
        assert [m["content"] for m in three.messages(last=low)] == expected[len(expected) - low :]
        for high in range(low, at + 3):
            assert [m["content"] for m in three.messages(after=low, before=high + 1)] == expected[low:high]


def test_a_fork_shares_decisions_and_tool_calls_up_to_its_message(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.decide("before all")
    t.append(*said(1))
    t.tool_call("a", 1, 1)
    t.append(*said(2, 3))
    t.decide("after 3")
    t.tool_call("b", 2, 2)
    t.append(*said(4))
    t.decide("after 4")

    def told(thread: Any) -> tuple[list[str], list[str]]:
        return [d.text for d in thread.decisions()], [c.name for c in thread.tool_calls()]

    assert told(t.fork("0", at=0)) == (["before all"], [])
    assert told(t.fork("1", at=1)) == (["before all"], ["a"])
    assert told(t.fork("2", at=2)) == (["before all"], ["a"])
    three = t.fork("3", at=3)
    assert told(three) == (["before all", "after 3"], ["a", "b"])
    assert told(t.fork("4")) == (["before all", "after 3", "after 4"], ["a", "b"])
    assert three.decide("new") == 3
    assert three.tool_call("c", 3, 3) == 3
    assert [c.name for c in three.tool_calls(after=1)] == ["b", "c"]
    assert told(three.fork("5")) == (["before all", "after 3", "new"], ["a", "b", "c"])


def test_the_timeline_of_a_fork_is_numbered_through(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(*said(1, 2, 3))
    t.decide("x")
    fork = t.fork("f", at=2)
    fork.append(*said("new"))
    assert [(e.number, e.kind, e.after) for e in fork.timeline()] == [
        (1, "began", 0),
        (2, "messages", 0),
        (3, "began", 2),
        (4, "messages", 2),
    ]
    assert fork.timeline()[1].what == said(1, 2)
    assert fork.timeline()[2].what == {"user": None, "forked_from": "t", "at": 2}
    assert t.timeline()[-1][1:3] == ("forked", {"thread": "f", "at": 2})
    watching = fork.watch(after=3, timeout=0.01)
    assert next(watching).number == 4
    fork.decide("y")
    assert [e.number for e in watching] == [5]


def test_a_fork_takes_over_user_and_life_unless_told_otherwise(agent: Tenuto, clock: HeldClock) -> None:
    agent.thread("t", user="u", ttl=60).append(*said(1))
    agent.thread("t").fork("same")
    agent.thread("t").fork("other", user="v", ttl=600)
    now = datetime.fromtimestamp(clock.time(), UTC)
    assert {(t.id, t.user, t.expires_at, t.forked_from) for t in agent.threads.list()} == {
        ("t", "u", now + timedelta(seconds=60), None),
        ("same", "u", now + timedelta(seconds=60), "t"),
        ("other", "v", now + timedelta(seconds=600), "t"),
    }
    clock.advance(61)
    assert agent.thread("same").messages() == []
    assert agent.thread("other").messages() == said(1)


def test_a_fork_that_cannot_be_is_refused(agent: Tenuto) -> None:
    t = agent.thread("t")
    with pytest.raises(NotFound):
        t.fork("f")
    t.append(*said(1, 2))
    for wrong in (-1, 3, "x"):
        with pytest.raises(InvalidInput):
            t.fork("f", at=wrong)
    agent.thread("there").append(*said("x"))
    for name in ("there", "t"):
        with pytest.raises(Conflict, match="already exists"):
            t.fork(name)
    with pytest.raises(InvalidInput):
        t.fork("")
    assert [i.id for i in agent.threads.list()] == ["t", "there"]
    agent.thread("there").delete()
    assert t.fork("there").messages() == said(1, 2)


def test_a_fork_lands_beside_appends_to_what_it_forks(backend: Backend, clock: HeldClock) -> None:
    # given a writer that is always a little faster, twice
    rival = Tenuto("rival", backend, clock=clock).thread("t")
    rival.append(*said(0))
    left = [1, 2]

    class Slow(Faults):
        def commit(self, checks: Any, writes: Any, *, request: bytes | None = None) -> Any:
            if left:
                rival.append(*said(left.pop(0)))
            return super().commit(checks, writes, request=request)

    agent = Tenuto("a", Slow(backend), clock=clock)
    assert agent.thread("t").fork("f").messages() == said(0, 1, 2)
    left.append(3)
    assert agent.thread("t").append(*said(4)) == 5
    left.append(5)
    assert agent.thread("t").delete() is True
    assert rival.messages() == []


# -- the end -------------------------------------------------------------------------------------------


def test_a_deleted_thread_is_empty_and_begins_anew(client: Callable[..., Tenuto]) -> None:
    one, two = client(), client()
    t = one.thread("t", user="u")
    t.append(*said(1, 2), key="k")
    t.decide("x")
    t.tool_call("y", 1, 2)
    t.compact(lambda _: "summary", keep_last=1)
    two.thread("t").append(*said(3))
    t.scratch["draft"] = 1
    assert t.delete() is True
    assert t.delete() is False
    assert (t.messages(), t.count(), t.decisions(), t.tool_calls(), t.timeline(), t.scratch) == ([], 0, [], [], [], {})
    assert two.threads.list() == two.threads.list("u") == []
    with pytest.raises(StateConflict):
        two.thread("t").append(*said("late"), expect=3)
    # the key is free again, the numbers begin at one, and nothing of the old thread shows
    assert two.thread("t").append(*said("new"), key="k") == 1
    assert t.append(*said("newer")) == 2
    assert t.messages() == t.messages(original=True) == said("new", "newer")
    assert (t.decisions(), t.tool_calls()) == ([], [])
    assert [e.number for e in t.timeline()] == [1, 2, 3]
    assert [i.user for i in two.threads.list()] == ["u"]
    assert t.messages(last=1) == t.messages(after=1) == said("newer")


def test_a_writer_that_did_not_see_the_end_writes_to_the_new_thread(client: Callable[..., Tenuto]) -> None:
    one, two = client(), client()
    one.thread("t").append(*said(1))
    two.thread("t").append(*said(2))
    one.thread("t").delete()
    assert two.thread("t").append(*said(3)) == 1
    assert one.thread("t").messages() == said(3)


def test_forks_keep_their_past_when_what_they_forked_is_gone(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(*said(1, 2))
    t.decide("x")
    one = t.fork("one")
    one.append(*said(3))
    two = one.fork("two", at=1)
    t.delete()
    one.delete()
    t.append(*said("other"))
    assert two.messages() == said(1)
    two.append(*said("more"))
    assert two.fork("three").messages() == said(1, "more")
    assert agent.thread("t").messages() == said("other")


def _records(backend: Backend, *parts: Any) -> list[Any]:
    prefix = keys.pack("default", *parts)
    found = [keys.unpack(record.key)[1:] for record in backend.scan(prefix, limit=1_000)]
    return [record for record in found if "trim" not in record]  # how far it was taken away


def test_what_a_thread_leaves_is_taken_away_once_nobody_needs_it(agent: Tenuto, backend: Backend) -> None:
    t = agent.thread("t")
    for n in range(3):
        t.append(*said(n), key=f"k{n}")
    child = t.fork("child")
    grandchild = child.fork("grandchild")
    grandchild.append(*said("x"), key="k")
    assert len(_records(backend, "t", "thread")) == 4
    t.delete()
    assert _records(backend, "t", "thread") == [("t", "thread", "fork", 1, "child", 1)]
    child.delete()
    assert _records(backend, "t", "thread") == [("t", "thread", "fork", 1, "child", 1)]
    assert grandchild.messages() == said(0, 1, 2, "x")
    grandchild.delete()
    assert [_records(backend, name, "thread") for name in ("t", "child", "grandchild")] == [[], [], []]
    assert _records(backend, "threads") == []


@pytest.mark.parametrize("backend", ["volatile"], indirect=True)
def test_a_long_chain_of_forks_is_read_and_taken_away(agent: Tenuto, backend: Backend) -> None:
    agent.thread("0").append(*said(0))
    for n in range(1, 300):
        agent.thread(f"{n - 1}").fork(f"{n}").append(*said(n))
    last = agent.thread("299")
    assert last.messages() == said(*range(300))
    assert last.messages(after=100, before=104) == said(100, 101, 102)
    for n in range(299):
        agent.thread(f"{n}").delete()
    assert last.messages() == said(*range(300))
    last.delete()
    assert _records(backend) == []


def test_a_crash_after_the_end_leaves_what_nobody_reads(backend: Backend, clock: HeldClock) -> None:
    faults = Faults(backend, clock=clock)
    t = Tenuto("a", faults, clock=clock).thread("t")
    t.append(*said(1), key="k")
    faults.fail_after(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        t.delete()
    assert _records(backend, "t", "thread") == [("t", "thread", "key", 1, "k")]
    assert t.delete() is False
    assert t.append(*said(2), key="k") == 1
    assert t.messages() == said(2)


def test_a_crash_at_any_commit_leaves_all_of_it_or_nothing(backend: Backend, clock: HeldClock) -> None:
    faults = Faults(backend, clock=clock)
    agent = Tenuto("a", faults, clock=clock)
    for number, (before, call, after) in enumerate(
        [
            ([], lambda t: t.append(*said(1, 2), key="k"), said(1, 2)),
            (said(0), lambda t: t.append(*said(1, 2), key="k"), said(0, 1, 2)),
            (said(0), lambda t: t.delete(), []),
            (said(0, 1), lambda t: t.compact(lambda _: {"s": 1}, keep_last=1), [{"s": 1}, *said(1)]),
        ]
    ):
        for happens in (False, True):
            t = agent.thread(f"t{number}{happens}", user="u")
            if before:
                t.append(*before)
            if happens:
                faults.fail_after(KeyboardInterrupt())
            else:
                faults.fail_before(error=KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                call(t)
            fresh = Tenuto("b", backend, clock=clock)
            expected = after if happens else before
            assert fresh.thread(t.id).messages() == expected
            assert (t.id in [i.id for i in fresh.threads.list("u")]) is bool(expected)
    for happens in (False, True):
        t = agent.thread(f"f{happens}")
        t.append(*said(1))
        (faults.fail_after if happens else faults.fail_before)(error=KeyboardInterrupt())  # type: ignore[operator]
        with pytest.raises(KeyboardInterrupt):
            t.fork(f"g{happens}")
        assert agent.thread(f"g{happens}").messages() == (said(1) if happens else [])
        assert [e.kind for e in t.timeline()][2:] == (["forked"] if happens else [])


# -- time to live --------------------------------------------------------------------------------------


def test_a_thread_ends_so_long_after_its_last_line(client: Callable[..., Tenuto], clock: HeldClock) -> None:
    one, two = client(), client()
    t = one.thread("t", user="u", ttl="1m")
    t.append(*said(1), key="k")
    clock.advance(50)
    two.thread("t").append(*said(2))  # the life is the thread's: whoever writes prolongs it
    clock.advance(50)
    assert t.messages() == two.thread("t").messages() == said(1, 2)
    (listed,) = one.threads.list("u")
    assert listed.expires_at == datetime.fromtimestamp(clock.time() + 10, UTC)
    t.decide("x")
    clock.advance(59)
    assert t.count() == 2
    clock.advance(2)
    assert (t.messages(), t.count(), t.decisions(), t.timeline(), t.delete()) == ([], 0, [], [], False)
    assert one.threads.list() == one.threads.list("u") == []
    with pytest.raises(NotFound):
        two.thread("t").fork("f")
    # writing again begins anew, from either client and whatever it remembers
    assert two.thread("t").append(*said(3), key="k") == 1
    assert two.thread("t").messages() == said(3)
    clock.advance(1_000)
    assert t.messages() == said(3)  # the new thread was given no time to live
    assert t.append(*said(4)) == 2
    clock.advance(61)
    assert two.thread("t").messages() == []


def test_a_life_can_be_changed_and_forks_outlive_it(agent: Tenuto, clock: HeldClock) -> None:
    agent.thread("t").append(*said(1))
    agent.thread("t", ttl=10).append(*said(2))
    agent.thread("t", ttl=100).append(*said(3))
    agent.thread("t").fork("f", ttl=1_000).append(*said(4))
    clock.advance(50)
    assert agent.thread("t").count() == 3
    clock.advance(51)
    assert agent.thread("t").messages() == []
    assert agent.thread("t").append(*said("new")) == 1
    assert agent.thread("f").messages() == said(1, 2, 3, 4)


def test_nothing_is_added_to_a_thread_that_is_over_at_the_commit(backend: Backend, clock: HeldClock) -> None:
    # given a writer that finds the thread there, and pauses until it is over
    pause = [0.0]

    class Slow(Faults):
        def commit(self, checks: Any, writes: Any, *, request: bytes | None = None) -> Any:
            clock.advance(pause.pop() if pause else 0)
            return super().commit(checks, writes, request=request)

    t = Tenuto("a", Slow(backend), clock=clock).thread("t", ttl=10)
    t.append(*said(1))
    pause.append(11)
    # then what it appends begins the thread anew
    assert t.append(*said(2)) == 1
    assert t.messages() == said(2)


def test_no_summary_or_repair_begins_a_thread_that_is_over(backend: Backend, clock: HeldClock) -> None:
    # given a thread that is over between the look at its last line and the look at its listing
    pause = [0.0]

    class Slow(Faults):
        def read(self, keys: Any) -> Any:
            clock.advance(pause.pop() if pause else 0)
            return super().read(keys)

    agent = Tenuto("a", Slow(backend), clock=clock).open()
    call = {"role": "assistant", "tool_calls": [{"id": "c"}]}
    for number, write in enumerate(
        [
            lambda t: t.compact(lambda _: "x", keep_last=1),
            lambda t: t.append(*said(3), expect=3),
        ]
    ):
        Tenuto("b", backend, clock=clock).thread(f"t{number}", ttl=10).append(*said(1, 2), call)
        pause.append(11)
        with pytest.raises(Conflict):
            write(agent.thread(f"t{number}"))
        assert agent.thread(f"t{number}").timeline() == []
    Tenuto("b", backend, clock=clock).thread("r", ttl=10).append(*said(1, 2), call)
    pause.append(11)
    assert agent.thread("r").repair() == []
    assert agent.thread("r").timeline() == []
    Tenuto("b", backend, clock=clock).thread("f", ttl=10).append(*said(1, 2))
    pause.append(11)
    with pytest.raises(NotFound):
        agent.thread("f").fork("g")
    assert agent.threads.list() == []


def test_where_clocks_differ_a_thread_ends_for_whoever_writes_once_its_listing_has_expired(tmp_path: Path) -> None:
    # given a machine that is ahead of another, and a thread to which both write
    ahead, behind = HeldClock(1_000_100.0), HeldClock(1_000_000.0)
    one = Tenuto("one", tmp_path / "store.db", clock=ahead)
    two = Tenuto("two", tmp_path / "store.db", clock=behind)
    one.thread("t", user="u").append(*said(1))
    two.thread("t", ttl=10).append(*said(2))
    # when its time is over by the clock of the last one who wrote
    behind.advance(11)
    assert two.threads.list() == []
    three = Tenuto("three", tmp_path / "store.db", clock=behind)
    assert three.thread("t").append(*said(3)) == 1
    assert two.thread("t").messages() == said(3)
    for agent in (one, two, three):
        agent.close()


def test_the_end_of_a_fork_takes_nothing_from_a_thread_that_goes_on(agent: Tenuto) -> None:
    t = agent.thread("t")
    t.append(*said(1), key="k")
    t.fork("f").delete()
    assert t.append(*said(1), key="k") == 1
    assert t.messages() == said(1)


def test_what_an_expired_thread_left_is_taken_away_when_it_begins_anew(
    agent: Tenuto, backend: Backend, clock: HeldClock
) -> None:
    t = agent.thread("t", ttl=10)
    t.append(*said(1), key="k")
    clock.advance(11)
    t.append(*said(2), key="new")
    assert _records(backend, "t", "thread") == [("t", "thread", "key", 3, "new")]
    with pytest.raises(InvalidInput):
        agent.thread("t", ttl=0)
