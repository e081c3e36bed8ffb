"""The table of suites that the adapters pass, as docs/guides/frameworks.md shows it.

    python tests/adapters/suites.py
    python tests/adapters/suites.py --openai-agents ../openai-agents-python --anthropic ../anthropic-sdk-python

The first runs what the installed packages carry. With a checkout of an SDK, its own tests run too, on a copy in which the
hard-coded backend is replaced by ours, and no assertion by anything: what stands in for what is said in `stand_in_openai.py`
and `stand_in_anthropic.py`. Nothing of them is kept. It fails if a test fails whose reason is not given here by its name.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

HERE = Path(__file__).parent
LINE = re.compile(r"^(PASSED|FAILED|ERROR) \S*?::(\S+)", re.MULTILINE)


CONNECTIONS = {
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
BIDI = dict.fromkeys(
    (
        "test_initialize_bidi_agent_creates_new",
        "test_initialize_bidi_agent_restores_existing",
        "test_append_bidi_message",
        "test_sync_bidi_agent",
        "test_bidi_agent_no_conversation_manager",
        "test_bidi_agent_unique_id_constraint",
        "test_bidi_agent_messages_with_offset_zero",
        "test_initialize_bidi_agent_skips_read_agent_for_new_session",
        "test_initialize_bidi_agent_calls_read_agent_for_existing_session",
    ),
    "calls a method of the session manager that Strands 1.62 does not have any longer",
)
TEMP = dict.fromkeys(
    ("test_session_state", "test_create_new_session_will_merge_states"),
    "expects a session object to lose `temp:` state; since 2025 ADK's own services keep it until the invocation ends",
)
"""Why a test of somebody else's fails with ours, by its name. Whatever else fails has no excuse, and is told."""


class Row(NamedTuple):
    suite: str
    tests: int
    passed: int
    others: tuple[str, ...] = ()
    """Those that do not pass, each with its reason."""
    unexplained: tuple[str, ...] = ()


