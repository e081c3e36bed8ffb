"""Runs on the async face: the same engine, awaited; steps in flight at once, in any order."""

import asyncio
import contextvars
import threading
from pathlib import Path
from typing import Any

import pytest

import tenuto
from tenuto import AmbiguousStep, AsyncTenuto, Cancelled, InDoubt, RunFailed, StepMismatch, Tenuto, TimedOut, Waiting


class Killed(BaseException):
    """The process ends here."""


async def killed(agent: AsyncTenuto, body: Any, run_id: str = "r") -> None:
    with pytest.raises(Killed):
        async with agent.run(run_id) as run:
            await body(run)
            raise Killed


async def resumed(agent: AsyncTenuto, body: Any, run_id: str = "r", **options: Any) -> Any:
    async with agent.run(run_id, **options) as run:
        run.result = await body(run)
        return run.result


def test_steps_in_flight_at_once_are_found_again_in_any_order(tmp_path: Path) -> None:
    calls: list[Any] = []

    async def fetch(name: str, delay: float) -> str:
        calls.append(name)
        await asyncio.sleep(delay)
        return f"{name} fetched"

    def body(delays: dict[str, float]) -> Any:
        async def branch(run: Any, name: str) -> str:
            found = await run.step(f"fetch {name}", fetch, name, 0.0, key=None)
            await asyncio.sleep(delays[name])  # whatever else it does, in whatever time
            return await run.step(f"parse {name}", fetch, found, 0.0)

        async def run_it(run: Any) -> list[str]:
            return list(await asyncio.gather(*(branch(run, name) for name in "abc")))

        return run_it

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:
            slow = {"a": 0.02, "b": 0.0, "c": 0.01}
            await killed(agent, body(slow))
            assert len(calls) == 6
            again = await resumed(agent, body({"a": 0.0, "b": 0.02, "c": 0.01}))
            assert again == [f"{name} fetched fetched" for name in "abc"]
            assert len(calls) == 6

    asyncio.run(main())


def test_a_branch_that_was_cut_off_goes_on_and_the_others_do_not_repeat(tmp_path: Path) -> None:
    calls: list[Any] = []
    cut = [True]

    async def work(name: str) -> str:
        calls.append(name)
        await asyncio.sleep(0.0 if name != "b" else 0.05)
        if name == "b" and cut.pop():
            raise Killed
        return name

    async def body(run: Any) -> Any:
        return await asyncio.gather(*(run.step(name, work, name) for name in "abc"))

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:
            with pytest.raises(Killed):
                async with agent.run("r") as run:
                    await body(run)
            cut.append(False)
            assert await resumed(agent, body) == ["a", "b", "c"]
            assert sorted(calls) == ["a", "b", "b", "c"]
            steps = (await agent.runs.get("r")).steps
            assert [step.repeated_in_doubt for step in steps] == [0, 1, 0]

    asyncio.run(main())


def test_two_of_one_name_are_refused_already_the_first_time() -> None:
    async def main() -> None:
        async with AsyncTenuto("a", "volatile:") as agent:
            with pytest.raises(AmbiguousStep):
                async with agent.run("r") as run:
                    await asyncio.gather(run.step("f", asyncio.sleep, 0.01), run.step("f", asyncio.sleep, 0.02))
            async with agent.run("r2") as run:
                await asyncio.gather(
                    run.step("f", asyncio.sleep, 0.01, key="1"), run.step("f", asyncio.sleep, 0.01, key="2")
                )
                assert await run.map("m", asyncio.sleep, [0.001, 0.002, 0.003], concurrency=2) == [None] * 3

    asyncio.run(main())


def test_blocking_functions_run_on_threads_with_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("v", default="no")
    seen: list[Any] = []

    def blocking() -> str:
        seen.append((threading.current_thread() is threading.main_thread(), variable.get(), tenuto.current_run().id))
        return tenuto.idempotency_key()

    async def main() -> None:
        async with AsyncTenuto("a", "volatile:") as agent, agent.run("r") as run:
            variable.set("yes")
            assert len(await run.step("blocking", blocking)) == 32
            assert tenuto.current_run() is run

    asyncio.run(main())
    assert seen == [(False, "yes", "r")]


def test_many_blocking_steps_do_not_starve_the_store() -> None:
    release = threading.Event()

    async def main() -> None:
        async with AsyncTenuto("a", "volatile:") as agent:
            async with agent.run("r") as run:
                waits = [asyncio.create_task(run.step(f"w{n}", release.wait, 10)) for n in range(40)]
                await asyncio.sleep(0.05)
                await asyncio.wait_for(agent.state.set("s", "k", 1), 5)
                release.set()
                await asyncio.gather(*waits)

    asyncio.run(main())


def test_a_coroutine_that_takes_too_long_is_cancelled() -> None:
    ended: list[str] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def times_out_itself() -> None:
        raise TimeoutError("mine")

    async def main() -> None:
        async with AsyncTenuto("a", "volatile:") as agent:
            with pytest.raises(TimedOut):
                async with agent.run("r") as run:
                    await run.step("slow", slow, timeout=0.02)
            with pytest.raises(TimeoutError, match="mine"):
                async with agent.run("r2") as run:
                    await run.step("own", times_out_itself, timeout=5)

    asyncio.run(main())
    assert ended == ["cancelled"]


