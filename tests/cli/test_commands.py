"""The command line: every command of the table, as people and as programs use it."""

import ast
import io
import json
import os
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from tenuto import InDoubt, Tenuto, Waiting
from tenuto.capabilities.audits import AuditFinding, AuditSummary
from tenuto.capabilities.people import Notice
from tenuto.cli import group
from tenuto.cli.progress import Progress
from tenuto.cli.schema import printed
from tenuto.kernel import codec
from tenuto.kernel.contract import Put
from tenuto.operations import OPERATIONS
from tenuto.operations.jsonable import schema

ROOT = Path(__file__).parents[2]


FINDING = AuditFinding("T001", "passed", "high", "History is readable", "3 messages read by another process")


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store in which something of everything is."""
    path = str(tmp_path / "store.db")
    with Tenuto("agent", path) as agent:
        for n in range(3):
            agent.state.set("task", "page", n)
        agent.state.set("task", "raw", b"\x00\xff")
        thread = agent.thread("chat", user="ann")
        thread.append({"role": "user", "content": "hi\nthere"}, {"role": "assistant", "content": [{"type": "text"}]})
        thread.decide("use LGA", why="asked")
        thread.tool_call("search", {"q": 1}, ["hit"])
        agent.checkpoint.create("a", {"progress": 0.1, "gone": 1}, thread="t")
        agent.checkpoint.create("b", {"progress": 0.2, "new": [1]}, thread="t")
        with agent.run("done", user="ann") as run:
            run.step("search", lambda: ["hit"])
            for key in ("a.py", "b.py", "31"):
                run.step("read", len, key, key=key)
            run.emit({"page": 1})
            run.usage("model", cost=0.25)
        agent.progress("job", goal="Ship").plan([("write", "it reads"), "tell"])
        for key in ("case-1", "case-2"):
            agent.handoff.send("resolver", {"number": 1}, summary="a case", key=key)
        agent.memory.remember("Ann likes tea", user="ann", about="tea")
        agent.playbooks.save("refund", ["check", "pay"], description="Refund a late train")
        agent.playbooks.start("refund", "refund-1", situation="The train to Porto was late")
        agent.tasks.enqueue("reviews", {"file": 1}, key="first")
        agent.tasks.enqueue("reviews", None, key="dropped")
        agent.tasks.cancel("dropped")
        agent.tasks.every("hourly", "reviews", interval="1h")
        agent.durable(name="report")(lambda run: None).every("hourly", interval="1h")
        steps: list[dict[str, Any]] = [
            {"step": 1, "action": "scrape", "status": "completed"},
            {"step": 2, "action": "compare"},
            {"step": "report", "action": "report"},
        ]
        agent.workflows.create("analysis", steps, user="ann")
        with pytest.raises(Waiting), agent.run("asks") as run:
            run.ask("Pay?", to="finance", choices=["yes", "no"])
        channel = agent.notify.to("ann", "https://127.0.0.1:1/", secret="env:NOT_SET")
        agent.ask("Pay 7?", to="ann", blocks="invoice:7")
        now = datetime.now(UTC)
        dead = Notice(
            "msg_dead", "ann", channel.id, "asked", agent.inbox.list(to="ann")[0].id, None, now, now, 12, "HTTP 500"
        )
        agent.kernel.commit([], [Put(dead.dead_key, codec.encode(list(dead)))])
        agent.inbox.group("board", ["ann", "cfo"])
        agent.routes.add(about="invoice:*", to="finance", deadline="24h", escalate=["lead"])
        agent.milestone("samples", due="30d", on_miss={"question": "Switch?", "to": "ann"})
        with pytest.raises(Killed), agent.run("doubtful") as run:
            run.step("charge", _dies, effect="once")
        with pytest.raises(InDoubt), agent.run("doubtful") as run:
            run.step("charge", _dies, effect="once")
        with pytest.raises(ValueError), agent.run("fails") as run:
            run.step("broken", int, "x")
        agent.tasks.enqueue("mails", {"to": "ann"}, key="mail-1", delay="1h")
        agent.tasks.enqueue("broken", 1, key="dead-1")
        agent.tasks.claim("broken").fail("no answer", retry=False)
        agent.tasks.every("nightly", "mails", cron="0 2 * * *")
        agent.workflows.create(
            "trip", [{"action": "search", "status": "completed", "result": ["TP1"]}, "book"], user="ann"
        )
        agent.memory.remember("Ann prefers aisle seats", user="ann", kind="preference")
        agent.progress("trip", goal="Book a flight").plan(["search"])
        agent.progress("trip").write(path + ".read.md")
        agent.handoff.send("resolver", {"case": 7}, summary="a case")
        agent.notify.to("finance", "https://127.0.0.1:9/hook", secret="env:HOOK_SECRET")
        agent.alerts.add(when="runs.in_doubt > 0", to="finance", name="doubts")
        agent.audits.record(AuditSummary(now, "store", "store", 1.0, "0.1.0", {"passed": 1}, [FINDING]))
    return path


def _dies() -> None:
    raise Killed


def tenuto(*words: str, url: str | None = None, **options: Any) -> Result:
    given = [*words, "--url", url] if url is not None else list(words)
    return CliRunner().invoke(group, given, **options)


def valid(name: str, value: Any) -> Any:
    """Return a value that has the schema of a command."""
    jsonschema.validate(value, schema(printed()[name]))
    return value


CALLS: dict[str, list[list[str]]] = {
    "state get": [["task", "page"]],
    "state set": [["task", "new", '{"a": [1]}'], ["task", "new", "plain text", "--expect", "1", "--ttl", "1h"]],
    "state list": [["task"], ["empty"]],
    "state history": [["task", "page", "--limit", "2"]],
    "state delete": [["task", "page", "--yes"], ["task", "page", "--yes"]],
    "state watch": [["task", "--after", "0", "--timeout", "10ms"]],
    "thread list": [[], ["--user", "ann"], ["--user", "bob"]],
    "thread show": [["chat"], ["chat", "--last", "1"]],
    "thread append": [["chat", "more", "--role", "assistant", "--key", "k"]],
    "thread timeline": [["chat"]],
    "thread watch": [["chat", "--after", "0", "--timeout", "10ms"]],
    "thread decisions": [["chat"]],
    "thread tools": [["chat"]],
    "thread scan": [["chat", "--user", "ann"]],
    "thread fork": [["chat", "other", "--at", "1"]],
    "thread delete": [["chat", "--yes"]],
    "checkpoint list": [[], ["--thread", "t"], ["--name", "a", "--limit", "1"]],
    "checkpoint show": [["a", "--thread", "t"]],
    "checkpoint diff": [["a", "b", "--thread", "t"]],
    "checkpoint fork": [["ID", "--thread", "u"]],
    "checkpoint restore": [["a", "--thread", "t"]],
    "checkpoint create": [["s", "--label", "l", "--note", "n"], ["nothing"]],
    "checkpoint apply": [["ID"], ["ID", "--scope", "s", "--replace"]],
    "checkpoint prune": [["--thread", "t", "--keep-last", "1", "--yes"]],
    "checkpoint delete": [["a", "--thread", "t", "--yes"]],
    "runs list": [[], ["--status", "in_doubt"], ["--user", "ann", "--limit", "1"]],
    "runs show": [["done"], ["asks"], ["doubtful"], ["fails"]],
    "runs watch": [["done"]],
    "runs fork": [
        ["done", "again", "--at", "search"],
        ["done", "other", "--results", '{"search": []}'],
        ["done", "third", "--at", "read", "--occurrence", "2"],
        ["done", "fourth", "--at", "read", "--occurrence", "b.py"],
        ["done", "fifth", "--at", "read", "--occurrence", "31"],
    ],
    "runs retry": [["fails"]],
    "runs cancel": [["asks", "--yes"], ["asks", "--yes"]],
    "runs signal": [["asks", "go", '{"by": "ann"}'], ["asks", "go"]],
    "runs delete": [["done", "--yes"]],
    "runs recurring": [[]],
    "tasks list": [["reviews"], ["broken", "--status", "dead"], ["reviews", "--status", "running", "--limit", "1"]],
    "tasks counts": [["reviews"]],
    "tasks show": [["first"], ["mail-1"], ["dead-1"]],
    "tasks enqueue": [
        ["reviews", '{"file": 2}', "--key", "k", "--delay", "1m", "--priority", "1", "--user", "ann"],
        ["reviews"],
    ],
    "tasks enqueue-many": [
        ["reviews", '[{"file": 3}, 4]', "--keys", '["m", "n"]', "--delay", "1m", "--priority", "1", "--user", "ann"],
        ["reviews", "[]"],
    ],
    "tasks complete": [["first", "--result", "[1]"], ["first"]],
    "tasks retry": [["dropped"], ["dead-1"]],
    "tasks cancel": [["first", "--yes"]],
    "tasks recurring": [["reviews"]],
    "workflows list": [[], ["--status", "active"], ["--user", "ann", "--limit", "1"]],
    "workflows show": [["analysis"], ["trip"]],
    "workflows history": [["analysis"]],
    "workflows start": [["analysis", "2"], ["analysis", "2", "--again"]],
    "workflows complete": [["analysis", "2", "--result", '{"pages": 3}']],
    "workflows fail": [["analysis", "2", "no network"]],
    "workflows block": [["analysis", "2", "no access"]],
    "workflows unblock": [["analysis", "2"]],
    "workflows skip": [["analysis", "report", "--reason", "not wanted"]],
    "workflows delete": [["analysis", "--yes"], ["analysis", "--yes"]],
    "inbox list": [[], ["--to", "finance"], ["--status", "answered"], ["--blocks", "invoice:7"]],
    "memory add": [
        ["Refunds take five days", "--kind", "policy", "--valid-until", "2030-01-01", "--review-by", "2029-01-01"],
        ["Ann lives in Faro", "--user", "ann", "--about", "ann", "--predicate", "lives in", "--ttl", "1h"],
    ],
    "memory search": [
        ["tea", "--user", "ann"],
        ["hi", "--thread", "chat"],
        ["tea", "--min-trust", "person", "--k", "3"],
    ],
    "memory list": [["--user", "ann"], ["--kind", "policy", "--limit", "3", "--superseded"]],
    "memory show": [["MEMORY"]],
    "memory history": [["MEMORY"]],
    "memory forget": [["--id", "MEMORY", "--yes"], ["--user", "ann", "--reason", "asked", "--yes"]],
    "memory load": [[str(ROOT / "docs" / "keys.md"), "--kind", "policy"]],
    "playbooks list": [[]],
    "playbooks show": [["refund"], ["refund", "--version", "1"]],
    "playbooks save": [["pay", '["check", "pay"]', "--description", "d", "--designed-by", "m", "--cost", "1.5"]],
    "playbooks start": [["refund", "refund-2", "--situation", "late train", "--user", "ann"]],
    "playbooks finish": [["refund-1", "--outcome", "failed", "--lesson", "ask first", "--cost", "2"]],
    "playbooks cases": [["refund"]],
    "playbooks suggest": [["late train", "--user", "ann", "--k", "2"]],
    "inbox ask": [
        [
            "Deploy?",
            "--to",
            "ann",
            "--choices",
            '["yes", "no"]',
            "--deadline",
            "1h",
            "--on-timeout",
            "deny",
            "--key",
            "k",
        ],
        [
            "Why?",
            "--to",
            "ann",
            "--schema",
            '{"type": "string"}',
            "--context",
            '{"a": 1}',
            "--deadline",
            "1h",
            "--escalate",
            '["lead"]',
            "--blocks",
            "x",
            "--about",
            "y",
            "--policy",
            "p",
            "--quorum",
            "2",
        ],
    ],
    "inbox show": [["QUESTION"], ["asks"]],
    "inbox history": [["asks"]],
    "inbox acknowledge": [["asks", "--by", "ann"]],
    "inbox answer": [["asks", "yes", "--by", "ann"], ["QUESTION2", "not happened"]],
    "inbox cancel": [["QUESTION", "--yes"]],
    "notify to": [["bob", "smtp://host/?from=a@b&to=c@d", "--rate", "10/m", "--links", "https://x", "--kind", "email"]],
    "notify channels": [[]],
    "notify remove": [["ann", "--yes"]],
    "notify test": [["ann"]],
    "notify outbox": [[], ["--dead"]],
    "notify deliver": [[]],
    "notify retry": [["msg_dead"]],
    "groups list": [[], ["--limit", "1", "--after", "board"]],
    "groups set": [["legal", '["ann", "bob"]'], ["legal", "[]"]],
    "routes list": [[]],
    "routes add": [["vendor:*", "ann", "--deadline", "1h", "--escalate", '["lead"]', "--policy", "p"], ["x", "bob"]],
    "routes remove": [["invoice:*", "--yes"]],
    "milestones list": [[], ["--status", "missed"]],
    "milestones show": [["samples"]],
    "milestones history": [["samples"]],
    "milestones set": [["launch", "2099-01-01", "--on-miss", "contingency"]],
    "milestones meet": [["samples", "--evidence", "[1]", "--by", "ann"]],
    "milestones cancel": [["samples", "--by", "ann", "--yes"]],
    "progress list": [[]],
    "progress show": [["job"]],
    "progress next": [["job"]],
    "progress add": [["job", "sing", "--test", "it is heard"], ["new", "one"]],
    "progress set": [["job", "--goal", "g", "--next", "n", "--blocker", "b"], ["job", "--blocker", "none"]],
    "progress done": [["job", "1", "--evidence", "[1]"], ["job", "tell", "--evidence", "told"]],
    "progress update": [
        [
            "job",
            "--goal",
            "g",
            "--add",
            '["one"]',
            "--next",
            "n",
            "--blocker",
            "b",
            "--decided",
            "d",
            "--ruled-out",
            "r",
        ],
        ["job", "--done", "1", "--evidence", "seen", "--blocker", "none"],
    ],
    "progress write": [["job", "FOLDER/PROGRESS.md"], ["job", "FOLDER/list.json"]],
    "progress read": [["FOLDER/read.md"], ["FOLDER/read.md", "--name", "other"]],
    "growth": [[]],
    "handoff list": [[], ["--to", "resolver", "--sender", "agent", "--status", "pending"], ["--chain", "none"]],
    "handoff show": [["case-1"]],
    "handoff accept": [["case-1"]],
    "handoff reject": [["case-2", "no"]],
    "resume": [[], ["job", "--limit", "300"], ["--brief"]],
    "costs": [[], ["--by", "day", "--since", "2026-01-01", "--user", "ann"]],
    "alerts add": [["runs.in_doubt > 0", "ann"], ["lookup.p95 > 100ms for 5m", "finance", "--name", "slow"]],
    "alerts list": [[]],
    "alerts figures": [[]],
    "alerts check": [[]],
    "alerts remove": [["doubts"]],
    "alerts growth": [[], ["--limit", "1"]],
    "audit last": [[]],
    "audit list": [[], ["--limit", "1"]],
    "checkpoint history": [["progress", "--thread", "t"]],
    "memory duplicates": [[], ["--user", "ann", "--share", "0.5", "--limit", "3"]],
    "runs counts": [[]],
    "runs follow": [["done", "--after", "0", "--timeout", "10ms"]],
    "runs history": [["done"], ["done", "--after", "2"]],
    "runs overview": [[], ["--status", "failed", "--search", "fail", "--since", "1d", "--limit", "2"]],
    "tasks queues": [[]],
    "thread context": [["chat", "--user", "ann", "--query", "tea", "--budget", "2000"]],
    "thread info": [["chat"]],
    "thread overview": [[], ["--user", "ann", "--limit", "1"]],
    "thread read": [["chat", "--after", "0", "--limit", "1"]],
    "watch": [["--after", "0", "--timeout", "10ms"]],
    "workers": [[]],
    "stats": [[]],
    "check": [[]],
}


FINDINGS = {"notify test"}
"""Commands that find a problem in the store of these tests, and exit with 1."""
EMPTY = {"check", "memory duplicates", "notify outbox", "thread scan", "workers"}
"""Commands that print nothing if there is nothing."""


def test_every_operation_is_called_below() -> None:
    assert set(CALLS) == set(OPERATIONS)


def _filled(words: list[str], store: str) -> list[str]:
    with Tenuto("agent", store) as agent:
        asked = agent.inbox.list(to="finance")
        doubts = agent.inbox.list(run="doubtful")
        ids = {
            "ID": agent.checkpoint.list()[0].id,
            "MEMORY": next((one.id for one in agent.memory.list("ann")), ""),
            "QUESTION": asked[0].id if asked else "",
            "QUESTION2": doubts[0].id if doubts else "",
            "HANDOFF": agent.handoff.list(to="resolver")[0].id,
            "FILE": store + ".md",
            "PROGRESS": store + ".read.md",
        }
    folder = Path(store).parent
    (folder / "read.md").write_text("# Progress: read\n- [ ] one\n")
    return [ids.get(word, word).replace("FOLDER", str(folder)) for word in words]


@pytest.mark.parametrize("name", CALLS)
def test_a_command_prints_json_of_its_schema_and_text_for_people(name: str, store: str) -> None:
    operation = OPERATIONS[name]
    for given in CALLS[name]:
        done = tenuto(*name.split(), *_filled(given, store), "--json", url=store)
        assert done.exit_code == (name in FINDINGS), done.stderr
        lines = done.stdout.splitlines() if operation.streams else [done.stdout]
        for line in lines:
            jsonschema.validate(json.loads(line), schema(operation.item if operation.streams else operation.returns))
    if not operation.writes:
        shown = tenuto(*name.split(), *_filled(CALLS[name][0], store), url=store)
        assert shown.exit_code == (name in FINDINGS)
        assert shown.stdout or name in EMPTY
    else:
        assert tenuto(*name.split(), "--help").exit_code == 0


def test_a_write_is_quiet(store: str) -> None:
    done = tenuto("state", "set", "task", "k", "5", url=store)
    assert (done.exit_code, done.output) == (0, "")
    assert json.loads(tenuto("state", "get", "task", "k", "--json", url=store).stdout)["value"] == 5
    asked = tenuto("inbox", "ask", "Pay?", "--key", "pay-1", url=store)
    assert (asked.exit_code, asked.output) == (0, "pay-1\n"), "but for the id of what it has made"
    again = tenuto("state", "delete", "task", "none", "--yes", url=store)
    assert (again.exit_code, again.stdout, again.stderr) == (0, "", "nothing to do\n")


def test_a_chain_of_handoffs_is_found_among_many(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    with Tenuto("triage", store) as agent:
        for number in range(105):
            with agent.correlation(f"case-{number}"):
                agent.handoff.send("research", number)
    found = json.loads(tenuto("handoff", "list", "--chain", "case-104", "--json", url=store).stdout)
    assert [one["data"] for one in found] == [104]
    assert tenuto("handoff", "list", "--chain", "case-104", "--status", "accepted", url=store).stderr == "none\n"


def test_a_run_is_drawn(store: str) -> None:
    shown = tenuto("runs", "show", "doubtful", url=store).stdout
    assert re.search(r"^doubtful  in_doubt", shown)
    assert re.search(r"\? charge .* answer [0-9a-f]+-1", shown)
    assert "✗ broken" in tenuto("runs", "show", "fails", url=store).stdout
    assert "cost $0.25" in tenuto("runs", "show", "done", url=store).stdout
    assert "waits for question" in tenuto("runs", "show", "asks", url=store).stdout


def test_a_difference_is_shown_in_colour(store: str) -> None:
    shown = tenuto("checkpoint", "diff", "a", "b", "--thread", "t", url=store, color=True).stdout
    assert "\x1b[31m- progress: 0.1" in shown
    assert "\x1b[32m+ progress: 0.2" in shown


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["state", "get", "task", "none"], 3),
        (["runs", "show", "none"], 3),
        (["thread", "show", "none"], 3),
        (["inbox", "answer", "none", "yes"], 3),
        (["state", "set", "task", "page", "1", "--expect", "77"], 4),
        (["runs", "fork", "done", "asks"], 4),
        (["runs", "list", "--status", "odd"], 2),
        (["runs", "fork", "done", "done"], 2),
        (["runs", "delete", "done"], 2),
        (["nothing"], 2),
        (["schema", "nothing"], 3),
    ],
)
def test_exit_codes_are_as_published(words: list[str], code: int, store: str) -> None:
    done = tenuto(*words, url=None if words[0] in ("nothing", "schema") else store)
    assert done.exit_code == code, done.output
    assert done.stdout == ""
    assert done.stderr
    if code in (3, 4) and words[0] != "schema":
        failure = json.loads(tenuto(*words, "--json", url=store).stderr)
        valid("error", failure)
        told = failure["error"]
        assert told["code"] == code
        assert told["message"]
        assert told["retryable"] is False


def test_a_wrong_use_is_told_as_json_where_json_is_wanted(store: str) -> None:
    for words in (["runs", "list", "--status", "odd"], ["runs", "lst"], ["run", "list"], ["runs", "show"]):
        done = tenuto(*words, "--json")
        assert (done.exit_code, done.stdout) == (2, "")
        assert valid("error", json.loads(done.stderr))["error"]["type"] == "UsageError"
    refused = tenuto("runs", "delete", "done", "--json", url=store)
    assert valid("error", json.loads(refused.stderr))["error"]["code"] == refused.exit_code == 2
    assert tenuto("runs", "list", "--help", "--json").exit_code == 0


def test_what_is_mistyped_is_guessed() -> None:
    assert "Did you mean 'runs'?" in tenuto("run", "list").stderr
    assert "Did you mean 'show'?" in tenuto("runs", "shw").stderr


def test_an_error_advises_commands_and_not_calls(store: str) -> None:
    assert "tenuto inbox list" in tenuto("inbox", "show", "none", url=store).stderr
    assert "tenuto runs list" in tenuto("runs", "show", "none", url=store).stderr
    assert "tenuto runs show done" in tenuto("runs", "fork", "done", "x", "--at", "none", url=store).stderr


def test_the_store_may_be_named_first(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_URL", str(tmp_path / "another.db"))
    assert "asks" in [run["id"] for run in json.loads(tenuto("--url", store, "runs", "list", "--json").stdout)]
    assert os.environ["TENUTO_URL"] == str(tmp_path / "another.db")
    assert tenuto("runs", "list").exit_code == 3


def test_a_store_that_is_away_is_told_apart(tmp_path: Path) -> None:
    away = tenuto("runs", "list", "--json", url="redis://127.0.0.1:1/0")
    assert away.exit_code == 6
    assert json.loads(away.stderr)["error"]["retryable"] is True
    missing = tenuto("runs", "list", url=str(tmp_path / "none.db"))
    assert missing.exit_code == 3
    assert "tenuto init" in missing.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_asked_off_a_terminal_and_something_on_one(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = tenuto("runs", "delete", "done", url=store)
    assert "--yes" in refused.stderr
    monkeypatch.setattr("tenuto.cli.shared._asks", lambda: True)
    assert tenuto("runs", "delete", "done", url=store, input="n\n").exit_code == 1
    assert tenuto("runs", "show", "done", url=store).exit_code == 0
    assert tenuto("runs", "delete", "done", url=store, input="y\n").exit_code == 0
    assert tenuto("runs", "show", "done", url=store).exit_code == 3


def test_init_makes_a_store_and_is_safe_to_do_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENUTO_URL", raising=False)
    assert valid("init", json.loads(tenuto("init", "--dry-run", "--json").stdout))["done"] == [
        f"store {tmp_path}/.tenuto/tenuto.db"
    ]
    assert not (tmp_path / ".tenuto").exists()
    assert tenuto("init").exit_code == 0
    assert (tmp_path / ".tenuto" / ".gitignore").read_text() == "*\n"
    assert json.loads(tenuto("init", "--json").stdout)["done"] == []
    assert tenuto("runs", "list").exit_code == 0


def test_a_backup_is_the_store_as_it_was(store: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy.db")
    assert tenuto("backup", copy, url=store).output == ""
    assert tenuto("state", "set", "task", "later", "1", url=store).exit_code == 0
    assert (
        tenuto("runs", "show", "done", "--json", url=copy).stdout
        == tenuto("runs", "show", "done", "--json", url=store).stdout
    )
    assert tenuto("state", "get", "task", "later", url=copy).exit_code == 3
    assert tenuto("check", url=copy).exit_code == 0
    again = tenuto("backup", copy, "--json", url=store)
    assert again.exit_code == 2
    assert "exists" in again.stderr
    other = json.loads(tenuto("backup", str(tmp_path / "other.db"), "--json", url=store).stdout)
    assert valid("backup", other)["bytes"] == (tmp_path / "other.db").stat().st_size
    told = tenuto("backup", str(tmp_path / "no.db"), url="volatile:")
    assert told.exit_code == 2


def test_damage_is_found_by_check(store: str) -> None:
    with Path(store).open("r+b") as file:
        data = bytearray(file.read())
        at = data.index(b"use LGA")
        data[at] ^= 1
        file.seek(0)
        file.write(data)
    found = tenuto("check", "--json", url=store)
    assert found.exit_code == 1
    assert json.loads(found.stdout)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_takes_long_says_so_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenuto.cli.progress._BEFORE", 0.01)
    monkeypatch.setattr("tenuto.cli.progress._BETWEEN", 0.01)
    seen = _Terminal()
    monkeypatch.setattr(sys, "stderr", seen)
    with Progress("copying") as progress:
        progress.at(1, 2)
        deadline = time.monotonic() + 20
        while "50%" not in seen.getvalue() and time.monotonic() < deadline:
            time.sleep(0.005)
    assert "\rcopying … [███████████████···············]  50% 0 s" in seen.getvalue()
    assert seen.getvalue().endswith("\r")  # the line is blank again
    monkeypatch.setattr(sys, "stderr", quiet := io.StringIO())
    with Progress("copying") as progress:
        progress.at(1, 2)
        time.sleep(0.1)
    assert quiet.getvalue() == ""


def test_a_backup_tells_how_far_it_is(store: str, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with Tenuto("agent", store) as agent:
        agent.store.backup(tmp_path / "copy.db", progress=lambda *so_far: told.append(so_far))
    assert told[-1][0] == told[-1][1] > 0


def test_the_schema_of_everything_is_printed() -> None:
    told = json.loads(tenuto("schema").stdout)
    own = {
        "archive",
        "audit",
        "backup",
        "bench",
        "bench recall",
        "copy",
        "doctor",
        "encryption destroy-user-key",
        "encryption new",
        "encryption rotate",
        "explain",
        "export",
        "forget",
        "import export",
        "import claude-progress",
        "import json",
        "import langgraph",
        "import mcp-memory",
        "import notes",
        "import openai-sessions",
        "init",
        "keys create",
        "keys link",
        "keys list",
        "keys revoke",
        "keys rotate",
        "load",
        "migrate",
        "prune",
        "restore",
        "runs recover",
        "verify",
        "setup",
        "spool discard",
        "spool replay",
        "spool show",
        "error",
    }
    assert set(told) == set(OPERATIONS) | own
    for one in told.values():
        jsonschema.Draft202012Validator.check_schema(one)
    assert json.loads(tenuto("schema", "runs", "show").stdout)["title"] == "RunRecord"


def test_recover_goes_on_with_what_was_interrupted(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(
        "import sys\n"
        "from tenuto import Tenuto\n"
        "agent = Tenuto('a', 'app.db')\n"
        "@agent.durable\n"
        "def job(run):\n"
        "    if 'die' in sys.argv: run.step('a', lambda: __import__('os')._exit(137))\n"
        "    return run.step('a', lambda: 7)\n"
        "if __name__ == '__main__': job.run('j')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    assert run("app.py", "die").returncode == 137
    assert valid("runs recover", json.loads(run("-m", "tenuto", "runs", "recover", "app:agent", "--json").stdout)) == [
        {"id": "j", "became": "completed"}
    ]
    assert "no run was interrupted" in run("-m", "tenuto", "runs", "recover", "app:agent").stderr
    wrong = run("-m", "tenuto", "worker", "app:nothing")
    assert wrong.returncode == 2
    assert "MODULE:AGENT" in wrong.stderr


@pytest.mark.parametrize("client", ["Tenuto", "AsyncTenuto"])
def test_a_worker_executes_runs_and_the_tasks_of_a_queue_until_a_signal(tmp_path: Path, client: str) -> None:
    (tmp_path / "app.py").write_text(
        "import os, signal\n"
        f"from tenuto import {client}\n"
        f"agent = {client}('a', 'app.db')\n"
        "def review(task):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    return task.payload + 1\n"
    )
    with Tenuto("a", tmp_path / "app.db") as agent:
        agent.tasks.enqueue("reviews", 41, key="t")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "tenuto", "worker", "app:agent", "--queue"]

    def run(queue: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, queue], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    done = run("reviews=review")
    assert done.returncode == 0, done.stderr
    with Tenuto("a", tmp_path / "app.db") as agent:
        assert agent.tasks.result("t") == 42
    wrong = run("reviews=nothing")
    assert wrong.returncode == 2
    assert "NAME=HANDLER" in wrong.stderr


def test_bench_measures_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = valid("bench", json.loads(tenuto("bench", "--turns", "10", "--json").stdout))
    assert {"tenuto thread.append", "a JSON file, rewritten", "tenuto run.step"} <= {row["who"] for row in rows}
    assert list(tmp_path.iterdir()) == []
    assert tenuto("bench", "--turns", "5").exit_code == 2


def test_no_command_imports_what_it_does_not_need() -> None:
    code = "import sys; from tenuto.cli import group; print([m for m in ('asyncio', 'sqlite3', 'msgspec', 'psycopg', 'redis', 'tenuto.client', 'tenuto.kernel') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


ADVICE = re.compile(r"(?<!Cannot )\b(delete|drop|reset|remove|wipe|truncate)\b|--force", re.IGNORECASE)
SQL = re.compile(r"[';\s]*(?:GRANT|WITH|SELECT|DELETE FROM|DROP|INSERT|UPDATE|CREATE|--|EXISTS|AND|FROM|PRAGMA)\b")
PROGRAMS = {"commit_sql.py", "commit_lua.py", "scripts.py"}
"""Their literals are programs for the server, which nobody is shown."""


def test_no_error_or_hint_advises_anything_destructive() -> None:
    """Every literal of several words that is no docstring may be shown to somebody; none of them advises to destroy."""
    asked = {one.asks for one in OPERATIONS.values()}  # a confirmation names what it would delete; it advises nothing
    found, seen = [], 0
    for path in (ROOT / "src").rglob("*.py"):
        if path.name in PROGRAMS:
            continue
        tree = ast.parse(path.read_text())
        docs = {id(one.value) for one in ast.walk(tree) if isinstance(one, ast.Expr)}
        literals = [one for one in ast.walk(tree) if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        shown = [one.value for one in literals if id(one) not in docs and len(one.value.split()) >= 3]
        said = [text for text in shown if not SQL.match(text) and text not in asked]
        seen += len(said)
        found += [(path.name, text) for text in said if ADVICE.search(text)]
    assert found == []
    assert seen > 500
