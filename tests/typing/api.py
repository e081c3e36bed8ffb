"""What a user's type checker sees. Checked by mypy --strict and pyright, never run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from tenuto import AsyncTenuto, Checkpoint, Retention, Tenuto, register
from tenuto.aio import AsyncLease, AsyncScopeView, AsyncThread
from tenuto.capabilities._core.journal import Change
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.state import Entry, ScopeView, Transaction
from tenuto.capabilities.store import Report
from tenuto.capabilities.threads import Decision, Event, Repair, Thread, ThreadInfo, ToolCall
from tenuto.hooks.events import Call
from tenuto.hooks.events import Event as HookEvent
from tenuto.hooks.logs import LogCalls
from tenuto.testing import HeldClock


@register
@dataclass
class Invoice:
    number: int


def hook(event: HookEvent) -> None:
    if isinstance(event, Call):
        assert_type(event.seconds, float)


def blocking() -> None:
    agent = Tenuto(
        "researcher", "sqlite:///agent.db", tenant="acme", durability="process", clock=HeldClock(), hooks=[hook]
    )
    Tenuto(hooks=[LogCalls()])
    with agent:
        assert_type(agent.state.set("s", "k", 1, ttl="24h", expect=0), int)
        assert_type(agent.state.set("s", "k", 1, ttl=timedelta(hours=1)), int)
        agent.state.get("s", "k", default=3)
        assert_type(agent.state.entry("s", "k"), Entry | None)
        agent.state.update("s", "k", lambda value: value + 1, default=0, attempts=3)
        assert_type(agent.state.delete("s", "k", expect=1), bool)
        assert_type(agent.state.keys("s"), list[str])
        assert_type(agent.state.items("s"), dict[str, Any])
        assert_type(agent.state["s"], ScopeView)
        assert_type(agent.state["s"].set("k", 1, ttl=5), int)
        assert_type(agent.state["s"].keys(), list[str])
        agent.state["s"]["k"] = 2
        assert_type(agent.state.history("s", "k", limit=3), list[Entry])
        agent.state.at("s", "k", time=datetime.now(UTC))
        for change in agent.state.watch("s", after=0, timeout=1):
            assert_type(change, Change)
        with agent.state.transaction("s") as t:
            assert_type(t, Transaction)
            t["a"] = 1
            del t["b"]
        assert_type(agent.user("u-1"), ScopeView)
        thread = agent.thread("t", user="u-1", ttl="24h")
        assert_type(thread, Thread)
        assert_type(thread.append({"role": "user"}, Invoice(1), key="k", expect=0), int)
        assert_type(thread.messages(last=5, after=1, before=9, original=True), list[dict[str, Any]])
        assert_type(thread.count(), int)
        assert_type(thread.decide("x", why="y"), int)
        assert_type(thread.decisions(), list[Decision])
        assert_type(thread.tool_call("n", {"a": 1}, [2]), int)
        assert_type(thread.tool_calls(after=40), list[ToolCall])
        assert_type(thread.repair(), list[Repair])
        assert_type(thread.compact(lambda messages: str(len(messages)), keep_last=5), int)
        assert_type(thread.compact(lambda messages: messages[0]), int)
        assert_type(thread.fork("u", at=3), Thread)
        assert_type(thread.timeline(), list[Event])
        assert_type(thread.scratch, dict[str, Any])
        assert_type(thread.delete(), bool)
        for event in thread.watch(after=0, timeout=1):
            assert_type(event, Event)
        assert_type(agent.threads.list(user="u-1"), list[ThreadInfo])
        with agent.lease("l", ttl=30, wait="5s") as lease:
            assert_type(lease, Lease)
            assert_type(lease.token, int)
            agent.state.set("s", "k", 1, fence=lease)
            thread.append({"role": "user"}, fence=lease)
        with agent.leader("scheduler") as lead:
            assert_type(lead.lost, bool)
        with agent.correlation("req-17") as correlation_id:
            assert_type(correlation_id, str)
        assert_type(agent.checkpoint.create("a", {"x": 1}, thread="t", user="u", meta=3), Checkpoint)
        agent.checkpoint.restore("a", default=None)
        assert_type(agent.checkpoint.restore_as(Invoice, "a", thread="t"), Invoice)
        assert_type(agent.checkpoint.list("t", limit=3), list[Checkpoint])
        assert_type(agent.checkpoint.diff("t@1", "t@2").as_json_patch(), list[dict[str, Any]])
        assert_type(agent.checkpoint.fork("t@1", thread="u"), Checkpoint)
        assert_type(agent.checkpoint.prune(keep_last=3, older_than="24h"), int)
        assert_type(agent.checkpoint.every(10).tick({"x": 1}), Checkpoint | None)
        Tenuto(retention=Retention(keep_last=3))
        assert_type(agent.store.stats(), Mapping[str, Any])
        assert_type(agent.store.check(), Report)
        agent.store.export("a.jsonl", tenant="t")
        agent.store.import_("a.jsonl", dry_run=True)
        agent.store.copy_from(agent.store)
        agent.store.compare(agent.store, limit=3)
        agent.store.summary()
        agent.store.rotate()
        agent.store.archive("90d", "archive", kinds=["runs"], dry_run=True)
        agent.store.archived("run", "r")
        assert_type(agent.store.destroy_user_key("u"), bool)
        assert_type(agent.tasks.queues(), Sequence[str])
        assert_type(agent.for_tenant("acme"), Tenuto)


async def awaited() -> None:
    async with AsyncTenuto("researcher", "volatile:") as agent:
        assert_type(await agent.state.set("s", "k", 1, ttl="24h", expect=0), int)
        await agent.state.get("s", "k", default=3)
        assert_type(await agent.state.entry("s", "k"), Entry | None)
        assert_type(await agent.state.delete("s", "k", expect=1), bool)
        assert_type(await agent.state.keys("s"), list[str])
        assert_type(agent.state["s"], AsyncScopeView)
        assert_type(await agent.state["s"].set("k", 1, ttl=5), int)
        assert_type(await agent.state["s"].items(), dict[str, Any])
        assert_type(await agent.state.history("s", "k", limit=3), list[Entry])
        async for change in agent.state.watch("s", after=0, timeout=1):
            assert_type(change, Change)
        async with agent.state.transaction("s") as t:
            t["a"] = 1
            await t.get("a")
        thread = agent.thread("t", user="u-1", ttl="24h")
        assert_type(thread, AsyncThread)
        assert_type(await thread.append({"role": "user"}, {}, key="k", expect=0), int)
        assert_type(await thread.messages(last=5), list[dict[str, Any]])
        assert_type(await thread.tool_calls(after=40), list[ToolCall])
        assert_type(await thread.fork("u", at=3), AsyncThread)
        assert_type(await thread.compact(lambda messages: str(len(messages))), int)
        async for event in thread.watch(after=0, timeout=1):
            assert_type(event, Event)
        assert_type(await agent.threads.list("u-1"), list[ThreadInfo])
        async with agent.lease("l", ttl=30, wait=5) as lease:
            assert_type(lease, AsyncLease)
            await agent.state.set("s", "k", 1, fence=lease)
        async with agent.correlation("req-17"):
            pass
        assert_type(await agent.store.stats(), Mapping[str, Any])
        assert_type(await agent.store.check(), Report)
        assert_type(await agent.checkpoint.create("a", {"x": 1}, thread="t"), Checkpoint)
        assert_type(await agent.checkpoint.list(), list[Checkpoint])
        assert_type(await agent.checkpoint.restore_as(Invoice, "a"), Invoice)
        assert_type(await agent.checkpoint.every(10).tick({"x": 1}), Checkpoint | None)
        await agent.kernel.read([b"key"])

        await agent.state.set("s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        await agent.state.set("s", "k", 1, until=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        await agent.state["s"].get(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await thread.messages("five")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        agent.thread()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