def test_a_step_that_is_cancelled_is_in_doubt(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.sleep(30)

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:

            async def one(effect: Any) -> None:
                async with agent.run(effect) as run:
                    await run.step("f", forever, effect=effect)

            for effect in ("idempotent", "once"):
                begun.clear()
                task = asyncio.create_task(one(effect))
                await begun.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (await agent.runs.get(effect)).status == "interrupted"
            async with agent.run("idempotent", wait=0) as run:
                assert await run.step("f", lambda: 7) == 7
            with pytest.raises(InDoubt):
                async with agent.run("once", wait=0) as run:
                    await run.step("f", forever, effect="once")

    asyncio.run(main())


def test_cancelling_a_run_cancels_its_async_step_in_flight(tmp_path: Path) -> None:
    begun, ended = asyncio.Event(), []

    async def forever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:
            handle = agent.run("r")

            async def body() -> None:
                async with handle as run:
                    await run.step("f", forever, effect="once")

            task = asyncio.create_task(body())
            await begun.wait()
            await agent.runs.cancel("r")
            handle._sync._running.lease.renew()  # as the renewing thread does within 2.5 s
            with pytest.raises(Cancelled):
                await asyncio.wait_for(task, 20)
            found = await agent.runs.get("r")
            assert (found.status, found.steps[0].status) == ("cancelled", "in_doubt")
            assert handle._sync._running.lease._when_lost == {}

    asyncio.run(main())
    assert ended == ["cancelled"]


def test_a_pause_in_one_branch_lets_the_others_end() -> None:
    async def slow() -> str:
        await asyncio.sleep(0.05)
        return "slow"

    async def body(run: Any) -> Any:
        return await asyncio.gather(run.wait("go"), run.step("slow", slow))

    async def main() -> None:
        async with AsyncTenuto("a", "volatile:") as agent:
            with pytest.raises(Waiting):
                await resumed(agent, body)
            info = await agent.runs.get("r")
            assert {step.name: step.status for step in info.steps} == {"go": "waiting", "slow": "completed"}
            await agent.signal("r", "go", 1)
            assert await resumed(agent, body) == [1, "slow"]

    asyncio.run(main())


def test_everything_a_run_has_is_awaited(tmp_path: Path) -> None:
    seen: list[Any] = []

    async def body(run: Any) -> None:
        found = [await run.now(), await run.uuid(), await run.random()]
        await run.state.set("k", 1)
        found += [await run.state.get("k"), await run.state.keys(), await run.state.items()]
        await run.state.delete("k")
        found += [await run.thread.append({"role": "user", "content": "hi"}), await run.thread.count()]
        found.append(await run.thread.messages())
        await run.emit("out")
        await run.usage("m", cost=0.5)
        seen.append(found)

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:
            await killed(agent, body)
            assert str(agent.run("x")) == "starting x"
            await resumed(agent, body)
            assert [one.value async for one in agent.runs.watch("r")] == ["out"]
            assert (await agent.runs.get("r")).cost == 0.5
            assert [one.id for one in await agent.runs.list()] == ["r"]
            await agent.runs.fork("r", "r2")
            assert await agent.runs.delete("r")
            with pytest.raises(Waiting):
                await resumed(agent, lambda run: run.ask("Well?"), "q")
            [question] = await agent.inbox.list()
            await agent.inbox.answer(question.id, "well")
            assert await resumed(agent, lambda run: run.ask("Well?"), "q") == "well"
            with pytest.raises(Waiting):
                await resumed(agent, lambda run: run.sleep(60), "s")
            assert await agent.runs.cancel("s")
            with pytest.raises(Cancelled):
                await resumed(agent, lambda run: run.sleep(60), "s")
            await agent.runs.retry("s")

    asyncio.run(main())
    assert seen[0] == seen[1]


def test_durable_coroutines_are_recovered_and_worked_on(tmp_path: Path) -> None:
    calls: list[Any] = []

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:

            @agent.durable
            async def job(run: Any, n: int) -> int:
                got = await run.step("a", lambda: calls.append(n) or n)
                if n == 3:
                    raise ValueError("no")
                await run.wait("go")
                return int(got) + 1

            with pytest.raises(Waiting):
                await job.run("j1", 1)
            with pytest.raises(StepMismatch):
                await job.run("j1", 2)
            await agent.signal("j1", "go")
            assert await agent.runs.recover() == {"j1": "completed"}
            assert await job.run("j1", 1) == 2
            assert await job.start("j2", 2)
            again = await job.start("j2", 2)
            assert (again.id, again.created, bool(again)) == ("j2", False, False)
            third = await job.using(user="ann").start("j3", 3)
            stop = threading.Event()
            worker = asyncio.create_task(agent.runs.work(stop=stop, poll=0.005))
            with pytest.raises(RunFailed, match="ValueError: no"):
                await third.result(wait="1m")
            await agent.signal("j2", "go")
            assert await again.result(wait="1m") == 3
            assert await agent.runs.result("j2") == 3
            stop.set()
            await worker
            assert [one.id for one in await agent.runs.list(user="ann")] == ["j3"]
            with pytest.raises(TypeError, match="async def"):
                agent.durable(lambda run: None)  # type: ignore[arg-type,return-value]

    asyncio.run(main())
    assert sorted(calls) == [1, 2, 3]


def test_both_faces_go_on_with_each_others_runs(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with Tenuto("sync", path) as agent, pytest.raises(Killed), agent.run("r") as run:
        run.step("a", lambda x: x, 1)
        raise Killed

    async def main() -> None:
        async with AsyncTenuto("async", path) as agent, agent.run("r") as run:
            assert run.resumed
            assert await run.step("a", lambda x: 100, 1) == 1

    asyncio.run(main())
