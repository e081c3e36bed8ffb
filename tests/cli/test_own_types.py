"""The command line shows values of types that only the user's program has."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tenuto import Tenuto, UnknownType, register
from tenuto.cli import group
from tenuto.kernel import codec, unregistered


@dataclass
class Invoice:
    number: int
    tags: Any = None


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that a program with a registered type wrote; here the type is unknown."""
    monkeypatch.setattr(codec, "_by_type", {**codec._by_type})
    monkeypatch.setattr(codec, "_by_name", {**codec._by_name})
    register(Invoice)
    path = str(tmp_path / "store.db")
    with Tenuto("agent", path) as agent:
        agent.state.set("s", "invoice", {"one": Invoice(3)})
        agent.state.set("s", "plain_key", 1)
        with agent.run("r") as run:
            run.step("make", lambda: Invoice(4))
            run.emit(Invoice(5))
        agent.tasks.enqueue("q", {"i": Invoice(6)}, key="k1")
        agent.thread("t").append({"role": "user", "content": "hi", "of": Invoice(7)})
        agent.checkpoint.create("c", {"next_action": "go", "next action": "stop", "__hidden__": Invoice(8, {"a"})})
    for known in (codec._by_type, codec._by_name):
        known.pop(Invoice, None)  # type: ignore[call-overload]
        known.pop("Invoice", None)  # type: ignore[call-overload]
    return path


def tenuto(*words: str, url: str) -> Result:
    return CliRunner().invoke(group, [*words, "--url", url])


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("state list s", 'Invoice {"number": 3, "tags": null}'),
        ("state get s invoice", 'Invoice {"number": 3'),
        ("state history s invoice", 'Invoice {"number": 3'),
        ("tasks show k1", 'Invoice {"number": 6'),
        ("runs watch r", 'Invoice {"number": 5'),
        ("checkpoint show c", 'Invoice {"number": 8, "tags": ["a"]}'),
    ],
)
def test_a_value_of_an_unknown_type_is_shown_with_its_name(store: str, words: str, shown: str) -> None:
    said = tenuto(*words.split(), url=store)
    assert said.exit_code == 0, said.output
    assert shown in said.stdout


@pytest.mark.parametrize("words", ["runs show r", "tasks list q", "thread show t", "checkpoint diff c c"])
def test_an_unknown_type_hides_nothing_else(store: str, words: str) -> None:
    said = tenuto(*words.split(), url=store)
    assert said.exit_code == 0, said.output
    if words == "runs show r":
        assert "make" in said.stdout


def test_json_has_the_fields_whether_the_type_is_known_or_not(store: str) -> None:
    said = tenuto("state", "get", "s", "invoice", "--json", url=store)
    assert json.loads(said.stdout)["value"] == {"one": {"number": 3, "tags": None}}


def test_keys_of_a_users_dict_are_printed_unchanged(store: str) -> None:
    lines = tenuto("checkpoint", "show", "c", url=store).stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["next_action", "next action", "__hidden__"]


def test_an_imported_module_brings_the_real_types(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_types.py").write_text(
        "import tenuto\n@tenuto.register\nclass Invoice:\n    pass\n".replace("@tenuto.register\n", "")
        + "tenuto.register(Invoice, encode=lambda one: {}, decode=lambda data: f\"No. {data['number']}\")\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    said = tenuto("state", "list", "s", "--import", "shop_types", url=store)
    assert "No. 3" in said.stdout
    wrong = tenuto("state", "list", "s", "--import", "no_such_module", url=store)
    assert (wrong.exit_code, "no_such_module cannot be imported" in wrong.stderr) == (2, True)


def test_copying_a_checkpoint_of_an_unknown_type_loses_nothing(store: str) -> None:
    assert tenuto("checkpoint", "restore", "c", url=store).exit_code == 0
    register(Invoice)
    with Tenuto("agent", store) as agent:
        assert len(agent.checkpoint.list(name="c")) == 2
        assert agent.checkpoint.restore("c")["__hidden__"] == Invoice(8, {"a"})


def test_a_program_still_gets_an_error(store: str) -> None:
    with Tenuto("agent", store) as agent:
        with pytest.raises(UnknownType):
            agent.state.get("s", "invoice")
        with unregistered.allowed():
            found = agent.state.get("s", "invoice")["one"]
        assert repr(found) == "Invoice {'number': 3, 'tags': None}"
        assert {found, found} == {unregistered.Unregistered("Invoice", {"number": 3, "tags": None})}
        with pytest.raises(UnknownType):
            agent.state.get("s", "invoice")
