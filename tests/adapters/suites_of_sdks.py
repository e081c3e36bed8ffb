"""The SDKs' own tests with our class in the place of their backend: where they are, and what is replaced.

A suite is copied and run twice: as it is, and with ours in that place. Each stand-in notes the test that asks for it, so that
only tests that use the backend are counted. Nothing of a checkout is kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
LINE = re.compile(r"^(PASSED|FAILED|ERROR) \S*?::(\S+)", re.MULTILINE)
GROUPS = {
    "": ("pydantic-ai", "openai-agents", "agent-framework"),
    "agents": ("strands", "llama-index", "llama-workflows", "adk"),
    "crewai": ("crewai",),
}
"""The frameworks by environment: this one, or one of `make frameworks`."""

CONNECTIONS = {
    "test_sqlite_session_failed_add_items_releases_write_lock": (
        "opens our file with a second copy of SQLite in the same process; closing it drops the locks and removes the -wal, "
        "which tenuto notices and refuses to write over"
    ),
    "test_sqlite_session_rollback_failure_evicts_connection": (
        "expects a connection that cannot roll back to be discarded; tenuto encodes everything before it begins a "
        "transaction, so a refused turn has nothing to roll back"
    ),
    "test_sqlite_session_close_retries_quarantined_connection": (
        "tests the private set in which SQLiteSession keeps connections that it could not close"
    ),
}
LINKS = {
    "test_symlink_validation_reject_symlink_pointing_outside_memories": (
        "a store has no links; tenuto says that such a path does not exist, not that it would escape"
    ),
    "test_symlink_validation_reject_creating_files_through_symlink_pointing_outside": (
        "tenuto creates a file of that name in the store, and nothing outside"
    ),
    "test_symlink_validation_reject_parent_directory_that_is_symlink_pointing_outside": ("the same, one folder deeper"),
    "test_validate_path_returns_resolved_path_not_symlink_target": (
        "tests the private function that follows links; tenuto follows none"
    ),
}
LIMIT = dict.fromkeys(
    (
        "test_max_completed_default_is_1000",
        "test_max_completed_none_means_unlimited",
        "test_max_completed_negative_raises_value_error",
        "test_max_completed_evicts_oldest_when_exceeded",
        "test_max_completed_does_not_evict_running_handlers",
        "test_max_completed_applies_to_all_terminal_statuses",
        "test_max_completed_eviction_via_update_handler_status",
    ),
    "tests how many completed handlers the store in memory keeps; tenuto keeps all until they are deleted",
)
USAGE = {
    "test_operations_mark_feature_usage": "tests the statistics of use that the framework keeps of its own classes"
}
"""Why a test of an SDK fails with ours, by its name."""


class Tried(NamedTuple):
    """Outcomes of tests by function, all cases of each together, and the functions that asked for ours; None: all."""

    outcomes: dict[str, bool]
    used: set[str] | None = None


def environment(*more: Path) -> dict[str, str]:
    paths = os.pathsep.join([*map(str, more), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    quiet = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true"}
    return {**os.environ, **quiet, "PYTHONPATH": paths, "PYTHONWARNINGS": "ignore"}


def python_of(group: str) -> str | None:
    """Return the interpreter of an environment, or None if there is none."""
    if not group:
        return sys.executable
    found = ROOT / f".venv-frameworks-{group}/bin/python"
    return str(found) if found.exists() else None


def tried(python: str, where: Path, *given: str, alone: bool = False, more: tuple[Path, ...] = ()) -> Tried:
    """Run tests; return of each function whether all its cases passed."""
    own = ["-c", "/dev/null", "-p", "no:codspeed", "-p", "no:benchmark", "-o", "asyncio_mode=auto"] if alone else []
    command = [python, "-m", "pytest", "-q", "--tb=no", "-rA", *own, *given]
    notes = where / "asked.txt"
    around = {**environment(*more), "TENUTO_SUITE_NOTES": str(notes)}
    done = subprocess.run(command, cwd=where, env=around, capture_output=True, text=True, check=False)
    found: dict[str, bool] = {}
    for outcome, name in LINE.findall(done.stdout):
        function = name.partition("[")[0]
        found[function] = found.get(function, True) and outcome == "PASSED"
    if not found:
        sys.exit(f"{' '.join(command)} ran no test:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    asked = notes.read_text().splitlines() if notes.exists() else None
    return Tried(found, None if asked is None else {one.partition("::")[2].partition("[")[0] for one in asked})


def swapped(text: str, theirs: str, ours: str) -> str:
    """Return a suite with ours in the place of theirs; one in which it cannot be found would be theirs on theirs."""
    found, places = re.subn(theirs, ours, text, flags=re.DOTALL)
    if not places:
        sys.exit(f"The suite has changed: nothing in it is like {theirs!r}. Correct it in suites_of_sdks.py.")
    return found


class Suite(NamedTuple):
    """A file of tests in a checkout."""

    title: str
    repository: str
    """The name of the folder of the checkout."""
    group: str
    file: str
    ours: tuple[tuple[str, str], ...]
    """What is replaced by ours."""
    both: tuple[tuple[str, str], ...] = ()
    """What is replaced in either run: parameters for other backends."""
    only: str = ""
    """An expression for `pytest -k`."""
    more: tuple[str, ...] = ()
    """Folders of the checkout in which the tests import."""
    beside: tuple[str, ...] = ()
    """Files that the tests import from their package."""
    why: Mapping[str, str] = MappingProxyType({})

    def run(self, python: str, checkout: Path, to: Path, *, ours: bool) -> Tried:
        """Run a copy of the file, with their backend or ours."""
        text = (checkout / self.file).read_text()
        for theirs, other in (*self.both, *(self.ours if ours else ())):
            text = swapped(text, theirs, other)
        folder = to / "tests" if self.beside else to
        folder.mkdir(exist_ok=True)
        for one in self.beside:
            (folder / Path(one).name).write_text((checkout / one).read_text())
            (folder / "__init__.py").touch()
        (folder / "test_suite.py").write_text(text)
        given = ["-k", self.only] if self.only else []
        more = (*(checkout / one for one in self.more), to, checkout)
        return tried(python, to, str(folder / "test_suite.py"), *given, alone=True, more=more)


SERVER = "packages/llama-agents-server/tests/server"
MATRIX = "packages/llama-agents-integration-tests"
CREW = "lib/crewai/tests"
MEMORY = ((r"\Z", "\nfrom stand_in_frameworks import crewai_memories\n"),)
LANCE = (
    r"from crewai\.memory\.storage\.lancedb_storage import LanceDBStorage",
    "from stand_in_frameworks import LanceDBStorage",
)
SUITES = (
    Suite(
        "`tests/memory/test_session.py` of the OpenAI Agents SDK (August 2026)", "openai-agents-python", "",
        "tests/memory/test_session.py",
        (
            (r"(?<=\nfrom agents import )([^\n]*) SQLiteSession,", r"\1"),
            (r"\nimport sqlite3\n", "\nfrom stand_in_openai import SQLiteSession, sqlite3\n"),
        ),
        beside=("tests/test_responses.py",), why=CONNECTIONS,
    ),
    Suite(
        "`tests/lib/tools/memory_tools` of the Anthropic SDK (August 2026)", "anthropic-sdk-python", "",
        "tests/lib/tools/memory_tools/test_filesystem.py",
        (
            (r"from anthropic\.lib\.tools\._beta_builtin_memory_tool import \([^)]*\)", "from stand_in_anthropic import *"),
            (r"def get_directory_snapshot\(.*?\n\n\n", ""),
        ),
        why=LINKS,
    ),
    Suite(
        "`test_checkpoint.py` of Microsoft Agent Framework (August 2026), storages in memory", "agent-framework", "",
        "python/packages/core/tests/workflow/test_checkpoint.py",
        (
            (r"    InMemoryCheckpointStorage,\n", ""),
            (r"\nimport pytest\n", "\nimport pytest\nfrom stand_in_frameworks import InMemoryCheckpointStorage\n"),
        ),
    ),
    Suite(
        "`test_sessions.py` of Microsoft Agent Framework (August 2026), session stores", "agent-framework", "",
        "python/packages/core/tests/core/test_sessions.py",
        ((r"\Z", "\nfrom stand_in_frameworks import AgentSessionStore as SessionStore\n"),), why=USAGE,
    ),
    Suite(
        "`test_repository_session_manager.py` of Strands (May 2026)", "sdk-python", "agents",
        "tests/strands/session/test_repository_session_manager.py",
        ((r"from tests\.fixtures\.mock_session_repository import MockedSessionRepository", "from stand_in_frameworks import MockedSessionRepository"),),
    ),
    Suite(
        "`test_session_service.py` of Google ADK (June 2025)", "adk-python", "agents",
        "tests/unittests/sessions/test_session_service.py",
        ((r"  return InMemorySessionService\(\)", "  from stand_in_frameworks import adk_sessions\n  return adk_sessions()"),),
        both=((r"(SessionServiceType.IN_MEMORY), SessionServiceType.DATABASE\]", r"\1]"),),
    ),
    Suite(
        "`test_simple_chat_store.py` of LlamaIndex (August 2026)", "llama_index", "agents",
        "llama-index-core/tests/storage/chat_store/test_simple_chat_store.py",
        ((r"from llama_index\.core\.storage\.chat_store import SimpleChatStore", "from stand_in_frameworks import SimpleChatStore"),)
    ),
    Suite(
        "`test_memory_workflow_store.py` of LlamaIndex's server (April 2026)", "workflows-py", "agents",
        f"{SERVER}/test_memory_workflow_store.py", ((r"\Z", "\nfrom stand_in_frameworks import MemoryWorkflowStore\n"),), why=LIMIT,
    ),
    Suite(
        "`test_workflow_store_events.py` of LlamaIndex's server (April 2026)", "workflows-py", "agents",
        f"{SERVER}/test_workflow_store_events.py", ((r"\Z", "\nfrom stand_in_frameworks import MemoryWorkflowStore\n"),),
        both=((r'params=\["memory", "sqlite", "agent_data"\]', 'params=["memory"]'),),
        more=(f"{MATRIX}/src", SERVER),
    ),
    Suite(
        "`test_server_store_matrix.py` of LlamaIndex's server (April 2026), also restarted", "workflows-py", "agents",
        f"{MATRIX}/tests/test_server_store_matrix.py",
        ((r"\Z", "\nfrom stand_in_frameworks import MemoryWorkflowStore, SqliteWorkflowStore\n"),),
        both=(
            (r'"memory",\s*"sqlite",\s*"agent_data",\s*pytest\.param\("postgres", marks=pytest\.mark\.docker\),', '"memory"'),
            (r'"sqlite",\s*"agent_data",\s*pytest\.param\("postgres", marks=pytest\.mark\.docker\),', '"sqlite"'),
            (r"from llama_agents\.server\._store\.postgres_workflow_store import PostgresWorkflowStore\n", ""),
            (r"from llama_agents_integration_tests\.postgres import get_asyncpg_dsn\n", ""),
            (r"(?=\n# -- Utilities --)", "\nfrom typing import Any as PostgresWorkflowStore\n"),
        ),
        more=(f"{MATRIX}/src",),
    ),
    Suite(
        "`test_flow_persistence.py` of CrewAI (August 2026)", "crewAI", "crewai", f"{CREW}/test_flow_persistence.py",
        ((r"from crewai\.flow\.persistence\.sqlite import SQLiteFlowPersistence", "from stand_in_frameworks import SQLiteFlowPersistence"),),
    ),
    Suite(
        "`test_unified_memory.py` of CrewAI (August 2026)", "crewAI", "crewai", f"{CREW}/memory/test_unified_memory.py",
        (LANCE, *MEMORY),
    ),
    Suite(
        "`test_memory_root_scope.py` of CrewAI (August 2026)", "crewAI", "crewai", f"{CREW}/memory/test_memory_root_scope.py", MEMORY,
    ),
    Suite(
        "`test_dimension_mismatch.py` of CrewAI (August 2026)", "crewAI", "crewai", f"{CREW}/memory/test_dimension_mismatch.py",
        ((r"(?<=import )LanceDBStorage", "LanceDBStorage as Theirs"), *MEMORY, (r"\Z", "from stand_in_frameworks import LanceDBStorage\n")),
    ),
)  # fmt: skip
