"""The table of suites that the adapters pass, as docs/guides/frameworks.md shows it.

    python tests/adapters/suites.py
    python tests/adapters/suites.py --openai-agents ../openai-agents-python --anthropic ../anthropic-sdk-python

The first runs what the installed packages carry. With a checkout of an SDK, its own tests run too, on a copy in which the
hard-coded backend is replaced by ours; nothing of them is kept.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
LINE = re.compile(r"^(PASSED|FAILED|ERROR) \S*?::(\S+)", re.MULTILINE)


class Row(NamedTuple):
    suite: str
    tests: int
    passed: int
    rest: str = ""


def run(where: Path, *given: str, alone: bool = False) -> dict[str, bool]:
    """Run tests; tell of each function whether all its cases passed."""
    own = ["-c", "/dev/null", "-p", "no:codspeed", "-p", "no:benchmark", "-o", "asyncio_mode=auto"] if alone else []
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rA", *own, *given]
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, check=False)
    found: dict[str, bool] = {}
    for outcome, name in LINE.findall(done.stdout):
        function = name.partition("[")[0]
        found[function] = found.get(function, True) and outcome == "PASSED"
    if not found:
        sys.exit(f"{' '.join(command)} ran no test:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    return found


def counted(suite: str, found: dict[str, bool], rest: str = "") -> Row:
    return Row(suite, len(found), sum(found.values()), rest if not all(found.values()) else "")


def claude() -> Row:
    found = run(HERE, "test_claude_sessions.py::test_the_contracts_of_the_wheel")
    name = f"`claude_agent_sdk.testing` {version('claude-agent-sdk')}, contracts of a session store"
    return Row(name, 14, 14 if all(found.values()) else 0)


def langchain() -> Row:
    found = run(HERE, "test_langchain_store.py", "-k", "TestBytes or TestAsyncBytes")
    own = {name: passed for name, passed in found.items() if "DO_NOT_OVERRIDE" not in name}
    return counted(f"`langchain-tests` {version('langchain-tests')}, byte stores, sync and async", own)


def strings() -> Row:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "test_anthropic_memory.py", "-k", "answer"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    passed, failed = (int((re.findall(rf"(\d+) {word}", done.stdout) or ["0"])[0]) for word in ("passed", "failed"))
    name = f"`anthropic` {version('anthropic')}, commands to its own memory tool and to ours, the same words"
    return Row(name, passed + failed, passed)


OURS = """
from pathlib import Path
from tenuto import Tenuto
from tenuto.adapters.openai_agents import TenutoSession

_stores = {}


class SQLiteSession(TenutoSession):
    def __init__(self, session_id, db_path=None, session_settings=None):
        where = "volatile:" if db_path is None else f"{db_path}.tenuto"
        agent = _stores.get(where) or Tenuto("suite", where)
        if db_path is not None:
            _stores[where] = agent
        super().__init__(session_id, agent, session_settings=session_settings)

    def close(self):
        self._agent.close()
"""


def openai_agents(checkout: Path, to: Path) -> Row:
    text = (checkout / "tests/memory/test_session.py").read_text()
    (to / "tests").mkdir()
    (to / "tests/__init__.py").touch()
    (to / "tests/test_responses.py").write_text((checkout / "tests/test_responses.py").read_text())
    (to / "ours.py").write_text(OURS)
    swapped = text.replace(" SQLiteSession,", "").replace(
        "\nimport pytest\n", "\nimport pytest\nfrom ours import SQLiteSession\n", 1
    )
    (to / "tests/test_session.py").write_text(swapped)
    found = run(to, "tests/test_session.py", alone=True)
    inside = {name for name in found if _looks_inside(text, name)}
    others = [name for name, passed in found.items() if not passed and name not in inside]
    rest = f"{len(inside)} look into SQLiteSession's own tables and connections; failing otherwise: {others or 'none'}"
    return counted("`tests/memory/test_session.py` of the OpenAI Agents SDK", found, rest)


def _looks_inside(text: str, name: str) -> bool:
    body = re.split(r"\n(?:async )?def ", text.partition(f"def {name}(")[2])[0]
    private = r"session\w*\._\w+|SQLiteSession\._|sqlite3\.|_drop_sqlite_table|SQLiteSession is closed"
    return re.search(private, body) is not None


MEMORY = """
import os
from pathlib import Path
from tenuto import Tenuto
from tenuto.adapters.anthropic_memory import AsyncTenutoMemoryTool, TenutoMemoryTool

_agents = {}


def _made(cls):
    class Local(cls):
        def __init__(self, base_path):
            _agents[base_path] = Tenuto("suite", "volatile:")
            super().__init__(_agents[base_path])
            self.base_path = Path(base_path)
            self.memory_root = self.base_path / "memories"
            os.makedirs(self.memory_root)

    return Local


BetaLocalFilesystemMemoryTool = _made(TenutoMemoryTool)
BetaAsyncLocalFilesystemMemoryTool = _made(AsyncTenutoMemoryTool)


def get_directory_snapshot(base_path):
    return {f"memories/{name}": text for name, text in _agents[base_path].state.items("memories").items() if text is not None}
"""


def anthropic(checkout: Path, to: Path) -> Row:
    text = (checkout / "tests/lib/tools/memory_tools/test_filesystem.py").read_text()
    (to / "ours.py").write_text(MEMORY)
    swapped = re.sub(
        r"from anthropic\.lib\.tools\._beta_builtin_memory_tool import \([^)]*\)", "from ours import *", text
    )
    swapped = re.sub(r"def get_directory_snapshot\(.*?\n\n\n", "", swapped, flags=re.DOTALL)
    (to / "test_filesystem.py").write_text(swapped)
    found = run(to, "test_filesystem.py", alone=True)
    others = [name for name, passed in found.items() if not passed and not re.search("symlink|umask", name)]
    rest = f"these make links and set modes in a file system, and there is none; failing otherwise: {others or 'none'}"
    return counted("`tests/lib/tools/memory_tools` of the Anthropic SDK", found, rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--openai-agents", type=Path)
    parser.add_argument("--anthropic", type=Path)
    given = parser.parse_args()
    rows = [claude(), langchain(), strings()]
    for suite, checkout in ((openai_agents, given.openai_agents), (anthropic, given.anthropic)):
        if checkout is not None:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(suite(checkout, Path(folder)))
    print("| suite | tests | passed | the others |\n|---|---|---|---|")
    for row in rows:
        print(f"| {row.suite} | {row.tests} | {row.passed} | {row.rest} |")


if __name__ == "__main__":
    main()
