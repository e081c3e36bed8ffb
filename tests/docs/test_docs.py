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
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def run(script: Path, expected: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name], cwd=script.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == expected, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", [p for p in PAGES if BLOCK.search(p.read_text())], ids=lambda p: p.name)
def test_every_snippet_runs(page: Path, tmp_path: Path) -> None:
    text = TWICE.sub("", page.read_text())
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCK.findall(text)))
    run(script)


def test_the_first_screen_crashes_and_resumes_as_it_says(tmp_path: Path) -> None:
    found = TWICE.search((ROOT / "README.md").read_text())
    assert found
    script = tmp_path / "trip.py"
    script.write_text(found[1])
    run(script, expected=137)
    assert run(script) == found[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_capability_has_its_guide() -> None:
    for name in ("state", "threads", "leases"):
        assert (ROOT / "docs" / "guides" / f"{name}.md").exists()


@pytest.mark.slow
def test_the_demo_counts_on_after_every_kill() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "count.py", "--demo"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing lost, nothing counted twice." in done.stdout


ADVICE = re.compile(r"\b(delete|drop|reset|remove|wipe|truncate)\b|--force", re.IGNORECASE)


def test_no_error_advises_anything_destructive() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise | ast.Return):
                raised = isinstance(node, ast.Raise) or "error" in path.name
                for part in ast.walk(node) if raised else ():
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        assert not ADVICE.search(part.value), f"{path.name}: {part.value}"
