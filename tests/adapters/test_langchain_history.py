"""`TenutoChatHistory`: every message of LangChain's comes back as it was, sync and async, alone and in a chain."""

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from tenuto import AsyncTenuto, NotStorable, Tenuto
from tenuto.adapters.langchain import TenutoChatHistory

CALL: Any = {"name": "fly", "args": {"to": "LIS", "n": 1.0, "odd": (1, 2)}, "id": "c1", "type": "tool_call"}
EVERY: list[BaseMessage] = [
    SystemMessage("be brief"),
    HumanMessage("hi", id="1", name="ann"),
    HumanMessage([{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "https://x/y.png"}}]),
    AIMessage("", tool_calls=[CALL], usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}),
    AIMessage([{"type": "thinking", "thinking": "…", "signature": "s"}, {"type": "text", "text": "so"}]),
    AIMessage(
        "bad", invalid_tool_calls=[{"name": "x", "args": "{", "id": "i", "error": "e", "type": "invalid_tool_call"}]
    ),
    AIMessageChunk("part", id="chunk"),
    ToolMessage("TP1", tool_call_id="c1", artifact={"raw": b"\x00", "when": [1, (2, 3)]}, status="error"),
    ToolMessage([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], tool_call_id="c2"),
    FunctionMessage("old", name="f"),
    ChatMessage("as a critic", role="critic"),
    RemoveMessage(id="1"),
]


def test_every_kind_of_message_comes_back_as_it_was(agent: Tenuto) -> None:
    history = TenutoChatHistory("s", agent, user="u-1")
    history.add_messages(EVERY)
    found = history.messages
    assert found == EVERY
    assert [type(one) for one in found] == [type(one) for one in EVERY]
    history.add_user_message("more")
    history.add_ai_message("yes")
    assert [m.content for m in history.messages[-2:]] == ["more", "yes"]
    history.clear()
    assert history.messages == []
    history.add_messages([])


def test_it_is_in_the_thread_as_everybody_reads_it(agent: Tenuto) -> None:
    TenutoChatHistory("s", agent).add_messages(EVERY[:4])
    system, human, picture, called = ({k: v for k, v in m.items() if k != "kept"} for m in agent.thread("s").messages())
    assert (system, human) == ({"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"})
    assert picture["content"][1]["image_url"] == {"url": "https://x/y.png"}
    assert called["tool_calls"][0]["function"]["name"] == "fly"
    assert [note.name for note in agent.thread("s").repair()] == ["fly"]


def test_what_is_the_same_is_not_stored_twice(agent: Tenuto) -> None:
    TenutoChatHistory("s", agent).add_messages(
        [HumanMessage("x" * 1_000), AIMessage("y" * 1_000, tool_calls=[{**CALL, "args": {}}])]
    )
    for message in agent.thread("s").messages():
        assert len(repr(message["kept"])) < 100


def test_what_cannot_be_stored_is_named(agent: Tenuto) -> None:
    with pytest.raises(NotStorable, match="artifact"):
        TenutoChatHistory("s", agent).add_messages([ToolMessage("x", tool_call_id="c", artifact=object())])
    assert agent.thread("s").count() == 0


def test_the_async_face(tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncTenuto("tester", tmp_path / "store.db") as agent:
            history = TenutoChatHistory("s", agent)
            await history.aadd_messages(EVERY)
            assert await history.aget_messages() == EVERY
            await asyncio.gather(*(history.aadd_messages([HumanMessage(str(n))]) for n in range(20)))
            assert len(await history.aget_messages()) == len(EVERY) + 20
            task = asyncio.create_task(history.aadd_messages([HumanMessage("cancelled")]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await history.aget_messages())[-1].content == "cancelled", "what has begun is brought to its end"
            await history.aclear()
            assert await history.aget_messages() == []

    asyncio.run(work())


def test_a_chain_remembers(agent: Tenuto) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangChain has declared the wrapper deprecated, and people use it
        from langchain_core.runnables.history import RunnableWithMessageHistory

        chain = RunnableWithMessageHistory(
            FakeListChatModel(responses=["one", "two"]), lambda session_id: TenutoChatHistory(session_id, agent)
        )
    for question in ("first?", "second?"):
        chain.invoke(question, config={"configurable": {"session_id": "s"}})
    assert [m["content"] for m in agent.thread("s").messages()] == ["first?", "one", "second?", "two"]
