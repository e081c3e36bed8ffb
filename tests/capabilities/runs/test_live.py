"""Live values reach those who watch, in order, and a durable value replaces them."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

import tenuto
from tenuto import AsyncTenuto, NotStorable, Tenuto
from tenuto.capabilities.runs import live
from tenuto.kernel import keys

from .runs_world import killed

LIVE = keys.pack("r", "run", "live")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write each live value at once."""
    monkeypatch.setattr(live, "PACE", 0.0)


def watched(agent: Tenuto, after: int | None = None) -> list[tuple[Any, int, bool]]:
    return [(one.value, one.attempt, one.durable) for one in agent.runs.watch("r", after=after, timeout=0)]


def test_live_values_are_seen_until_a_durable_one_replaces_them(client: Callable[..., Tenuto]) -> None:
    seen: list[Any] = []
    reader = client()

    def write() -> None:
        run = tenuto.current_run()
        for word in ("a", {"b": 1}):
            run.emit(word, durable=False)
            seen.append(watched(reader))
        run.emit("whole")
        seen.append(watched(reader))
        run.emit("next", durable=False)
        seen.append(watched(reader))

    with client().run("r") as run:
        run.step("write", write)
        seen.append(watched(reader))
    first, second, whole = ("a", 1, False), ({"b": 1}, 1, False), ("whole", 1, True)
    assert seen == [[first], [first, second], [whole], [whole, ("next", 1, False)], [whole, ("next", 1, False)]]
    assert watched(reader) == [whole]  # the run is over


def test_one_watcher_gets_each_live_value_once_and_before_the_durable_one(client: Callable[..., Tenuto]) -> None:
    reader, found = client(), []
    with client().run("r") as run:
        stream = reader.runs.watch("r")
        for word in ("a", "b"):
            run.emit(word, durable=False)
            one = next(iter(stream))
            found.append((one.value, one.durable))
        run.emit("whole")
        run.emit("c", durable=False)
        found += [(one.value, one.durable) for one in (next(stream), next(stream))]
    found += [(one.value, one.durable) for one in stream]
    assert found == [("a", False), ("b", False), ("whole", True), ("c", False)]


def test_a_durable_value_replaces_those_of_its_own_step_only(agent: Tenuto) -> None:
    ready, done = threading.Event(), threading.Event()

    def write(name: str) -> None:
        run = tenuto.current_run()
        run.emit(name, durable=False)
        if name == "quick":
            ready.wait(10)
            run.emit("whole")
            done.set()
        else:
            ready.set()
            done.wait(10)

    with agent.run("r") as run:
        run.map("write", write, ["quick", "slow"])
        assert watched(agent) == [("whole", 1, True), ("slow", 1, False)]


def test_a_replay_emits_no_live_value_again_and_a_new_attempt_starts_over(client: Callable[..., Tenuto]) -> None:
    def body(run: Any) -> None:
        run.emit("early", durable=False)
        run.emit("text")
        run.emit("late", durable=False)

    killed(client(), body)
    assert watched(client()) == [("text", 0, True), ("late", 0, False)]
    with client().run("r") as run:
        run.emit("early", durable=False)
        assert watched(client()) == [("text", 0, True)]  # "late" is gone with its process
        run.emit("text")
        run.emit("again", durable=False)
        assert watched(client()) == [("text", 0, True), ("again", 0, False)]


def test_live_values_are_written_at_most_every_tenth_of_a_second(
    agent: Tenuto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "PACE", 3_600.0)
    with agent.run("r") as run:
        for n in range(10):
            run.emit(n, durable=False)
        record = agent.kernel.read([LIVE])[0]
        assert record is not None
        assert record.version == 1
        assert record.expires_at is not None
        assert watched(agent) == [(0, 0, False)]


def test_old_live_values_are_dropped_beyond_the_limit(agent: Tenuto) -> None:
    with agent.run("r") as run:
        for n in range(8):
            run.emit(str(n) * 100_000, durable=False)
        found = [one.value[0] for one in agent.runs.watch("r", timeout=0)]
        assert found[-1] == "7"
        assert 1 <= len(found) <= 2
        with pytest.raises(NotStorable):
            run.emit(object(), durable=False)


def test_a_lost_store_or_lease_does_not_fail_a_live_value(client: Callable[..., Tenuto]) -> None:
    with pytest.raises(tenuto.Cancelled), client().run("r") as run:
        client().runs.cancel("r")
        run.emit("too late", durable=False)
        assert client().kernel.read([LIVE]) == [None]
        run.step("more", str, 1)


def test_a_deleted_run_leaves_no_live_value(agent: Tenuto) -> None:
    with agent.run("r") as run:
        run.emit("secret", durable=False)
    assert agent.kernel.read([LIVE]) != [None]
    agent.runs.delete("r")
    assert agent.kernel.read([LIVE]) == [None]


def test_the_async_face_emits_and_watches_live_values() -> None:
    async def main() -> list[tuple[Any, bool]]:
        async with AsyncTenuto("a", "volatile:") as agent:
            async with agent.run("r") as run:
                await run.emit("a", durable=False)
                found = [(one.value, one.durable) async for one in agent.runs.watch("r", timeout=0)]
                await run.emit("whole")
            return found + [(one.value, one.durable) async for one in agent.runs.watch("r")]

    assert asyncio.run(main()) == [("a", False), ("whole", True)]
