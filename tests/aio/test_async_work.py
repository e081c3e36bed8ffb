"""Tasks, once and workflows, awaited: coroutine functions and ordinary ones, several at once, cancelled cleanly."""

import asyncio
import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from tenuto import AsyncTenuto, InDoubt, NotHappened, Retry, StaleLease, TaskFailed
from tenuto.aio import AsyncTask, AsyncWorkflow


@pytest.fixture(params=["volatile", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "volatile:" if request.param == "volatile" else str(tmp_path / "a.db")


def test_tasks_work_awaited(url: str) -> None:
    async def main() -> None:
        async with AsyncTenuto("worker", url) as agent:
            told = await agent.tasks.enqueue("q", {"n": 1}, key="k", user="u", priority=3)
            assert (await agent.tasks.enqueue("q", 2, key="k")).id == told.id
            assert [one.id for one in await agent.tasks.pending("q")] == ["k"]
            task = await agent.tasks.claim("q", lease=30)
            assert isinstance(task, AsyncTask)
            assert (task.id, task.payload, task.user, task.priority, task.attempt) == ("k", {"n": 1}, "u", 3, 1)
            assert (task.token, task.lost, task.over, task.redelivered) == (1, False, False, False)
            assert repr(task) == "<task 'k' of 'q', attempt 1>"
            await task.extend()
            await agent.state.set("s", "k", 1, fence=task)
            assert [one.status for one in await agent.tasks.running("q")] == ["running"]
            await task.complete("done")
            assert await agent.tasks.result("k", wait=1) == "done"
            assert await agent.tasks.is_completed("k")
            with pytest.raises(StaleLease):
                await task.fail("late")
            await agent.tasks.enqueue_many("q", range(3))
            assert (await agent.tasks.counts("q"))["ready"] == 3
            one = await agent.tasks.claim("q")
            assert one is not None
            await one.release()
            assert await agent.tasks.mark_completed("mark", 1)
            assert await agent.tasks.cancel((await agent.tasks.pending("q"))[0])
            async with agent.state.transaction("s") as t:
                t["a"] = 1
                await t.enqueue("r", 1, key="in-transaction")
            assert (await agent.tasks.get("in-transaction")).status == "waiting"
            await agent.tasks.every("tick", "r", interval="1h")
            assert [one.name for one in await agent.tasks.recurring("r")] == ["tick"]
            assert await agent.tasks.fire("r") == 0
            assert await agent.tasks.stop_recurring("tick", "r")
            assert await agent.tasks.claim("empty", wait=0.01) is None

    asyncio.run(main())


def test_a_worker_awaits_coroutines_and_calls_functions_on_threads(url: str) -> None:
    async def main() -> None:
        async with AsyncTenuto("worker", url) as agent:
            await agent.tasks.enqueue_many("q", range(20))
            together, most = 0, 0

            async def handler(task: Any) -> int:
                nonlocal together, most
                assert isinstance(task, AsyncTask)
                together += 1
                most = max(most, together)
                await asyncio.sleep(0.005)
                together -= 1
                return int(task.payload) * 2

            assert await agent.tasks.work("q", handler, concurrency=5, until_empty=True) == 20
            assert 1 < most <= 5
            home = threading.get_ident()
            await agent.tasks.enqueue("q", 1, key="k")
            await agent.tasks.work("q", lambda task: threading.get_ident() != home, until_empty=True)
            assert await agent.tasks.result("k") is True

            async def broken(task: Any) -> None:
                raise OSError("away")

            await agent.tasks.enqueue("q", 1, key="b", retry=Retry(attempts=2, first=0.01))
            await agent.tasks.work("q", broken, until_empty=True)
            with pytest.raises(TaskFailed, match="away"):
                await agent.tasks.result("b")

    asyncio.run(main())


@pytest.mark.slow
def test_a_worker_stops_when_it_is_told_to_and_leaves_nothing_in_hand(url: str) -> None:
    async def main() -> None:
        async with AsyncTenuto("worker", url) as agent:
            await agent.tasks.enqueue_many("q", range(5))
            stop, begun = asyncio.Event(), asyncio.Event()

            async def handler(task: Any) -> str:
                begun.set()
                await asyncio.sleep(0.02)
                return "whole"

            work = asyncio.create_task(agent.tasks.work("q", handler, concurrency=1, stop=stop))
            await begun.wait()
            stop.set()
            assert await work == 1
            assert await agent.tasks.counts("q") == {"ready": 4, "later": 0, "running": 0, "dead": 0}

            # a worker that is cancelled gives back what it has in hand
            async def slow(task: Any) -> None:
                begun.set()
                await asyncio.sleep(60)

            begun.clear()
            work = asyncio.create_task(agent.tasks.work("q", slow, concurrency=2, grace=5))
            await begun.wait()
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            for _ in range(100):
                if (await agent.tasks.counts("q"))["running"] == 0:
                    break
                await asyncio.sleep(0.02)
            assert await agent.tasks.counts("q") == {"ready": 4, "later": 0, "running": 0, "dead": 0}

    asyncio.run(main())


@pytest.mark.parametrize("end", ["empty", "stopped", "cancelled", "failed"])
def test_a_client_keeps_nothing_of_a_worker_that_has_ended(end: str) -> None:
    async def main() -> None:
        async with AsyncTenuto("worker", "volatile:") as agent:
            begun, stop = asyncio.Event(), asyncio.Event()

            async def handler(task: Any) -> None:
                begun.set()
                if end == "failed":
                    raise Killed
                if end == "cancelled":
                    await asyncio.sleep(60)

            await agent.tasks.enqueue("q", 1)
            work = asyncio.create_task(agent.tasks.work("q", handler, until_empty=end == "empty", stop=stop, grace=5))
            await begun.wait()
            if end == "stopped":
                stop.set()
            if end == "cancelled":
                work.cancel()
            await asyncio.wait([work])
            assert work.cancelled() == (end == "cancelled")
            assert (not work.cancelled() and work.exception() is not None) == (end == "failed")
            # What still refers to the worker would wake it, extend its tasks and hold its handler for ever.
            kept = weakref.ref(handler)
            del handler, work
            async with asyncio.timeout(10):
                while gc.collect() >= 0 and kept() is not None:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


class Killed(BaseException):
    """What a handler raises that is no failure of its task."""


def test_once_awaited_is_one_execution(url: str) -> None:
    async def main() -> None:
        async with AsyncTenuto("caller", url) as agent:
            calls = []

            async def post(number: int) -> dict[str, int]:
                calls.append(number)
                await asyncio.sleep(0.01)
                return {"comment": number}

            found = await asyncio.gather(*(agent.once("k", post, 31) for _ in range(20)))
            assert found == [{"comment": 31}] * 20
            assert calls == [31]
            assert await agent.once("plain", lambda: "on a thread") == "on a thread"

            async def fails() -> None:
                raise OSError("away")

            with pytest.raises(OSError):
                await agent.once("f", fails)
            assert await agent.once("f", lambda: 1, verify=lambda _: NotHappened()) == 1

    asyncio.run(main())


def test_workflows_work_awaited(url: str) -> None:
    async def main() -> None:
        async with AsyncTenuto("analyst", url) as agent:
            log = []

            @agent.action("scrape")
            async def scrape(step: Any) -> list[str]:
                await asyncio.sleep(0)
                log.append(step.step)
                return [step["url"]]

            @agent.action
            def report(step: Any) -> str:
                log.append(step.step)
                return f"{len(step.results['scrape'])} pages"

            steps = [{"action": "scrape", "url": "x"}, {"action": "report"}]
            wf = await agent.workflows.create("w", steps, user="u")
            assert isinstance(wf, AsyncWorkflow)
            assert (wf.status, wf.progress, wf.user, wf.run_id) == ("pending", 0.0, "u", "workflow:w")
            assert (await wf.next_incomplete_step()).action == "scrape"  # type: ignore[union-attr]
            assert [one.name for one in await agent.workflows.list("active", "u")] == ["w"]
            assert await wf.resume() is wf
            assert (log, wf.status, wf.steps[1].result) == ([1, 2], "completed", "1 pages")
            assert (await wf.step(2)).result == "1 pages"
            await wf.edit([*steps, {"action": "extra"}])
            await wf.start(3)
            await wf.block(3, "no")
            await wf.unblock(3)
            await wf.fail(3, "no")
            await wf.skip(3)
            assert (await (await agent.workflows.get("w")).refresh()).as_dict()["progress"] == 1.0
            assert [one.what for one in await wf.history(after=6)] == [
                "started", "blocked", "unblocked", "failed", "skipped",
            ]  # fmt: skip
            await (await agent.workflows.create("v", ["a"])).complete(1, 7)
            assert "completed" in repr(await agent.workflows.get("v"))
            assert await agent.workflows.delete("v")
            await agent.user("u").set("seat", "aisle")
            context = await agent.full_context("u", "t", last=5)
            assert (context["user"], context["workflows"]) == ({"seat": "aisle"}, [])

            @agent.action("pay", effect="once")
            async def pay(step: Any) -> None:
                log.append("paid")

            begun = await agent.workflows.create("p", [{"action": "pay", "status": "in_progress"}])
            with pytest.raises(InDoubt):
                await begun.resume()
            assert log[-1] != "paid"

    asyncio.run(main())
