"""People across processes and event loops: two processes answer, a worker escalates, the async face does the same."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.http_server import SharedClock
from support.long import LONG, size
from support.receivers import http_receiver
from support.stores import kinds, new_url

from tenuto import AsyncTenuto, Blocked, Tenuto, Waiting
from tenuto.testing import HeldClock

WORKER = Path(__file__).with_name("worker_answers.py")


@pytest.mark.parametrize("kind", kinds("sqlite", "postgres", "valkey"))
def test_of_two_processes_one_answers_each_question(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = new_url(kind, request, tmp_path / "store.db")
    with Tenuto("asker", url) as agent:
        asked = [agent.ask(f"Pay {n}?").id for n in range(size(40, 200))]
        racers = [
            subprocess.Popen(
                [sys.executable, str(WORKER), url, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for name in ("ann", "bob")
        ]
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        won = {}
        for racer, name in zip(racers, ("ann", "bob"), strict=True):
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
            won[name] = racer
        answered = {name: racer.communicate(timeout=120)[0].split() for name, racer in won.items()}
        assert sorted(answered["ann"] + answered["bob"]) == sorted(asked), "each was answered by exactly one"
        for name, ids in answered.items():
            assert all(agent.inbox.get(one).by == name for one in ids)


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds("sqlite", *(["postgres", "valkey"] if LONG else [])))
def test_replicas_escalate_and_notify_once_while_the_receiver_is_down_for_an_hour(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3")
    clock = SharedClock()
    clock.share(tmp_path / "clock")
    url = new_url(kind, request, tmp_path / "store.db")
    with http_receiver() as receiver, Tenuto("asker", url, clock=clock) as agent:
        agent.notify.to("lead", receiver.url, secret="env:HOOK_SECRET")
        asked = [agent.ask(f"Pay {n}?", to="ann", deadline="24h", escalate=["lead"]).id for n in range(size(10, 200))]
        words = [sys.executable, str(WORKER.with_name("worker_replica.py")), url]
        replicas = [
            subprocess.Popen(
                [*words, f"r{n}", str(tmp_path / "clock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for n in range(size(3, 10))
        ]

        def all_work(seconds: float) -> int:
            """Advance the clock, let all replicas work at once, and return how many timers they fired."""
            clock.advance(seconds)
            for one in replicas:
                print(file=one.stdin, flush=True)
            return sum(int(str(one.stdout.readline()).split()[0]) for one in replicas)  # type: ignore[union-attr]

        assert {one.stdout.readline() for one in replicas} == {"ready\n"}  # type: ignore[union-attr]
        receiver.status = 503
        assert all_work(24 * 3_600 + 1) == len(asked)
        dead = replicas.pop()
        dead.kill()  # the others do its part
        dead.communicate()
        for _ in range(4):
            all_work(900)
        assert receiver.got == []
        receiver.status = 204
        while agent.notify.outbox():
            all_work(60)
        told = [json.loads(body)["data"]["id"] for _, body in receiver.got]
        assert sorted(told) == sorted(asked), "each was told of once"
        for one in asked:
            assert [event.what for event in agent.inbox.history(one)] == ["asked", "escalated", "notified"]
        for one in replicas:
            one.communicate(timeout=60)


class Until:
    """Stops a worker when a condition holds."""

    def __init__(self, holds: Callable[[], bool]) -> None:
        self.is_set = holds


@pytest.mark.parametrize("what", ["runs", "tasks"])
def test_any_worker_escalates_by_itself(agent: Tenuto, clock: HeldClock, what: str) -> None:
    asked = agent.ask("Pay?", to="ann", deadline="1h", escalate=["lead"])
    agent.milestone("samples", due="1h")
    clock.advance(3_601)
    stop = Until(lambda: bool(agent.inbox.get(asked.id).level and agent.milestones.list("missed")))
    if what == "runs":
        agent.runs.work(stop=stop)
    else:
        agent.tasks.work("q", print, stop=stop)
    assert [one.what for one in agent.inbox.history(asked.id)] == ["asked", "escalated"]


def test_an_async_worker_escalates_by_itself(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with AsyncTenuto("a", str(tmp_path / "a.db"), clock=clock) as agent:
            asked = await agent.ask("Pay?", to="ann", deadline="1h", escalate=["lead"])
            clock.advance(3_601)
            inbox = agent._sync.inbox
            await agent.runs.work(stop=Until(lambda: bool(inbox.get(asked.id).level)))
            assert [one.what for one in inbox.history(asked.id)] == ["asked", "escalated"]

    asyncio.run(main())


def test_the_async_face_asks_blocks_and_answers(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with AsyncTenuto("a", str(tmp_path / "a.db"), clock=clock) as agent:
            await agent.routes.add(about="invoice:*", to="finance", deadline="1h", escalate=["lead"])
            asked = await agent.ask("Pay?", blocks="invoice:1")
            with pytest.raises(Blocked):
                await agent.gate("invoice:1")
            clock.advance(3_601)
            assert await agent.inbox.fire() == 1
            assert (await agent.inbox.get(asked.id)).assignees == ["finance", "lead"]
            assert await agent.notify.deliver() == 0

            async def body() -> Any:
                async with agent.run("r") as run:
                    return await run.ask("Which?", schema={"type": "integer"}, key="which")

            with pytest.raises(Waiting):
                await body()
            await agent.inbox.answer("which", 7)
            assert await body() == 7
            await agent.inbox.answer(asked.id, "fine", by="lead")
            await agent.gate("invoice:1")
            await agent.milestone("m", due="1h")
            assert (await agent.milestones.meet("m")).status == "met"

    asyncio.run(main())
