"""The same calls to a framework's own store and to ours, one after the other, and whether the answers are equal.

    python tests/adapters/reference.py strands llama-index     # prints a JSON line for each store that was compared

An answer is what a call returns, as plain data without times and generated ids, or the name of the exception that it raises.
Frameworks that are not installed are left out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import inspect
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tenuto import Tenuto

Call = Callable[[Any], Any]
CHANGING = {
    "timestamp", "created_at", "updated_at", "last_update_time", "last_accessed", "run_id", "conversation_id", "tool_call_id",
    "invocation_id", "provider_response_id", "_node_path", "response_id",
}  # fmt: skip


class Compared(NamedTuple):
    """What was compared, with how many calls, and the calls whose answers differ."""

    what: str
    calls: int
    differ: list[str]


def plain(value: Any) -> Any:
    """Return an answer as plain data, without what changes from call to call."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "model_dump"):
        value = value.model_dump(mode="json")
    elif hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items() if key not in CHANGING}
    if isinstance(value, list | tuple | set | frozenset):
        found = [plain(one) for one in value]
        return sorted(found, key=repr) if isinstance(value, set | frozenset) else found
    return (
        round(value, 5) if isinstance(value, float) else value if isinstance(value, str | int | None) else repr(value)
    )


async def answer(store: Any, call: Call) -> Any:
    try:
        found = call(store)
        return plain(await found if inspect.isawaitable(found) else found)
    except Exception as error:
        return error


def compared(what: str, theirs: Any, ours: Any, calls: list[Call]) -> Compared:
    async def main() -> list[str]:
        differ = []
        for at, call in enumerate(calls, start=1):
            one, other = await answer(theirs, call), await answer(ours, call)
            raised = isinstance(one, Exception) and isinstance(other, type(one))  # ours may be a subclass
            if not raised and one != other:
                differ.append(f"call {at}: theirs {one!r:.300}, ours {other!r:.300}")
        return differ

    return Compared(what, len(calls), asyncio.run(main()))


def store() -> Tenuto:
    return Tenuto("reference", "volatile:")


# -- the frameworks ----------------------------------------------------------------------------------------------------


def strands(folder: Path) -> Iterator[Compared]:
    from strands.session.file_session_manager import FileSessionManager
    from strands.storage import InMemoryStorage
    from strands.types.session import Session, SessionAgent, SessionMessage, SessionType

    from tenuto.adapters.strands import TenutoSessionRepository, TenutoStorage

    written = [("/a//b/", b"1"), ("a/c", b"2"), ("ab", b"3"), ("a", b"4"), ("", b""), ("a/../b", b"")]
    calls: list[Call] = [lambda s, k=k, d=d: s.write(k, d) for k, d in written]
    calls += [lambda s, k=k: s.read(k) for k in ("a/b", "none", "a\\b", "a", "/a/c")]
    calls += [lambda s, k=k: s.list(k) for k in ("", "a", "a/", "//a//", "x", "a/b", "/")]
    calls += [lambda s, k=k: s.delete(k) for k in ("none", "a/b", "a/../b")]
    calls += [lambda s: s.list("a/"), lambda s: s.search("2"), lambda s: s.write("a/c", b"5"), lambda s: s.read("a/c")]
    yield compared("Strands storage", InMemoryStorage(), TenutoStorage(store()), calls)

    def message(at: int, text: str) -> SessionMessage:
        return SessionMessage({"role": "user", "content": [{"text": text}]}, at)

    def agent(value: int) -> SessionAgent:
        return SessionAgent("default", {"value": value}, {})

    new = Session("t", SessionType.AGENT)
    calls = [
        lambda s: s.read_session("t"), lambda s: s.create_session(new), lambda s: s.create_session(new),
        lambda s: s.read_session("t"), lambda s: s.read_agent("t", "default"), lambda s: s.create_agent("t", agent(1)),
        lambda s: s.read_agent("t", "default"), lambda s: s.update_agent("t", agent(2)),
        lambda s: s.read_agent("t", "default"), lambda s: s.update_agent("t", SessionAgent("x", {}, {})),
        *(lambda s, at=at: s.create_message("t", "default", message(at, f"m{at}")) for at in range(4)),
        lambda s: s.list_messages("t", "default"), lambda s: s.list_messages("t", "default", limit=2),
        lambda s: s.list_messages("t", "default", limit=2, offset=1), lambda s: s.list_messages("t", "default", offset=9),
        lambda s: s.read_message("t", "default", 2), lambda s: s.read_message("t", "default", 9),
        lambda s: s.update_message("t", "default", message(2, "changed")), lambda s: s.read_message("t", "default", 2),
        lambda s: s.update_message("t", "default", message(9, "none")), lambda s: s.delete_session("t"),
        lambda s: s.read_session("t"), lambda s: s.delete_session("t"),
    ]  # fmt: skip
    theirs = FileSessionManager("s", storage_dir=str(folder))
    yield compared("Strands sessions", theirs, TenutoSessionRepository(store()), calls)


