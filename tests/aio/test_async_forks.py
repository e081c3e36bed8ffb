"""An AsyncTenuto that was used before a fork, and one that is used by several event loops."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tenuto import AsyncTenuto, Tenuto

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def in_child(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a coroutine in a forked child; return what it printed, or fail if it hangs."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(into, repr(asyncio.run(work())).encode())
        except BaseException as error:
            os.write(into, repr(error).encode())
        finally:
            os._exit(0)
    os.close(into)
    ready, _, _ = select.select([out], [], [], 60)  # ends at once, but for a child that hangs
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    told = os.read(out, 10_000).decode()
    os.close(out)
    return told or "the child hung"


def test_a_client_used_before_a_fork_works_in_the_child(tmp_path: Path) -> None:
    agent = AsyncTenuto("a", tmp_path / "s.db")

    async def use(key: str) -> Any:
        await agent.state.set("s", key, 1)
        async with agent.run(f"run-{key}") as run:
            return await run.step("step", lambda: f"did {key}")

    # given a client whose threads have run calls of the store and of the user
    assert asyncio.run(use("parent")) == "did parent"
    # when the process forks, then the child writes and calls as its parent did
    assert in_child(lambda: use("child")) == "'did child'"
    # and the parent goes on, and sees both
    assert asyncio.run(use("again")) == "did again"
    with Tenuto("b", tmp_path / "s.db") as other:
        assert other.state.keys("s") == ["again", "child", "parent"]


def test_a_child_does_not_make_the_calls_its_parent_had_queued(tmp_path: Path) -> None:
    agent = AsyncTenuto("a", tmp_path / "s.db")
    release, made = threading.Event(), tmp_path / "made"

    def call(name: str) -> None:
        release.wait(60)
        with made.open("a") as file:
            file.write(f"{name} of {os.getpid()}\n")

    # given a parent with as many calls under way as it has threads, and one more in the queue
    busy = [agent._pools.user.submit(call, f"call-{n}") for n in range(65)]
    busy += [agent._pools.store.submit(call, f"store-{n}") for n in range(33)]

    async def use() -> Any:
        release.set()
        await agent.state.set("s", "k", 1)
        return await agent.once("job", lambda: "child's own")

    # when the process forks, then the child's calls are made, and the parent's only by the parent
    assert in_child(use) == '"child\'s own"'
    release.set()
    for one in busy:
        one.result(60)
    assert sorted(made.read_text().split()[0::3]) == sorted(
        [f"call-{n}" for n in range(65)] + [f"store-{n}" for n in range(33)]
    )
    assert set(made.read_text().split()[2::3]) == {str(os.getpid())}


def test_one_client_serves_one_event_loop_after_the_other_and_two_at_once(tmp_path: Path) -> None:
    agent = AsyncTenuto("a", tmp_path / "s.db")
    seen: list[int] = []

    async def watch() -> None:
        async for change in agent.state.watch("s", after=0, timeout=30):
            seen.append(change.value)
            if len(seen) >= 20:
                return

    async def write(first: int) -> None:
        for n in range(first, first + 5):
            await agent.state.set("s", f"k{n}", n)

    asyncio.run(write(0))
    asyncio.run(write(5))
    watcher = threading.Thread(target=lambda: asyncio.run(watch()))
    watcher.start()
    writers = [threading.Thread(target=lambda at=at: asyncio.run(write(at))) for at in (10, 15)]
    for writer in writers:
        writer.start()
    for thread in [*writers, watcher]:
        thread.join(60)
    assert sorted(seen) == list(range(20))
    asyncio.run(agent.close())


def test_a_closed_clients_child_is_told_so(tmp_path: Path) -> None:
    agent = AsyncTenuto("a", tmp_path / "s.db")
    asyncio.run(agent.state.set("s", "k", 1))
    asyncio.run(agent.close())
    assert in_child(lambda: agent.state.get("s", "k")).startswith("Closed(")
