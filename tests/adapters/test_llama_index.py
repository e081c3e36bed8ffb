"""LlamaIndex on tenuto: chats, and a workflow of its server whose process ends in the middle."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from conftest import Face, Stores

pytest.importorskip("llama_index.core", reason="LlamaIndex is not installed: make frameworks")
pytest.importorskip("llama_agents.server", reason="the workflow server of LlamaIndex is not installed: make frameworks")

from llama_agents.client.protocol.serializable_events import EventEnvelopeWithMetadata
from llama_agents.server import HandlerQuery, PersistentHandler, WorkflowServer
from llama_index.core.base.llms.types import ChatMessage, ImageBlock, TextBlock, ToolCallBlock
from llama_index.core.memory import ChatMemoryBuffer
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent

from tenuto import Tenuto
from tenuto.adapters.langchain import TenutoChatHistory
from tenuto.adapters.llama_index import TenutoChatStore
from tenuto.adapters.llama_workflows import TenutoWorkflowStore

MESSAGES = [
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", blocks=[TextBlock(text="Lisbon?"), ImageBlock(url="http://a/b.png")]),
    ChatMessage(
        role="assistant",
        blocks=[
            TextBlock(text="Looking."),
            ToolCallBlock(tool_call_id="c1", tool_name="find", tool_kwargs={"to": "LIS"}),
        ],
    ),
    ChatMessage(role="tool", content="TP 201", additional_kwargs={"tool_call_id": "c1", "name": "find"}),
    ChatMessage(role="assistant", content="TP 201.", additional_kwargs={"score": 1}),
]


def test_a_chat_comes_back_equal_and_is_readable_elsewhere(stores: Stores, face: Face) -> None:
    url = stores.new()
    with Tenuto("tester", url) as agent:
        memory = ChatMemoryBuffer.from_defaults(chat_store=TenutoChatStore(face(agent)), chat_store_key="trip")
        for message in MESSAGES:
            memory.put(message)
    with Tenuto("tester", url) as agent:
        store = TenutoChatStore(face(agent))
        assert store.get_messages("trip") == MESSAGES
        history = TenutoChatHistory("trip", agent).messages
        assert [one.type for one in history] == ["system", "human", "ai", "tool", "ai"]
        assert history[2].tool_calls[0]["args"] == {"to": "LIS"}  # type: ignore[attr-defined]
        agent.thread("trip").append({"role": "user", "content": "And back?"})
        assert store.get_messages("trip")[-1] == ChatMessage(role="user", content="And back?")


class More(Event):
    number: int


class Sum(Workflow):
    """Adds one in each of three steps, and stops its process in the second."""

    seen: list[str] = []
    stop: asyncio.Event | None = None

    @step
    async def first(self, ctx: Context, event: StartEvent) -> More:
        self.seen.append("first")
        await ctx.store.set("total", 1)
        return More(number=1)

    @step
    async def second(self, ctx: Context, event: More) -> StopEvent:
        self.seen.append("second")
        if self.stop is not None:
            self.stop.set()
            await asyncio.sleep(3600)
        return StopEvent(result=await ctx.store.get("total") + event.number)


def test_a_workflow_whose_server_ended_goes_on_from_its_ticks(stores: Stores, face: Face) -> None:
    url = stores.new()
    Sum.seen = []

    async def first() -> None:
        Sum.stop = asyncio.Event()
        with Tenuto("server", url) as agent:
            server = WorkflowServer(workflow_store=TenutoWorkflowStore(face(agent)))
            server.add_workflow("sum", Sum(timeout=None))
            async with server.contextmanager():
                await server._service.start_workflow(server._service.get_workflow("sum"), "h1", StartEvent())
                await asyncio.wait_for(Sum.stop.wait(), 20)

    async def second() -> Any:
        Sum.stop = None
        with Tenuto("server", url) as agent:
            store = TenutoWorkflowStore(face(agent))
            killed = (await store.query(HandlerQuery(handler_id_in=["h1"])))[0]
            assert killed.started_at is not None
            killed.started_at -= timedelta(
                hours=1
            )  # the server takes a handler that has just begun for another server's
            await store.update(killed)
            server = WorkflowServer(workflow_store=store)
            server.add_workflow("sum", Sum(timeout=None))
            async with server.contextmanager(), asyncio.timeout(20):
                while True:
                    handler = (await store.query(HandlerQuery(handler_id_in=["h1"])))[0]
                    if handler.status != "running":
                        return handler
                    await asyncio.sleep(0.02)

    asyncio.run(first())
    handler = asyncio.run(second())
    assert (handler.status, handler.result.result) == ("completed", 2)
    assert Sum.seen == ["first", "second", "second"]


def test_handlers_events_and_ticks_are_stored_and_deleted(stores: Stores, face: Face) -> None:
    async def main(agent: Tenuto) -> None:
        store = TenutoWorkflowStore(face(agent))
        for number in range(3):
            await store.update(
                PersistentHandler(handler_id=f"h{number}", workflow_name="w", status="running", run_id=f"r{number}")
            )
            for value in range(3):
                envelope = EventEnvelopeWithMetadata.from_event(Event(data=value), include_qualified_name=False)
                await store.append_event(f"r{number}", envelope)
                await store.append_tick(f"r{number}", {"n": value})
        await store.update_handler_status("r1", status="completed", result=StopEvent(result=7))
        done = await store.query(HandlerQuery(status_in=["completed"]))
        assert [(one.handler_id, one.result.result) for one in done] == [("h1", 7)]
        assert [one.sequence for one in await store.query_events("r0", after_sequence=0, limit=1)] == [1]
        assert [one.tick_data for one in await store.get_ticks("r0")] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert await store.query(HandlerQuery(handler_id_in=[])) == []
        assert await store.delete(HandlerQuery(run_id_in=["r0"])) == 1
        assert await store.query_events("r0") == []
        assert len(await store.query_events("r1")) == 3

    with Tenuto("tester", stores.new()) as agent:
        asyncio.run(main(agent))
