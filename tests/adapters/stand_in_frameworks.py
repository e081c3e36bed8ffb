"""What stands in for the frameworks' own backends when their tests run on ours.

Each is one of our classes on an empty store, or on the file that the test names. It notes the test that asked for it in the
file that $TENUTO_SUITE_NOTES names.
"""

import os
import sys
from pathlib import Path
from typing import Any

from tenuto import Tenuto

_files: dict[str, Tenuto] = {}


def _store(path: Any = None) -> Tenuto:
    """Return an empty store, or that of a path, and note who asks."""
    if notes := os.environ.get("TENUTO_SUITE_NOTES"):
        with Path(notes).open("a") as file:
            file.write(os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0] + "\n")
    if path is None:
        return Tenuto("suite", "volatile:")
    return _files.setdefault(str(path), Tenuto("suite", Path(path).with_suffix(".tenuto")))


def adk_sessions() -> Any:
    """Return what stands in for ADK's `InMemorySessionService`."""
    from tenuto.adapters.adk import TenutoSessionService

    return TenutoSessionService(_store())


def _strands() -> Any:
    from tenuto.adapters.strands import TenutoSessionRepository

    class MockedSessionRepository(TenutoSessionRepository):
        def __init__(self) -> None:
            super().__init__(_store())

    return MockedSessionRepository


def _checkpoints() -> Any:
    from tenuto.adapters.agent_framework import TenutoCheckpointStorage

    names = ("_TestToolApprovalRequest", "_TestExecutorState", "_TestApprovalRequest", "_TestCustomData")

    def made() -> Any:
        module = sys._getframe(1).f_globals["__name__"]
        return TenutoCheckpointStorage(_store(), allowed_types=[f"{module}:{name}" for name in names])

    return made


def _sessions() -> Any:
    from tenuto.adapters.agent_framework import TenutoSessionStore

    return lambda: TenutoSessionStore(_store())


def _chats() -> Any:
    from tenuto.adapters.llama_index import TenutoChatStore

    return lambda: TenutoChatStore(_store())


def _workflows() -> Any:
    from tenuto.adapters.llama_workflows import TenutoWorkflowStore

    return lambda path=None, **_: TenutoWorkflowStore(_store(path))


def _flows() -> Any:
    from tenuto.adapters.crewai import TenutoFlowPersistence

    return lambda path: TenutoFlowPersistence(_store(path))


def _lance() -> Any:
    from tenuto.adapters.crewai import TenutoMemoryStorage

    return lambda path=None, **_: TenutoMemoryStorage(_store(path))


def _memories() -> Any:
    """Return a fixture in which every memory of CrewAI that is made for a path is on ours."""
    import pytest
    from crewai.memory.storage.factory import set_memory_storage_factory

    @pytest.fixture(autouse=True)
    def crewai_memories() -> Any:
        made: dict[Any, Any] = {}

        def of(spec: Any) -> Any:
            _store()  # notes the test, also for a path that was asked for before
            return made.setdefault(str(spec), _lance()(None if str(spec) == "lancedb" else spec))

        set_memory_storage_factory(of)
        yield
        set_memory_storage_factory(None)

    return crewai_memories


_MADE = {
    "MockedSessionRepository": _strands,
    "InMemoryCheckpointStorage": _checkpoints,
    "AgentSessionStore": _sessions,
    "SimpleChatStore": _chats,
    "MemoryWorkflowStore": _workflows,
    "SqliteWorkflowStore": _workflows,
    "SQLiteFlowPersistence": _flows,
    "LanceDBStorage": _lance,
    "crewai_memories": _memories,
}


def __getattr__(name: str) -> Any:
    if name not in _MADE:
        raise AttributeError(name)
    return _MADE[name]()
