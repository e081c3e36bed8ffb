"""Microsoft Agent Framework on tenuto: histories, checkpoints of workflows, sessions."""

import asyncio
from typing import Any

import pytest
from conftest import Stores

pytest.importorskip("agent_framework", reason="Microsoft Agent Framework is not installed: make frameworks")

from agent_framework import (
    AgentSession,
    Content,
    Executor,
    Message,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    handler,
)

from tenuto import Tenuto
from tenuto.adapters.agent_framework import TenutoCheckpointStorage, TenutoHistoryProvider, TenutoSessionStore
from tenuto.adapters.langchain import TenutoChatHistory
from tenuto.aio import AsyncTenuto
from tenuto.shapes import as_chat

MESSAGES = [
    Message("user", [Content.from_text("Lisbon?"), Content.from_data(b"x", media_type="image/png")], author_name="ann"),
    Message(
        "assistant", [Content.from_text("Looking."), Content.from_function_call("c1", "find", arguments={"to": "LIS"})]
    ),
    Message("tool", [Content.from_function_result("c1", result="TP 201")]),
    Message("assistant", ["TP 201."], message_id="m1"),
]


def dicts(messages: Any) -> list[Any]:
    return [message.to_dict() for message in messages]


def test_a_history_comes_back_equal_in_another_process_and_is_readable_elsewhere(stores: Stores) -> None:
    url = stores.new()

    async def write() -> None:
        async with AsyncTenuto("tester", url) as agent:
            provider = TenutoHistoryProvider(agent)
            await provider.save_messages("trip", MESSAGES[:2])
            await provider.save_messages("trip", MESSAGES[2:])
            assert await provider.get_messages("other") == []

    asyncio.run(write())
    with Tenuto("reader", url) as agent:
        assert dicts(asyncio.run(TenutoHistoryProvider(agent).get_messages("trip"))) == dicts(MESSAGES)
        chat = as_chat(agent.thread("trip").messages())
        assert [one["role"] for one in chat] == ["user", "assistant", "tool", "assistant"]
        assert TenutoChatHistory("trip", agent).messages[1].tool_calls[0]["args"] == {"to": "LIS"}  # type: ignore[attr-defined]
        agent.thread("trip").append({"role": "user", "content": "And back?"})
        assert asyncio.run(TenutoHistoryProvider(agent).get_messages("trip"))[-1].text == "And back?"


def checkpoint(workflow: str, number: int) -> WorkflowCheckpoint:
    return WorkflowCheckpoint(
        workflow_name=workflow,
        graph_signature_hash="g",
        checkpoint_id=f"{workflow}-{number}",
        timestamp=f"2026-01-0{number}T00:00:00+00:00",
        state={"at": number, "pair": (1, 2)},
    )


def test_checkpoints_are_listed_in_order_replaced_and_deleted(stores: Stores) -> None:
    async def main() -> None:
        async with AsyncTenuto("tester", stores.new()) as agent:
            storage = TenutoCheckpointStorage(agent)
            assert await storage.get_latest(workflow_name="a") is None
            for number in (3, 1, 2):
                assert await storage.save(checkpoint("a", number)) == f"a-{number}"
            await storage.save(checkpoint("b", 1))
            assert await storage.load("a-1") == checkpoint("a", 1)
            assert await storage.list_checkpoint_ids(workflow_name="a") == ["a-3", "a-1", "a-2"]
            assert (await storage.get_latest(workflow_name="a")) == checkpoint("a", 3)
            await storage.save(checkpoint("a", 1))
            assert await storage.list_checkpoints(workflow_name="a") == [checkpoint("a", n) for n in (3, 1, 2)]
            assert await storage.delete("a-3")
            assert not await storage.delete("a-3")
            assert await storage.list_checkpoint_ids(workflow_name="a") == ["a-1", "a-2"]
            with pytest.raises(WorkflowCheckpointException, match="No checkpoint found with ID a-3"):
                await storage.load("a-3")

    asyncio.run(main())


class Add(Executor):
    """Adds one, and stops the process at a number."""

    def __init__(self, name: str, seen: list[str], stop: bool) -> None:
        super().__init__(id=name)
        self.seen, self.stop = seen, stop

    @handler
    async def add(self, number: int, context: WorkflowContext[int, int]) -> None:
        self.seen.append(self.id)
        if self.stop:
            raise KeyboardInterrupt
        await (context.yield_output(number + 1) if self.id == "c" else context.send_message(number + 1))


def test_a_workflow_goes_on_from_its_newest_checkpoint(stores: Stores) -> None:
    url, seen = stores.new(), []

    def workflow(storage: Any, *, stop: bool) -> Any:
        a, b, c = (Add(name, seen, stop and name == "c") for name in "abc")
        builder = WorkflowBuilder(name="sum", start_executor=a, checkpoint_storage=storage, output_from=[c])
        return builder.add_edge(a, b).add_edge(b, c).build()

    async def first() -> None:
        async with AsyncTenuto("tester", url) as agent:
            await workflow(TenutoCheckpointStorage(agent), stop=True).run(1)

    async def second() -> Any:
        async with AsyncTenuto("tester", url) as agent:
            storage = TenutoCheckpointStorage(agent)
            newest = await storage.get_latest(workflow_name="sum")
            assert newest is not None
            return await workflow(storage, stop=False).run(checkpoint_id=newest.checkpoint_id)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(first())
    assert seen == ["a", "b", "c"]
    assert asyncio.run(second()).get_outputs() == [4]
    assert seen == ["a", "b", "c", "c"]


def test_sessions_are_stored_by_id(stores: Stores) -> None:
    async def main() -> None:
        async with AsyncTenuto("tester", stores.new()) as agent:
            sessions, session = TenutoSessionStore(agent), AgentSession()
            session.state["plan"] = {"days": [1, 2]}
            await sessions.set("one", session)
            found = await sessions.get("one")
            assert found is not None
            assert found.to_dict() == session.to_dict()
            await sessions.delete("one")
            assert await sessions.get("one") is None
            with pytest.raises(ValueError, match="non-empty"):
                await sessions.get("")

    asyncio.run(main())
