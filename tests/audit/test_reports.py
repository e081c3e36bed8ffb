"""The forms of a report: SARIF, GitHub workflow_commands, HTML in a real browser, baselines; and the content audit."""

import importlib.resources
import json
import os
import random
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner
from support import chromium
from support.long import LONG

from tenuto import InvalidInput, NotFound, Retry, Tenuto
from tenuto.audit import Finding, Item, Report, audit_target
from tenuto.audit.content import CODES, content_findings
from tenuto.audit.report import applied, page, sarif, shown, workflow_commands, written
from tenuto.audit.rules import RULES
from tenuto.capabilities.memory import new
from tenuto.cli import group
from tenuto.testing import HeldClock

HERE = Path(__file__).parent
LEVELS = {str(one): {"p50": 0.2, "p95": 0.5 * one, "p99": 0.9 * one, "lookups": 100} for one in (1, 10, 100)}


def report(*extra: Finding) -> Report:
    findings = [
        Finding("T001", "passed", "6 of 6 messages."),
        Finding("T011", "passed", "p95 is fine.", {"levels": LEVELS}),
        Finding("T020", "failed", "75 of 100 updates <lost> & gone: 100%\nreally", {"lost": 75, "returned": 100}),
        Finding("T031", "not offered", "It records no steps."),
        Finding("T035", "failed", "It grows.", {"sizes": [(0, 0), (20, 90_000), (40, 300_000), (80, 900_000)]}),
        Finding(
            "T101", "failed", "2 memories.", {}, (Item("m1", "memory", "junk"), Item("m2", "memory", "junk, too")), 2
        ),
        *extra,
    ]
    return Report("module:factory", "state manager", datetime(2026, 5, 1, tzinfo=UTC), 12.0, "0.1.0", tuple(findings))


def test_sarif_is_valid() -> None:
    """By a schema of what SARIF 2.1.0 requires of these parts: OASIS' own has no licence to ship it."""
    found = json.loads(json.dumps(sarif(report())))
    jsonschema.validate(found, json.loads((HERE / "sarif-parts.schema.json").read_text()))
    results = found["runs"][0]["results"]
    assert [one["ruleId"] for one in results] == ["T020", "T035", "T101", "T101"]
    rules = found["runs"][0]["tool"]["driver"]["rules"]
    assert [rules[one["ruleIndex"]]["id"] for one in results] == [one["ruleId"] for one in results]
    assert len({one["partialFingerprints"]["tenuto/v1"] for one in results}) == 4
    assert len({one["id"] for one in rules}) == len(rules) == len(RULES)


def test_annotations_escape_what_github_parses() -> None:
    lines = list(workflow_commands(report()))
    assert lines[0].startswith(
        "::error title=T020 No update is lost between replicas::75 of 100 updates <lost> & gone: 100%25%0Areally "
    )
    assert lines[1].startswith("::warning title=T035")
    assert all("\n" not in one for one in lines)


