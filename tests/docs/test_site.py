"""The documentation is built, and every link in it leads somewhere."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_site_is_built_strictly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "reference" / "index.html").read_text()
    text = html.unescape(re.sub(r"<[^>]*>", "", page))
    assert len(text) > 50_000
    assert re.findall(r"\b(?:Work|Stream|Store|Steps)\[\w*", text) == [], "the reference shows what is returned"
    assert re.findall(r"-> _\w+|: _\w+[\[ |]|tenuto\.kernel\.work\.\w*|\b_core\b", text) == []


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md") if "internals" not in path.parts]
    assert [str(page) for page in pages if f" {page}\n" not in listed] == []


def test_every_public_name_is_in_the_reference() -> None:
    import tenuto
    from tenuto import errors

    page = (ROOT / "docs" / "reference.md").read_text()
    names = set(tenuto.__all__) - set(errors.__all__) - {"__version__"}
    assert [name for name in sorted(names) if f"::: tenuto.{name}\n" not in page] == []
    assert "::: tenuto.errors\n" in page
