"""The async face: the same names, nothing abandoned, nothing waiting in a thread."""

import asyncio
import inspect
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest

import tenuto
from tenuto import AsyncTenuto, Closed, LeaseHeld, StaleLease, StateConflict, Tenuto, TooLarge, aio
from tenuto.aio.bridge import in_thread
from tenuto.backends.volatile import VolatileBackend
from tenuto.capabilities.checkpoints.checkpoints import Checkpoints, Saver
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.people.inbox import Inbox
from tenuto.capabilities.people.milestones import Milestones
from tenuto.capabilities.people.notify.notify import Notify
from tenuto.capabilities.people.routes import Routes
from tenuto.capabilities.runs.durable import Durable
from tenuto.capabilities.runs.recorded import RunState, RunThread
from tenuto.capabilities.runs.run import Run
from tenuto.capabilities.runs.runs import Runs
from tenuto.capabilities.sessions.handoffs import Handoff, Handoffs
from tenuto.capabilities.sessions.progress import Progress
from tenuto.capabilities.sessions.session import Session
from tenuto.capabilities.state import ScopeView, State, Transaction
from tenuto.capabilities.store import Store
from tenuto.capabilities.tasks.claimed import Task
from tenuto.capabilities.tasks.tasks import Tasks
from tenuto.capabilities.threads.thread import Thread, Threads
from tenuto.capabilities.workflows.workflows import Workflow, Workflows
from tenuto.kernel.contract import Backend
from tenuto.testing import Faults, HeldClock

PAIRS = [
    (Tenuto, AsyncTenuto),
    (State, aio.AsyncState),
    (ScopeView, aio.AsyncScopeView),
    (Transaction, aio.AsyncTransaction),
    (Lease, aio.AsyncLease),
    (Checkpoints, aio.AsyncCheckpoints),
    (Saver, aio.AsyncSaver),
    (Thread, aio.AsyncThread),
    (Threads, aio.AsyncThreads),
    (Store, aio.AsyncStore),
    (Run, aio.AsyncRun),
    (RunState, aio.AsyncRunState),
    (RunThread, aio.AsyncRunThread),
    (Runs, aio.AsyncRuns),
    (Inbox, aio.AsyncInbox),
    (Notify, aio.AsyncNotify),
    (Routes, aio.AsyncRoutes),
    (Milestones, aio.AsyncMilestones),
    (Durable, aio.AsyncDurable),
    (Task, aio.AsyncTask),
    (Tasks, aio.AsyncTasks),
    (Workflow, aio.AsyncWorkflow),
    (Workflows, aio.AsyncWorkflows),
    (Progress, aio.AsyncProgress),
    (Session, aio.AsyncSession),
    (Handoff, aio.AsyncHandoff),
    (Handoffs, aio.AsyncHandoffs),
    (Backend, aio.AsyncKernel),
]
BLOCKING_ALONE: dict[type, set[str]] = {}
"""What the blocking face has for itself; the mapping syntax of views is no public name."""


def shown(value: Any) -> list[tuple[Any, ...]]:
    """Return what a method takes and returns, as both faces should show it."""
    signature = inspect.signature(value)
    taken = [(one.name, one.kind, one.default, plain(one.annotation)) for one in signature.parameters.values()]
    return [*taken, ("return", plain(signature.return_annotation))]


def plain(annotation: Any) -> str:
    return re.sub(r"\bAsync(?=[A-Z])", "", str(annotation)).replace("collections.abc.", "")


@pytest.mark.parametrize(("sync", "mirror"), PAIRS, ids=lambda cls: cls.__name__)
def test_every_public_name_has_its_mirror_with_the_same_signature(sync: type, mirror: type) -> None:
    names = {name for name in vars(sync) if not name.startswith("_")} - BLOCKING_ALONE.get(sync, set())
    source = inspect.getsource(mirror)
    there = set(dir(mirror)) | set(re.findall(r"self\.(\w+) = ", source))
    assert names - there == set()
    for name in names:
        own, other = inspect.getattr_static(sync, name), inspect.getattr_static(mirror, name, None)
        if inspect.isfunction(own) and inspect.isfunction(other):
            assert shown(other) == shown(own), name
            assert other.__doc__, name


def test_every_attribute_of_a_client_has_its_mirror() -> None:
    both = Tenuto("a", "volatile:"), AsyncTenuto("a", "volatile:")
    assert {name for name in vars(both[0]) if not name.startswith("_")} <= set(dir(both[1]))