def llama_index(folder: Path) -> Iterator[Compared]:
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.storage.chat_store import SimpleChatStore

    from tenuto.adapters.llama_index import TenutoChatStore

    one, two = ChatMessage(role="user", content="one"), ChatMessage(role="user", content="two")
    given: list[tuple[Any, ...]] = [
        ("get_messages", "a"), ("add_message", "a", one), ("add_message", "a", two), ("add_message", "b", two),
        ("get_keys",), ("add_message", "a", two, 0), ("get_messages", "a"), ("delete_message", "a", 5),
        ("delete_message", "a", 0), ("get_messages", "a"), ("delete_last_message", "a"), ("get_keys",),
        ("set_messages", "a", [two, one]), ("set_messages", "a", [two, one, two]), ("delete_message", "a", -1),
        ("get_messages", "a"), ("delete_messages", "b"), ("get_keys",), ("get_messages", "b"), ("delete_last_message", "none"),
        ("delete_messages", "none"), ("delete_message", "none", 0), ("async_add_message", "c", one), ("aget_messages", "c"),
        ("adelete_last_message", "c"), ("aget_messages", "c"), ("aget_keys",), ("aset_messages", "c", [one]), ("adelete_messages", "c"),
    ]  # fmt: skip
    calls: list[Call] = [lambda s, n=name, a=rest: getattr(s, n)(*a) for name, *rest in given]
    yield compared("LlamaIndex chats", SimpleChatStore(), TenutoChatStore(store()), calls)


def llama_workflows(folder: Path) -> Iterator[Compared]:
    from llama_agents.client.protocol.serializable_events import EventEnvelopeWithMetadata
    from llama_agents.server import HandlerQuery, MemoryWorkflowStore, PersistentHandler
    from workflows.events import Event

    from tenuto.adapters.llama_workflows import TenutoWorkflowStore

    def handler(number: int, status: str, name: str = "w") -> Any:
        return PersistentHandler(handler_id=f"h{number}", workflow_name=name, status=status, run_id=f"r{number}")  # type: ignore[arg-type]

    def event(number: int) -> EventEnvelopeWithMetadata:
        return EventEnvelopeWithMetadata.from_event(Event(at=number))  # type: ignore[call-arg]

    queries: list[dict[str, Any]] = [
        {}, {"handler_id_in": ["h1", "h3"]}, {"run_id_in": ["r2"]}, {"workflow_name_in": ["v"]}, {"status_in": ["running"]},
        {"status_in": []}, {"is_idle": False}, {"is_idle": True}, {"handler_id_in": ["h1"], "status_in": ["completed"]},
    ]  # fmt: skip
    calls: list[Call] = [lambda s: s.query(HandlerQuery())]
    calls += [lambda s, n=n: s.update(handler(n, "running", "v" if n == 3 else "w")) for n in (1, 2, 3)]
    calls += [lambda s: s.update(handler(1, "completed"))]
    calls += [lambda s, q=q: s.query(HandlerQuery(**q)) for q in queries]
    calls += [lambda s, n=n: s.append_event("r1", event(n)) for n in range(3)]
    calls += [
        lambda s, a=a, n=n: s.query_events("r1", a, n)
        for a, n in ((None, None), (0, None), (None, 2), (2, None), (-1, 1))
    ]
    calls += [lambda s, n=n: s.append_tick("r1", {"tick": n}) for n in range(3)]
    calls += [lambda s: s.get_ticks("r1"), lambda s: s.get_ticks("none"), lambda s: s.query_events("none")]
    calls += [lambda s: s.delete(HandlerQuery(handler_id_in=["h1"])), lambda s: s.query(HandlerQuery())]
    calls += [
        lambda s: s.get_ticks("r1"),
        lambda s: s.query_events("r1"),
        lambda s: s.delete(HandlerQuery(handler_id_in=["h1"])),
    ]
    yield compared("LlamaIndex workflows", MemoryWorkflowStore(), TenutoWorkflowStore(store()), calls)


