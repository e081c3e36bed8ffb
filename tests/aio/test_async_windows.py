"""The narrow places of async runs: tasks that pause, fail or are cancelled while others go on."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tenuto import AsyncTenuto, InDoubt, StorageUnavailable, Waiting
from tenuto.testing import HeldClock


def test_a_pause_inside_of_a_task_group_is_a_pause(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:

            @agent.durable
            async def both(run: Any) -> list[int]:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(run.wait(name)) for name in ("one", "two")]
                return [task.result() for task in tasks]

            with pytest.raises(Waiting):
                await both.run("r")
            assert (await agent.runs.get("r")).status == "waiting"
            assert await agent.runs.recover() == {}
            await agent.runs.signal("r", "one", 1)
            assert await agent.runs.recover() == {"r": "paused"}
            await agent.runs.signal("r", "two", 2)
            assert await agent.runs.recover() == {"r": "completed"}
            assert (await agent.runs.get("r")).result == [1, 2]

    asyncio.run(main())


def test_a_group_of_pauses_and_errors_fails(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:
            with pytest.raises(BaseExceptionGroup):
                async with agent.run("r"):
                    raise BaseExceptionGroup("both", [Waiting("It waits.", "r"), ValueError("broken")])
            info = await agent.runs.get("r")
            assert (info.status, str(info.error)) == ("failed", "ValueError: broken")

    asyncio.run(main())


def test_everything_that_a_run_waits_for_at_once_wakes_it(tmp_path: Path) -> None:
    clock = HeldClock()

    async def later(run: Any) -> str:
        await run.sleep(60)
        return str(await run.step("later", str, "woken"))

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db", clock=clock) as agent:

            @agent.durable
            async def both(run: Any) -> list[Any]:
                return list(await asyncio.gather(run.wait("never"), later(run)))

            with pytest.raises(Waiting):
                await both.run("r")
            info = await agent.runs.get("r")
            assert info.waits_for == (("signal", "never"),)
            assert info.wakes is not None
            clock.advance(61)
            assert await agent.runs.recover() == {"r": "paused"}
            assert [step.name for step in (await agent.runs.get("r")).steps][2:] == ["later"]

    asyncio.run(main())


def test_a_step_whose_error_left_the_run_runs_again_although_another_task_had_gone_on(tmp_path: Path) -> None:
    calls: list[str] = []
    fails = [True]

    async def do(name: str) -> str:
        calls.append(name)
        if name == "fails" and fails[0]:
            raise ValueError("not now")
        return name

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:

            async def branch(run: Any) -> None:
                for n in range(50):
                    await run.step(f"step {n}", do, f"{n}")

            async def body(run: Any) -> None:
                await asyncio.gather(run.step("fails", do, "fails"), branch(run))

            with pytest.raises(ValueError, match="not now"):
                async with agent.run("r") as run:
                    task = asyncio.ensure_future(branch(run))
                    try:
                        await run.step("fails", do, "fails", key="k")
                    finally:
                        await asyncio.sleep(0.05)  # the other branch goes on meanwhile, as it does beside a slow commit
                        task.cancel()
            assert len(calls) > 2
            fails[0] = False
            calls.clear()
            async with agent.run("r") as run:
                task = asyncio.ensure_future(branch(run))
                assert await run.step("fails", do, "fails", key="k") == "fails"
                await task
            assert calls.count("fails") == 1

    asyncio.run(main())


def test_a_wait_in_place_ends_when_its_neighbour_fails(tmp_path: Path) -> None:
    async def broken() -> None:
        raise ValueError("broken")

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:
            with pytest.raises(ValueError, match="broken"):
                async with asyncio.timeout(20), agent.run("r", block=True) as run:
                    waits = asyncio.ensure_future(run.wait("never"))
                    await run.step("broken", broken)
            with pytest.raises(Waiting):
                await waits
            assert (await agent.runs.get("r")).status == "failed"

    asyncio.run(main())


def test_a_step_that_was_cancelled_in_its_middle_is_in_doubt(tmp_path: Path) -> None:
    calls: list[str] = []

    async def charge() -> str:
        calls.append("charge")
        await asyncio.Event().wait()
        return "never"

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db") as agent:
            with pytest.raises(TimeoutError):
                async with agent.run("r") as run, asyncio.timeout(0.05):
                    await run.step("charge", charge, effect="once")
            with pytest.raises(InDoubt):
                async with agent.run("r") as run:
                    await run.step("charge", charge, effect="once")
            assert calls == ["charge"]

    asyncio.run(main())


def test_the_store_goes_away_while_steps_are_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenuto.capabilities.runs.open_run.PATIENCE", 0.0)
    calls: list[str] = []

    async def do(name: str) -> str:
        calls.append(name)
        return name

    async def main() -> None:
        async with AsyncTenuto("a", tmp_path / "s.db", clock=HeldClock()) as agent:
            kernel = agent._sync.kernel
            real, count = kernel.commit, [0]

            def commit(checks: Any, writes: Any, *, request: bytes | None = None) -> Any:
                count[0] += 1
                if count[0] >= 4:
                    raise StorageUnavailable("The store is away.")
                return real(checks, writes, request=request)

            async def body(run: Any) -> list[str]:
                return list(await asyncio.gather(*(run.step(name, do, name) for name in "abcd")))

            monkeypatch.setattr(kernel, "commit", commit)
            with pytest.raises(StorageUnavailable):
                async with agent.run("r") as run:
                    await body(run)
            monkeypatch.setattr(kernel, "commit", real)
            async with agent.run("r", wait=30) as run:
                assert await body(run) == ["a", "b", "c", "d"]
            info = await agent.runs.get("r")
            assert all(calls.count(step.name) == step.attempts for step in info.steps if step.repeated_in_doubt)
            assert all(step.status == "completed" for step in info.steps)

    asyncio.run(main())
