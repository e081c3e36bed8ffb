"""Runs as a type checker sees them; never run."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_type
from uuid import UUID

from tenuto import AsyncRun, AsyncTenuto, Happened, Intent, NotHappened, Question, Retry, Run, Tenuto, Unknown, secret
from tenuto.capabilities.runs import Emitted, RunHandle, RunInfo, RunRecord, StepInfo


@dataclass
class Plan:
    city: str


def make_plan(city: str) -> list[str]:
    return [city]


def load(text: str) -> Any:
    return text


def send(to: str, text: str, *, urgent: bool = False) -> bool:
    return bool(to and text) or urgent


async def fetch(page: int) -> bytes:
    return bytes(page)


def find(intent: Intent) -> Happened | NotHappened | Unknown:
    assert_type(intent.idempotency_key, str)
    return Happened("ticket") if intent.attempt else NotHappened()


def blocking() -> None:
    with Tenuto("travel", "volatile:") as agent:
        with agent.run("trip-42", user="u-1", wait="1m", block=True, deadline=60) as run:
            assert_type(run, Run)
            assert_type(run.step("plan", make_plan, "Lisbon"), list[str])
            assert_type(run.step("book", len, "TP1", effect="once", verify=find, retry=Retry(attempts=3)), int)
            assert_type(run.map("each", make_plan, ["a"], concurrency=2, on_error="keep"), list[list[str]])
            assert_type(run.now(), datetime)
            assert_type(run.uuid(), UUID)
            assert_type(run.random(), float)
            run.sleep("24h")
            run.wait("approved", timeout=5)
            run.ask("Pay?", to="finance", choices=["yes", "no"], deadline="1h")
            run.state["k"] = 1
            assert_type(run.thread.append({"role": "user"}), int)
            run.step("call", print, secret("token"), key="k", timeout="5s")
            assert_type(run.resumed, bool)
            assert_type(run.step("plan", load, "{}", schema=Plan), Plan)
            assert_type(run.step("mail", send, "ann", text="hello"), bool)
            assert_type(run.step(send, to="ann", text="hello"), bool)
            assert_type(
                run.step("mail", send, kwargs={"to": "ann", "text": "x"}, effect="once", errors=(OSError,)), bool
            )
            assert_type(run.map("plans", make_plan, ["a", "b"], concurrency=2, schema=Plan), list[Plan])

        @agent.durable
        def deploy(run: Run, version: str, *, region: str = "eu") -> int:
            return run.step("build", len, version + region)

        assert_type(deploy.run("d-1", "1.2.3", region="us"), int)
        handle = deploy.start("d-1", "1.2.3")
        assert_type(handle, RunHandle[int])
        assert_type(handle.result(wait="1m"), int)
        assert_type(deploy.run(None, "1.2.3"), int)
        assert_type(agent.runs.result("d-1"), Any)
        deploy.run("d-1", 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

        @agent.durable(name="other")
        def other(run: Run) -> str:
            return run.id

        assert_type(other.run("o-1"), str)
        assert_type(agent.runs.list(status="failed"), list[RunInfo])
        assert_type(agent.runs.get("d-1"), RunRecord)
        assert_type(agent.runs.get("d-1").steps, list[StepInfo])
        assert_type(agent.runs.watch("d-1", after=3), Iterator[Emitted])
        assert_type(agent.runs.fork("d-1", "d-2", at="build", results={"a": 1}), RunInfo)
        assert_type(agent.signal("d-1", "go", {"by": "ann"}), bool)
        assert_type(agent.inbox.list(to="finance"), list[Question])
        assert_type(agent.inbox.answer("q", "yes", by="ann"), Question)


async def awaited() -> None:
    async with AsyncTenuto("travel", "volatile:") as agent:
        async with agent.run("trip-42") as run:
            assert_type(run, AsyncRun)
            assert_type(await run.step("plan", make_plan, "Lisbon"), list[str])
            assert_type(await run.step("fetch", fetch, 3, key="3"), bytes)
            assert_type(await run.step("fetch", fetch, page=3), bytes)
            assert_type(await run.step(fetch, 3), bytes)
            assert_type(await run.step("fetch", fetch, kwargs={"page": 3}, effect="pure"), bytes)
            assert_type(await run.now(), datetime)
            await run.sleep(5)
            await run.state.set("k", 1)
            assert_type(await run.thread.append({"role": "user"}), int)

        @agent.durable
        async def deploy(run: AsyncRun, version: str) -> int:
            return await run.step("build", len, version)

        assert_type(await deploy.run("d-1", "1.2.3"), int)
        started = await deploy.start("d-1", "1.2.3")
        assert_type(await started.result(wait=5), int)
        assert_type(started.created, bool)
        assert_type(await agent.runs.get("d-1"), RunRecord)
        async for emitted in agent.runs.watch("d-1"):
            assert_type(emitted, Emitted)
        answered: Any = await agent.inbox.answer("q", NotHappened())
        assert answered