def adk(folder: Path) -> Iterator[Compared]:
    from google.adk.events.event import Event
    from google.adk.events.event_actions import EventActions
    from google.adk.sessions.base_session_service import GetSessionConfig
    from google.adk.sessions.in_memory_session_service import InMemorySessionService
    from google.genai import types

    from tenuto.adapters.adk import TenutoSessionService

    def event(at: int, **delta: Any) -> Event:
        state = {key.replace("__", ":"): value for key, value in delta.items()}
        content = types.Content(role="user", parts=[types.Part(text=f"e{at}")])
        actions = EventActions(state_delta=state)
        return Event(id=f"e{at}", author="user", content=content, timestamp=float(at), actions=actions)

    def get(session: str, user: str = "ann", **config: Any) -> Call:
        return lambda s: s.get_session(
            app_name="a", user_id=user, session_id=session, config=GetSessionConfig(**config) if config else None
        )

    def append(session: str, *given: Any, **delta: Any) -> Call:
        async def act(service: Any) -> Any:
            found = await service.get_session(app_name="a", user_id="ann", session_id=session)
            await service.append_event(found, event(*given, **delta))
            return found

        return act

    def create(session: str, user: str = "ann", **state: Any) -> Call:
        given = {key.replace("__", ":"): value for key, value in state.items()}
        return lambda s: s.create_session(app_name="a", user_id=user, session_id=session, state=given)

    def listed(**user: Any) -> Call:
        async def act(service: Any) -> Any:
            found = await service.list_sessions(app_name="a", **user)
            return sorted([one.user_id, one.id, len(one.events), plain(one.state)] for one in found.sessions)

        return act

    calls = [
        get("s"), create("s", x=1, app__y=2, user__z=3), create("s"), create("t"), create("s", "bob"), get("s"), get("t"),
        get("s", "bob"), append("s", 1, x=5, app__y=6, user__z=7), append("s", 2), append("s", 3, w=None),
        get("s"), get("t"), get("s", "bob"), get("s", num_recent_events=1), get("s", num_recent_events=0),
        get("s", after_timestamp=2.0), get("s", num_recent_events=9, after_timestamp=3.0), listed(), listed(user_id="ann"),
        listed(user_id="eve"), lambda s: s.get_user_state(app_name="a", user_id="ann"),
        lambda s: s.get_user_state(app_name="a", user_id="eve"), create(" u "), get("u"),
        lambda s: s.delete_session(app_name="a", user_id="ann", session_id="s"), get("s"), create("s"), get("s"),
        lambda s: s.delete_session(app_name="a", user_id="ann", session_id="none"), append("none", 4),
    ]  # fmt: skip
    yield compared("ADK sessions", InMemorySessionService(), TenutoSessionService(store()), calls)  # type: ignore[no-untyped-call]


