"""Threads against lists: random appends, forks, compactions, ends and expiry by two clients; nothing may differ."""

import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tenuto import Conflict, NotFound, StateConflict, Tenuto
from tenuto.kernel.contract import Backend
from tenuto.testing import HeldClock

IDS = ["a", "b", "c"]
some_id = st.sampled_from(IDS)


class Kept:
    """What a thread should be."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.decisions: list[str] = []
        self.calls: list[int] = []
        self.summary: tuple[int, dict[str, Any]] | None = None
        self.keys: dict[str, tuple[list[dict[str, Any]], int]] = {}
        self.user: str | None = None
        self.ttl: float | None = None
        self.expires = float("inf")
        self.lines: list[Any] = []
        """What it was after each line: for forks."""

    def told(self, now: float) -> None:
        self.expires = float("inf") if self.ttl is None else now + self.ttl
        self.lines.append((len(self.messages), len(self.decisions), len(self.calls), self.summary))

    def cut(self, at: int) -> "Kept":
        """Return it as it was before message at + 1 came."""
        child = Kept()
        past = [line for line in self.lines if line[0] <= at]
        inside = next((line for line in self.lines if line[0] > at), None)
        _, decisions, calls, summary = past[-1]
        if inside is not None and past[-1][0] < at:  # in the middle of an append
            _, decisions, calls, summary = inside
        child.messages = self.messages[:at]
        child.decisions, child.calls, child.summary = self.decisions[:decisions], self.calls[:calls], summary
        child.user, child.ttl = self.user, self.ttl
        child.lines = [(min(line[0], at), *line[1:]) for line in past]
        if inside is not None and past[-1][0] < at:
            child.lines.append((at, *inside[1:]))
        return child


class Conversations(RuleBasedStateMachine):
    backend: Backend
    clock: HeldClock

    @initialize()
    def start(self) -> None:
        self.prefix = f"{uuid.uuid4().hex}-"  # nobody else on a shared server has it
        self.clients = [Tenuto(name, self.backend, clock=self.clock) for name in ("one", "two")]
        self.kept: dict[str, Kept] = {}
        self.number = 0

    def alive(self, name: str) -> Kept | None:
        kept = self.kept.get(name)
        return kept if kept is not None and kept.expires > self.clock.time() else None

    def written(self, name: str, user: str | None, ttl: float | None) -> Kept:
        kept = self.alive(name)
        if kept is None:
            kept = self.kept[name] = Kept()
            kept.lines.append((0, 0, 0, None))
        kept.user = kept.user or user
        kept.ttl = kept.ttl if ttl is None else ttl
        return kept

    def thread(self, who: int, name: str, **options: Any) -> Any:
        return self.clients[who].thread(self.prefix + name, **options)

    def fresh(self, size: int) -> list[dict[str, Any]]:
        self.number += size
        return [{"n": n} for n in range(self.number - size, self.number)]

    who = st.integers(0, 1)

    @rule(
        who=who,
        name=some_id,
        size=st.integers(1, 4),
        ttl=st.sampled_from([None, None, None, 50.0]),
        user=st.sampled_from([None, "u"]),
    )
    def append(self, who: int, name: str, size: int, ttl: float | None, user: str | None) -> None:
        messages = self.fresh(size)
        number = self.thread(who, name, user=user, ttl=ttl).append(*messages)
        kept = self.written(name, user, ttl)
        kept.messages += messages
        kept.told(self.clock.time())
        assert number == len(kept.messages)

    @rule(who=who, name=some_id, key=st.sampled_from(["k", "l"]), other=st.booleans())
    def append_with_a_key(self, who: int, name: str, key: str, other: bool) -> None:
        kept = self.alive(name)
        before = kept.keys.get(key) if kept else None
        messages = before[0] if before and not other else self.fresh(2)
        if before and other:
            with pytest.raises(Conflict):
                self.thread(who, name).append(*messages, key=key)
            return
        number = self.thread(who, name).append(*messages, key=key)
        if before:
            assert number == before[1]
            return
        kept = self.written(name, None, None)
        kept.messages += messages
        kept.told(self.clock.time())
        kept.keys[key] = (messages, number)
        assert number == len(kept.messages)

    @rule(who=who, name=some_id, seen=st.integers(0, 12))
    def append_if_nobody_else_did(self, who: int, name: str, seen: int) -> None:
        kept = self.alive(name)
        messages = self.fresh(1)
        if seen != (len(kept.messages) if kept else 0):
            with pytest.raises(StateConflict):
                self.thread(who, name).append(*messages, expect=seen)
            return
        self.thread(who, name).append(*messages, expect=seen)
        kept = self.written(name, None, None)
        kept.messages += messages
        kept.told(self.clock.time())

    @rule(who=who, name=some_id)
    def decide(self, who: int, name: str) -> None:
        self.number += 1
        number = self.thread(who, name).decide(f"d{self.number}")
        kept = self.written(name, None, None)
        kept.decisions.append(f"d{self.number}")
        kept.told(self.clock.time())
        assert number == len(kept.decisions)

    @rule(who=who, name=some_id)
    def tool_call(self, who: int, name: str) -> None:
        self.number += 1
        number = self.thread(who, name).tool_call("tool", self.number, None)
        kept = self.written(name, None, None)
        kept.calls.append(self.number)
        kept.told(self.clock.time())
        assert number == len(kept.calls)

    @rule(who=who, name=some_id, keep=st.integers(0, 4))
    def compact(self, who: int, name: str, keep: int) -> None:
        kept = self.alive(name)
        self.number += 1
        summary = {"sum": self.number}
        expected = []
        through = 0
        if kept is not None:
            done = kept.summary[0] if kept.summary else 0
            through = max(done, len(kept.messages) - keep)
            if through > done:
                expected = [([kept.summary[1]] if kept.summary else []) + kept.messages[done:through]]
        given_to: list[Any] = []
        more = self.thread(who, name).compact(lambda messages: given_to.append(messages) or summary, keep_last=keep)
        assert given_to == expected
        if expected and kept is not None:
            assert more == through - (kept.summary[0] if kept.summary else 0)
            kept.summary = (through, summary)
            kept.told(self.clock.time())

    @rule(who=who, name=some_id, other=some_id, at=st.none() | st.integers(0, 12))
    def fork(self, who: int, name: str, other: str, at: int | None) -> None:
        kept = self.alive(name)
        call = lambda: self.thread(who, name).fork(self.prefix + other, at=at)
        if kept is None:
            with pytest.raises(NotFound):
                call()
        elif at is not None and at > len(kept.messages):
            with pytest.raises(ValueError, match="out of range"):
                call()
        elif self.alive(other) is not None:
            with pytest.raises(Conflict):
                call()
        else:
            call()
            child = kept.cut(len(kept.messages) if at is None else at)
            child.told(self.clock.time())
            kept.told(self.clock.time())
            self.kept[other] = child

    @rule(who=who, name=some_id)
    def delete(self, who: int, name: str) -> None:
        assert self.thread(who, name).delete() is (self.alive(name) is not None)
        self.kept.pop(name, None)

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(who=who)
    def forget_the_ends(self, who: int) -> None:
        self.clients[who] = Tenuto("new", self.backend, clock=self.clock)

    @precondition(lambda self: hasattr(self, "kept"))
    @rule(who=who, name=some_id, low=st.integers(0, 12), high=st.integers(0, 13), last=st.none() | st.integers(0, 12))
    def read_a_range(self, who: int, name: str, low: int, high: int, last: int | None) -> None:
        kept = self.alive(name)
        every = kept.messages if kept else []
        upper = max(0, min(high - 1, len(every)))
        lower = max(low, 0 if last is None else upper - last)
        found = self.thread(who, name).messages(after=low, before=high, last=last, original=True)
        assert found == every[lower:upper]
        shown = self.thread(who, name).messages(after=low, before=high, last=last)
        through, summary = kept.summary if kept and kept.summary else (0, None)
        if through and lower < through and upper >= 1:
            assert shown == [summary, *every[through:upper]]
        else:
            assert shown == every[lower:upper]

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        if not hasattr(self, "kept"):
            return
        for name in IDS:
            kept = self.alive(name) or Kept()
            t = self.thread(self.number % 2, name)
            assert t.messages(original=True) == kept.messages
            assert t.count() == len(kept.messages)
            shown = [kept.summary[1], *kept.messages[kept.summary[0] :]] if kept.summary else kept.messages
            assert t.messages() == shown
            assert [d.text for d in t.decisions()] == kept.decisions
            assert [c.args for c in t.tool_calls()] == kept.calls
            events = t.timeline()
            assert [e.number for e in events] == list(range(1, len(kept.lines) + 1))
            assert [m for e in events if e.kind == "messages" for m in e.what] == kept.messages
        listed = [
            (i.id.removeprefix(self.prefix), i.user)
            for i in self.clients[0].threads.list(after=self.prefix, limit=3)
            if i.id.startswith(self.prefix)
        ]
        assert listed == [(name, self.kept[name].user) for name in IDS if self.alive(name)]


@pytest.mark.slow
def test_threads_never_differ_from_lists(backend: Backend, clock: HeldClock, request: pytest.FixtureRequest) -> None:
    class Here(Conversations):
        pass

    Here.backend, Here.clock = backend, clock
    quick = request.node.callspec.params["backend"] in ("volatile", "sqlite")
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=80 if quick else 15,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


def test_a_key_of_an_expired_thread_does_not_count(client, clock):
    # given a client that remembers the thread before another one gave it a time to live
    one, two = client("one"), client("two")
    one.thread("t").append({"n": 1}, key="k")
    two.thread("t", ttl=50).append({"n": 2})
    clock.advance(60)
    # then the same key begins a new thread, also with other messages
    assert one.thread("t").append({"n": 3}, key="k") == 1
    assert [message["n"] for message in one.thread("t").messages()] == [3]
    assert one.thread("t").append({"n": 3}, key="k") == 1
