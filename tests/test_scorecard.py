"""The scorecard itself: a figure that must be zero fails its test, a row passes only with its planted bug, the docs have every row."""

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support import scorecard
from support.scorecard import BEGIN, END, ROWS, Collected, Figures

TESTS = Path(__file__).parent
PAGE = scorecard.TOP / "docs" / "guarantees.md"


def marks() -> dict[int, set[bool]]:
    """Return for each row whether tests of it, and planted bugs of it, are marked in the source."""
    found: dict[int, set[bool]] = defaultdict(set)
    for file in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "scorecard":
                (row,) = node.args
                assert isinstance(row, ast.Constant)
                found[int(row.value)].add(any(one.arg == "planted" for one in node.keywords))
    return found


def test_every_row_has_tests_and_a_planted_bug() -> None:
    found = marks()
    assert sorted(found) == [row.number for row in ROWS]
    assert [row for row, kinds in found.items() if kinds != {True, False}] == []


PROGRAM = """
import pytest

@pytest.mark.scorecard(1)
def test_counts(figures):
    figures(kills=3, lost={lost})

@pytest.mark.scorecard(1, planted=True)
def test_planted(figures):
    figures(lost=2)
    {planted}

@pytest.mark.scorecard(2)
def test_alone(figures):
    figures(deaths=2, worst_wait=3)

@pytest.mark.scorecard(2)
def test_alone_again(figures):
    figures(deaths=2, worst_wait=1)

@pytest.mark.scorecard(3)
def test_skipped():
    pytest.skip("no server")
"""
CONFTEST = """
import pathlib, sys
sys.path.insert(0, {tests!r})
from support import scorecard
from support.scorecard import Plugin, figures

scorecard.TOP = pathlib.Path.cwd()
scorecard.RESULT = scorecard.TOP / "build" / "scorecard.json"

def pytest_addoption(parser):
    parser.addoption("--scorecard", action="store_true")

def pytest_configure(config):
    config.addinivalue_line("markers", "scorecard(row, planted=False)")
    config.pluginmanager.register(Plugin(config))
"""


def rows_of(folder: Path, *, lost: str = "0", planted: str = "pass") -> dict[int, dict[str, Any]]:
    """Run a few tests of rows in a process of their own; return what the scorecard says of them."""
    (folder / "conftest.py").write_text(CONFTEST.format(tests=str(TESTS)))
    (folder / "test_rows.py").write_text(PROGRAM.format(lost=lost, planted=planted))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    ran = subprocess.run(
        [*command, "--scorecard", "test_rows.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert "written to build" in ran.stdout, ran.stdout + ran.stderr
    return {row["number"]: row for row in json.loads((folder / "build" / "scorecard.json").read_text())["rows"]}


def test_a_row_passes_only_with_tests_and_a_planted_bug_and_nothing_skipped(tmp_path: Path) -> None:
    rows = rows_of(tmp_path)
    told = {number: row["verdict"] for number, row in rows.items()}
    assert told == {1: "passed", 2: "no planted bug ran", 3: "skipped in part"}
    assert rows[1]["figures"] == {"kills": 3, "lost": 0}, "what a planted bug loses is not counted"
    assert rows[2]["figures"] == {"deaths": 4, "worst wait": 3}, "numbers are added, the worst case is kept"


@pytest.mark.parametrize("made", [{"lost": "1"}, {"planted": "assert False"}])
def test_a_row_that_lost_something_or_missed_its_planted_bug_fails(tmp_path: Path, made: dict[str, str]) -> None:
    assert rows_of(tmp_path, **made)[1]["verdict"] == "FAILED"


def test_the_table_of_the_docs_has_every_row_as_the_scorecard_has_it() -> None:
    table = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    told = [line.split(" | ") for line in table.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [(line[0].removeprefix("| "), line[1], line[2]) for line in told] == [
        (str(row.number), row.title, row.passes) for row in ROWS
    ], "write it again: python tests/scorecard.py --docs"
    assert all(re.fullmatch("short|long(, cut|, in part)?", line[3]) for line in told)
    assert not [line for line in told if "**" in line[4]], "a row of the table did not pass"
    assert all(re.fullmatch(r"(\d+) of \1 \|", line[5]) for line in told), "a planted bug was not caught"
    assert all(re.search(r"\d", line[4]) for line in told), "a row has no figures"
    assert re.search(r"Measured: date \d{4}-\d\d-\d\d, tenuto [\d.]+, Python [\d.]+, SQLite [\d.]+, system ", table)


def test_the_table_is_made_of_the_figures_of_a_run(tmp_path: Path) -> None:
    row: dict[str, Any] = {
        **ROWS[0]._asdict(),
        "verdict": "passed",
        "tests": 2,
        "planted bugs caught": 1,
        "form": "long",
    }
    result = {
        "environment": {"date": "2026-01-01"},
        "rows": [{**row, "planted bugs": 1, "figures": {"kills": 3_000}}],
    }
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    scorecard.write_docs(page, result)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "Measured: date 2026-01-01." in text
    assert f"| 1 | {ROWS[0].title} | {ROWS[0].passes} | long | kills 3,000 | 1 of 1 |" in text
    assert "old" not in text


def test_numbers_that_must_be_zero_are_known_by_name(request: pytest.FixtureRequest) -> None:
    asked = Figures(request.node)
    for name in ("lost", "wrong", "doubled", "leaks", "false_alarms", "violations"):
        with pytest.raises(AssertionError):
            asked(**{name: 1})
    request.node.user_properties.clear()
    assert Collected().rows() == []