@pytest.mark.parametrize(("sync", "mirror"), PAIRS[1:], ids=lambda cls: cls.__name__)
def test_every_mirror_is_of_the_method_of_its_name(sync: type, mirror: type) -> None:
    for name, value in vars(mirror).items():
        if inspect.isfunction(value) and value.__code__.co_name == "mirror":
            assert value.__name__ == name.lstrip("_")
            assert value.__doc__


def test_the_two_constructors_take_the_same_arguments() -> None:
    assert inspect.signature(Tenuto) == inspect.signature(AsyncTenuto)


def test_async_code_stands_in_the_files_for_it_alone() -> None:
    root = Path(tenuto.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if re.search(r"^\s*async def", path.read_text(), re.MULTILINE)
    }
    outside = {name for name in found if not name.startswith("adapters/")}  # frameworks say what is a coroutine
    assert {name for name in outside if not name.startswith(("aio/", "servers/"))} == {"cli/worker.py"}


@pytest.fixture(params=["volatile", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "volatile:" if request.param == "volatile" else str(tmp_path / "a.db")


def test_everything_works_awaited(url: str) -> None:
    async def main() -> None:
        async with AsyncTenuto("researcher", url) as agent:
            assert await agent.state.set("s", "k", 1) == 1
            assert await agent.state.get("s", "k") == 1
            assert await agent.state.update("s", "k", lambda k: k + 1) == 2
            assert (await agent.state.entry("s", "k")).writer == "researcher"  # type: ignore[union-attr]
            with pytest.raises(StateConflict):
                await agent.state.set("s", "k", 1, expect=0)
            assert await agent.state.delete("s", "k")
            assert [e.value for e in await agent.state.history("s", "k")] == [None, 2, 1]
            assert await agent.state.at("s", "k", version=2) == 2
            async with agent.state.transaction("s") as t:
                t["a"] = 1
                t.set("b", 2)
                assert await t.get("a") == 1
                del t["b"]
            view = agent.state["s"]
            assert await view.items() == {"a": 1}
            assert await view.keys() == await agent.state.keys("s") == ["a"]
            async with view.transaction() as t:
                t["c"] = 1
            assert await view.last() == await agent.state.last("s") == 5
            assert [c.key async for c in view.watch(after=3, timeout=0.02)] == ["a", "b", "c"]
            assert [c.key async for c in agent.state.watch("s", after=4, timeout=0.02)] == ["c"]
            await agent.user("u-1").set("seat", "aisle")
            assert await agent.user("u-1").get("seat") == "aisle"
            async with agent.lease("l") as lease:
                assert (lease.held, lease.token, lease.lost) == (True, 1, False)
                await agent.state.set("s", "k", 1, fence=lease)
                with pytest.raises(LeaseHeld):
                    await agent.lease("l").acquire()
                assert await lease.renew()
                assert "held, token 1" in repr(lease)
            async with agent.leader("l"):
                pass
            async with agent.correlation("req-1"):
                await agent.state.set("s", "k", 2)
            with agent.correlation("req-2") as correlation_id:
                await agent.state.set("s", "j", 2)
            assert correlation_id == "req-2"
            assert (await agent.state.entry("s", "k")).correlation_id == "req-1"  # type: ignore[union-attr]
            assert (await agent.state.entry("s", "j")).correlation_id == "req-2"  # type: ignore[union-attr]
            other = agent.for_tenant("acme")
            assert await other.state.keys("s") == []
            assert (await agent.store.check()).ok
            assert (await agent.store.stats())["backend"]
            assert repr(agent) == "<AsyncTenuto 'researcher' of tenant 'default'>"

    asyncio.run(main())


def test_threads_work_awaited(url: str) -> None:
    async def main() -> None:
        async with AsyncTenuto("researcher", url) as agent:
            t = agent.thread("t", user="u", ttl="1h")
            assert (t.id, t.user, repr(t)) == ("t", "u", "<thread 't'>")
            said = [{"role": "user", "content": n} for n in range(5)]
            assert await t.append(*said, key="k") == 5
            assert await t.append(*said, key="k", expect=0) == 5
            assert await t.messages() == said
            assert await t.messages(last=1) == said[4:]
            assert await t.count() == 5
            assert await t.decide("x", why="y") == 1
            assert [d.text for d in await t.decisions()] == ["x"]
            assert await t.tool_call("n", {"a": 1}, 2) == 1
            assert [c.result for c in await t.tool_calls(after=0)] == [2]
            assert await t.repair() == []
            assert await t.compact(lambda messages: {"sum": len(messages)}, keep_last=2) == 3
            with pytest.raises(TypeError, match="coroutine"):

                async def wrong(messages: Any) -> str:
                    return "x"

                await t.compact(wrong, keep_last=1)
            assert await t.messages() == [{"sum": 3}, *said[3:]]
            fork = await t.fork("f", at=4)
            assert isinstance(fork, aio.AsyncThread)
            assert await fork.messages(original=True) == said[:4]
            assert [e.kind async for e in t.watch(after=4, timeout=0.02)] == ["summary", "forked"]
            assert [e.number for e in await t.timeline()] == [1, 2, 3, 4, 5, 6]
            t.scratch["a"] = 1
            assert agent.thread("t").scratch == {"a": 1}
            assert [i.id for i in await agent.threads.list("u")] == ["f", "t"]
            numbers = await asyncio.gather(*(t.append({"n": n}) for n in range(20)))
            assert sorted(numbers) == list(range(6, 26))
            assert await t.delete()
            assert await agent.for_tenant("acme").threads.list() == []

    asyncio.run(main())


class Slow(VolatileBackend):
    """A store whose commits take as long as the test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = threading.Event(), threading.Event()

    def commit(self, checks: Any, writes: Any, *, request: bytes | None = None) -> Any:
        self.begun.set()
        assert self.go.wait(10)
        return super().commit(checks, writes, request=request)


async def _begun(store: Slow) -> None:
    while not store.begun.is_set():
        await asyncio.sleep(0.001)


def test_a_cancelled_caller_resumes_only_when_the_commit_is_over() -> None:
    async def main() -> None:
        store = Slow()
        agent = AsyncTenuto("a", store)
        task = asyncio.create_task(agent.state.set("s", "k", 1))
        await _begun(store)
        task.cancel()
        await asyncio.sleep(0.02)
        assert not task.done()
        task.cancel()
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await agent.state.get("s", "k") == 1

    asyncio.run(main())


def test_a_timeout_is_raised_when_the_commit_is_over() -> None:
    async def main() -> None:
        store = Slow()
        agent = AsyncTenuto("a", store)
        asyncio.get_running_loop().call_later(0.05, store.go.set)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await agent.state.set("s", "k", 1)
        assert store.go.is_set()
        assert await agent.state.get("s", "k") == 1

    asyncio.run(main())


def test_an_anyio_scope_is_left_only_when_the_commit_is_over() -> None:
    async def main() -> None:
        store = Slow()
        agent = AsyncTenuto("a", store)
        passed: list[Any] = []
        with anyio.CancelScope() as scope:
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, scope.cancel)
            loop.call_later(0.05, store.go.set)
            # The scope is cancelled during the commit, and the caller still gets its result.
            passed.append(await agent.state.set("s", "k", 1))
            passed.append(scope.cancel_called and store.go.is_set())
            await anyio.sleep(10)  # the cancellation is raised at the next await
            passed.append("not cancelled")
        assert passed == [1, True]
        assert scope.cancelled_caught
        assert await agent.state.get("s", "k") == 1

    anyio.run(main)


@pytest.mark.parametrize("what", ["lease", "run"])
def test_what_was_taken_while_its_caller_was_cancelled_is_let_go(what: str) -> None:
    async def main() -> None:
        store = Slow()
        agent = AsyncTenuto("a", store)

        async def take() -> None:
            async with agent.lease("l") if what == "lease" else agent.run("r"):
                raise AssertionError("it was cancelled before")

        task = asyncio.create_task(take())
        await _begun(store)
        task.cancel()
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        other = AsyncTenuto("b", store)
        async with other.lease("l") if what == "lease" else other.run("r", wait=0):
            pass

    asyncio.run(main())


@pytest.mark.parametrize("heard", [False, True])
def test_a_cancellation_between_the_outcome_and_its_caller_is_raised_at_once(heard: bool) -> None:
    async def work() -> None:
        go = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            task = asyncio.create_task(in_thread(pool, lambda: go.wait(10)))
            await asyncio.sleep(0)
            begun = pool.submit(int)  # behind it: when this one is done, the outcome of the first is on its way
            go.set()
            begun.result(10)
            if heard:  # the loop has been told, and is about to tell the task
                asyncio.get_running_loop().call_soon(task.cancel)
            else:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(task, 5)

    asyncio.run(work())


def test_short_calls_in_a_row_let_others_run() -> None:
    async def work() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        with ThreadPoolExecutor(1) as pool:
            task = asyncio.create_task(other())
            for _ in range(50):
                await in_thread(pool, int)
            task.cancel()
        assert turns >= 50

    asyncio.run(work())


def test_the_error_of_a_cancelled_commit_is_kept_as_the_cause() -> None:
    async def main() -> None:
        store = Slow()
        agent = AsyncTenuto("a", store)
        task = asyncio.create_task(agent.state.set("s", "k", 1, expect=7))
        await _begun(store)
        task.cancel()
        store.go.set()
        with pytest.raises(asyncio.CancelledError) as cancelled:
            await task
        assert isinstance(cancelled.value.__cause__, StateConflict)

    asyncio.run(main())


def test_waiting_holds_no_thread(url: str) -> None:
    async def main() -> None:
        async with AsyncTenuto("a", url) as agent:
            holder = await agent.lease("x", ttl=60).acquire()
            waiting = [asyncio.create_task(agent.lease("x", wait=60).acquire()) for _ in range(50)]
            watching = [asyncio.create_task(anext(agent.state.watch("s"))) for _ in range(50)]
            await asyncio.sleep(0.1)
            # a hundred waiters, thirty-two threads, and everybody else is served
            async with asyncio.timeout(5):
                for n in range(20):
                    await agent.state.set("other", "k", n)
                await agent.state.set("s", "k", 1)
                assert {(await task).key for task in watching} == {"k"}
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            await holder.release()

    asyncio.run(main())


def test_the_pool_is_the_clients_own() -> None:
    async def main() -> None:
        names = set()
        async with AsyncTenuto(
            "a", "volatile:", hooks=[lambda call: names.add(threading.current_thread().name)]
        ) as agent:
            await asyncio.gather(*(agent.state.set("s", f"k{n}", n) for n in range(20)))
        assert all(name.startswith("tenuto") for name in names)

    asyncio.run(main())


def test_a_lost_reply_and_a_held_clock_work_awaited(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        faults = Faults(VolatileBackend(clock=clock), clock=clock)
        agent = AsyncTenuto("a", faults, clock=clock)
        faults.lose_reply()
        faults.lose_reply()
        assert await agent.state.update("s", "n", lambda n: n + 1, default=0) == 1
        assert (await agent.state.entry("s", "n")).version == 1  # type: ignore[union-attr]
        before = clock.time()
        await agent.lease("x", ttl=600).acquire()
        with pytest.raises(LeaseHeld):
            await agent.lease("x", wait=30).acquire()
        assert clock.time() - before == pytest.approx(30, abs=0.01)

    asyncio.run(main())


def test_a_stale_lease_is_refused_awaited() -> None:
    async def main() -> None:
        clock = HeldClock()
        store = VolatileBackend(clock=clock)
        one, two = AsyncTenuto("one", store, clock=clock), AsyncTenuto("two", store, clock=clock)
        old = await one.lease("x", ttl=10).acquire()
        clock.advance(11)
        await two.lease("x").acquire()
        with pytest.raises(StaleLease):
            await one.state.set("s", "k", 1, fence=old)

    asyncio.run(main())


def test_checkpoints_awaited_and_a_state_is_saved_as_it_was_when_asked() -> None:
    async def main() -> None:
        async with AsyncTenuto("a", "volatile:") as agent:
            state = {"list": list(range(50_000)), "step": 1}
            saving = asyncio.ensure_future(agent.checkpoint.create("s", state, thread="t"))
            await asyncio.sleep(0)
            state["step"] = 2
            state["list"].clear()
            assert (await saving).id == "t@1"
            assert (await agent.checkpoint.restore(thread="t")) == {"list": list(range(50_000)), "step": 1}
            saver = agent.checkpoint.every(2, thread="u")
            assert [(await saver.tick({"n": n})) is not None for n in range(4)] == [False, True, False, True]
            assert await saver.ticks() == 4
            assert len(await agent.checkpoint.diff("t@1", "u@1")) > 0
            assert (await agent.checkpoint.fork("u@1", thread="v")).origin == "u@1"
            assert await agent.checkpoint.prune("u", keep_last=1) == 1
            assert await agent.checkpoint.delete(thread="u") == 1
            assert {made.id for made in await agent.checkpoint.list()} == {"t@1", "v@1"}
            agent.checkpoint.limit = 10
            with pytest.raises(TooLarge):
                await agent.checkpoint.create("s", state)

    asyncio.run(main())


def test_a_closed_client_says_so_and_may_be_closed_again(tmp_path: Path) -> None:
    async def main() -> None:
        agent = AsyncTenuto("a", tmp_path / "store.db")
        async with agent:
            await agent.state.set("s", "k", 1)
        await agent.close()
        calls: list[Any] = [
            lambda: agent.state.get("s", "k"),
            agent.open,
            lambda: agent.once("k", int),
            lambda: agent.tasks.enqueue("q", 1),
            lambda: agent.for_tenant("other").state.get("s", "k"),
        ]
        for call in calls:
            with pytest.raises(Closed):
                await call()
        with pytest.raises(Closed):
            async for _ in agent.state.watch("s", timeout=1):
                pass

    asyncio.run(main())
