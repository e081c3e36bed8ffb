"""Strands on tenuto: its storage, its sessions, and an agent whose process ends in between."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from conftest import Face, Stores

pytest.importorskip("strands", reason="Strands is not installed: make frameworks")

from strands import Agent, tool
from strands.models import Model
from strands.session import RepositorySessionManager
from strands.session.snapshot_session_manager import SnapshotSessionManager
from strands.types.exceptions import SessionException

from tenuto import Tenuto
from tenuto.adapters.langchain import TenutoChatHistory
from tenuto.adapters.strands import TenutoSessionRepository, TenutoStorage


class Fake(Model):
    """A model that calls the tool `find` once, then answers with the number of messages that it was given."""

    def update_config(self, **_: Any) -> None: ...
    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        called = any("toolUse" in block for message in messages for block in message["content"])
        yield {"messageStart": {"role": "assistant"}}
        if called:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": f"I know {len(messages)} messages."}}}
        else:
            yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": "t1", "name": "find"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"to": "LIS"}'}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if called else "tool_use"}}


@tool
def find(to: str) -> str:
    """Find flights."""
    return "TP 201"


def answer(manager: Any, prompt: str) -> str:
    agent = Agent(model=Fake(), tools=[find], session_manager=manager, callback_handler=None)
    return str(agent(prompt)).strip()


@pytest.mark.parametrize("size", [0, 3, 9_000_000])
def test_storage_keeps_bytes_of_any_size(stores: Stores, size: int, face: Face) -> None:
    data = bytes(range(256)) * (size // 256) + b"\x00\xff"[: size % 256]

    async def main(agent: Tenuto) -> None:
        storage = TenutoStorage(face(agent))
        await storage.write("a/b", b"old" * 2_000_000)
        await storage.write("a/b", data)
        assert await storage.read("a/b") == data
        await storage.delete("a/b")
        assert await storage.read("a/b") is None
        assert agent.kernel.scan(b"\x02strands\x00") == []

    with Tenuto("tester", stores.new()) as agent:
        asyncio.run(main(agent))


def test_an_agent_continues_its_session_in_another_process(stores: Stores, face: Face) -> None:
    url = stores.new()
    for made, expected in ((0, "I know 3 messages."), (1, "I know 5 messages.")):
        with Tenuto("tester", url) as agent:
            manager = RepositorySessionManager("trip", TenutoSessionRepository(face(agent)))
            assert answer(manager, f"Question {made}") == expected
            snapshots = SnapshotSessionManager(session_id="snap", storage=TenutoStorage(face(agent)))
            assert answer(snapshots, f"Question {made}") == expected
    with Tenuto("tester", url) as agent:
        messages = TenutoChatHistory("trip", agent).messages
        assert [one.type for one in messages] == ["human", "ai", "tool", "ai", "human", "ai"]
        assert messages[1].tool_calls[0]["args"] == {"to": "LIS"}
        assert agent.thread("trip").repair() == []


def test_a_session_continues_what_another_framework_began_and_redacts(face: Face) -> None:
    with Tenuto("tester", "volatile:") as agent:
        agent.thread("trip").append({"role": "user", "content": "Lisbon?"})
        agent.thread("trip").append({"role": "assistant", "content": "Lovely."})
        repository = TenutoSessionRepository(face(agent))
        assert answer(RepositorySessionManager("trip", repository), "Flights?") == "I know 3 messages."
        repository.create_agent("trip", repository.read_agent("trip", "default"))  # type: ignore[arg-type]
        last = repository.list_messages("trip", "default")[-1]
        assert last.message_id == 5
        last.redact_message = {"role": "assistant", "content": [{"text": "[redacted]"}]}
        repository.update_message("trip", "default", last)
        assert repository.list_messages("trip", "default")[-1].to_message()["content"] == [{"text": "[redacted]"}]
        repository.delete_session("trip")
        assert repository.list_messages("trip", "default") == []
        with pytest.raises(SessionException, match="does not exist"):
            repository.delete_session("trip")