def run(where: Path, *given: str, alone: bool = False) -> dict[str, bool]:
    """Run tests; tell of each function whether all its cases passed."""
    own = ["-c", "/dev/null", "-p", "no:codspeed", "-p", "no:benchmark", "-o", "asyncio_mode=auto"] if alone else []
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rA", *own, *given]
    beside = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))  # the stand-ins
    environment = {**os.environ, "PYTHONPATH": beside, "OPENAI_AGENTS_DISABLE_TRACING": "1"}
    done = subprocess.run(command, cwd=where, env=environment, capture_output=True, text=True, check=False)
    found: dict[str, bool] = {}
    for outcome, name in LINE.findall(done.stdout):
        function = name.partition("[")[0]
        found[function] = found.get(function, True) and outcome == "PASSED"
    if not found:
        sys.exit(f"{' '.join(command)} ran no test:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    return found


def counted(suite: str, found: dict[str, bool], why: Mapping[str, str] = MappingProxyType({})) -> Row:
    """Count the tests that passed, and say of each other one why; one that is not known to fail is an error."""
    failed = [name.rpartition("::")[2] for name, passed in found.items() if not passed]
    times = Counter(failed)
    others = [f"`{name}`{', twice' * (many > 1)}: {why.get(name, 'FAILED')}." for name, many in times.items()]
    odd = [name for name in times if name not in why] + [name for name in why if name not in times]
    return Row(suite, len(found), sum(found.values()), tuple(others), tuple(odd))


def claude() -> Row:
    """Count the contracts by the stores that the suite asks for: one to look at, then one for each."""
    from claude_agent_sdk.testing import session_store_conformance as suite

    from tenuto import Tenuto
    from tenuto.adapters.claude_agent import TenutoSessionStore

    contracts = len(re.findall(r"^ *# \d+\. ", inspect.getsource(suite), re.MULTILINE))
    agents: list[Tenuto] = []
    failed = 0
    with tempfile.TemporaryDirectory() as folder:

        def made() -> TenutoSessionStore:
            agents.append(Tenuto("suite", Path(folder) / f"{len(agents)}.db"))
            return TenutoSessionStore(agents[-1])

        try:
            asyncio.run(suite.run_session_store_conformance(made))
        except AssertionError:
            failed = 1
        for agent in agents:
            agent.close()
    name = f"`claude_agent_sdk.testing` {version('claude-agent-sdk')}, contracts of a session store"
    passed = len(agents) - 1 - failed
    return Row(name, contracts, passed, unexplained=("contracts of a session store",) * (passed < contracts))


def langchain() -> Row:
    found = run(HERE, "test_langchain_store.py", "-k", "TestBytes or TestAsyncBytes")
    own = {name: passed for name, passed in found.items() if "DO_NOT_OVERRIDE" not in name}
    return counted(f"`langchain-tests` {version('langchain-tests')}, byte stores, sync and async", own)


def strings() -> Row:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "test_anthropic_memory.py", "-k", "answer"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    passed, failed = (int((re.findall(rf"(\d+) {word}", done.stdout) or ["0"])[0]) for word in ("passed", "failed"))
    name = f"`anthropic` {version('anthropic')}, commands to its own memory tool and to ours, the same words"
    return Row(name, passed + failed, passed, unexplained=("commands to the memory tool",) * bool(failed))


def swapped(text: str, theirs: str, ours: str) -> str:
    """Return a suite with ours in the place of theirs; one in which it cannot be found would be theirs on theirs."""
    found, places = re.subn(theirs, ours, text, count=1, flags=re.DOTALL)
    if not places:
        sys.exit(
            f"The suite has changed: nothing in it is like {theirs!r}. Say in suites.py what ours stands in for now."
        )
    return found


def released(checkout: Path) -> str:
    return str(tomllib.loads((checkout / "pyproject.toml").read_text())["project"]["version"])


def openai_agents(checkout: Path, to: Path) -> Row:
    text = (checkout / "tests/memory/test_session.py").read_text()
    (to / "tests").mkdir()
    (to / "tests/__init__.py").touch()
    (to / "tests/test_responses.py").write_text((checkout / "tests/test_responses.py").read_text())
    text = swapped(text, r"(?<=\nfrom agents import )([^\n]*) SQLiteSession,", r"\1")
    text = swapped(text, r"\nimport sqlite3\n", "\nfrom stand_in_openai import SQLiteSession, sqlite3\n")
    (to / "tests/test_session.py").write_text(text)
    found = run(to, "tests/test_session.py", alone=True)
    return counted(f"`tests/memory/test_session.py` of the OpenAI Agents SDK {released(checkout)}", found, CONNECTIONS)


def anthropic(checkout: Path, to: Path) -> Row:
    text = (checkout / "tests/lib/tools/memory_tools/test_filesystem.py").read_text()
    theirs = r"from anthropic\.lib\.tools\._beta_builtin_memory_tool import \([^)]*\)"
    text = swapped(text, theirs, "from stand_in_anthropic import *")
    text = swapped(text, r"def get_directory_snapshot\(.*?\n\n\n", "")
    (to / "test_filesystem.py").write_text(text)
    found = run(to, "test_filesystem.py", alone=True)
    return counted(f"`tests/lib/tools/memory_tools` of the Anthropic SDK {released(checkout)}", found, LINKS)


def strands(checkout: Path, to: Path) -> Row:
    text = (checkout / "tests/strands/session/test_repository_session_manager.py").read_text()
    theirs = r"from tests\.fixtures\.mock_session_repository import MockedSessionRepository"
    text = swapped(text, theirs, "from stand_in_frameworks import MockedSessionRepository")
    (to / "test_sessions.py").write_text(text)
    found = run(to, "test_sessions.py", alone=True)
    return counted("`test_repository_session_manager.py` of Strands", found, BIDI)


def adk(checkout: Path, to: Path) -> Row:
    text = (checkout / "tests/unittests/sessions/test_session_service.py").read_text()
    text = swapped(
        text,
        r"  return InMemorySessionService\(\)",
        "  from stand_in_frameworks import adk_sessions\n  return adk_sessions()",
    )
    text = text.replace("SessionServiceType.IN_MEMORY, SessionServiceType.DATABASE]", "SessionServiceType.IN_MEMORY]")
    (to / "test_sessions.py").write_text(text)
    found = run(to, "test_sessions.py", alone=True)
    return counted("`test_session_service.py` of Google ADK", found, TEMP)


def shown(rows: list[Row]) -> list[str]:
    lines = ["| suite | tests | passed |", "|---|---|---|"]
    lines += [f"| {row.suite} | {row.tests} | {row.passed} |" for row in rows]
    return [*lines, "", *(f"- {other}" for row in rows for other in row.others)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openai-agents", type=Path)
    parser.add_argument("--anthropic", type=Path)
    parser.add_argument("--strands", type=Path, help="with Strands installed, as in .venv-frameworks-agents")
    parser.add_argument("--adk", type=Path, help="with Google ADK installed, as in .venv-frameworks-agents")
    given = parser.parse_args()
    rows = [claude(), langchain(), strings()]
    for suite, checkout in (
        (openai_agents, given.openai_agents),
        (anthropic, given.anthropic),
        (strands, given.strands),
        (adk, given.adk),
    ):
        if checkout is not None:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(suite(checkout, Path(folder)))
    print("\n".join(shown(rows)))
    unexplained = [name for row in rows for name in row.unexplained]
    if unexplained:
        sys.exit(f"These fail and are not explained, or are explained and pass: {', '.join(unexplained)}")


if __name__ == "__main__":
    main()
