"""The examples about memory run, and do what they say."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"


def example(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_expensive_model_is_asked_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expensive, cheap = example("playbook").main(str(tmp_path / "office.db"))
    assert (round(expensive.bill, 2), round(cheap.bill, 2)) == (0.50, 0.15)
    said = capsys.readouterr().out
    assert "5 cases, success rate 100%" in said
    assert "bill of the expensive model: $0.50" in said


def test_the_classes_of_articles_work(tmp_path: Path) -> None:
    reply, context = example("agent_memory").main(str(tmp_path / "memory.db"))
    assert "I prefer aisle seats." in reply
    assert "playbook book-flight" in reply
    assert context["state"] == {"step": 3, "city": "Lisbon"}
    assert context["insights"][0].startswith("Ann travels with a dog")
