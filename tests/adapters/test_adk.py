"""Google ADK on tenuto: sessions whose runner ends in between, states with their prefixes, and memories."""

import asyncio
import contextlib
from typing import Any

import pytest
from conftest import Face, Stores

pytest.importorskip("google.adk", reason="Google ADK is not installed: make frameworks")

from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

from tenuto import Tenuto
from tenuto.adapters.adk import TenutoMemoryService, TenutoSessionService
from tenuto.adapters.langchain import TenutoChatHistory

WHO: Any = {"app_name": "travel", "user_id": "ann"}


def event(text: str, author: str = "user", **delta: Any) -> Event:
    content = types.Content(role="user" if author == "user" else "model", parts=[types.Part(text=text)])
    state = {key.replace("__", ":"): value for key, value in delta.items()}
    return Event(author=author, content=content, invocation_id="i", actions=EventActions(state_delta=state))


def test_a_session_goes_on_in_another_process_and_is_readable_elsewhere(stores: Stores, face: Face) -> None:
    url = stores.new()

    async def first(agent: Tenuto) -> Any:
        service = TenutoSessionService(face(agent))
        session = await service.create_session(
            **WHO, session_id="s", state={"a": 1, "app:b": 2, "user:c": 3, "temp:d": 4}
        )
        await service.append_event(session, event("Lisbon?", e=5, app__b=6, temp__f=7))
        call = types.Part(function_call=types.FunctionCall(id="c1", name="find", args={"to": "LIS"}))
        await service.append_event(session, Event(author="travel", content=types.Content(role="model", parts=[call])))
        answer = types.Part(
            function_response=types.FunctionResponse(id="c1", name="find", response={"flight": "TP 201"})
        )
        await service.append_event(session, Event(author="travel", content=types.Content(role="user", parts=[answer])))
        await service.append_event(session, event("TP 201.", "travel", user__c=8))
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**WHO, session_id="s")
        return session

    with Tenuto("tester", url) as agent:
        before = asyncio.run(first(agent))
    with Tenuto("tester", url) as agent:
        service = TenutoSessionService(face(agent))
        session = asyncio.run(service.get_session(**WHO, session_id="s"))
        assert session is not None
        assert session.events == before.events
        assert session.state == {"a": 1, "e": 5, "app:b": 6, "user:c": 8}
        assert session.last_update_time == before.last_update_time
        assert asyncio.run(service.get_user_state(**WHO)) == {"c": 8}
        history = TenutoChatHistory("travel/ann/s", agent).messages
        assert [one.type for one in history] == ["human", "ai", "tool", "ai"]
        assert history[1].tool_calls[0]["args"] == {"to": "LIS"}  # type: ignore[attr-defined]
        config = GetSessionConfig(num_recent_events=1)
        assert len(asyncio.run(service.get_session(**WHO, session_id="s", config=config)).events) == 1  # type: ignore[union-attr]
        asyncio.run(service.delete_session(**WHO, session_id="s"))
        assert asyncio.run(service.get_session(**WHO, session_id="s")) is None
        with pytest.raises(SessionNotFoundError):
            asyncio.run(service.append_event(session, event("Late")))


def test_a_crash_between_an_event_and_its_state_is_completed_once(face: Face) -> None:
    async def main(agent: Tenuto) -> None:
        service = TenutoSessionService(face(agent))
        session = await service.create_session(**WHO, session_id="s")
        apply, service._apply = service._apply, None  # type: ignore[method-assign, assignment]
        lost = event("Lisbon?", city="LIS", user__seat="aisle")
        with contextlib.suppress(TypeError):
            await service.append_event(session, lost)
        service._apply = apply  # type: ignore[method-assign]
        fresh = await service.create_session(**WHO, session_id="t")
        assert fresh.state == {}, "not applied yet"
        found = await service.get_session(**WHO, session_id="s")
        assert found is not None
        assert found.state == {"city": "LIS", "user:seat": "aisle"}
        await service.append_event(found, lost)
        again = await service.get_session(**WHO, session_id="s")
        assert again is not None
        assert len(again.events) == 1

    with Tenuto("tester", "volatile:") as agent:
        asyncio.run(main(agent))


def test_state_is_complete_in_a_session_that_another_framework_began(face: Face) -> None:
    async def main(agent: Tenuto) -> None:
        agent.thread("trip").append({"role": "system", "content": "Be brief."}, {"role": "user", "content": "Lisbon?"})
        service = TenutoSessionService(face(agent), thread=lambda *_: "trip")
        session = await service.create_session(**WHO, session_id="s")
        for n in range(3):
            await service.append_event(session, event(f"e{n}", **{f"k{n}": n}))
        found = await service.get_session(**WHO, session_id="s")
        assert found is not None
        assert found.state == {"k0": 0, "k1": 1, "k2": 2}
        assert [one.content.parts[0].text for one in found.events] == ["Lisbon?", "e0", "e1", "e2"]  # type: ignore[union-attr, index]

    with Tenuto("tester", "volatile:") as agent:
        asyncio.run(main(agent))


def test_appends_at_once_lose_nothing(stores: Stores, face: Face) -> None:
    async def main(agent: Tenuto) -> None:
        services = [TenutoSessionService(face(agent)) for _ in range(4)]
        await services[0].create_session(**WHO, session_id="s")

        async def work(at: int) -> None:
            for n in range(5):
                session = await services[at].get_session(**WHO, session_id="s")
                assert session is not None
                await services[at].append_event(session, event(f"{at}-{n}", **{f"k{at}{n}": n}))

        await asyncio.gather(*(work(at) for at in range(4)))
        session = await services[0].get_session(**WHO, session_id="s")
        assert session is not None
        assert len(session.events) == len(session.state) == 20

    with Tenuto("tester", stores.new()) as agent:
        asyncio.run(main(agent))


def test_memories_belong_to_a_user_and_are_stored_once(stores: Stores, face: Face) -> None:
    async def main(agent: Tenuto) -> None:
        sessions, memory = TenutoSessionService(face(agent)), TenutoMemoryService(face(agent))
        session = await sessions.create_session(**WHO)
        await sessions.append_event(session, event("I prefer an aisle seat."))
        for _ in range(2):
            await memory.add_session_to_memory(session)
        found = (await memory.search_memory(**WHO, query="which seat?")).memories
        assert [(one.content.parts[0].text, one.author) for one in found] == [("I prefer an aisle seat.", "user")]
        assert (await memory.search_memory(app_name="travel", user_id="bob", query="seat")).memories == []
        await memory.delete_memory(app_name="travel", user_id="bob", memory_id=found[0].id)
        assert len((await memory.search_memory(**WHO, query="seat")).memories) == 1
        await memory.delete_memory(**WHO, memory_id=found[0].id)
        assert (await memory.search_memory(**WHO, query="seat")).memories == []

    with Tenuto("tester", stores.new()) as agent:
        asyncio.run(main(agent))