def crewai(folder: Path) -> Iterator[Compared]:
    from crewai.flow.persistence.sqlite import SQLiteFlowPersistence
    from crewai.memory.storage.lancedb_storage import LanceDBStorage
    from crewai.memory.types import MemoryRecord

    from tenuto.adapters.crewai import TenutoFlowPersistence, TenutoMemoryStorage

    calls: list[Call] = [
        lambda s: s.load_state("f"), lambda s: s.save_state("f", "a", {"id": "f", "at": 1}), lambda s: s.load_state("f"),
        lambda s: s.save_state("f", "b", {"id": "f", "at": 2, "more": [1, {"x": None}]}), lambda s: s.load_state("f"),
        lambda s: s.save_state("g", "a", {"id": "g"}), lambda s: s.load_state("g"), lambda s: s.load_state("f"),
        lambda s: s.load_pending_feedback("f"), lambda s: s.clear_pending_feedback("f"), lambda s: s.init_db(),
    ]  # fmt: skip
    yield compared(
        "CrewAI flows", SQLiteFlowPersistence(str(folder / "flows.db")), TenutoFlowPersistence(store()), calls
    )

    def record(number: int, scope: str, vector: list[float], **more: Any) -> MemoryRecord:
        return MemoryRecord(id=f"m{number}", content=f"memory {number}", scope=scope, embedding=vector, **more)

    some = [
        record(1, "/a", [1.0, 0.0], categories=["x"]), record(2, "/a/b", [0.8, 0.6], categories=["x", "y"], metadata={"k": 1}),
        record(3, "/ab", [0.0, 1.0]), record(4, "/c/d", [0.6, 0.8], categories=["z"]),
    ]  # fmt: skip

    def found(**given: Any) -> Call:
        # LanceDB's score is made from the distance, ours is the cosine: the order is compared
        return lambda s: [one.id for one, _ in s.search([1.0, 0.0], **given)]

    calls = [
        lambda s: s.count(), lambda s: s.save(some), lambda s: s.count(), found(), found(scope_prefix="/a"), found(limit=2),
        found(categories=["y"]), found(metadata_filter={"k": 1}), found(scope_prefix="/none"), lambda s: s.get_record("m2"),
        lambda s: s.get_record("none"), lambda s: s.list_scopes("/"), lambda s: s.list_scopes("/a"), lambda s: s.list_categories(),
        lambda s: s.list_categories("/a"), lambda s: s.count("/a"), lambda s: s.get_scope_info("/a").record_count,
        lambda s: s.get_scope_info("/none").record_count, lambda s: sorted(one.id for one in s.list_records("/a")),
        lambda s: s.save([record(9, "/", [1.0])]), lambda s: s.search([1.0]), lambda s: s.update(some[2].model_copy(update={"importance": 0.9})),
        lambda s: s.get_record("m3"), lambda s: s.delete(categories=["y"]), lambda s: s.delete(record_ids=["m3", "none"]),
        lambda s: s.count(), lambda s: s.reset("/c"), lambda s: s.count(), lambda s: s.reset(), lambda s: s.count(),
    ]  # fmt: skip
    theirs = LanceDBStorage(path=str(folder / "memory"), vector_dim=2)
    yield compared("CrewAI memories", theirs, TenutoMemoryStorage(store()), calls)


def agent_framework(folder: Path) -> Iterator[Compared]:
    from agent_framework import (
        AgentSession,
        InMemoryCheckpointStorage,
        InMemoryHistoryProvider,
        Message,
        SessionStore,
        WorkflowCheckpoint,
    )

    from tenuto.adapters.agent_framework import TenutoCheckpointStorage, TenutoHistoryProvider, TenutoSessionStore

    def checkpoint(workflow: str, number: int, **state: Any) -> WorkflowCheckpoint:
        at = f"2026-01-0{number}T00:00:00+00:00"
        names = {"workflow_name": workflow, "graph_signature_hash": "g", "checkpoint_id": f"{workflow}-{number}"}
        return WorkflowCheckpoint(**names, timestamp=at, state={"at": number, "pair": (1, 2), **state})

    def state_of(name: str) -> Call:
        async def act(storage: Any) -> Any:
            found = await storage.load(name)
            return [found.checkpoint_id, repr(found.state), found.timestamp]

        return act

    calls: list[Call] = [lambda s: s.get_latest(workflow_name="a"), lambda s: s.list_checkpoint_ids(workflow_name="a")]
    calls += [lambda s, n=n: s.save(checkpoint("a", n)) for n in (3, 1, 2)]
    calls += [
        lambda s: s.save(checkpoint("b", 1)),
        state_of("a-1"),
        state_of("none"),
        lambda s: s.list_checkpoint_ids(workflow_name="a"),
    ]
    calls += [
        lambda s: s.get_latest(workflow_name="a"),
        lambda s: s.save(checkpoint("a", 1, more=b"x")),
        state_of("a-1"),
    ]
    calls += [lambda s: s.list_checkpoints(workflow_name="a"), lambda s: s.delete("a-3"), lambda s: s.delete("a-3")]
    calls += [lambda s: s.list_checkpoint_ids(workflow_name="a"), lambda s: s.list_checkpoint_ids(workflow_name="none")]
    yield compared("Agent Framework checkpoints", InMemoryCheckpointStorage(), TenutoCheckpointStorage(store()), calls)

    def session(value: int) -> AgentSession:
        made = AgentSession(session_id="s")
        made.state["value"] = {"at": value, "words": ["a", "b"]}
        return made

    calls = [
        lambda s: s.get("s"), lambda s: s.set("s", session(1)), lambda s: s.get("s"), lambda s: s.set("s", session(2)),
        lambda s: s.get("s"), lambda s: s.get("t"), lambda s: s.delete("s"), lambda s: s.get("s"), lambda s: s.delete("s"),
        lambda s: s.get(""), lambda s: s.set("", session(1)), lambda s: s.delete(""),
    ]  # fmt: skip
    yield compared("Agent Framework sessions", SessionStore(), TenutoSessionStore(store()), calls)

    states: dict[int, dict[str, Any]] = {}

    def saved(*texts: str) -> Call:
        messages = [
            Message(role="user" if at % 2 == 0 else "assistant", contents=[text]) for at, text in enumerate(texts)
        ]
        return lambda s: s.save_messages("s", messages, state=states.setdefault(id(s), {}))

    def read(s: Any) -> Any:
        return s.get_messages("s", state=states.setdefault(id(s), {}))

    calls = [read, saved("Lisbon?", "Lovely."), read, saved("When?"), read, saved(), read]
    yield compared("Agent Framework histories", InMemoryHistoryProvider(), TenutoHistoryProvider(store()), calls)


