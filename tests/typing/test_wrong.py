"""Type checkers reject wrong programs at the very lines that are wrong."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tenuto import Run, Task, Tenuto
from tenuto.capabilities.checkpoints import Checkpoints, Saver
from tenuto.capabilities.leases import Lease
from tenuto.capabilities.people import Inbox
from tenuto.capabilities.runs import Durable, Runs
from tenuto.capabilities.sessions import Handoff, Handoffs, Progress, Session
from tenuto.capabilities.state import ScopeView, State, Transaction
from tenuto.capabilities.store import Store
from tenuto.capabilities.tasks import Tasks
from tenuto.capabilities.threads import Thread, Threads
from tenuto.capabilities.workflows import Workflow, Workflows

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WRONG = HERE / "wrong.py"
MARKED = {number for number, line in enumerate(WRONG.read_text().splitlines(), 1) if line.endswith("# wrong")}


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


def test_the_right_programs_use_every_method() -> None:
    used = "".join(path.read_text() for path in HERE.glob("*.py") if "wrong" not in path.name)
    handles = (
        State,
        ScopeView,
        Transaction,
        Lease,
        Checkpoints,
        Saver,
        Thread,
        Threads,
        Store,
        Run,
        Runs,
        Inbox,
        Durable,
        Progress,
        Session,
        Handoff,
        Handoffs,
    )
    missing = [
        f"{cls.__name__}.{name}"
        for cls in (Tenuto, *handles, Task, Tasks, Workflow, Workflows)
        for name, value in vars(cls).items()
        if not name.startswith("_") and callable(value) and not re.search(rf"\.{name}\b", used)
    ]
    assert missing == []


@pytest.mark.slow
def test_mypy_rejects_each_wrong_line_and_no_other() -> None:
    said = run("mypy", "--no-error-summary", "--cache-dir", ".mypy_cache", str(WRONG))
    found = {int(number) for number in re.findall(r"wrong\.py:(\d+): error", said)}
    assert found == MARKED, said


@pytest.mark.slow
def test_pyright_rejects_each_wrong_line_and_no_other(tmp_path: Path) -> None:
    shutil.copy(WRONG, tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(
        '{"typeCheckingMode": "standard", "reportUnnecessaryComparison": "error"}'
    )
    said = json.loads(run("basedpyright", "--outputjson", "-p", str(tmp_path), "--pythonpath", sys.executable))
    errors = [one for one in said["generalDiagnostics"] if one["severity"] == "error"]
    assert {one["range"]["start"]["line"] + 1 for one in errors} == MARKED, errors
