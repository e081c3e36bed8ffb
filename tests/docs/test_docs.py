"""Documentation is executed: every Python block of the README and the docs runs, in order, page by page."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TWICE = re.compile(r"<!-- run twice -->\n```python\n(.*?)^```.*?^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"<!-- file: \S+ -->\n```python\n.*?^```", re.MULTILINE | re.DOTALL)
"""What is written to a file and run from there: `test_consoles.py`."""
SAVED = re.compile(r", \d+\.\d s saved")
"""What a slow machine adds to the resume line."""
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def run(script: Path, expected: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name], cwd=script.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == expected, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(FILE.sub("", p.read_text()))], ids=lambda p: p.name)
def test_every_snippet_runs(page: Path, tmp_path: Path) -> None:
    text = FILE.sub("", TWICE.sub("", page.read_text()))
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCK.findall(text)))
    run(script)


@pytest.mark.parametrize("page", [p for p in PAGES if TWICE.search(p.read_text())], ids=lambda p: p.name)
def test_the_first_screen_crashes_and_resumes_as_it_says(page: Path, tmp_path: Path) -> None:
    found = TWICE.search(page.read_text())
    assert found
    script = tmp_path / "trip.py"
    script.write_text(found[1])
    run(script, expected=137)
    assert SAVED.sub("", run(script)) == found[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"], ids=lambda p: p.name)
def test_tables_and_headings_are_rendered_as_such(page: Path) -> None:
    """A table needs a separator of as many cells below its head; a heading needs a blank line above it."""
    prose = re.sub(
        r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), page.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    wrong, above, head = [], "", ""
    lines = re.sub(r"`[^`\n]*`|\\\|", "", prose).splitlines()
    for number, (line, below) in enumerate(zip(lines, [*lines[1:], ""], strict=True), start=1):
        if re.match("#+ ", line) and above.strip():
            wrong.append(f"{page.name}:{number}: no blank line above {line!r}")
        if line.startswith("|"):
            begins = not above.startswith("|")
            head = line if begins else head
            if begins and not re.match(r"[|][-:| ]+[|]$", below):
                wrong.append(f"{page.name}:{number}: no separator below {line[:50]!r}")
            if line.count("|") != head.count("|"):
                wrong.append(f"{page.name}:{number}: {line.count('|') - 1} cells, the head has {head.count('|') - 1}")
        above = line
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("page", ["guarantees.md", "backends.md"])
def test_every_test_that_shows_a_promise_exists(page: str) -> None:
    named = re.findall(r"`(tests/[\w./]+)`", (ROOT / "docs" / page).read_text())
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_capability_has_its_guide() -> None:
    for name in (
        "state",
        "leases",
        "threads",
        "checkpoints",
        "runs",
        "workflows",
        "tasks",
        "sessions",
        "langgraph",
        "frameworks",
    ):
        assert (ROOT / "docs" / "guides" / f"{name}.md").exists()


@pytest.mark.slow
def test_the_demo_counts_on_after_every_kill() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "count.py", "--demo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing lost, nothing counted twice." in done.stdout


@pytest.mark.slow
def test_the_hybrid_example_charges_each_city_once_whoever_is_killed() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "hybrid.py", "--demo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every city was charged once, and none is missing." in done.stdout


ADVICE = re.compile(r"\b(delete|drop|reset|remove|wipe|truncate)\b|--force", re.IGNORECASE)


def test_no_error_advises_anything_destructive() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise | ast.Return):
                raised = isinstance(node, ast.Raise) or "error" in path.name
                for part in ast.walk(node) if raised else ():
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        assert not ADVICE.search(part.value), f"{path.name}: {part.value}"


def test_the_tool_calls_of_a_killed_agent_are_not_made_again(tmp_path: Path) -> None:
    example = [sys.executable, str(ROOT / "examples" / "tool_calls.py"), "--url", str(tmp_path / "store.db")]
    first = subprocess.run([*example, "--die-after", "47"], capture_output=True, text=True, check=False)
    assert first.returncode == 137, first.stderr
    second = subprocess.run(example, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    lines = second.stdout.splitlines()
    assert lines[0] == "restored call 40"
    assert lines[1:8] == [f"call {number} taken from the log" for number in range(41, 48)]
    assert lines[8] == "tool called for page 48"
    called = re.findall(r"tool called for page (\d+)", first.stdout + second.stdout)
    assert called == [str(page) for page in range(1, 61)], "each page was paid for once"
    assert lines[-1] == f"done: 60 calls, {sum(page * page for page in range(1, 61))} apples"


def test_a_killed_graph_goes_on_in_the_node_it_died_in(tmp_path: Path) -> None:
    example = [sys.executable, str(ROOT / "examples" / "langgraph_agent.py"), "--url", str(tmp_path / "store.db")]
    first = subprocess.run([*example, "--die-in", "research"], capture_output=True, text=True, check=False)
    assert first.returncode == 137, first.stderr
    second = subprocess.run(example, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines()[:2] == ["resuming at research", "node research"]
    nodes = re.findall(r"node (\w+)", first.stdout + second.stdout)
    assert nodes == ["plan", "research", "research", "review", "write"]
    searched = re.findall(r"searched (.+)", first.stdout + second.stdout)
    assert searched == ["laptops prices", "laptops reviews"], "each search was paid for once"
    assert second.stdout.splitlines()[-1] == "report of 4 notes"