def openai_agents(folder: Path) -> Iterator[Compared]:
    from agents import SQLiteSession

    from tenuto.adapters.openai_agents import TenutoSession

    items: list[Any] = [
        {"role": "user", "content": "Lisbon?"}, {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "TP 201"}, {"role": "assistant", "content": "TP 201 ✈"},
    ]  # fmt: skip
    calls: list[Call] = [
        lambda s: s.get_items(), lambda s: s.pop_item(), lambda s: s.add_items(items), lambda s: s.get_items(),
        *(lambda s, n=n: s.get_items(n) for n in (0, 1, 2, 4, 9)), lambda s: s.add_items([]), lambda s: s.get_items(limit=3),
        lambda s: s.pop_item(), lambda s: s.get_items(), lambda s: s.add_items(items[:1]), lambda s: s.get_items(2),
        lambda s: s.clear_session(), lambda s: s.get_items(), lambda s: s.pop_item(), lambda s: s.add_items(items[1:3]),
        lambda s: s.get_items(), lambda s: s.session_id,
    ]  # fmt: skip
    yield compared("OpenAI Agents sessions", SQLiteSession("s"), TenutoSession("s", store()), calls)


def pydantic_ai(folder: Path) -> Iterator[Compared]:
    import reference_agents

    bare, durable, replayed = (reference_agents.Turns(kind) for kind in ("bare", "durable", "replayed"))
    calls: list[Call] = [lambda turns, name=name: turns.run(name) for name in reference_agents.NAMES]
    yield compared("Pydantic AI agents, durable", bare, durable, calls)
    yield compared("Pydantic AI agents, replayed from the store", bare, replayed, calls)


FRAMEWORKS: dict[str, tuple[Callable[[Path], Iterator[Compared]], str]] = {
    "pydantic-ai": (pydantic_ai, "pydantic_ai"),
    "openai-agents": (openai_agents, "agents"),
    "agent-framework": (agent_framework, "agent_framework"),
    "strands": (strands, "strands"),
    "llama-index": (llama_index, "llama_index.core"),
    "llama-workflows": (llama_workflows, "llama_agents.server"),
    "adk": (adk, "google.adk"),
    "crewai": (crewai, "crewai"),
}


def installed(framework: str) -> bool:
    try:
        return importlib.util.find_spec(FRAMEWORKS[framework][1]) is not None
    except ModuleNotFoundError:
        return False


def main() -> None:
    for name in sys.argv[1:] or FRAMEWORKS:
        if installed(name):
            with tempfile.TemporaryDirectory() as folder:
                for one in FRAMEWORKS[name][0](Path(folder)):
                    print(json.dumps(one._asdict()), flush=True)


if __name__ == "__main__":
    main()