def test_a_baseline_accepts_what_is_known_and_nothing_new(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    assert written(report(), path) == 4
    known = applied(report(), path)
    assert known.failed == []
    assert not known.is_above("low")
    assert known.counts == {"passed": 2, "failed": 0, "known": 3, "not offered": 1, "not tested": 0}
    assert {one.status for one in shown(known).findings} == {"passed", "known", "not offered"}
    assert all("suppressions" in one for one in sarif(known)["runs"][0]["results"])
    more = Finding("T102", "failed", "1 memory.", {}, (Item("m9", "memory", "twice"),), 1)
    assert [one.code for one in applied(report(more), path).failed] == ["T102"]
    with pytest.raises(NotFound, match="no baseline"):
        applied(report(), tmp_path / "none.json")
    path.write_text("[]")
    with pytest.raises(InvalidInput, match="is no baseline"):
        applied(report(), path)


def test_the_page_is_one_file_without_network_or_script() -> None:
    text = page(report())
    assert "&lt;lost&gt; &amp; gone" in text
    assert "<lost>" not in text
    assert re.findall(r"<script|<link (?!rel=\"icon\" href=\"data:,\")|src=|@import|https?://", text) == []
    assert text.count("<svg") == 3
    assert text.count('role="img"') == 3


@pytest.mark.slow
@pytest.mark.skipif(
    chromium.PROGRAM.found() is None,
    reason="NO CHROMIUM: the report of the audit is NOT TESTED in a browser. Run: python tests/support/chromium.py",
)
def test_the_page_in_a_real_browser(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page(report()))
    axe = importlib.resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    with chromium.browser() as browser:
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": 1000, "height": 1400}, color_scheme=scheme)
            view, problems = context.new_page(), []
            view.on("console", lambda said, problems=problems: problems.append(f"{said.type}: {said.text}"))
            view.on("pageerror", lambda error, problems=problems: problems.append(str(error)))
            asked = []
            view.on("request", lambda request, asked=asked: asked.append(request.url))
            view.goto((tmp_path / "report.html").as_uri())
            assert view.locator("h1").inner_text() == "Audit of module:factory"
            assert view.locator("svg").count() == 3
            assert view.locator("svg").first.bounding_box()["width"] > 200
            assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert problems == []
            assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
            view.evaluate(axe)
            found = view.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            assert [(one["id"], [node["target"] for node in one["nodes"]]) for one in found] == []
            context.close()


if os.environ.get("TENUTO_SCREENS"):  # make screens draws the picture for the docs

    def test_picture_for_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        root = HERE.parents[1]
        monkeypatch.syspath_prepend(str(root / "examples"))
        monkeypatch.setenv("NAIVE_FOLDER", str(tmp_path / "naive"))
        (tmp_path / "report.html").write_text(page(audit_target("naive_managers:json_files")))
        with chromium.browser() as browser:
            view = browser.new_page(viewport={"width": 1000, "height": 1150})
            view.goto((tmp_path / "report.html").as_uri())
            view.screenshot(path=str(root / "docs/images/audit.png"))


PLANTED = {
    "T101": [
        "n/a",
        "Traceback (most recent call last): File x",
        "You are a helpful assistant for travel",
        '{"a": [1, 2]}',
        "aaaaaaaaaaaaaaa",
    ],
    "T102": ["Ann likes window seats on long flights", "ann likes window seats on long flights!"],
    "T103": [
        "The flight to Lisbon leaves at 9:40",
        "The flight to Lisbon leaves at 7:15",
        "Ann does not eat fish",
        "Ann does eat fish",
    ],
}


def by_code(agent: Tenuto, only: str = "T1") -> dict[str, Finding]:
    return {one.code: one for one in content_findings(agent, lambda code: code.startswith(only), lambda _a, _b: None)}


def test_content_is_examined(client: Any, clock: HeldClock) -> None:
    agent = client()
    clean = by_code(agent)
    assert {one.status for one in clean.values()} == {"passed"}
    assert set(clean) == {code for code in CODES if code.startswith("T1")}
    for number in range(30):
        agent.memory.remember(
            f"Customer {chr(65 + number % 26)}{number} prefers the product line {number * 7 + 1000}", user="eve"
        )
    agent.memory.remember("Learned long ago and never said again", user="ann")
    clock.advance(400 * 86_400)
    ids = {code: [agent.memory.remember(text, user="ann").id for text in texts] for code, texts in PLANTED.items()}
    thread = agent.thread("gone", user="ann")
    thread.append({"role": "user", "content": "I live in Porto"})
    agent.memory.remember("Ann lives in Porto these days", user="ann", source={"thread": "gone", "message": 1})
    thread.delete()
    agent.memory.remember("Review this policy now and then", review_by="2020-01-01", user="ann")
    agent.checkpoint.create("big", {"text": [str(random.random()) for _ in range(80_000)]})
    agent.ask("Refund?", to="ann", deadline="1m")
    clock.advance(120)
    with pytest.raises(ZeroDivisionError), agent.run("broken") as run:
        run.step("divide", lambda: 1 / 0)
    talk = agent.thread("talk", user="ann")
    question = "Which airport should the flight to Portugal leave from?"
    for text in ("New York JFK", "As I said, JFK"):
        talk.append({"role": "assistant", "content": question}, {"role": "user", "content": text})
    found = by_code(agent)
    listed = {code: {item.id for item in one.items} for code, one in found.items()}
    assert listed["T101"] == set(ids["T101"])
    assert listed["T102"] <= set(ids["T102"])
    assert found["T102"].found <= 1, "remember already refuses what is equal; what differs in case is found"
    assert listed["T103"] == {ids["T103"][1], ids["T103"][3]}
    assert found["T104"].found >= 2
    assert found["T105"].items[0].evidence == "its conversation 'gone' no longer exists"
    assert found["T106"].found == 1
    assert found["T112"].found == 1
    assert listed["T114"] == {"talk"}
    assert {code for code, one in found.items() if one.status == "passed"} >= {"T110", "T111", "T113", "T115"}


def test_nothing_is_said_of_memories_that_are_fine(agent: Tenuto) -> None:
    for text in (
        "Ann works in Berlin", "Ben works in Hamburg", "Ann was born in 1980", "Ann moved to Berlin in 2015",
        "The meeting with Carl is on Monday", "The meeting with Dora is on Tuesday", "No one answered the phone on 3 May",
        "Error budgets are 0.1 % per quarter", "Yes, Ann wants the aisle seat", "JSON is the format of the export",
    ):  # fmt: skip
        agent.memory.remember(text, user="ann")
    assert {code for code, one in by_code(agent).items() if one.status == "failed"} == set()


def test_no_user_is_compared_with_another(agent: Tenuto) -> None:
    agent.memory.remember("The favourite colour is Blue", user="ann")
    agent.memory.remember("The favourite colour is Green", user="ben")
    assert by_code(agent)["T103"].status == "passed"


def test_stuck_work_is_found(tmp_path: Path) -> None:
    agent = Tenuto("x", tmp_path / "a.db")

    def crash(_: Any) -> None:
        raise RuntimeError("no")

    agent.tasks.enqueue("mails", {"to": "ann"}, retry=Retry(attempts=1))
    agent.tasks.work("mails", crash, until_empty=True)
    with pytest.raises(KeyboardInterrupt), agent.run("left") as run:
        run.step("pay", lambda: (_ for _ in ()).throw(KeyboardInterrupt()), effect="once")
    found = by_code(agent)
    assert found["T113"].found == 1
    assert "in queue 'mails'" in found["T113"].items[0].evidence
    assert found["T111"].items[0].id == "left"


def test_a_hundred_thousand_records_within_a_minute(tmp_path: Path) -> None:
    """100,000 memories with TENUTO_LONG=1, a tenth otherwise; written by the storage verbs, read by the audit."""
    count = 100_000 if LONG else 5_000
    chance = random.Random(7)
    with Tenuto("x", tmp_path / "a.db", durability="process") as agent:
        cities = ["Lisbon", "Porto", "Berlin", "Paris", "Rome", "Oslo"]
        for start in range(0, count, 100):
            writes: list[Any] = []
            for one in range(100):
                given = new(
                    f"Trip {start + one} of customer {chance.randrange(9_999)} goes to {chance.choice(cities)}",
                    trust=1,
                    user=f"user-{start // 1_000}",
                )
                _, more = agent.memory._writes(given)
                writes += [write for write in more if type(write).__name__ == "Put"]
            unique = {write.key: write for write in writes}
            for at in range(0, len(unique), 900):
                agent.kernel.commit([], list(unique.values())[at : at + 900])
        steps: list[float] = []
        began = time.monotonic()
        found = {
            one.code: one
            for one in content_findings(agent, lambda _: True, lambda at, total: steps.append(at / max(total, 1)))
        }
        took = time.monotonic() - began
    assert found["T101"].evidence.startswith(f"{count:,} memories")
    print(f"{count:,} memories audited in {took:.1f} s")
    assert len(steps) > count / 1_000
    assert steps == sorted(steps)
    if LONG:
        assert took < 60


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github", "html"])
def test_the_command_writes_each_form(form: str, tmp_path: Path) -> None:
    with Tenuto("x", tmp_path / "a.db") as agent:
        agent.memory.remember("n/a", user="ann")
    out = tmp_path / "out"
    chosen = ["--only", "T1", "--url", str(tmp_path / "a.db"), "--format", form, "--output", str(out)]
    done = CliRunner().invoke(group, ["audit", *chosen])
    assert done.exit_code == 1, done.output
    text = out.read_text()
    assert "T101" in text
    if form in ("json", "sarif"):
        json.loads(text)
    base = tmp_path / "base.json"
    assert CliRunner().invoke(group, ["audit", *chosen, "--write-baseline", str(base)]).exit_code == 0
    assert CliRunner().invoke(group, ["audit", *chosen, "--baseline", str(base)]).exit_code == 0
    assert CliRunner().invoke(group, ["audit", *chosen, "--fail-on", "none"]).exit_code == 0


def test_a_load_test_reports_what_it_measured(tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    with Tenuto("x", tmp_path / "a.db"):
        pass
    done = CliRunner().invoke(
        group,
        [
            "load",
            str(tmp_path / "a.db"),
            "--agents",
            "6",
            "--for",
            "2s",
            "--pause",
            "10ms",
            "--plot",
            str(plot),
            "--json",
        ],
    )
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert found["operations"] > 50
    assert {one["operation"] for one in found["measured"]} == {
        "state lookup", "conversation lookup", "append", "state write", "shared update",
    }  # fmt: skip
    assert found["errors"] == 0
    assert len(found["timeline"]) >= 2
    assert plot.read_text().startswith("<svg")
    assert sorted(one.name for one in tmp_path.iterdir() if "audit" in one.name) == []


def test_growth_is_projected_from_samples_over_time(tmp_path: Path, clock: HeldClock) -> None:
    with Tenuto("x", tmp_path / "a.db", clock=clock) as agent:
        for day in range(5):
            agent.alerts.sample()
            for number in range(30):
                agent.state.set(f"s{day}", f"k{number}", "x" * 20_000)
            clock.advance(86_400)
        agent.alerts.sample()
        found = agent.alerts.growth(limit=5 * 1024**3)
        assert len(found.samples) == 6
        assert found.bytes_per_day is not None
        assert 600_000 < found.bytes_per_day < 3_000_000
        assert found.full_at is not None
        assert found.full_at > datetime.fromtimestamp(clock.time(), UTC) + timedelta(days=365)
        assert not agent.alerts.sample(), "once an hour"
        assert agent.alerts.figures.now(["storage.growth"])["storage.growth"] == pytest.approx(found.bytes_per_day)
